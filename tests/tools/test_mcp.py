"""MCP servers as toolsets, over real processes and sockets: the official SDK's, and servers that misbehave."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage
from tests.forks.process import FORKS, PYTHON
from tests.loop.workbench import make_call
from tests.tools.contexts import HeardContext

from treadle import Agent, Policy, ScriptedModel, tool
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.context import Scope, ToolContext
from treadle.tools.mcp import MCPServer, MCPServers, mcp
from treadle.tools.mcp.watched import Watched
from treadle.tools.protocol import ToolOutput
from treadle.trajectory.run_verification import verify_run

HERE = Path(__file__).parent / "mcp"
SDK = "tests.tools.mcp.sdk_server"
SMALL = str(HERE / "small_server.py")
ODD = str(HERE / "odd_server.py")


def context(run_id: str = "r", scope: Scope | None = None, heard: list[str] | None = None) -> ToolContext:
    return (
        ToolContext(run_id, "c1", 1, scope=scope)
        if heard is None
        else HeardContext(heard.append, scope=scope)
    )


def named(server: MCPServer, name: str) -> Any:
    return next(tool for tool in server.tools() if tool.spec.name == name)


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MCPServer, Path]]:
    calls = tmp_path_factory.mktemp("sdk") / "calls"
    env = {"CALLS": str(calls), "API_KEY": "planted/key-00077", **FORKS.variables()}
    with MCPServer(PYTHON, args=["-m", SDK], env=env, name="sdk") as server:
        yield server, calls


@pytest.fixture
def sdk(shared: tuple[MCPServer, Path]) -> MCPServer:
    """The SDK's server, which takes long to start. One that was closed is started again."""
    return shared[0]


IN_ONE_WORKER = pytest.mark.xdist_group("the shared MCP server")


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Any]:
    started: list[MCPServer] = []

    def start(mode: str, **options: Any) -> MCPServer:
        server = MCPServer(sys.executable, args=[ODD, mode, str(tmp_path / "state")], name="odd", **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def over_http(tmp_path: Path, calls: Path) -> Iterator[str]:
    port = tmp_path / "port"
    process = FORKS.start("-m", SDK, str(port), env={**os.environ, "CALLS": str(calls)})
    deadline = time.monotonic() + 30
    while not port.exists() or not port.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port.read_text()}/mcp"
    process.kill()
    process.wait()


async def noted(calls: Path, text: str) -> None:
    """Wait until the server has noted `text`."""
    async with asyncio.timeout(60):
        while not calls.exists() or text not in calls.read_text().splitlines():
            await asyncio.sleep(0.02)


