"""Registries: built-in names come from a table, others from entry points."""

import functools
import importlib
import json
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Grade, Price, RunFilter, ToolOutput
from treadle.core.errors import ConfigError
from treadle.core.registry import Registry, count_changes, find_near
from treadle.runs.task import SimpleTask
from treadle.scoring.protocol import Score

TABLE = {"json": "json:dumps", "text": "textwrap:dedent"}


@pytest.fixture
def registry(tmp_path, monkeypatch):
    package = tmp_path / "shapes_of_a_test-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes-of-a-test\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[treadle.shapes]\n"
        "round = shapes_of_a_test:ROUND\n"
        "absent = shapes_of_a_test:gone\n"
        "json = shapes_of_a_test:ROUND\n"
    )
    (tmp_path / "shapes_of_a_test.py").write_text("ROUND = 'round'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("shape", "treadle.shapes", TABLE)


def test_names_are_those_of_the_table_and_of_packages(registry):
    assert registry.names() == ["json", "text", "absent", "round"]
    assert "text" in registry
    assert "round" in registry
    assert "square" not in registry


def test_a_built_in_name_wins_over_an_entry_point(registry):
    import json

    assert registry.load("json") is json.dumps


def test_an_object_of_another_package_is_loaded(registry):
    assert registry.load("round") == "round"


def test_an_entry_point_in_the_earlier_group_is_still_read(registry):
    renamed = Registry("shape", "treadle.forms", {}, old_group="treadle.shapes")
    assert renamed.load("round") == "round"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jsno", r"unknown shape 'jsno'; did you mean 'json'\? Known names: json, text, absent, round"),
        ("", r"unknown shape ''\. Known names: json, text, absent, round"),
        ("absent", r"the shape 'absent' \(shapes_of_a_test:gone\) cannot be loaded: AttributeError"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_config_error(registry, name, message):
    with pytest.raises(ConfigError, match=message):
        registry.load(name)


def test_a_fault_within_the_house_is_not_hidden():
    with pytest.raises(ModuleNotFoundError):
        Registry("shape", "treadle.shapes", {"own": "treadle.no_such_module:x"}).load("own")


def test_entry_points_are_read_only_when_they_are_needed():
    script = (
        "import sys\nfrom treadle.core.registry import Registry\n"
        "Registry('shape', 'treadle.shapes', {'json': 'json:dumps'}).load('json')\n"
        "print('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_names_are_found_where_only_compiled_files_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "shipped_compiled.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from json import JSONDecoder as JSONDecoder\n"
        "    from json import dumps as dumps\n"
        "def __getattr__(name):\n"
        "    from treadle.core.registry import load_name\n"
        "    return load_name(__name__, name)\n"
    )
    py_compile.compile(str(source), str(source.with_suffix(".pyc")))
    source.unlink()
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("shipped_compiled")
    assert module.dumps is json.dumps
    assert module.__all__ == ["JSONDecoder", "dumps"]
    with pytest.raises(AttributeError, match="no attribute 'load'"):
        getattr(module, "load")  # noqa: B009


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("raed_file", ["read_file"]),
        ("functions.read_file", ["read_file"]),
        ("file-read", ["read_file"]),
        ("find-file", ["read_file", "write_file"]),
        ("python", ["python_run"]),
        ("_", []),
        ("list", []),
    ],
)
def test_the_names_that_somebody_may_have_meant(name: str, near: list[str]) -> None:
    assert find_near(name, ("read_file", "write_file", "python_run")) == near
    assert find_near(name, ()) == []


@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.integers(1, 4))
def test_changes_are_counted_up_to_the_most_that_are_asked_for(one: str, other: str, most: int) -> None:
    """Only the places near the diagonal are looked at, because there may be thousands of long names."""

    @functools.cache
    def count(to: int, other_to: int) -> int:
        if not to or not other_to:
            return to + other_to
        is_same = one[to - 1] == other[other_to - 1]
        found = [
            count(to - 1, other_to) + 1,
            count(to, other_to - 1) + 1,
            count(to - 1, other_to - 1) + (not is_same),
        ]
        if to > 1 < other_to and one[to - 2 : to] == other[other_to - 2 : other_to][::-1]:
            found.append(count(to - 2, other_to - 2) + 1)
        return min(found)

    assert min(count_changes(one, other, most), most + 1) == min(count(len(one), len(other)), most + 1)


@pytest.mark.parametrize(
    ("make", "name", "near"),
    [
        (SimpleTask, "id", "task_id"),
        (Grade, "rewrad", "reward"),
        (Score, "details", "detail"),
        (RunFilter, "run_id", "run_ids"),
        (Price, "input", "input_usd"),
        (ToolOutput, "contents", "content"),
    ],
)
def test_a_field_that_does_not_exist_is_told_with_the_nearest(make: type, name: str, near: str) -> None:
    """These are made by people, in their own files."""
    with pytest.raises(ConfigError, match=f"{make.__name__} has no option '{name}'; did you mean '{near}"):
        make(**{name: 1})
