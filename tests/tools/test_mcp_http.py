"""MCP servers over HTTP, on real sockets: the SDK's under uvicorn, and a faulty one written from the protocol."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import FORKS
from tests.tools.web import Asked, Web, serve

from treadle.core.errors import ConfigError, NoResultError, ToolError
from treadle.tools.context import ToolContext
from treadle.tools.mcp import MCPServer, mcp

SDK = "tests.tools.mcp.sdk_server"
Answer = tuple[int, dict[str, str], bytes]
HTML: Answer = (200, {"content-type": "text/html"}, b"<html>Welcome</html>")


def context(run_id: str = "r") -> ToolContext:
    return ToolContext(run_id, "c1", 1)


def named(server: MCPServer, name: str) -> Any:
    return next(tool for tool in server.tools() if tool.spec.name == name)


class Service:
    """A server with sessions whose next answers a test can choose."""

    def __init__(self) -> None:
        self.web: Web
        self.sessions: set[str] = set()
        self.begun = 0
        self.calls: list[str] = []
        self.next: list[Answer | threading.Event] = []
        """The next answers. For an event, the server waits until it is set, and then runs the call."""
        self.unknown: Answer = (404, {}, b"")
        """The answer to a request with an unknown session."""
        self.always: Answer | None = None
        self.size = 0
        """The number of characters by which each answer is longer than needed."""
        self.has_streams = False
        """True if results are sent as events."""

    def __call__(self, asked: Asked) -> Answer:
        if self.always is not None:
            return self.always
        if asked.method != "POST":
            return (405, {}, b"")
        message = json.loads(asked.body)
        method, number = message["method"], message.get("id")
        if method == "server/discover":
            return self.error(number, -32601, "no such method", 400)
        if method == "initialize":
            self.begun += 1
            session = f"session{self.begun}"
            self.sessions.add(session)
            info = {"name": "service", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            return self.result(number, result, {"mcp-session-id": session})
        if asked.headers.get("mcp-session-id") not in self.sessions:
            return self.unknown
        if number is None:
            return (202, {}, b"")
        if method == "tools/list":
            look = {"annotations": {"readOnlyHint": True}}
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("once", "look")]
            return self.result(number, {"tools": [tools[0], {**tools[1], **look}]})
        return self.call(number, message["params"]["name"])

    def call(self, number: int, name: str) -> Answer:
        self.calls.append(name)
        answer = self.next.pop(0) if self.next else None
        if isinstance(answer, tuple):
            return answer
        if answer is not None:
            answer.wait(30)
        text = f"did {name}" + "!" * self.size
        return self.result(number, {"content": [{"type": "text", "text": text}]})

    def result(self, number: Any, result: Any, headers: dict[str, str] | None = None) -> Answer:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()
        if self.has_streams:
            return 200, {"content-type": "text/event-stream", **(headers or {})}, b"data: %s\n\n" % body
        return 200, {"content-type": "application/json", **(headers or {})}, body

    @staticmethod
    def error(number: Any, code: int, message: str, status: int) -> Answer:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})
        return status, {"content-type": "application/json"}, body.encode()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    with serve(service) as web:
        service.web = web
        yield service


@contextmanager
def running(folder: Path, port: str = "0", kind: str = "http") -> Iterator[tuple[str, Any]]:
    """The address of the SDK's server, and its process."""
    file = folder / f"port-{time.monotonic_ns()}"
    process = FORKS.start("-m", SDK, str(file), port, kind)
    try:
        deadline = time.monotonic() + 30
        while not file.exists() or not file.read_text():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        yield f"http://127.0.0.1:{file.read_text()}/{'sse' if kind == 'sse' else 'mcp'}", process
    finally:
        process.kill()
        process.wait()


# Sessions


@pytest.mark.parametrize("is_event", [False, True])
async def test_an_error_without_a_number_is_an_error_at_once(service: Service, is_event: bool) -> None:
    status, headers, body = Service.error(None, -32700, "what is that?", 200)
    if is_event:
        headers, body = {"content-type": "text/event-stream"}, b"data: %s\n\n" % body
    service.next = [(status, headers, body)]
    async with MCPServer(service.web.url) as server, asyncio.timeout(30):
        with pytest.raises(ToolError, match="what is that"):
            await named(server, "once").call({}, context())
        assert (await named(server, "look").call({}, context())).content == "did look"


