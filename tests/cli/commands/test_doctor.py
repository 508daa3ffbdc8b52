"""`treadle doctor`."""

import json
import os
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.cli.command import WITHOUT, Cli
from tests.forks.process import FORKS
from tests.sandbox.here import needs_sandbox

Checks: TypeAlias = dict[str, dict[str, object]]


def checks_of(cli: Cli, *arguments: str, **env: str) -> Checks:
    """Return the findings of the command, by name."""
    result = cli("doctor", "--json", *arguments, env=env)
    return {line["name"]: line for line in result.lines} | {"": {"code": result.code}}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cli, Checks]:
    """The findings about this machine without one of its keys, and the command whose folder they were made in."""
    cli = Cli(tmp_path_factory.mktemp("doctor"))
    return cli, checks_of(cli, OPENAI_API_KEY="", OTHER_API_KEY="hidden-1")


def test_what_runs_need_is_here(usual: tuple[Cli, Checks]) -> None:
    cli, checks = usual
    assert checks[""]["code"] == 0
    for name in ("python", "msgspec", "pydantic", "pyreqwest", "jsonschema-rs", "sqlite", "journal"):
        assert checks[name]["is_ok"]
        assert checks[name]["is_needed"]
    for name in ("uvloop", "mcp", "pydantic-monty", "starlette", "uvicorn"):
        assert checks[name]["is_ok"], checks[name]
    assert "a worker starts" in str(checks["pydantic-monty"]["seen"])
    assert list(cli.folder.iterdir()) == []


def test_people_read_the_same_and_of_keys_only_the_names(usual: tuple[Cli, Checks]) -> None:
    cli, checks = usual
    assert not checks["keys"]["is_ok"]
    assert "OPENAI_API_KEY" in str(checks["keys"]["advice"])
    result = cli("doctor", env={"OPENAI_API_KEY": "hidden-2", "OTHER_API_KEY": "hidden-1"})
    assert result.code == 0
    assert "OPENAI_API_KEY, OTHER_API_KEY" in result.out
    assert "hidden" not in f"{checks}{result.out}{result.err}"
    lines = [line for line in result.out.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in lines] == [
        "ok" if line["is_ok"] or name == "keys" else "missing" for name, line in checks.items() if name
    ]


@needs_sandbox
def test_the_sandbox_was_tried(usual: tuple[Cli, Checks]) -> None:
    _, checks = usual
    assert checks["bubblewrap"]["is_ok"]
    assert checks["shell"]["is_ok"], checks["shell"]
    assert "was run" in str(checks["shell"]["seen"])


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n", "No permissions"),
        ("no program", "cannot be started"),
    ],
)
def test_a_bubblewrap_that_fails_is_told(cli: Cli, tmp_path: Path, content: str, seen: str) -> None:
    program = tmp_path / "bin/bwrap"
    program.parent.mkdir()
    program.write_text(content)
    program.chmod(0o755)
    checks = checks_of(cli, PATH=f"{program.parent}:{os.environ['PATH']}")
    assert not checks["shell"]["is_ok"]
    assert seen in f"{checks['bubblewrap']['seen']} {checks['shell']['seen']}"
    assert checks["shell"]["advice"]
    assert checks[""]["code"] == 0


def test_what_is_missing_says_what_helps(cli: Cli) -> None:
    """Only what every run needs is a failure; an extra is none, as the tests above show."""
    words = ("uvloop", "doctor", "--json", "--journal", "/proc/runs.db")
    done = FORKS.run("-c", WITHOUT, *words, cwd=cli.folder, env=cli.env)
    checks = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert not checks["uvloop"]["is_ok"]
    assert not checks["uvloop"].get("is_needed")
    assert checks["uvloop"]["advice"] == "pip install 'treadle[speed]'"
    assert not checks["journal"]["is_ok"]
    assert "--journal" in str(checks["journal"]["advice"])
    assert done.returncode == 1
    assert not Path("/proc/runs.db").exists()
