import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.core.types import Effect, ToolSpec
from treadle.tools.file_tools import FilesToolset, files, read_file
from treadle.tools.function.decorator import tool
from treadle.tools.protocol import Tool
from treadle.tools.resolve import TOOLSETS, place_in, resolve_tools, split_file

FILE = """
import json
from treadle.tools.file_tools import files, read_file
from treadle.tools.file_tools import FilesToolset
from treadle.tools.function.decorator import tool

def helper():
    return 1

@tool(effect="pure")
def second(a: int) -> int:
    return a

@tool
def first() -> None:
    pass

class Mine:
    def tools(self):
        return [third]

@tool
def third() -> None:
    pass

again = first
both = [first, helper]
number = 3
"""


def names(tools: Sequence[Tool]) -> list[str]:
    return [item.spec.name for item in tools]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def lookup(a: int) -> int:
    return a


class Named:
    """A tool that is not a function."""

    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name, "", {})


def test_items_of_all_kinds_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", FILE)
    tools = resolve_tools([tool(lookup, name="x"), FilesToolset(read_only=True), lookup, [f"{path}:first"]])
    assert names(tools) == ["x", "read_file", "list_files", "search_files", "lookup", "first"]
    assert tools[4].spec.effect is Effect.ONCE


def test_one_item_may_stand_alone() -> None:
    assert names(resolve_tools("files")) == names(files.tools())
    assert names(resolve_tools(lookup)) == ["lookup"]
    assert resolve_tools([]) == ()


# `client` and `client-mcp` have the tools of whoever uses a run.
@pytest.mark.parametrize(
    "name", [name for name in TOOLSETS.table if name[-1] != ":" and name not in ("client", "client-mcp")]
)
def test_every_registered_toolset_loads(name: str) -> None:
    assert resolve_tools([name])


def test_a_file_gives_what_it_defines_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", FILE)
    tools = resolve_tools([path])
    assert names(tools) == ["second", "first", "third"]
    assert tools[0].spec.effect is Effect.PURE


def test_toolset_objects_of_a_file_count(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", FILE.replace("@tool\ndef third", "def third") + "\nmine = Mine()\n")
    assert names(resolve_tools([path])) == ["second", "first", "third"]


def test_functions_count_only_in_a_file_without_tools(tmp_path: Path) -> None:
    text = "import json\nfrom json import dumps\nborrowed = json.loads\n"
    text += "def b(): ...\ndef a(): ...\ndef _hidden(): ...\nclass C: ...\n"
    tools = resolve_tools([write(tmp_path / "plain.py", text)])
    assert names(tools) == ["b", "a"]
    assert tools[0].spec.effect is Effect.ONCE


def test_an_import_within_a_function_hides_nothing(tmp_path: Path) -> None:
    text = "from treadle.tools.function.decorator import tool\ndef f():\n    import mine\n@tool\ndef mine(): ...\n"
    assert names(resolve_tools([write(tmp_path / "mine.py", text)])) == ["mine"]


def test_attributes_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", FILE)
    assert names(resolve_tools([f"{path}:both"])) == ["first", "helper"]
    assert names(resolve_tools([f"{path}:helper"])) == ["helper"]
    assert names(resolve_tools([f"{path}:files"])) == names(files.tools())
    assert names(resolve_tools([f"{path}:read_file"])) == ["read_file"]


def test_a_file_is_run_once_and_may_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "neighbour_of_mine.py", "value = []")
    text = (
        "from neighbour_of_mine import value\nvalue.append(1)\ndef count() -> int:\n    return len(value)\n"
    )
    path = write(tmp_path / "mine.py", text)
    before = list(sys.path)
    (one,), (two,) = resolve_tools([path]), resolve_tools([f"{path}:count"])
    assert sys.path == before
    assert (one(), two()) == (1, 1)  # type: ignore[operator]


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(write(tmp_path / name / "mine.py", f"def {name}(): ..."))
    assert names(resolve_tools(paths)) == ["a", "b"]


