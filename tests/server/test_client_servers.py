"""MCP servers that clients name in requests: OpenAI's SDK asks, and a server of the MCP SDK has the tools."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from openai import AsyncOpenAI
from tests.server.test_relay import assert_replays
from tests.server.test_responses import serving
from tests.server.test_runs import Killed

from treadle import Agent, ConfigError, Run, open_journal

SECRET = "tok-4f6cd2b1e09a"
CONFIG = """
[models.echo]
model = "mock:echo"

[agents.strict]
model = "echo"
tools = ["files"]
approve = {{ add = "never" }}

[serve]
mcp_addresses = ["{url}"]

[serve.mcp_servers.house]
url = "{url}"
headers = {{ Authorization = "Bearer {secret}" }}
"""
ADD = 'call add {"a": 1, "b": 2}\nthen\nsay done'


class Behind:
    """A server of the MCP SDK with a key, and what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.url = ""
        self.waits = asyncio.Event()
        """What a call of `save` waits for."""
        self.waits.set()

    def app(self) -> Any:
        made = MCPServer("sums")

        @made.tool(annotations=ToolAnnotations(read_only_hint=True))
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            self.calls.append(f"add {a} {b}")
            return a + b

        @made.tool()
        async def save(text: str) -> str:
            """Save a text."""
            self.calls.append(f"save {text}")
            await self.waits.wait()
            if text == "fail":
                raise ValueError(f"no room for {SECRET}")
            return "saved"

        inner = made.streamable_http_app()

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            headers = dict(scope.get("headers", ()))
            if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {SECRET}".encode():
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"who are you?"})
                return
            await inner(scope, receive, send)

        return guarded


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await task


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    made = Behind()
    async with listening(made.app()) as port:
        made.url = f"http://127.0.0.1:{port}/mcp"
        yield made


