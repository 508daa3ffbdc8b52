"""MCP servers that are started for each run, over the run's files."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import FORKS
from tests.tools.test_mcp import children, named

from treadle.core.errors import ConfigError, ToolError
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, Role
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.runs.run import Run
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.mcp import MCPServer, mcp
from treadle.tools.resolve import demands_of_tools

SERVER = str(Path(__file__).parent / "mcp" / "notes_server.py")


def start() -> MCPServer:
    return MCPServer(command=sys.executable, args=["-S", SERVER], run_files=True, name="notes")


class Side:
    """One run's side of a server."""

    def __init__(self, server: MCPServer, run_id: str) -> None:
        self.scope, self.sandbox = Scope(), MemorySandbox({"kept.txt": b"kept"})
        self.context = ToolContext[Any](run_id, "c1", 1, self.sandbox, scope=self.scope)
        self.server = server

    async def call(self, name: str, text: str = "") -> str:
        output = await named(self.server, name).call({"text": text}, self.context)
        assert not output.is_error
        return str(output.content)


async def test_each_run_has_a_server_over_its_own_files() -> None:
    before, server = children(), start()
    sides = [Side(server, f"run-{number}") for number in range(2)]
    said = await asyncio.gather(*[side.call("who") for side in sides])
    assert [text.split()[1] for text in said] == ["run-0", "run-1"]
    servers = {int(text.split()[0]) for text in said}
    assert servers <= children() - before
    await asyncio.gather(*[side.call("note", side.context.run_id) for side in sides])
    assert [side.sandbox.read("notes.txt") for side in sides] == [b"run-0\n", b"run-1\n"]
    sides[0].sandbox.write("notes.txt", b"from another tool\n")
    assert await sides[0].call("note", "more") == "from another tool\nmore\n"
    assert (await sides[0].call("who")).split()[0] in map(str, servers), "it was not started again"
    assert sides[0].sandbox.paths() == ["kept.txt", "notes.txt"]
    await asyncio.gather(*[side.scope.close() for side in sides])
    assert not servers & children()


async def test_a_call_without_a_result_leaves_nothing_and_the_next_call_has_a_new_server() -> None:
    side = Side(start(), "run")
    await side.call("note", "one")
    (first, _) = (await side.call("who")).split()
    with pytest.raises(ToolError, match="notes"):
        await side.call("note_and_exit", "two")
    assert side.sandbox.read("notes.txt") == b"one\n"
    assert await side.call("note", "three") == "one\nthree\n"
    assert (await side.call("who")).split()[0] != first
    await side.scope.close()


async def test_a_change_of_what_only_commands_see_starts_it_again() -> None:
    side = Side(start(), "run")
    await side.call("note", "one")
    (first, _) = (await side.call("who")).split()
    side.sandbox.write_state("shell", b'{"folders":["empty"]}')
    assert await side.call("note", "two") == "one\ntwo\n"
    assert (await side.call("who")).split()[0] != first
    await side.scope.close()


async def test_it_is_described_so_that_any_process_can_make_it_again() -> None:
    server = start()
    assert server.part.missing is None
    (again,) = mcp(**(server.part.settings or {})).servers
    assert again.has_run_files
    assert named(again, "note").spec == named(server, "note").spec
    assert named(again, "note").spec.effect is Effect.IDEMPOTENT
    assert not named(again, "note").spec.is_concurrent
    assert again.part == server.part
    told = demands_of_tools(server.part)
    assert f"start the program '{sys.executable} -S {SERVER}" in told[0]
    assert len(told) == 1


def test_what_cannot_be_a_server_of_a_run() -> None:
    with pytest.raises(ConfigError, match=r"run_files .* needs a command"):
        MCPServer(url="http://127.0.0.1:9/mcp", run_files=True)
    with pytest.raises(ConfigError, match="needs either a command, a url or a server"):
        MCPServer(command="x", url="http://127.0.0.1:9/mcp")
    with pytest.raises(ConfigError, match=r"'runFiles' is 'yes'; it must be true or false"):
        mcp(command="x", runFiles="yes")
    with pytest.raises(ConfigError, match="ended before it answered"):
        MCPServer(command=sys.executable, args=["-c", "exit(3)"], run_files=True).tools()
    part = PartSpec(name="mcp", settings={"command": "a", "url": "http://b"})
    assert demands_of_tools(part) == ["start the program 'a'", "ask the MCP server at 'http://b'"]


async def test_a_run_without_files_is_told() -> None:
    with pytest.raises(ToolError, match="no files"):
        await named(start(), "note").call({"text": ""}, ToolContext("r", "c", 1))


TASKS = """
import os, sys
from treadle.tasks import SimpleTask
from treadle.tools import MCPServer

env = {"WAITED": os.path.abspath("waited")}
NOTES = MCPServer(sys.executable, args=["-S", os.environ["NOTES_SERVER"]], env=env, run_files=True)
INPUT = 'call note {"text": "one"}\\nthen\\ncall note_and_wait {"text": "two"}\\nthen\\nsay done'
SET = [SimpleTask(
    task_id="only", input=INPUT, tools=["tasks.py:NOTES"],
    grader=lambda task, output, files: files["notes.txt"] == b"one\\ntwo\\n",
)]
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_killed_driver_leaves_no_server_and_a_resume_has_the_state(tmp_path: Path) -> None:
    """It takes long because two commands are run."""
    (tmp_path / "tasks.py").write_text(TASKS)
    env = {
        **os.environ,
        "NOTES_SERVER": SERVER,
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
    }
    words = [
        "-m",
        "treadle",
        "run",
        "--task",
        "tasks.py:SET:only",
        "--model",
        "mock:echo",
        "--journal",
        "runs.db",
    ]
    driver = FORKS.start(*words, "--run-id", "killed", cwd=tmp_path, env=env)
    waited, give_up_at = tmp_path / "waited", time.monotonic() + 60
    while not waited.exists():
        assert driver.poll() is None
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    server = int(waited.read_text())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    while is_alive(server):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    words = ["-m", "treadle", "resume", "killed", "--journal", "runs.db", "--trust"]
    again = FORKS.start(*words, cwd=tmp_path, env=env)
    assert again.wait() == 0
    with SqliteJournal(tmp_path / "runs.db") as journal:
        run = Run.load("killed", journal)
    assert run.reward == 1.0
    assert [item.content for item in run.messages if item.role is Role.TOOL] == ["one\n", "one\ntwo\n"]
