"""Help, pipes, and what the command loads."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest
from tests.cli.command import RealCli

from treadle.cli.table import COMMANDS, Command, Group


def commands(entries: dict[str, Command | Group] = COMMANDS) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command with the words that name it."""
    for name, entry in entries.items():
        if isinstance(entry, Group):
            for words, command in commands(dict(entry.commands)):
                yield (name, *words), command
        else:
            yield (name,), entry


ALL = dict(commands())
GROUPS = [(), *[(name,) for name, entry in COMMANDS.items() if isinstance(entry, Group)]]


def loaded_by(*arguments: str) -> set[str]:
    """The modules that are loaded once the command has printed its help."""
    script = (
        f"import sys; sys.argv = ['treadle', *{arguments!r}, '--help']\n"
        "from treadle.cli.app import make_app\n"
        "try: make_app().main(prog_name='treadle')\n"
        "except SystemExit: pass\n"
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Usage: treadle" in run.stdout
    return set(eval(run.stderr))


def test_help_has_two_examples(real_cli: RealCli) -> None:
    names = [*ALL, *GROUPS[1:]]
    results = real_cli.run_all((*words, "--help") for words in names)
    for words, result in zip(names, results, strict=True):
        assert result.code == 0, (words, result)
        _, examples = result.out.split("Examples:")
        lines = [line for line in examples.splitlines() if line.strip()]
        assert len(lines) == 2, words
        assert all(f"treadle {' '.join(words)}" in line for line in lines), words


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
def test_the_help_of_a_group_loads_no_command(words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words)
    modules = {command.function.partition(":")[0] for command in ALL.values()}
    assert not loaded & modules
    assert not [
        name for name in loaded if name.startswith(("treadle.core", "treadle.agent", "msgspec", "asyncio"))
    ]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_help_of_a_command_loads_no_client_store_or_validator(words: tuple[str, ...]) -> None:
    # Typer itself loads pydantic once it parses options.
    heavy = {"pyreqwest", "sqlite3", "jsonschema_rs", "tenacity", "mcp", "uvicorn", "starlette"}
    assert not loaded_by(*words) & heavy


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
