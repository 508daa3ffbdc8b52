"""Imports go one way, `core` is pure, and `import treadle` loads almost nothing."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import treadle
from treadle import journal, models, telemetry, tools
from treadle.knowledge import memory

SOURCE = Path(treadle.__file__).parent
FLOORS = (
    ("core",),
    ("http", "formats", "renderers"),
    ("journal", "models", "sandbox", "tools"),
    ("context", "knowledge", "routing"),
    ("loop", "runs", "agent"),
    ("trajectory", "scoring", "export", "telemetry"),
    ("tasks", "testbed", "workers", "jobs", "datagen", "rollout", "evals", "regression"),
    ("viewer", "server", "cli"),
)
"""The floors of the house. A room imports rooms of lower floors, those that stand left of it on its own floor, and
the `protocol.py` of any room on its own floor."""
PURE = frozenset(
    (
        "array",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "datetime",
        "difflib",
        "dis",
        "enum",
        "fnmatch",
        "functools",
        "hashlib",
        "importlib",
        "itertools",
        "json",
        "math",
        "msgspec",
        "re",
        "struct",
        "string",
        "struct",
        "sys",
        "tomllib",
        "types",
        "typing",
        "unicodedata",
        "urllib",
        "yaml",
    )
)
pytestmark = pytest.mark.xdist_group("imports")
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE)
REFERENCE = re.compile(r"""(["'])(treadle(?:\.\w+)+):\w+\1""")


PLACES = {room: (floor, place) for floor, rooms in enumerate(FLOORS) for place, room in enumerate(rooms)}


class Imports(NamedTuple):
    """The modules that a file imports, each with the names that it takes from it."""

    everywhere: list[str]
    """At its top, within functions, for its types, and by name in a table."""
    at_top: list[str]
    """When its own module is imported."""
    when_run: set[str]
    """At its top or within functions, but not for types alone."""


@cache
def imports_of(path: Path) -> Imports:
    """Return the imports of a file. Its tree is not kept, because those of all files are large."""
    text = path.read_text()
    module = ast.parse(text)
    top = set(map(id, module.body))
    found = Imports([name for _, name in REFERENCE.findall(text)], [], set())
    waiting: list[tuple[ast.AST, bool]] = [(node, False) for node in module.body]
    while waiting:
        node, is_for_types = waiting.pop()
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found.everywhere.extend(names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            name = node.module or ""
            names = [name, *[f"{name}.{alias.name}" for alias in node.names]]
            is_package = (SOURCE.parent / Path(*name.split("."))).is_dir()
            found.everywhere.extend(names[1:] if is_package else names[:1])
            if not is_for_types:
                found.when_run.update(names)
        if id(node) in top:
            found.at_top.extend(names)
        is_guard = isinstance(node, ast.If) and isinstance(node.test, ast.Name)
        is_for_types = is_for_types or (is_guard and node.test.id == "TYPE_CHECKING")
        blocks = [getattr(node, field, ()) for field in ("body", "orelse", "finalbody", "handlers", "cases")]
        waiting += [(item, is_for_types) for block in blocks if isinstance(block, list) for item in block]
    return found


def test_a_room_imports_what_stands_before_it() -> None:
    wrong = []
    for path in FILES:
        own = path.relative_to(SOURCE).parts[0]
        for name in imports_of(path).everywhere:
            parts = name.split(".")
            if parts[0] != "treadle" or len(parts) == 1 or parts[1] in ("__version__", own):
                continue
            is_protocol = PLACES[parts[1]][0] == PLACES[own][0] and "protocol" in parts[2:3]
            if not (is_protocol or PLACES[parts[1]] < PLACES[own]):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_no_imports_go_round() -> None:
    """Modules do not import each other in a circle. Late imports and imports for types are left out."""
    names = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in FILES}
    graph = {
        name: [item for item in imports_of(path).at_top if item in names] for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name in done:
            return
        for other in graph[name]:
            visit(other, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


LATE_CIRCLES = frozenset(("sandbox", "rollout"))
"""The rooms whose modules still import each other in a circle if late imports count."""
ORDER_OF_MODELS = ("protocol", "scripted", "wire", "dialects", "tokens", "wrappers", "config")
"""The parts of `models/`. A module imports only its own part and those before it."""


def test_late_imports_do_not_go_round_either() -> None:
    """Modules do not import each other in a circle within functions. Imports for types are left out."""
    names = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in FILES}
    graph = {name: imports_of(path).when_run & names.keys() - {name} for name, path in names.items()}
    wrong = {}
    for name in graph:
        if name.split(".")[1] not in LATE_CIRCLES and name in (trail := reached_from(name, graph)):
            wrong[name] = sorted(other for other in trail if name in reached_from(other, graph))
    assert not wrong


def reached_from(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    found: set[str] = set()
    waiting = list(graph[name])
    while waiting:
        if (other := waiting.pop()) not in found:
            found.add(other)
            waiting += graph[other]
    return found


def test_the_parts_of_models_import_what_stands_before_them() -> None:
    wrong = []
    for path in sorted((SOURCE / "models").rglob("*.py")):
        own = path.relative_to(SOURCE / "models").with_suffix("").parts[0]
        if own == "__init__":
            continue
        for name in imports_of(path).when_run:
            part = name.split(".")[2:3] if name.startswith("treadle.models.") else []
            if part and part[0] in ORDER_OF_MODELS[ORDER_OF_MODELS.index(own) + 1 :]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_core_is_pure() -> None:
    for path in sorted((SOURCE / "core").rglob("*.py")):
        for name in imports_of(path).everywhere:
            assert name.split(".")[0] in PURE or name.startswith("treadle.core"), (
                f"{path.name} imports {name}"
            )


def test_the_public_names_are_few_and_all_there() -> None:
    assert len(treadle.__all__) <= 60
    assert set(treadle.__all__) <= set(dir(treadle))
    for name in treadle.__all__:
        assert getattr(treadle, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Agnet'"):
        treadle.Agnet  # noqa: B018


@pytest.mark.parametrize("room", [treadle, journal, memory, models, telemetry, tools])
def test_a_room_that_loads_names_late_has_all_of_them(room: ModuleType) -> None:
    """Names are found in the imports for type checkers, however these are written."""
    for name in room.__all__:
        assert getattr(room, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'TYPE_CHECKED'"):
        room.TYPE_CHECKED  # noqa: B018


HELP = """
import contextlib, io
from treadle.cli.app import make_app
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
    make_app().main(WORDS, prog_name="treadle")
assert "Usage: treadle" in out.getvalue()"""


@pytest.mark.sets(9)
@pytest.mark.parametrize(
    ("command", "absent"),
    [
        ("import treadle", "msgspec pydantic jsonschema_rs pyreqwest typer rich sqlite3 asyncio"),
        (
            "from treadle import Agent, Policy, open_journal",
            "pydantic jsonschema_rs pyreqwest typer rich",
        ),
        ("import treadle.cli", "pydantic jsonschema_rs pyreqwest sqlite3"),
        (HELP.replace("WORDS", "['--help']"), "pydantic msgspec asyncio treadle.core treadle.agent"),
        (HELP.replace("WORDS", "['run', '--help']"), "pydantic sqlite3 asyncio treadle.agent treadle.models"),
        (
            HELP.replace("WORDS", "['approve', '--help']"),
            "pydantic treadle.agent.agent treadle.cli.jobs.driving",
        ),
        ("import treadle.cli.commands.memories", "pydantic treadle.knowledge.personas treadle.models.config"),
        ("import treadle.datagen.dataset.entries", "treadle.datagen.config.generation_config"),
        ("import treadle.knowledge.files.guarded_reading", "pydantic jsonschema_rs pyreqwest sqlite3"),
    ],
)
def test_what_is_not_needed_is_not_loaded(command: str, absent: str) -> None:
    script = f"{command}\nimport sys\nprint(*[name for name in {absent.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
