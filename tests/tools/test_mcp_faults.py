"""MCP servers over stdio that hang, exit, print too much, list nonsense or reveal secrets. Each is a real
process."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import FORKS, PYTHON
from tests.loop.workbench import make_call
from tests.tools.contexts import HeardContext

from treadle.core.errors import ConfigError, NoResultError, ToolError
from treadle.core.types import ToolCall
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import check_tool_name
from treadle.tools.mcp import MCPServer, MCPServers, mcp

ODD = str(Path(__file__).parent / "mcp" / "odd_server.py")


def context(run_id: str = "r") -> ToolContext:
    return ToolContext(run_id, "c1", 1)


def named(server: MCPServer, name: str) -> Any:
    return next(tool for tool in server.tools() if tool.spec.name == name)


class Odd:
    """A factory for misbehaving servers that knows how often they were started."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.servers: list[MCPServer] = []

    def __call__(self, mode: str, *args: str, **options: Any) -> MCPServer:
        server = MCPServer(sys.executable, args=[ODD, mode, str(self.state), *args], name="odd", **options)
        self.servers.append(server)
        return server

    @property
    def pids(self) -> list[int]:
        """The ids of all processes that were started, in order."""
        return [int(line) for line in Path(f"{self.state}.starts").read_text().split()]

    @property
    def calls(self) -> list[str]:
        return self.state.read_text().splitlines()


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Odd]:
    odd = Odd(tmp_path / "state")
    yield odd
    for server in odd.servers:
        server.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Starting


def test_a_server_that_ends_at_a_request_before_the_handshake_is_met_with_the_handshake(odd: Odd) -> None:
    server = odd("strict")
    assert len(server.tools()) == 3
    assert len(odd.pids) == 2
    server.close()
    assert asyncio.run(named(server, "once").call({}, context())).content.startswith("did once")
    assert len(odd.pids) == 3, "how to greet it is known by now"


def test_a_server_that_never_lists_its_tools_is_given_up(odd: Odd) -> None:
    with pytest.raises(
        ConfigError, match=r"did not answer within 0.5 s of being started; is it an MCP server"
    ):
        odd("hangs listing", start_timeout_seconds=0.5).tools()
    assert not any(map(is_alive, odd.pids))


async def test_a_start_outlives_callers_that_give_up(odd: Odd) -> None:
    server = odd("slow")
    once = named(server, "once")
    server.close()
    for _ in range(4):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(once.call({}, context()), 0.05)
    assert "did once" in (await once.call({}, context())).content
    assert len(odd.pids) == 2


async def test_many_calls_at_once_start_one_server(odd: Odd) -> None:
    server = odd("plain")
    once = named(server, "once")
    server.close()
    results = await asyncio.gather(*[once.call({}, context(f"r{n}")) for n in range(40)])
    assert {result.content for result in results} == {f"did once in {odd.pids[1]}"}
    assert len(odd.pids) == 2


