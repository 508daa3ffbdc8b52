"""The Spin client with services written from the description of the protocol, including its defects."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.tools.web import Asked, Web, serve

from treadle import Agent, Policy, ScriptedModel
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect, ToolSpec
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.spin import Spin, session_of, spin

Json = Any


class Service:
    """The VFS component as described: a flat store of keys, and a clean-up address that is easily missed."""

    def __init__(self, cleanup: str = "/vfs/session/") -> None:
        self.files: dict[str, dict[str, str]] = {}
        self.cleanup = cleanup
        self.override: Callable[[Asked], tuple[int, dict[str, str], bytes] | None] = lambda _: None

    def __call__(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        special = self.override(asked)
        if special is not None:
            return special
        if asked.method == "DELETE":
            if not asked.path.startswith(self.cleanup):
                return 404, {}, b""
            self.files.pop(asked.path.removeprefix(self.cleanup), None)
            return 200, {}, b"{}"
        if asked.path == "/vfs/health":
            return 200, {}, b'{"status":"healthy","components":["vfs"]}'
        if asked.path != "/vfs/execute":
            return 404, {}, b"not here"
        body = json.loads(asked.body)
        files = self.files.setdefault(body["session_id"], {})
        return 200, {}, json.dumps(self.run(body["tool"], body["args"], files)).encode()

    def run(self, tool: str, args: dict[str, str], files: dict[str, str]) -> Json:
        path = args.get("file_path", "")
        if tool == "write_file":
            files[path] = args["content"]
            return {"success": True, "result": f"Successfully wrote {len(args['content'])} bytes to {path}"}
        if tool == "list_files":
            return {"success": True, "result": json.dumps(sorted(files))}
        if path not in files:
            return {"success": False, "result": f"File not found: {path}", "error_type": "FileNotFound"}
        if tool == "delete_file":
            del files[path]
            return {"success": True, "result": f"Successfully deleted {path}"}
        return {"success": True, "result": files[path]}


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def web(service: Service) -> Iterator[Web]:
    with serve(service) as web:
        yield web


def context(files: dict[str, str] | None = None, run_id: str = "r") -> ToolContext:
    return ToolContext(run_id, "c", 1, MemorySandbox(files or {}), scope=Scope())


async def ask(toolset: Spin, name: str, where: ToolContext, **arguments: Any) -> Any:
    tool = next(item for item in toolset.tools() if item.spec.name == name)
    assert tool.find_fault(arguments) is None
    return await tool.call(arguments, where)


async def test_calls_go_to_the_component_with_the_runs_own_session(web: Web, service: Service) -> None:
    toolset = spin(web.url)
    assert {tool.spec.name: tool.spec.effect for tool in toolset.tools()} == {
        "read_file": Effect.PURE,
        "write_file": Effect.IDEMPOTENT,
        "list_files": Effect.PURE,
        "delete_file": Effect.ONCE,
    }
    one, two = context(run_id="one"), context(run_id="two")
    assert (await ask(toolset, "write_file", one, file_path="a", content="é")).content.startswith(
        "Successfully"
    )
    assert (await ask(toolset, "list_files", two)).content == "[]"
    assert (await ask(toolset, "read_file", one, file_path="a")).content == "é"
    absent = await ask(toolset, "read_file", two, file_path="a")
    assert (absent.is_error, absent.content) == (True, "FileNotFound: File not found: a")
    assert set(service.files) == {session_of("one"), session_of("two")}
    body = json.loads(web.asked[0].body)
    assert (web.asked[0].path, body) == (
        "/vfs/execute",
        {"session_id": session_of("one"), "tool": "write_file", "args": {"file_path": "a", "content": "é"}},
    )


async def test_a_run_seeds_its_session_once_and_frees_it_when_it_is_over(web: Web, service: Service) -> None:
    steps: list[Any] = [[call("read_file", {"file_path": "seed"})], [call("list_files")], "ok"]
    journal = MemoryJournal()
    agent = Agent(ScriptedModel(steps), tools=[spin(web.url)], journal=journal)
    run = await agent.run("go", files={"seed": "planted"})
    assert [item.content for item in run.messages if item.call_id] == ["planted", '["seed"]']
    assert sum(b"write_file" in asked.body for asked in web.asked) == 1
    assert service.files == {}
    assert run.files == {"seed": b"planted"}


async def test_a_run_that_is_paused_keeps_its_session(web: Web, service: Service) -> None:
    steps: list[Any] = [
        [call("write_file", {"file_path": "a", "content": "1"})],
        [call("delete_file", {"file_path": "a"})],
        [call("list_files")],
        "ok",
    ]
    journal = MemoryJournal()
    model = ScriptedModel(steps)
    policy = Policy(approve={"once": "ask"})  # type: ignore[dict-item]
    agent = Agent(model, tools=[spin(web.url)], journal=journal, policy=policy)
    run = await agent.run("go", files={"b": "2"})
    assert list(service.files.values()) == [{"a": "1", "b": "2"}]
    run = await agent.resume(run.run_id, approvals=dict.fromkeys(run.approvals, True))
    assert run.messages[-2].content == '["b"]'
    assert sum(b'"write_file"' in asked.body for asked in web.asked) == 2
    assert service.files == {}


@pytest.mark.parametrize("cleanup", ["/session/", "/vfs/session/"])
async def test_either_address_of_clean_up_will_do(cleanup: str) -> None:
    service = Service(cleanup)
    with serve(service) as web:
        assert await spin(web.url).end("x")
    with serve(Service("/nowhere/")) as web:
        assert not await spin(web.url).end("x")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>", "did not answer with JSON"),
        (200, b"[]", "did not answer with a result"),
        (200, b'{"success": "yes"}', "did not answer with a result"),
        (
            400,
            b'{"success":false,"result":"bad body","error_type":"InvalidRequest"}',
            "InvalidRequest: bad body",
        ),
        (404, b"not found", "HTTPError: HTTP 404"),
        (500, b'{"error":"the store is full"}', "HTTPError: the store is full"),
    ],
)
async def test_answers_that_are_no_result(
    web: Web, service: Service, status: int, body: bytes, message: str
) -> None:
    service.override = lambda _: (status, {}, body)
    with pytest.raises(ToolError, match=message):
        await ask(spin(web.url), "list_files", context())


async def test_a_result_that_is_no_text_is_kept_as_json(web: Web, service: Service) -> None:
    service.override = lambda _: (200, {}, b'{"success": true, "result": {"n": 1}}')
    output = await ask(spin(web.url), "list_files", context())
    assert (output.content, output.structured) == ('{"n":1}', {"n": 1})


async def test_a_service_that_is_slow_or_gone(web: Web, service: Service) -> None:
    def slow(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        time.sleep(1)
        return 200, {}, b""

    service.override = slow
    with pytest.raises(ToolError, match=r"within 0.2 s"):
        await ask(Spin(web.url, timeout_seconds=0.2), "list_files", context())
    with pytest.raises(ToolError, match="gave no answer"):
        await ask(spin("http://127.0.0.1:9"), "list_files", context())


async def test_a_seed_that_fails_is_an_error_and_not_a_warning(web: Web, service: Service) -> None:
    full = b'{"success": false, "result": "disk full", "error_type": "IOError"}'
    service.override = lambda asked: (200, {}, full) if b"write_file" in asked.body else None
    with pytest.raises(
        ToolError, match="the run's file 'a' could not be written to the session: IOError: disk full"
    ):
        await ask(spin(web.url), "list_files", context({"a": "1"}))


async def test_the_mock_route_has_no_session(web: Web, service: Service) -> None:
    def mock(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.path == "/mock/list-tools":
            tools = [{"name": "f", "description": "", "inputSchema": {"type": "object"}}]
            return 200, {}, json.dumps({"tools": tools}).encode()
        body = json.loads(asked.body)
        if asked.path != "/mock/execute" or body["arguments"].get("fail"):
            return 404, {}, b'{"error":"no such mock"}'
        return 200, {}, json.dumps({"result": {"echo": body}}).encode()

    service.override = mock
    toolset = spin(f"{web.url}/mock")
    output = await ask(toolset, "f", context({"a": "1"}), n=1)
    assert output.structured == {"echo": {"name": "f", "arguments": {"n": 1}}}
    with pytest.raises(ToolError, match="no such mock"):
        await ask(toolset, "f", context(), fail=True)


async def test_components_that_are_not_known(web: Web) -> None:
    with pytest.raises(ConfigError, match=r"are not known; give them with Spin"):
        spin(f"{web.url}/github").tools()
    own = Spin(web.url, component="github", tools=[ToolSpec("gh", "", {"type": "object"})])
    assert [tool.spec.name for tool in own.tools()] == ["gh"]
    with pytest.raises(ConfigError, match="is not the URL of a server"):
        spin("localhost:3000")


async def test_the_tools_of_a_component_can_be_listed_at_an_address_and_chosen_by_name(
    web: Web, service: Service
) -> None:
    names = ("find_tea", "brew_tea")
    listed = {
        "tools": [{"name": name, "description": "", "inputSchema": {"type": "object"}} for name in names]
    }

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
        if asked.path == "/lists/tea":
            return 200, {}, json.dumps(listed).encode()
        return (200, {}, b'{"success":true,"result":"green"}') if asked.path == "/tea/execute" else None

    service.override = answer
    settings: Json = {"endpoint": web.url, "component": "tea", "tools_endpoint": f"{web.url}/lists/tea"}
    assert [tool.spec.name for tool in Spin(**settings).tools()] == ["find_tea", "brew_tea"]
    chosen = Spin(**settings, names=["brew_tea"])
    assert [tool.spec.name for tool in chosen.tools()] == ["brew_tea"]
    assert (await ask(chosen, "brew_tea", context())).content == "green"
    assert chosen.part.settings == settings | {"names": ["brew_tea"]}
    with pytest.raises(ConfigError, match="has no tool 'brew_te'; did you mean 'brew_tea'"):
        Spin(**settings, names=["brew_te"]).tools()