def children() -> set[int]:
    """Return this process's live children."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(folder.name))
    return found


@IN_ONE_WORKER
async def test_tools_schemas_and_effects_come_from_the_server(sdk: MCPServer) -> None:
    specs = {tool.spec.name: tool.spec for tool in sdk.tools()}
    assert specs["add"].parameters["properties"]["a"]["type"] == "integer"
    assert specs["add"].output_schema is not None
    assert (specs["add"].effect, specs["put"].effect, specs["end"].effect) == (
        Effect.PURE,
        Effect.IDEMPOTENT,
        Effect.ONCE,
    )
    assert "missing parameter 'b'" in (named(sdk, "add").find_fault({"a": 1}) or "")
    assert await named(sdk, "odd_name_with_spaces").call({}, context()) == ToolOutput(
        "odd", structured={"result": "odd"}
    )


async def test_effects_may_be_given_by_name() -> None:
    with MCPServer(sys.executable, args=[SMALL], effects={"wait": "pure", "add": "once"}) as server:
        assert (named(server, "wait").spec.effect, named(server, "add").spec.effect) == ("pure", "once")
    with pytest.raises(ConfigError, match="has no tool 'wiat'; its tools are: add"):
        MCPServer(sys.executable, args=[SMALL], effects={"wiat": "pure"}).tools()


@IN_ONE_WORKER
async def test_results_of_every_kind(sdk: MCPServer) -> None:
    show = named(sdk, "show")
    image = await show.call({"what": "image"}, context())
    assert image.content == "[image image/png, 4 bytes]"
    assert [(item.kind, item.content, item.mime_type) for item in image.attachments] == [
        ("image", b"\x89PNG", "image/png")
    ]
    link = await show.call({"what": "link"}, context())
    assert (link.content, link.attachments[0].uri) == ("[link page: file:///page.txt]", "file:///page.txt")
    blob = await show.call({"what": "resource"}, context())
    assert blob.content == "[resource application/x file:///blob, 2 bytes]"
    assert (await show.call({"what": "text resource"}, context())).content == "[resource file:///t]\ninside"
    failed = await show.call({"what": "cake"}, context())
    assert failed.is_error
    assert "show" in failed.content


@IN_ONE_WORKER
async def test_progress_and_the_idempotency_key_are_passed_on(sdk: MCPServer) -> None:
    heard: list[str] = []
    assert (await named(sdk, "report").call({"steps": 2}, context(heard=heard))).content == "reported"
    assert heard == ["1/2 step 1", "2/2 step 2"]
    assert (await named(sdk, "key").call({}, context("run7"))).content == "run7/c1"


@IN_ONE_WORKER
async def test_cancelling_a_call_cancels_it_on_the_server(shared: tuple[MCPServer, Path]) -> None:
    sdk, calls = shared
    task = asyncio.ensure_future(named(sdk, "wait").call({"seconds": 60}, context()))
    await noted(calls, "waiting")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await noted(calls, "cancelled")
    assert (await named(sdk, "add").call({"a": 1, "b": 2}, context())).content == "3"


@IN_ONE_WORKER
async def test_one_process_serves_many_runs_at_once_and_is_gone_when_closed(sdk: MCPServer) -> None:
    add = named(sdk, "add")
    before = children()
    results = await asyncio.gather(*[add.call({"a": n, "b": n}, context(f"r{n}")) for n in range(50)])
    assert [item.content for item in results] == [str(2 * n) for n in range(50)]
    assert children() == before
    sdk.close()
    assert len(before - children()) == 1


async def test_each_run_may_have_a_process_of_its_own(odd: Any) -> None:
    before = children()
    server = odd("plain", per_run=True)
    once = named(server, "once")
    assert children() == before
    scopes = [Scope(), Scope()]
    said = [(await once.call({}, context(scope=scope))).content for scope in (*scopes, *scopes)]
    assert said[0] != said[1]
    assert said[:2] == said[2:]
    assert len(children() - before) == 2
    for scope in scopes:
        await scope.close()
    assert children() == before


@IN_ONE_WORKER
def test_it_works_on_one_event_loop_after_another(sdk: MCPServer) -> None:
    add = named(sdk, "add")
    for _ in range(2):
        assert asyncio.run(add.call({"a": 1, "b": 1}, context())).content == "2"


@IN_ONE_WORKER
async def test_a_result_holds_no_key_of_the_server(shared: tuple[MCPServer, Path]) -> None:
    sdk, calls = shared
    key = "planted/key-00077"
    output = await named(sdk, "put").call(
        {"value": f"{key} and {quote(key, safe='')} and {calls}"}, context()
    )
    assert output.content == f"put *** and *** and {calls}", "only what is secret by its name is hidden"
    assert "planted" not in str(output)


async def test_over_http_with_a_session_that_the_server_forgets(over_http: str, calls: Path) -> None:
    async with MCPServer(url=over_http, headers={"x-key": "secret99"}) as server:
        assert (await named(server, "add").call({"a": 1, "b": 2}, context())).content == "3"
        assert (await named(server, "put").call({"value": "x"}, context())).content == "put x"
        with pytest.raises(ToolError) as ended:
            await named(server, "end").call({}, context())
        assert calls.read_text().count("end") == 1
        assert "secret99" not in str(ended.value)
        with pytest.raises(ToolError) as absent:
            await named(server, "add").call({"a": 1, "b": 2}, context())
        assert "secret99" not in str(absent.value)


def test_a_server_that_is_not_there_or_refuses() -> None:
    with pytest.raises(
        ConfigError, match=r"the command 'no-such-command' of the MCP server .* was not found"
    ):
        MCPServer("no-such-command").tools()
    with pytest.raises(ConfigError, match=r"cannot be used|ended"):
        MCPServer(url="http://127.0.0.1:9/mcp").tools()


async def test_a_server_in_this_process() -> None:
    from mcp.server.mcpserver import MCPServer as Made

    made = Made("here")

    @made.tool()
    def double(n: int) -> int:
        """Double."""
        return 2 * n

    async with MCPServer(server=made) as server:
        assert (await named(server, "double").call({"n": 4}, context())).content == "8"


# Misbehaviour


def test_a_server_that_exits_at_once_shows_what_it_said(odd: Any) -> None:
    with pytest.raises(ConfigError, match=r"ended before it answered(.|\n)*no such database: /nowhere"):
        odd("exits").tools()


def test_a_server_that_never_answers_is_given_up(odd: Any) -> None:
    before = children()
    with pytest.raises(ConfigError, match=r"did not answer within 0.3 s of being started"):
        odd("silent", start_timeout_seconds=0.3).tools()
    assert children() == before


async def test_slow_starts_noise_pages_and_large_answers_do_no_harm(odd: Any) -> None:
    assert len(odd("slow").tools()) == 3
    noisy = odd("noisy")
    assert "did once" in (await named(noisy, "once").call({}, context())).content
    assert [tool.spec.name for tool in odd("pages").tools()] == ["t0", "t1", "t2", "t3", "t4"]
    assert len((await named(odd("large"), "once").call({}, context())).content) == 5_000_000


def test_a_listing_without_an_end_is_told(odd: Any) -> None:
    with pytest.raises(ConfigError, match="lists its tools endlessly"):
        odd("endless").tools()


def test_a_schema_that_cannot_be_read_is_left_to_the_server(odd: Any) -> None:
    bad, good = odd("schema").tools()
    assert bad.find_fault({"a": 1}) is None
    assert bad.find_fault([]) is not None
    assert good.find_fault({}) is None


async def test_a_server_that_dies_under_a_call(odd: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    server = odd("dies")
    with pytest.raises(ToolError, match="ended while 'once' was running, so its outcome is unknown"):
        await named(server, "once").call({}, context())
    assert state.read_text() == "call once\n"
    assert "did once" in (await named(server, "once").call({}, context())).content
    for name in ("look", "set"):
        state.unlink()
        assert f"did {name}" in (await named(server, name).call({}, context())).content
        assert state.read_text() == f"call {name}\n" * 2


async def test_a_server_that_died_between_two_calls_is_started_again(odd: Any, tmp_path: Path) -> None:
    server = odd("dies after")
    first = (await named(server, "once").call({}, context())).content
    await asyncio.sleep(0.2)
    second = (await named(server, "once").call({}, context())).content
    assert first != second
    assert (tmp_path / "state").read_text() == "call once\n" * 2


async def test_a_server_that_is_killed_is_started_again(odd: Any) -> None:
    before = children()
    server = odd("plain")
    once = named(server, "once")
    (pid,) = children() - before
    os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0.2)
    assert "did once" in (await once.call({}, context())).content


async def test_a_call_that_hangs_is_ended_by_its_timeout(odd: Any) -> None:
    once = named(odd("hangs", timeout_seconds=0.3), "once")
    result = await make_call(ToolCall("c1", "once", "{}"), {"once": once})
    assert result.is_error
    assert "did not finish within 0.3 s" in result.content


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("error", "once of the MCP server 'odd' failed: the disk is full"),
        ("nonsense", "once of the MCP server 'odd' failed"),
    ],
)
async def test_an_answer_that_is_an_error_or_nonsense(odd: Any, mode: str, message: str) -> None:
    server = odd(mode, env={"KEY": "hunter22"})
    with pytest.raises(ToolError, match=message) as failed:
        await named(server, "once").call({}, context())
    assert "hunter22" not in str(failed.value)
    assert "hunter22" not in repr(server) + repr(server.target)
    said = await named(odd("iserror"), "once").call({}, context())
    assert said.is_error


UNREADABLE = {
    "a result that is a text": '{"jsonrpc": "2.0", "id": NUMBER, "result": "text"}',
    "a result that is null": '{"jsonrpc": "2.0", "id": NUMBER, "result": null}',
    "no result": '{"jsonrpc": "2.0", "id": NUMBER}',
    "an error that is a text": '{"jsonrpc": "2.0", "id": NUMBER, "error": "broken"}',
    "an error whose code is a text": '{"jsonrpc": "2.0", "id": NUMBER, "error": {"code": "x", "message": "m"}}',
    "no version": '{"id": NUMBER, "result": {"content": []}}',
    "broken JSON": '{"jsonrpc": "2.0", "id": NUMBER, "result": {"content": [',
}


NUMBERLESS = {
    "no number": '{"jsonrpc": "2.0", "result": {"content": []}}',
    "a result whose number is null": '{"jsonrpc": "2.0", "id": null, "result": {"content": []}}',
    "a number that is a truth value": '{"jsonrpc": "2.0", "id": true, "result": {"content": []}}',
    "an error that is a text, without a number": '{"jsonrpc": "2.0", "id": null, "error": "broken"}',
}
UNREADABLE |= NUMBERLESS


@pytest.mark.parametrize("name", UNREADABLE)
async def test_an_answer_that_cannot_be_read_is_an_error_at_once(odd: Any, name: str) -> None:
    """The call does not wait for its time limit, and the session goes on."""
    server = odd(f"unreadable {UNREADABLE[name]}")
    for _ in range(2):
        async with asyncio.timeout(30):
            with pytest.raises(ToolError, match="what it answers does not follow the protocol"):
                await named(server, "once").call({}, context())


NULL = '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "what is that?"}}'


async def test_an_error_without_a_number_is_the_error_of_the_call_that_is_left(odd: Any) -> None:
    """The call does not wait for its time limit."""
    server = odd(f"unreadable {NULL}")
    async with asyncio.timeout(30):
        with pytest.raises(ToolError, match="what is that"):
            await named(server, "once").call({}, context())
        calls = [named(server, name).call({}, context(name)) for name in ("once", "set")]
        failed = await asyncio.gather(*calls, return_exceptions=True)
    assert ["what is that" in str(error) for error in failed] == [True, True]


def test_an_error_without_a_number_waits_until_only_one_call_is_left() -> None:
    """Nobody else's call fails by it, and what is sent later is not meant."""
    watched = Watched(None, lambda: None)
    for number in (1, 2, 3):
        watched.note_sent(types.JSONRPCRequest(jsonrpc="2.0", id=number, method="tools/call"))
    error = types.JSONRPCError(jsonrpc="2.0", id=None, error=types.ErrorData(code=-32700, message="no"))
    watched.read(SessionMessage(error))
    watched.note_sent(types.JSONRPCRequest(jsonrpc="2.0", id=4, method="tools/call"))
    watched.read(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=3, result={})))
    assert [item.message.id for item in watched.ready] == [3]
    gone = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 1})
    watched.note_sent(gone)
    assert [(item.message.id, hasattr(item.message, "error")) for item in watched.ready] == [
        (3, False),
        (2, True),
    ]


