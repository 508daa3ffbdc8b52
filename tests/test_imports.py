"""Imports go one way, `core` is pure, and importing Treadle loads next to nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from treadle import tools

SOURCE = Path(treadle.__file__).parent
RANKS = [
    ["core"],
    ["protocol", "registry", "documents", "cancellation"],
    ["perform", "answers", "calls", "loop"],
    ["run", "replay", "sync"],
    ["agent", "session"],
    ["journal", "formats", "models", "tools", "sandbox"],
    ["tasks", "trajectory", "export"],
    ["server"],
    ["cli", "__main__"],
]
"""Left of what may import it. Every `protocol.py` counts as `protocol`; a package may import itself."""
PURE = frozenset(
    (
        "collections",
        "dataclasses",
        "difflib",
        "enum",
        "fnmatch",
        "functools",
        "itertools",
        "math",
        "msgspec",
        "typing",
    )
)
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def rank_of(parts: tuple[str, ...]) -> int:
    """Of a module given as path below the package."""
    name = "protocol" if parts[-1] == "protocol" else parts[0]
    return next(index for index, names in enumerate(RANKS) if name in names)


def imports_of(path: Path) -> list[str]:
    """The modules that a file imports at run time, within functions too."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            module = node.module or ""
            is_package = (SOURCE.parent / Path(*module.split("."))).is_dir()
            found += [f"{module}.{alias.name}" if is_package else module for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_what_stands_left_of_it(path: Path) -> None:
    own = path.relative_to(SOURCE).with_suffix("").parts
    for name in imports_of(path):
        parts = tuple(name.split("."))
        if parts[0] != "treadle" or len(parts) == 1:
            continue
        other = parts[1:]
        if not any(other[0] in names for names in RANKS):
            continue  # a public name of the package itself
        if other[0] == own[0] and len(own) > 1:
            continue
        assert rank_of(other) <= rank_of(own), f"{'.'.join(own)} imports {name}, which stands right of it"


@pytest.mark.parametrize("path", sorted((SOURCE / "core").glob("*.py")), ids=lambda path: path.name)
def test_core_is_pure(path: Path) -> None:
    for name in imports_of(path):
        assert name.split(".")[0] in PURE or name.startswith("treadle.core"), f"{path.name} imports {name}"


def test_the_public_names_are_few_and_all_there() -> None:
    assert len(treadle.__all__) <= 60
    assert sorted(treadle.__all__) == sorted(treadle._WHERE)
    for name in treadle.__all__:
        assert getattr(treadle, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Agnet'"):
        treadle.Agnet  # noqa: B018
    assert sorted(tools.__all__) == sorted(tools._WHERE)
    for name in tools.__all__:
        assert getattr(tools, name) is not None


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        ("import treadle", "msgspec pydantic jsonschema_rs pyreqwest typer rich sqlite3 asyncio tenacity"),
        (
            "from treadle import Agent, Policy, open_journal",
            "pydantic jsonschema_rs pyreqwest typer rich tenacity",
        ),
        ("import treadle.cli", "pydantic jsonschema_rs pyreqwest sqlite3 tenacity"),
    ],
)
def test_what_is_not_needed_is_not_loaded(command: str, absent: str) -> None:
    script = f"{command}\nimport sys\nprint(*[name for name in {absent.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
