"""The bars and spinners of commands that may take long: on a terminal, and never in what is piped or stored."""

import os
import pty
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cli.command import Cli

from treadle import Agent, Ephemeral, Event, ScriptedModel, open_journal
from treadle.models import call

_RUNS = ("one", "two", "three")
_COMMANDS = (
    ("checking", "check"),
    ("replaying", "replay", "--all"),
    ("verifying", "verify", "--all", "--trust"),
    ("exporting", "export", "--all", "--out", "rows.jsonl"),
    ("importing", "import", "runs.jsonl", "--journal", "other.db"),
    ("resuming", "resume", "--all", "--journal", "open.db", "--model", "mock:echo"),
)
_SEND = '''
from treadle import tool

@tool
def send() -> str:
    """Send."""
    return "sent"
'''


@pytest.fixture
async def folder(cli: Cli) -> Path:
    """A folder with runs that are over, also as a file, and with runs that were interrupted."""

    def stop(event: Event | Ephemeral) -> None:
        if event.type == "tool_started":
            raise InterruptedError

    (cli.folder / ".treadle").mkdir()
    for path, on_event in ((".treadle/runs.db", None), ("open.db", stop)):
        with open_journal(cli.folder / path) as journal:
            for run_id in _RUNS:
                agent = Agent(ScriptedModel([[call("list_files")], "done"]), tools=["files"], journal=journal)
                with suppress(InterruptedError):
                    await agent.run("Go.", run_id=run_id, on_event=on_event)
    assert cli("export", "--all", "--format", "journal", "--out", "runs.jsonl").code == 0
    return cli.folder


def _read_to_end(terminal: int) -> str:
    """Return what a process writes to its terminal until it ends."""
    data = b""
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # how Linux tells that the other side is closed
            read = b""
        if not read:
            os.close(terminal)
            return data.decode()
        data += read


def _run_on_terminal(cli: Cli, *arguments: str, is_piped: bool) -> tuple[str, str]:
    """Run a command whose standard error, and output unless `is_piped`, is a terminal. Return (piped, shown)."""
    main, other = pty.openpty()
    out = subprocess.PIPE if is_piped else other
    process = cli.start(*arguments, stdout=out, stderr=other, env={"TERM": "xterm"})
    os.close(other)
    shown = _read_to_end(main)
    piped = process.communicate(timeout=60)[0] if is_piped else ""
    return piped or "", shown


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("word", "arguments"), [(word, words) for word, *words in _COMMANDS])
def test_what_takes_long_shows_its_progress(cli: Cli, word: str, arguments: list[str]) -> None:
    assert word in _run_on_terminal(cli, *arguments, is_piped=False)[1]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("word", "arguments"), [(word, words) for word, *words in _COMMANDS])
def test_what_is_piped_has_no_bar_and_lacks_nothing(cli: Cli, word: str, arguments: list[str]) -> None:
    piped, shown = _run_on_terminal(cli, *arguments, is_piped=True)
    assert word in shown
    assert not re.search(rf"{word}|\x1b|━", piped), piped
    if word not in ("exporting", "checking"):
        assert all(run_id in piped for run_id in _RUNS), piped


@pytest.mark.usefixtures("folder")
def test_lines_above_a_bar_are_whole(cli: Cli) -> None:
    for command in (("replay", "--all"), ("verify", "--all", "--trust")):
        plain = [re.sub(r" in [0-9.]+ m?s$", "", line) for line in cli(*command).out.splitlines()]
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _run_on_terminal(cli, *command, is_piped=False)[1])
        lines = [line.rpartition("\r")[2] for line in shown.split("\r\n")]
        assert [line for line in plain if not any(item.startswith(line) for item in lines)] == [], shown


@pytest.mark.usefixtures("folder")
def test_lines_of_json_on_a_terminal_have_no_bar(cli: Cli) -> None:
    shown = _run_on_terminal(cli, "replay", "--all", "--json", is_piped=False)[1]
    assert "replaying" not in shown
    assert shown.count('"run_id"') == len(_RUNS)


def test_starting_tools_shows_a_spinner(cli: Cli) -> None:
    cli.write("mine.py", _SEND)
    for command in (("tools", "list"), ("tools", "call", "send")):
        piped, shown = _run_on_terminal(cli, *command, "--tools", "mine.py", is_piped=True)
        assert "starting the tools" in shown
        assert "sent" in piped or "send" in piped