async def test_new_runs_have_the_tools_that_a_server_changed_to(odd: Any) -> None:
    """An older server tells it to everybody."""
    server = odd("changes")
    script = ScriptedModel([[call("once", {})], "ok", [call("other", {})], "ok"])
    agent = Agent(script, tools=[server], journal=MemoryJournal())
    assert "did once" in (await agent.run("go")).results[0].content
    run = await agent.run("go")
    assert "did other" in run.results[0].content
    assert list(agent.tools) == ["other"]


@pytest.mark.parametrize("is_joined", [False, True])
async def test_new_runs_have_the_tools_of_a_server_that_tells_subscribers(
    tmp_path: Path, is_joined: bool
) -> None:
    env = {"CALLS": str(tmp_path / "calls"), **FORKS.variables()}
    server = MCPServer(PYTHON, args=["-m", SDK], env=env, name="sdk")
    async with MCPServers([server]) if is_joined else server as tools:
        script = ScriptedModel([[call("grow", {})], "ok", [call("grown", {})], "ok"])
        agent = Agent(script, tools=[tools, keep], journal=MemoryJournal())
        await agent.run("go")
        async with asyncio.timeout(30):
            while not server.is_outdated:
                await asyncio.sleep(0.01)
        run = await agent.run("go")
        assert (run.results[0].content, "keep" in agent.tools) == ("grown", True)