async def test_many_calls_at_once_share_one_failure_to_start(odd: Odd, tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    server = MCPServer(str(link), args=[ODD, "plain"])
    once = named(server, "once")
    server.close()
    link.unlink()
    results = await asyncio.gather(*[once.call({}, context()) for _ in range(20)], return_exceptions=True)
    assert {type(result) for result in results} == {NoResultError}
    assert f"the command {str(link)!r} of the MCP server 'odd_server' was not found" in str(results[0])


def test_commands_that_cannot_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("text")
    for server, message in [
        (MCPServer("no-such-command -y"), "pass the words after the program as args"),
        (MCPServer(str(plain)), "cannot be executed; is it a program"),
        (MCPServer(sys.executable, cwd="/no/such/folder"), "cannot be started in '/no/such/folder'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            server.tools()


# Listing


async def test_what_a_careless_server_lists_is_mended(odd: Odd) -> None:
    server = odd("careless")
    tools = {tool.remote_name: tool for tool in server.tools()}
    assert list(tools) == ["empty", "none", "notes", "output", "nonsense", "l" * 70 + "1", "l" * 70 + "2"]
    names = {tool.spec.name for tool in tools.values()}
    assert len(names) == 7
    for tool in tools.values():
        check_tool_name(tool.spec.name, "careless")
        assert tool.spec.parameters == {"type": "object"}
        assert tool.find_fault({"anything": 1}) is None
    assert (tools["notes"].spec.effect, tools["nonsense"].spec.effect) == ("idempotent", "once")
    said = await tools["l" * 70 + "2"].call({}, context())
    assert said.content.startswith("did " + "l" * 70 + "2 in ")


async def test_texts_that_a_server_cuts_within_a_character_can_be_read(odd: Odd) -> None:
    tool = named(odd("halves"), "good")
    assert tool.spec.description == "cut \ufffd"
    assert (await tool.call({}, context())).content == (
        "cut \ufffd, \ufffd, whole \U0001f600, no escape \\ud83d"
    )


async def test_structured_content_that_breaks_its_schema_costs_no_result(odd: Odd) -> None:
    server = odd("careless")
    output = await named(server, "output").call({}, context())
    assert (output.content.partition(" in")[0], output.structured) == ("did output", None)
    assert (await named(server, "empty").call({}, context())).structured == {"n": "no integer"}


async def test_names_that_clash_stay_ones_that_providers_take() -> None:
    long = "s" * 60
    one = MCPServer(sys.executable, args=[ODD, "plain"], name="one.server")
    two = MCPServer(sys.executable, args=[ODD, "plain"], name=long)
    async with MCPServers([one, two]) as servers:
        names = [tool.spec.name for tool in servers.tools()]
        assert names[0] == "one_server_once"
        assert len(set(names)) == 6
        for name in names:
            check_tool_name(name, "clash")
        tool = servers.tools()[3]
        assert (await tool.call({}, context())).content.startswith("did once")  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="two MCP servers are called 'same'; give each its own name"):
        MCPServers([MCPServer("a", name="same"), MCPServer("b", name="same")])


# Calling


async def test_a_server_that_let_a_call_hang_is_replaced(odd: Odd) -> None:
    server = odd("hangs", timeout_seconds=0.3, start_timeout_seconds=2.0)
    once = named(server, "once")
    result = await make_call(ToolCall("c1", "once", "{}"), {"once": once})
    assert "did not finish within 0.3 s" in result.content
    assert (await once.call({}, context())).content == f"did once in {odd.pids[1]}"
    assert not is_alive(odd.pids[0])
    assert odd.calls == ["call once"] * 2


async def test_a_server_that_closes_its_output_is_over_though_it_lives_on(odd: Odd) -> None:
    server = odd("shuts")
    with pytest.raises(ToolError, match="ended while 'once' was running, so its outcome is unknown"):
        await named(server, "once").call({}, context())
    assert not is_alive(odd.pids[0])


async def test_closing_ends_the_calls_that_run_and_starts_nothing(odd: Odd) -> None:
    server = odd("hangs")
    look = asyncio.ensure_future(named(server, "look").call({}, context()))
    while not odd.state.exists():
        await asyncio.sleep(0.01)
    await server.aclose()
    with pytest.raises(ToolError, match="was closed while 'look' was running"):
        await look
    assert len(odd.pids) == 1
    assert not is_alive(odd.pids[0])


async def test_a_large_request_to_a_server_that_reads_nothing_hangs_nobody(odd: Odd) -> None:
    server = odd("hangs", start_timeout_seconds=1.0)
    once = named(server, "once")
    for text in ("a", "b" * 1_000_000):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(once.call({"text": text}, context()), 0.3)
    assert "did once" in (await once.call({}, context())).content


async def test_whoever_listens_may_fail(odd: Odd) -> None:
    def fail(text: str) -> None:
        raise ValueError("a listener's own error")

    server = MCPServer(PYTHON, args=["-m", "tests.tools.mcp.sdk_server"], env=FORKS.variables())
    async with server:
        assert (await named(server, "report").call({"steps": 2}, HeardContext(fail))).content == "reported"


# Secrets


def test_what_a_server_tells_of_its_secrets_is_hidden(odd: Odd) -> None:
    secrets = ("from-the-env", "from-the-arguments")
    server = odd("tells", secrets[1], env={"KEY": secrets[0]}, secrets=[secrets[1]])
    with pytest.raises(ConfigError, match=r"its standard error ends with:\n\*\*\*") as failed:
        server.tools()
    assert not any(secret in str(failed.value) + repr(server) + repr(server.target) for secret in secrets)


def test_what_came_out_of_the_environment_is_hidden(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_THIS_TEST", "from-the-environment")
    with pytest.raises(ConfigError, match=r"its standard error ends with:\n--token=\*\*\*") as failed:
        mcp(f"{sys.executable} {ODD} tells {odd.state} --token=${{TOKEN_OF_THIS_TEST}}").tools()
    assert "from-the-environment" not in str(failed.value)


# The end of the process


def run_script(text: str, *args: str) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.PIPE
    process = FORKS.start("-c", textwrap.dedent(text), *args, stdout=pipe, stderr=pipe)
    told = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, *told)


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "1 / 0"])
def test_no_server_outlives_the_process_that_started_it(odd: Odd, ending: str) -> None:
    mode = "stubborn" if ending == "pass" else "plain"
    script = f"""
        import asyncio, sys
        from treadle.tools.mcp import MCPServer
        from treadle.tools.context import ToolContext
        server = MCPServer(sys.executable, args=sys.argv[1:])
        print(asyncio.run(server.tools()[0].call({{}}, ToolContext("r", "c", 1))).content)
        {ending}
        """
    done = run_script(script, ODD, mode, str(odd.state))
    assert f"did once in {odd.pids[0]}" in done.stdout
    assert not is_alive(odd.pids[0])
    assert "Task was destroyed" not in done.stderr


def test_a_forked_process_has_servers_of_its_own(odd: Odd) -> None:
    script = """
        import asyncio, os, sys
        from treadle.tools.mcp import MCPServer
        from treadle.tools.context import ToolContext
        server = MCPServer(sys.executable, args=sys.argv[1:])
        def call():
            print(asyncio.run(server.tools()[0].call({}, ToolContext("r", "c", 1))).content, flush=True)
        call()
        pid = os.fork()
        call()
        server.close()
        if pid:
            os.waitpid(pid, 0)
        """
    done = run_script(script, ODD, "plain", str(odd.state))
    said = done.stdout.split("\n")[:-1]
    assert len(said) == 3, done.stderr
    assert len(odd.pids) == 2
    assert sorted(said) == sorted([f"did once in {pid}" for pid in (odd.pids[0], *odd.pids)])
    deadline = time.monotonic() + 10
    while any(map(is_alive, odd.pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert os.getpid() not in odd.pids