def test_attributes_of_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert resolve_tools(["treadle.tools.file_tools:read_file"]) == (read_file,)
    write(tmp_path / "module_in_cwd.py", "def here(): ...")
    monkeypatch.chdir(tmp_path)
    assert names(resolve_tools(["module_in_cwd:here"])) == ["here"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{folder}/mine2.py", "no file '.*mine2.py'; did you mean 'mine.py'"),
        ("{folder}/nowhere/mine.py", "there is no folder '.*nowhere'"),
        ("{folder}/mine.py:fist", "no 'fist' in it; did you mean 'first'"),
        ("{folder}/mine.py:number", "3 is not a tool"),
        ("{folder}/mine.py:Mine", "is a class; give an instance"),
        ("{folder}/empty.py", "defines no tools; put @tool before"),
        ("{folder}/broken.py", r"ZeroDivisionError: division by zero \(.*broken.py, line 3\)"),
        ("{folder}/syntax.py", r"SyntaxError: .*\(.*syntax.py, line 2\)"),
        (
            "{folder}/missing.py",
            r"ModuleNotFoundError: No module named 'no_such_thing' \(.*missing.py, line 1\)",
        ),
        ("{folder}/exits.py", r"SystemExit: 3 \(.*exits.py, line 1\)"),
        ("{folder}/deep.py", r"JSONDecodeError: .*deep.py, line 3\)"),
        ("{folder}/wrong.py", r"ConfigError: .*\*many.*wrong.py, line 2\)"),
        ("fils", "unknown toolset 'fils'; did you mean 'files'"),
        ("package.module", "'package.module:attribute'"),
        ("", "unknown toolset ''"),
        ("no_such_module:x", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("treadle.tools.file_tools:red_file", "no 'red_file' in it; did you mean 'read_file'"),
    ],
)
def test_what_cannot_be_loaded_is_told(tmp_path: Path, text: str, why: str) -> None:
    write(tmp_path / "mine.py", FILE)
    write(tmp_path / "empty.py", "x = 1")
    write(tmp_path / "broken.py", "def f():\n\n    return 1 / 0\nf()\n")
    write(tmp_path / "syntax.py", "x = 1\ndef f(:\n")
    write(tmp_path / "missing.py", "import no_such_thing")
    write(tmp_path / "exits.py", "raise SystemExit(3)")
    write(tmp_path / "deep.py", "import json\n\njson.loads('[')\n")
    write(
        tmp_path / "wrong.py", "from treadle.tools.function.decorator import tool\n@tool\ndef f(*many): ..."
    )
    modules = set(sys.modules)
    with pytest.raises(ConfigError, match=why) as told:
        resolve_tools([text.format(folder=tmp_path)])
    assert "treadle_file_" not in str(told.value)
    left = {name for name in set(sys.modules) - modules if name.startswith("treadle_file_")}
    assert all("mine" in name or "empty" in name for name in left)


def test_a_broken_file_can_be_mended(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", "1 / 0")
    with pytest.raises(ConfigError):
        resolve_tools([path])
    write(tmp_path / "mine.py", "def f(): ...  # mended, and longer")
    assert names(resolve_tools([path])) == ["f"]


def test_two_tools_of_one_name_are_both_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", "def read_file(): ...")
    with pytest.raises(ConfigError, match=r"two tools are called 'read_file'.*'files'.*mine\.py"):
        resolve_tools(["files", path])


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "a" * 65, "a\n"])
def test_names_that_providers_refuse(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a tool"):
        resolve_tools([Named(name)])  # type: ignore[list-item]


@pytest.mark.parametrize("item", [3, None, FilesToolset, object()])
def test_what_is_no_tool_is_refused(item: object) -> None:
    with pytest.raises(ConfigError, match=r"is not a tool|is a class"):
        resolve_tools([item])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["mcp:python server.py", "mcp:uv run a.py:b"])
def test_a_command_that_ends_with_a_python_file_is_no_file(name: str, tmp_path: Path) -> None:
    assert split_file(name) is None
    assert place_in(name, tmp_path) == name
    assert place_in("server.py:tools", tmp_path) == f"{tmp_path}/server.py:tools"
