"""Imports go one way, `core` is pure, and `import treadle` loads almost nothing."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from treadle import tools

SOURCE = Path(treadle.__file__).parent
ORDER = (
    ("core",),
    ("http",),
    ("formats",),
    ("renderers",),
    ("journal", "models", "tools", "sandbox"),
    ("context",),
    ("loop",),
    ("agent",),
    ("tasks", "trajectory", "telemetry"),
    ("scoring",),
    ("export",),
    ("teacher",),
    ("engines",),
    ("datagen", "rollout", "evals"),
    ("server",),
    ("cli",),
)
"""The order of the rooms. A room imports rooms in earlier lines; of a room in its own line, only `protocol.py`."""
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
        "typing",
        "unicodedata",
        "urllib",
        "yaml",
    )
)
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE)
REFERENCE = re.compile(r"treadle(?:\.\w+)+:\w+")


def rank_of(room: str) -> int:
    return next(index for index, rooms in enumerate(ORDER) if room in rooms)


def imports_of(path: Path) -> list[str]:
    """Return the modules that a file imports: at its top, within functions, for its types, and by name in a
    table."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            module = node.module or ""
            is_package = (SOURCE.parent / Path(*module.split("."))).is_dir()
            found += [f"{module}.{alias.name}" if is_package else module for alias in node.names]
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and REFERENCE.fullmatch(node.value)
        ):
            found.append(node.value.partition(":")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_what_stands_before_it(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0]
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "treadle" or len(parts) == 1:
            continue
        if parts[1] == "__version__" or parts[1] == own:
            continue
        is_beside = rank_of(parts[1]) == rank_of(own) and "protocol" in parts[2:3]
        assert is_beside or rank_of(parts[1]) < rank_of(own), f"{own} imports {name}, which stands behind it"


def test_no_imports_go_round() -> None:
    """Modules do not import each other in a circle. Late imports and imports for types are left out."""
    names = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in FILES}
    graph = {name: [item for item in top_imports_of(path) if item in names] for name, path in names.items()}
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


def top_imports_of(path: Path) -> list[str]:
    """Return the modules that are imported when a file's own module is."""
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *[f"{node.module}.{alias.name}" for alias in node.names]]
    return found


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