@tool
async def keep() -> str:
    """Keep."""
    return ""


async def test_a_rule_may_be_for_tools_that_a_server_adds_later(
    sdk: MCPServer, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(approve={"remov_*": "ask"})
    Agent(ScriptedModel([]), tools=[sdk], policy=policy, journal=MemoryJournal())
    assert "a rule for 'remov_*', which fits no tool" in caplog.text
    with pytest.raises(ConfigError, match="fits no tool of the agent"):
        Agent(ScriptedModel([]), tools=[odd("fixed")], policy=policy, journal=MemoryJournal())


async def test_one_tool_of_a_server_stays_one(odd: Any) -> None:
    server = odd("changes")
    agent = Agent(ScriptedModel(["ok", "ok"]), tools=[named(server, "once")], journal=MemoryJournal())
    await named(server, "once").call({}, context())
    await agent.run("go")
    assert list(agent.tools) == ["once"]


async def test_a_tool_that_the_server_has_no_more(odd: Any) -> None:
    server = odd("changes")
    once = named(server, "once")
    assert "did once" in (await once.call({}, context())).content
    with pytest.raises(ToolError, match="has no tool 'once' any more; now it has: other"):
        await once.call({}, context())


# Configuration


def config(tmp_path: Path, **servers: Any) -> str:
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


async def test_the_usual_file_and_prefixes_only_where_names_clash(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [ODD, "plain"], "type": "stdio", "env": {"A": "${HOME}"}}
    path = config(
        tmp_path,
        one=entry,
        two={**entry, "args": [ODD, "pages"]},
        three={"command": "${PYTHON:-" + sys.executable + "}", "args": [ODD, "plain"]},
        off={"command": "no-such-command", "disabled": True},
    )
    servers = mcp(path)
    names = [tool.spec.name for tool in servers.tools()]
    assert names == [
        *("one_once", "one_look", "one_set"),
        *("t0", "t1", "t2", "t3", "t4"),
        *("three_once", "three_look", "three_set"),
    ]
    run = await Agent(
        ScriptedModel([[call("three_once")], "ok"]), tools=[servers], journal=MemoryJournal()
    ).run("go")
    assert "did once" in run.messages[-2].content
    servers.close()


def test_a_command_line_json_and_a_url() -> None:
    (one,) = mcp(f"KEY=v {sys.executable} {ODD} plain").servers
    assert (one.target.args, one.target.env, one.name) == ((ODD, "plain"), {"KEY": "v"}, "odd_server")
    (two,) = mcp(
        json.dumps({"mcpServers": {"x": {"url": "https://h.example/mcp", "headers": {"A": "b"}}}})
    ).servers
    assert (two.target.url, two.target.headers, two.name) == ("https://h.example/mcp", {"A": "b"}, "x")
    (three,) = mcp("https://h.example/mcp").servers
    assert three.name == "h_example"
    assert [item.name for item in mcp("npx -y @scope/server-files@1.2 /data").servers] == ["server-files"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"comand": "x"}, "server 'x' has an unknown key 'comand'; did you mean 'command'"),
        ({}, "needs either a 'command' or a 'url'"),
        ({"command": "x", "url": "y"}, "needs either a 'command' or a 'url'"),
        ({"command": "x", "args": "y"}, "'args' must be a list of strings"),
        ({"command": "x", "env": {"A": 1}}, "'env' must be an object with string values"),
        ({"command": "x", "env": {"A": "${NO_SUCH_VAR}"}}, "the environment variable NO_SUCH_VAR is not set"),
        ({"command": "x", "effects": {"a": "twice"}}, "the effect of 'a' is 'twice'; use one of 'pure'"),
        ({"command": "x", "timeout": -1}, "timeout_seconds is -1; it must be above 0"),
        ("x", "is not an object"),
    ],
)
def test_entries_that_cannot_be_used(tmp_path: Path, entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace("$", r"\$")):
        mcp(config(tmp_path, x=entry))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "name a server"),
        ("absent.json", "cannot read the MCP servers of 'absent.json'"),
        ("{", "not valid JSON"),
        ('{"a": 1}', "it has no object 'mcpServers', only 'a'"),
        ("A=b", "no command after the assignments"),
        ("'", "is not a command line"),
    ],
)
def test_texts_that_name_no_server(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mcp(text)


async def test_servers_are_joined_though_given_one_by_one() -> None:
    servers = MCPServers([MCPServer(sys.executable, args=[ODD, "plain"], name=name) for name in ("a", "b")])
    async with servers:
        assert servers.tools()[0].spec.name == "a_once"


async def test_an_agent_closes_the_servers_that_it_was_given(odd: Any) -> None:
    before = children()
    async with Agent(
        ScriptedModel([[call("once")], "ok"]), tools=[odd("plain")], journal=MemoryJournal()
    ) as agent:
        run = await agent.run("go")
        assert len(children() - before) == 1
    assert run.output == "ok"
    assert children() == before


async def test_what_may_differ_is_declared_with_the_server(odd: Any) -> None:
    journal = MemoryJournal()
    strict, lax = odd("plain"), odd("plain", may_differ={"look": ["in \\d+"]})
    run = await Agent(ScriptedModel([[call("look")], "ok"]), tools=[strict], journal=journal).run("go")
    assert (await verify_run(journal, run.run_id, [strict])).matched == 1
    assert (await verify_run(journal, run.run_id, [odd("plain")])).differences != ()
    assert (await verify_run(journal, run.run_id, [lax])).matched == 1
    with pytest.raises(ConfigError, match="has no tool 'lok'"):
        odd("plain", may_differ={"lok": ["order"]}).tools()