@pytest.fixture
async def client(behind: Behind, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    file = tmp_path / "treadle.toml"
    file.write_text(CONFIG.format(url=behind.url, secret=SECRET))
    journal = open_journal(tmp_path / "journal.db")
    async with (
        serving(file, journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made,
    ):
        yield made
    journal.close()


def sums(behind: Behind, **more: Any) -> Any:
    given = {"type": "mcp", "server_label": "sums", "server_url": behind.url, "authorization": SECRET}
    return {**given, "require_approval": "never", **more}


async def test_a_server_is_listed_once_and_its_calls_have_its_label(
    client: AsyncOpenAI, behind: Behind
) -> None:
    stream = await client.responses.create(model="echo", input=ADD, tools=[sums(behind)], stream=True)
    events: list[Any] = [event async for event in stream]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[2:6] == [
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"),
    ]
    assert [kind for kind in kinds if kind.startswith("mcp_call")][-2:] == [
        *("mcp_call_arguments.done", "mcp_call.completed"),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    first = events[-1].response
    listed, call, _ = first.output
    assert (listed.type, listed.server_label) == ("mcp_list_tools", "sums")
    assert [tool.name for tool in listed.tools] == ["add", "save"]
    assert listed.tools[0].input_schema["required"] == ["a", "b"]
    assert (call.type, call.server_label, call.name, call.output) == ("mcp_call", "sums", "add", "3")
    assert behind.calls == ["add 1 2"]
    read = await client.responses.retrieve(first.id)
    assert [item.id for item in read.output] == [item.id for item in first.output]
    kept: Any = first.tools[0]
    assert (kept.server_label, kept.authorization, kept.headers) == ("sums", None, None)


async def test_a_run_has_the_servers_of_the_client(client: AsyncOpenAI, behind: Behind) -> None:
    body = {"model": "echo", "input": ADD, "tools": [sums(behind)], "wait": True}
    await client.post("/runs", body=body, cast_to=object)
    assert behind.calls == ["add 1 2"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_each_way_to_read_a_conversation_has_the_same_lists(
    client: AsyncOpenAI, behind: Behind, is_stream: bool
) -> None:
    house: Any = {"type": "mcp", "server_label": "house", "require_approval": "never"}
    shown: list[str] = []
    before: str | None = None
    for tools, listed in (
        ([sums(behind)], ["sums"]),
        ([sums(behind)], []),
        ([], []),
        ([sums(behind), house], ["house"]),
        ([house], []),
    ):
        asked: Any = {"model": "echo", "input": "hi", "tools": tools, "previous_response_id": before}
        if is_stream:
            events: list[Any] = [event async for event in await client.responses.create(**asked, stream=True)]
            made = events[-1].response
            done = [event.item.id for event in events if event.type == "response.output_item.done"]
            assert done == [item.id for item in made.output]
        else:
            made = await client.responses.create(**asked)
        lists = [item.server_label for item in made.output if item.type == "mcp_list_tools"]
        assert lists == listed
        again = await client.responses.retrieve(made.id)
        assert [item.id for item in again.output] == [item.id for item in made.output]
        before = made.id
        shown += [item.id for item in made.output]
    items = await client.conversations.items.list(made.conversation.id, order="asc")
    assert [item.id for item in items.data if getattr(item, "role", None) != "user"] == shown
    inputs = await client.responses.input_items.list(made.id, order="asc")
    assert [item.id for item in inputs.data if getattr(item, "role", None) != "user"] == shown[:-1]


async def test_a_call_waits_for_the_approval_of_the_client(client: AsyncOpenAI, behind: Behind) -> None:
    tools = [sums(behind, require_approval={"never": {"read_only": True}})]
    asked = 'call add {"a": 1, "b": 2}\nthen\ncall save {"text": "x"}\nthen\nsay done'
    first = await client.responses.create(model="echo", input=asked, tools=tools)
    request: Any = first.output[-1]
    assert (request.type, request.server_label, request.name) == ("mcp_approval_request", "sums", "save")
    assert behind.calls == ["add 1 2"]
    decision: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    last = await client.responses.create(
        model="echo", input=[decision], tools=tools, previous_response_id=first.id
    )
    call: Any = last.output[0]
    assert (call.type, call.name, call.server_label, call.output) == ("mcp_call", "save", "sums", "saved")
    assert call.approval_request_id == request.id
    assert last.output_text == "done"
    assert behind.calls == ["add 1 2", "save x"]


@pytest.mark.parametrize(
    ("needs", "asks"),
    [
        ("always", ["add", "save"]),
        ("never", []),
        (None, ["add", "save"]),
        ({"always": {"tool_names": ["save"]}, "never": {"tool_names": ["save", "add"]}}, ["save"]),
        ({"always": {"read_only": False}}, ["add", "save"]),
    ],
)
async def test_who_approves(client: AsyncOpenAI, behind: Behind, needs: Any, asks: list[str]) -> None:
    asked = 'call add {"a": 1, "b": 2}\ncall save {"text": "x"}\nthen\nsay done'
    tool = sums(behind, require_approval=needs)
    made = await client.responses.create(model="echo", input=asked, tools=[tool])
    requests: list[Any] = [item for item in made.output if item.type == "mcp_approval_request"]
    assert [item.name for item in requests] == asks


async def test_a_client_cannot_lift_a_rule_of_the_operator(client: AsyncOpenAI, behind: Behind) -> None:
    made = await client.responses.create(model="strict", input=ADD, tools=[sums(behind)])
    assert made.output_text == "done"
    assert behind.calls == []


async def test_only_allowed_tools_are_given(client: AsyncOpenAI, behind: Behind) -> None:
    for allowed in (["add"], {"read_only": True}, {"tool_names": ["add"], "read_only": True}):
        made: Any = await client.responses.create(
            model="echo", input="hi", tools=[sums(behind, allowed_tools=allowed)]
        )
        assert [tool.name for tool in made.output[0].tools] == ["add"]


async def test_two_servers_may_have_tools_of_one_name(client: AsyncOpenAI, behind: Behind) -> None:
    house: Any = {"type": "mcp", "server_label": "house", "require_approval": "never"}
    asked = 'call sums_add {"a": 1, "b": 2}\ncall house_add {"a": 3, "b": 4}\nthen\nsay done'
    made = await client.responses.create(model="echo", input=asked, tools=[sums(behind), house])
    calls: list[Any] = [item for item in made.output if item.type == "mcp_call"]
    told = [(call.server_label, call.name, call.output) for call in calls]
    assert told == [("sums", "add", "3"), ("house", "add", "7")]


async def test_no_secret_is_kept(client: AsyncOpenAI, behind: Behind, tmp_path: Path) -> None:
    asked = 'call save {"text": "fail"}\nthen\nsay done'
    made = await client.responses.create(model="echo", input=asked, tools=[sums(behind)], background=True)
    while made.status in ("queued", "in_progress"):
        await asyncio.sleep(0.05)
        made = await client.responses.retrieve(made.id)
    assert SECRET not in made.model_dump_json()
    assert made.output_text == "done"
    assert behind.calls == ["save fail"]
    for file in tmp_path.glob("journal.db*"):
        assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("more", "status", "error"),
    [
        ({"server_url": "http://127.0.0.1:1/mcp"}, 403, "clients may not name the MCP server"),
        ({"server_url": "http://169.254.169.254/latest"}, 403, "mcp_addresses"),
        ({"server_url": "URL/../admin"}, 403, "mcp_addresses"),
        ({"server_url": "URL/below"}, 403, "mcp_addresses"),
        ({"server_url": "http://[::1/mcp"}, 403, "mcp_addresses"),
        ({"server_url": "http://a]/mcp"}, 403, "mcp_addresses"),
        ({"server_url": "URL/%2e%2e/admin"}, 403, "mcp_addresses"),
        ({"server_url": "http://127.1:1/mcp"}, 403, "mcp_addresses"),
        ({"headers": {"X-Long": "a" * 9000}}, 400, "8,192 at most"),
        ({"authorization": " " * 100_000}, 400, "8,192 at most"),
        ({"server_url": None, "server_label": "other"}, 403, "knows no MCP server 'other'"),
        ({"server_url": None, "server_label": "house"}, 400, "takes no headers of clients"),
        ({"authorization": "wrong"}, 424, "401"),
        ({"headers": {"authorization": "Bearer x"}}, 400, "not both"),
        ({"server_label": "no label"}, 400, "server_label"),
        ({"connector_id": "house"}, 400, "server_url or connector_id, not both"),
        (
            {"connector_id": "connector_gmail", "server_url": None},
            403,
            "knows no MCP server 'connector_gmail'",
        ),
        ({"authorization": [SECRET]}, 400, "authorization"),
    ],
)
async def test_what_clients_may_not_name(
    client: AsyncOpenAI, behind: Behind, more: Any, status: int, error: str
) -> None:
    given = {name: it.replace("URL", behind.url) if isinstance(it, str) else it for name, it in more.items()}
    with pytest.raises(openai.APIStatusError, match=error) as refused:
        await client.responses.create(model="echo", input="hi", tools=[sums(behind, **given)])
    assert refused.value.status_code == status
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("approval", ["always", "never"])
async def test_the_operator_says_what_holds_if_a_client_does_not(
    behind: Behind, tmp_path: Path, approval: str
) -> None:
    """The client names the operator's server by its name, and gives it a label of its own."""
    file = tmp_path / "treadle.toml"
    text = CONFIG.format(url=behind.url, secret=SECRET)
    file.write_text(text.replace("[serve]", f'[serve]\nmcp_approval = "{approval}"'))
    tool: Any = {"type": "mcp", "server_label": "mine", "connector_id": "house"}
    with open_journal(tmp_path / "journal.db") as journal:
        async with (
            serving(file, journal) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        ):
            made: Any = await client.responses.create(model="echo", input=ADD, tools=[tool])
            listed, asked = made.output[:2]
            assert (listed.server_label, asked.server_label) == ("mine", "mine")
            assert asked.type == ("mcp_call" if approval == "never" else "mcp_approval_request")
            strict: Any = {**tool, "require_approval": "always"}
            made = await client.responses.create(model="echo", input=ADD, tools=[strict])
            assert made.output[-1].type == "mcp_approval_request"


async def test_a_run_whose_client_gave_no_key_can_be_built_elsewhere(
    client: AsyncOpenAI, behind: Behind, tmp_path: Path
) -> None:
    house: Any = {"type": "mcp", "server_label": "house", "allowed_tools": ["add"]}
    first = await client.responses.create(model="echo", input=ADD, tools=[house])
    assert first.output[-1].type == "mcp_approval_request"
    with open_journal(tmp_path / "journal.db") as journal:
        (info,) = journal.runs()
        spec = Run.load(info.run_id, journal).spec
        assert spec is not None
        with pytest.raises(ConfigError, match="may hold a secret"):
            Agent.from_spec(spec)  # the operator wrote the key into the configuration itself


@pytest.mark.parametrize("is_background", [False, True])
async def test_a_kill_ends_what_only_the_client_can_go_on_with(
    behind: Behind, tmp_path: Path, is_background: bool
) -> None:
    """The token is kept nowhere. The client is told so, and can continue the run with it."""
    (tmp_path / "treadle.toml").write_text(CONFIG.format(url=behind.url, secret=SECRET))
    killed = Killed(tmp_path)
    client = AsyncOpenAI(base_url=f"{killed.start()}/v1", api_key="any", max_retries=0)
    asked: Any = {
        "model": "echo",
        "input": f'{ADD.partition("then")[0]}then\ncall save {{"text": "x"}}\nthen\nsay done',
        "tools": [sums(behind)],
    }
    keyed = {"Idempotency-Key": "k1"}
    behind.waits.clear()
    try:
        asking = asyncio.ensure_future(
            client.responses.create(**asked, background=is_background, extra_headers=keyed)
        )
        async with asyncio.timeout(60):
            while behind.calls != ["add 1 2", "save x"]:
                await asyncio.sleep(0.01)
        killed.kill()
        first = None if not is_background else await asking
        if first is None:
            with pytest.raises(openai.APIConnectionError):
                await asking
        behind.waits.set()
        killed.start()
        lost = await client.responses.create(**asked, background=is_background, extra_headers=keyed)
        async with asyncio.timeout(60):
            while lost.status in ("queued", "in_progress"):
                lost = await client.responses.retrieve(lost.id)
        assert first is None or lost.id == first.id
        assert lost.status == "failed"
        assert "does not keep what the client gave for 'sums'" in lost.error.message
        assert SECRET not in lost.to_json()
        assert [item.type for item in lost.output] == ["mcp_list_tools", "mcp_call", "mcp_call"]
        assert behind.calls == ["add 1 2", "save x"]
        go_on: Any = {**asked, "input": "go on", "previous_response_id": lost.id}
        last = await client.responses.create(**go_on)
        assert (last.status, last.output_text) == ("completed", "done")
        again = await client.responses.create(**asked)
        assert (again.status, behind.calls[2:]) == ("completed", ["add 1 2", "save x"])
        assert last.conversation.id == lost.conversation.id
    finally:
        killed.kill()
    with open_journal(tmp_path / "runs.db") as journal:
        await assert_replays(journal)
