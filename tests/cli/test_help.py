"""Help, pipes, and what the command loads."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from importlib import import_module

import pytest
from tests.cli.command import Cli, RealCli

from treadle.cli.commands.daemons import serve
from treadle.cli.options.option_groups import split_docstring
from treadle.cli.table import COMMANDS, CommandEntry


def commands() -> Iterator[tuple[tuple[str, ...], CommandEntry]]:
    """Every command with the words that name it."""
    for name, entry in COMMANDS.items():
        if entry.function:
            yield (name,), entry
        for sub, command in entry.commands.items():
            yield (name, sub), command


ALL = dict(commands())
GROUPS = [(), *[(name,) for name, entry in COMMANDS.items() if not entry.function]]


HELP = """
import contextlib, io, json, sys
words, helps = json.loads(sys.argv[1]), []
from treadle.cli.app import make_app
for of in words:
    sys.argv = ["treadle", *of, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try: make_app().main(prog_name="treadle")
        except SystemExit as end: assert not end.code
    helps.append([out.getvalue(), sorted(sys.modules)])
print(json.dumps(helps))
"""


def helps_of(all_words: Collection[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], str, set[str]]]:
    """Yield the words, the help, and the modules that are loaded once it is printed. One process prints all of them
    in turn: a module that must not be loaded is found at the first help that loads it."""
    env = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", HELP, json.dumps([*all_words])]
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    for words, (out, loaded) in zip(all_words, json.loads(done.stdout), strict=True):
        assert "Usage: treadle" in out, words
        yield words, out, set(loaded)


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
    assert (unknown.code, "; did you mean 'export'? See" in unknown.err) == (2, True), unknown


def test_the_table_has_the_first_line_of_each_docstring() -> None:
    for words, command in ALL.items():
        module_name, _, name = command.function.partition(":")
        docstring = inspect.getdoc(getattr(import_module(module_name), name))
        assert docstring is not None, words
        assert docstring.partition("\n")[0] == command.summary, words


def test_the_text_of_a_help_is_broken_at_the_width_of_the_terminal() -> None:
    text, examples = split_docstring(serve)
    assert [line for line in text.split("\n\n") if "\n" in line] == []
    assert (text.count("\n\n"), len(examples)) == (1, 2)


def test_the_help_of_a_group_has_two_examples_and_loads_no_command() -> None:
    modules = {command.function.partition(":")[0] for command in ALL.values()}
    heavy = ("treadle.core", "treadle.agent", "msgspec", "asyncio")
    for words, out, loaded in helps_of(GROUPS):
        if words:
            check_examples(words, out)
        assert not loaded & modules, words
        assert not [name for name in loaded if name.startswith(heavy)], words


def test_the_help_of_a_command_has_two_examples_and_loads_no_client_store_or_validator() -> None:
    # Typer itself loads pydantic once it parses options.
    heavy = {"pyreqwest", "sqlite3", "jsonschema_rs", "mcp", "uvicorn", "starlette"}
    for words, out, loaded in helps_of(ALL):
        check_examples(words, out)
        assert not loaded & heavy, words
        if words == ("memory", "list"):
            assert out.count("[chat]") == 2


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


def test_a_flag_takes_no_value(cli: Cli) -> None:
    for words in ((), ("run",), ("dataset",), ("dataset", "show")):
        shown = cli(*words, "--help").out
        assert "--help" in shown
        assert "<bool>" not in shown