@pytest.mark.parametrize(
    "unknown",
    [
        (404, {}, b""),
        Service.error(None, -32001, "Session not found", 404),
        Service.error(None, -32000, "Bad Request: No valid session ID provided", 400),
    ],
)
async def test_a_session_that_the_server_forgot_is_begun_anew_and_the_call_run_once(
    service: Service, unknown: Answer
) -> None:
    service.unknown = unknown
    async with MCPServer(service.web.url) as server:
        once = named(server, "once")
        service.sessions.clear()
        assert (await once.call({}, context())).content == "did once"
        assert (service.calls, service.begun) == (["once"], 2)


async def test_a_server_that_knows_no_session_at_all_is_given_up(service: Service) -> None:
    async with MCPServer(service.web.url) as server:
        once = named(server, "once")
        service.always = service.unknown
        with pytest.raises(
            ToolError, match="cannot be used: it answers HTTP 404 Not Found; check that the URL"
        ):
            await once.call({}, context())


async def test_calls_that_run_when_a_session_is_replaced_end_in_peace(service: Service) -> None:
    gate = threading.Event()
    service.next = [gate]
    async with MCPServer(service.web.url) as server:
        running = asyncio.ensure_future(named(server, "once").call({}, context()))
        while not service.calls:
            await asyncio.sleep(0.01)
        service.sessions.clear()
        assert (await named(server, "look").call({}, context())).content == "did look"
        gate.set()
        assert (await running).content == "did once"
        assert (service.calls, service.begun) == (["once", "look"], 2)


async def test_a_server_that_falls_silent_costs_no_call_its_whole_limit(service: Service) -> None:
    gate = threading.Event()
    gate.set()

    def answer(asked: Asked) -> Answer:
        gate.wait()
        return service(asked)

    with serve(answer) as web:
        async with MCPServer(web.url, start_timeout_seconds=600) as server, asyncio.timeout(120):
            look = named(server, "look")
            gate.clear()
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(look.call({}, context()), 0.3)
                for _ in range(2):
                    with pytest.raises(NoResultError, match="does not answer, so the call was not made"):
                        await look.call({}, context())
            finally:
                gate.set()
            content = ""
            while not content:
                with suppress(NoResultError):
                    content = (await look.call({}, context())).content
            assert content == "did look"


