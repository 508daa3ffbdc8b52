"""Help, pipes, and what the command loads."""

import inspect
import os
import subprocess
from collections.abc import Iterator
from importlib import import_module

import pytest
from tests.cli.command import RealCli
from tests.forks.process import ForkServer

from treadle.cli.table import COMMANDS, CommandEntry, GroupEntry


def commands(
    entries: dict[str, CommandEntry | GroupEntry] = COMMANDS,
) -> Iterator[tuple[tuple[str, ...], CommandEntry]]:
    """Every command with the words that name it."""
    for name, entry in entries.items():
        if isinstance(entry, GroupEntry):
            for words, command in commands(dict(entry.commands)):
                yield (name, *words), command
        else:
            yield (name,), entry
            for words, command in commands(dict(entry.commands)):
                yield (name, *words), command


ALL = dict(commands())
GROUPS = [(), *[(name,) for name, entry in COMMANDS.items() if isinstance(entry, GroupEntry)]]


BARE = ForkServer("typer.main", "typer.rich_utils", "rich.panel", "rich.table", "rich.markdown", "pydantic")
"""A server that has imported what all help needs, and nothing of Treadle."""
HELP = """
import sys
sys.argv = ["treadle", *sys.argv[1:], "--help"]
from treadle.cli.app import make_app
try: make_app().main(prog_name="treadle")
except SystemExit as end: assert not end.code
print(sorted(sys.modules), file=sys.stderr)
"""


def help_of(*words: str) -> tuple[str, set[str]]:
    """The help of a command, and the modules that are loaded once it is printed."""
    env = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    process = BARE.start("-c", HELP, *words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, "Usage: treadle" in out) == (0, True), err
    return out, set(eval(err))


def check_examples(words: tuple[str, ...], out: str) -> None:
    _, examples = out.split("Examples:")
    lines = [line for line in examples.splitlines() if line.strip()]
    assert len(lines) == 2
    assert all(f"treadle {' '.join(words)}" in line for line in lines)


def test_help_names_every_command(real_cli: RealCli) -> None:
    out = real_cli("--help").out
    assert all(f"│ {name} " in out for name in COMMANDS)
    assert real_cli().code == 2
    assert real_cli("--version").out.startswith("treadle ")
    unknown = real_cli("exprot")
    assert (unknown.code, "Did you mean 'export'" in unknown.err) == (2, True), unknown


def test_the_table_has_the_first_line_of_each_docstring() -> None:
    for words, command in ALL.items():
        module_name, _, name = command.function.partition(":")
        docstring = inspect.getdoc(getattr(import_module(module_name), name))
        assert docstring is not None, words
        assert docstring.partition("\n")[0] == command.summary, words


@pytest.mark.parametrize("words", GROUPS)
def test_the_help_of_a_group_has_two_examples_and_loads_no_command(words: tuple[str, ...]) -> None:
    out, loaded = help_of(*words)
    if words:
        check_examples(words, out)
    modules = {command.function.partition(":")[0] for command in ALL.values()}
    assert not loaded & modules
    assert not [
        name for name in loaded if name.startswith(("treadle.core", "treadle.agent", "msgspec", "asyncio"))
    ]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_help_of_a_command_has_two_examples_and_loads_no_client_store_or_validator(
    words: tuple[str, ...],
) -> None:
    out, loaded = help_of(*words)
    check_examples(words, out)
    # Typer itself loads pydantic once it parses options.
    heavy = {"pyreqwest", "sqlite3", "jsonschema_rs", "tenacity", "mcp", "uvicorn", "starlette"}
    assert not loaded & heavy


@pytest.mark.parametrize(
    "arguments", [["tasks", "files", "--limit", "0"], ["run", "--task", "files:csv_sum-0001", "-m", "oracle"]]
)
def test_reader_that_has_seen_enough(real_cli: RealCli, arguments: list[str]) -> None:
    process = real_cli.start(*arguments)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.wait(60)
    assert "Traceback" not in err
    assert "Broken" not in err