# Faulty answers


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {}, b"who?"), "HTTP 401 Unauthorized; it needs headers such as Authorization"),
        ((403, {}, b""), "HTTP 403 Forbidden; it needs headers"),
        ((404, {}, b""), "HTTP 404 Not Found; check that the URL is that of an MCP endpoint"),
        ((500, {}, b"oh"), "HTTP 500 Internal Server Error; the server is at fault"),
        (
            Service.error(1, -32000, "the key secret99 expired", 401),
            r"401 Unauthorized \(the key \*\*\* expired\)",
        ),
        (HTML, "Unexpected content type: text/html"),
        (
            (302, {"location": "https://elsewhere.example/mcp"}, b""),
            "302 Found .Redirect to https://elsewhere.example/mcp.*give the URL that the redirect leads to",
        ),
        ((307, {}, b""), "HTTP 307 Temporary Redirect .*give the URL"),
        ((200, {"content-type": "application/json"}, b"{"), "Failed to parse JSON response"),
    ],
)
def test_servers_that_cannot_be_used(service: Service, answer: Answer, message: str) -> None:
    service.always = answer
    server = MCPServer(service.web.url, headers={"Authorization": "Bearer secret99"})
    with pytest.raises(ConfigError, match=message) as failed:
        server.tools()
    assert "secret99" not in str(failed.value) + repr(server) + repr(server.target)
    assert service.web.asked[0].headers["authorization"] == "Bearer secret99"


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_server_that_must_be_public_is_not_asked_at_another_address(
    service: Service, transport: str
) -> None:
    url = service.web.url.replace("127.0.0.1", "localhost")
    server = {"url": url, "type": transport, "publicOnly": True}
    (made,) = mcp(json.dumps({"mcpServers": {"a": server}})).servers
    with pytest.raises(
        ConfigError, match=r"'localhost' leads to \S+, a loopback address; no request is made"
    ):
        made.tools()
    assert not service.web.asked
    assert made.entry == server
    again = MCPServer(url, transport=transport, public_only=True)
    assert again.entry == {"url": url, "publicOnly": True} | ({"type": "sse"} if transport == "sse" else {})


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_other_origin_sees_the_headers(service: Service, status: int) -> None:
    with serve(lambda _: (200, {}, b"{}")) as other:
        service.always = (status, {"location": f"{other.url}/mcp"}, b"")
        server = MCPServer(service.web.url, headers={"x-api-key": "secret99", "cookie": "secret99"})
        with pytest.raises(ConfigError, match=f"Redirect to {other.url}/mcp"):
            server.tools()
        assert other.asked == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (500, {}, b"oh"),
            "once of the MCP server '127_0_0_1' failed: it answers HTTP 500 Internal Server Error",
        ),
        ((429, {}, b""), "HTTP 429 Too Many Requests; it asks for fewer requests"),
        ((401, {}, b""), "HTTP 401 Unauthorized; it needs headers"),
        (Service.error(None, -32603, "disk full", 500), r"500 Internal Server Error \(disk full\)"),
        (HTML, "Unexpected content type"),
    ],
)
async def test_a_call_that_is_answered_with_an_error_is_made_once(
    service: Service, answer: Answer, message: str
) -> None:
    service.next = [answer, answer]
    async with MCPServer(service.web.url) as server:
        for name in ("once", "look"):
            with pytest.raises(ToolError, match=message.replace("once", name)):
                await named(server, name).call({}, context())
        assert (await named(server, "once").call({}, context())).content == "did once"
        assert (service.calls, service.begun) == (["once", "look", "once"], 1)


async def test_an_answer_that_is_cut_off(service: Service) -> None:
    cut = (
        200,
        {"content-type": "application/json", "content-length": "9999", "connection": "close"},
        b'{"a"',
    )
    async with MCPServer(service.web.url) as server:
        service.next = [cut]
        with pytest.raises(ToolError, match="'once' was running, so its outcome is unknown"):
            await named(server, "once").call({}, context())
        assert service.calls == ["once"]
        service.next = [cut]
        assert (await named(server, "look").call({}, context())).content == "did look"
        assert service.calls == ["once", "look", "look"]


async def test_an_event_stream_that_ends_without_an_answer(service: Service) -> None:
    cut = (200, {"content-type": "text/event-stream", "connection": "close"}, b": nothing\n\n")
    async with MCPServer(service.web.url) as server:
        service.next = [cut]
        with pytest.raises(ToolError, match="'once' was running, so its outcome is unknown"):
            await named(server, "once").call({}, context())
        service.next = [cut]
        assert (await named(server, "look").call({}, context())).content == "did look"
        assert service.calls == ["once", "look", "look"]


async def test_large_events(service: Service) -> None:
    service.has_streams = True
    async with MCPServer(service.web.url) as server:
        once = named(server, "once")
        service.size = 3_000_000
        assert len((await once.call({}, context())).content) == 3_000_008


def test_keys_in_addresses_are_not_told() -> None:
    def echo(asked: Asked) -> Answer:
        return Service.error(None, -32000, f"{asked.path} is not for you", 403)

    with serve(echo) as web:
        for path, secret in [
            ("/mcp?api_key=secret99", "secret99"),
            ("/s/abcdef0123456789abcdef/mcp", "abcdef0123456789abcdef"),
            ("/mcp?key=a%20b%2Fc", "a%20b%2Fc"),
        ]:
            with pytest.raises(ConfigError, match=r"\*\*\*.* is not for you") as failed:
                mcp(web.url + path).tools()
            assert secret not in str(failed.value)


# The SDK's own servers


async def test_a_server_that_is_down_for_a_while(tmp_path: Path) -> None:
    with running(tmp_path) as (url, process):
        server = MCPServer(url)
        put = named(server, "end")
        add = named(server, "add")
        assert (await add.call({"a": 1, "b": 2}, context())).content == "3"
        process.kill()
        process.wait()
        for tool in (put, add):
            with pytest.raises(ToolError, match=r"nothing answers at its address|was not run"):
                await tool.call({"a": 1, "b": 2} if tool is add else {}, context())
        with running(tmp_path, port=url.split(":")[2].removesuffix("/mcp")):
            assert (await add.call({"a": 1, "b": 2}, context())).content == "3"
            await server.aclose()


@pytest.mark.full
async def test_large_results_and_many_calls_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as (url, _):
        async with MCPServer(url) as server:
            fill, add = named(server, "fill"), named(server, "add")
            assert len((await fill.call({"size": 5_000_000}, context())).content) == 5_000_000
            results = await asyncio.gather(
                *[add.call({"a": n, "b": 0}, context(f"r{n}")) for n in range(300)]
            )
            assert [result.content for result in results] == [str(n) for n in range(300)]


async def test_a_tool_that_was_removed_and_one_that_asks_the_user(tmp_path: Path) -> None:
    with running(tmp_path) as (url, _):
        async with MCPServer(url) as server:
            assert (await named(server, "forget").call({"name": "report"}, context())).content
            with pytest.raises(ToolError, match="has no tool 'report' any more; now it has: add, "):
                await named(server, "report").call({"steps": 1}, context())
            said = await outcome(named(server, "ask"))
            assert "elicitation" in said.lower()


async def outcome(tool: Any) -> str:
    try:
        return (await tool.call({}, context())).content  # type: ignore[no-any-return]
    except ToolError as error:
        return str(error)


async def test_the_older_transport_of_events(tmp_path: Path) -> None:
    with running(tmp_path, kind="sse") as (url, process):
        (server,) = mcp(json.dumps({"mcpServers": {"old": {"type": "sse", "url": url}}})).servers
        async with server:
            assert (await named(server, "add").call({"a": 1, "b": 2}, context())).content == "3"
            process.kill()
            process.wait()
            with pytest.raises(ToolError, match="nothing answers at its address"):
                await named(server, "add").call({"a": 1, "b": 2}, context())


@pytest.mark.parametrize("is_down", [False, True], ids=["started again", "down"])
async def test_events_that_do_not_end_with_their_server(tmp_path: Path, is_down: bool) -> None:
    """As behind a balancer, and with a machine that has lost its power."""
    with running(tmp_path, kind="sse") as (url, process):
        port = int(url.split(":")[2].removesuffix("/sse"))
        async with hold_open(port) as (held, requests):
            server = MCPServer(f"http://127.0.0.1:{held}/sse", transport="sse")
            await server.open()
            add, report = named(server, "add"), named(server, "report")
            assert (await add.call({"a": 1, "b": 2}, context())).content == "3"
            process.kill()
            process.wait()
            while requests:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(60):
                if is_down:
                    with pytest.raises(ToolError, match="the MCP server '127_0_0_1'"):
                        await add.call({"a": 1, "b": 2}, context())
                with running(tmp_path, port=str(port), kind="sse"):
                    assert (await report.call({"steps": 0}, context())).content == "reported"
                    assert (await add.call({"a": 1, "b": 2}, context())).content == "3"
                    await server.aclose()


@asynccontextmanager
async def hold_open(port: int) -> AsyncIterator[tuple[int, set[asyncio.StreamWriter]]]:
    """A port whose connections are passed on to `port`, and the connections for requests that are open. That of
    the events stays open when its other end is closed."""
    requests: set[asyncio.StreamWriter] = set()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            answers, calls = await asyncio.open_connection("127.0.0.1", port)
            begin = await reader.read(4)
            calls.write(begin)
            sending = asyncio.create_task(pump(reader, calls))
            is_held = begin.startswith(b"GET")
            requests.update(() if is_held else (writer,))
            await pump(answers, writer)
            if is_held:
                await sending
            sending.cancel()
            calls.close()
        writer.close()
        requests.discard(writer)

    listener = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], requests
    finally:
        listener.close()
