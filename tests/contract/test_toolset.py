"""What every toolset owes the loop, over all that are registered, each with what it needs."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tools.web import Asked, serve

from treadle import Agent, Policy, ScriptedModel
from treadle.core.types import Effect, Role, ToolCall, ToolErrorKind, ToolResult, ToolSpec
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.perform import read_call, run_tool
from treadle.sandbox.memory import MemorySandbox
from treadle.tools.function import check_tool_name
from treadle.tools.protocol import Scope, Tool, Toolbox, ToolContext
from treadle.tools.resolve import MAKERS, TOOLSETS, resolve_tools
from treadle.tools.validation import ArgumentChecker
from treadle.trajectory.transcript import check_transcript

ODD = Path(__file__).parents[1] / "tools" / "mcp" / "odd_server.py"


class Kind:
    """One toolset, a call of it that works, and one that does not."""

    def __init__(
        self,
        text: str,
        name: str,
        good: dict[str, Any],
        bad: dict[str, Any],
        *,
        says: str,
        own: tuple[dict[str, Any], dict[str, Any]] | None = None,
    ) -> None:
        self.text = text
        self.name = name
        self.good = good
        self.bad = bad
        """Arguments that break the schema."""
        self.says = says
        """What the result of the good call holds."""
        self.own = own
        """Two calls, of which the second shows what the first left in the run."""

    def tools(self) -> dict[str, Tool]:
        return {tool.spec.name: tool for tool in resolve_tools([self.text])}


def _files(folder: Path) -> Kind:
    write = {"file_path": "own", "content": "mine"}
    return Kind("files", "write_file", write, {"file_path": 1}, says="wrote 4 bytes", own=None)


def _python(folder: Path) -> Kind:
    own = ({"code": "mine = 5"}, {"code": "mine"})
    return Kind("python", "python", {"code": "6 * 7"}, {"cod": "1"}, says="42", own=own)


def _shell(folder: Path) -> Kind:
    own = ({"command": "echo mine > own"}, {"command": "cat own"})
    return Kind("shell", "shell", {"command": "echo hi"}, {"command": 5}, says="hi", own=own)


def _mcp(folder: Path) -> Kind:
    return Kind(f"mcp:{sys.executable} {ODD} plain", "once", {}, [1], says="did once")  # type: ignore[arg-type]


def _mock(folder: Path) -> Kind:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    fixtures = [
        {"match": {"n": 1}, "result": "one", "set": {"seen": 1}},
        {"match": {"n": 2}, "result": "{{state.seen}}"},
    ]
    path = folder / "mock.json"
    path.write_text(json.dumps({"tools": [{"name": "count", "inputSchema": schema, "fixtures": fixtures}]}))
    return Kind(f"mock:{path}", "count", {"n": 1}, {"n": "x"}, says="one", own=({"n": 1}, {"n": 2}))


def _openapi(folder: Path) -> Kind:
    url = SERVERS["openapi"]
    parameters = [{"name": "n", "in": "query", "required": True, "schema": {"type": "integer"}}]
    operation = {"operationId": "double", "parameters": parameters}
    raw = {"openapi": "3.1.0", "servers": [{"url": url}], "paths": {"/d": {"get": operation}}}
    DOCUMENT.update(raw)
    return Kind(f"openapi:{url}/openapi.json", "double", {"n": 4}, {"n": "x"}, says="8")


def _spin(folder: Path) -> Kind:
    write = {"file_path": "own", "content": "x"}
    return Kind(f"spin:{SERVERS['spin']}", "write_file", write, {"file_path": 1}, says="ok own")


KINDS: dict[str, Callable[[Path], Kind]] = {
    "files": _files,
    "python": _python,
    "shell": _shell,
    "mcp": _mcp,
    "mock": _mock,
    "openapi": _openapi,
    "spin": _spin,
}
SERVERS: dict[str, str] = {}
DOCUMENT: dict[str, Any] = {}


def _answer_openapi(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    head = {"content-type": "application/json"}
    if asked.path == "/openapi.json":
        return 200, head, json.dumps(DOCUMENT).encode()
    return 200, head, str(2 * int(asked.path.partition("n=")[2])).encode()


def _answer_spin(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    if asked.method == "DELETE":
        return 200, {}, b"{}"
    path = json.loads(asked.body)["args"].get("file_path", "")
    return 200, {}, json.dumps({"success": True, "result": f"ok {path}"}).encode()


@pytest.fixture(scope="module", autouse=True)
def _servers() -> Iterator[None]:
    with serve(_answer_openapi) as one, serve(_answer_spin) as two:
        SERVERS.update(openapi=one.url, spin=two.url)
        yield


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return KINDS[request.param](tmp_path)


def context(
    run_id: str = "r", sandbox: MemorySandbox | None = None, scope: Scope | None = None
) -> ToolContext:
    return ToolContext(run_id, "c1", 1, sandbox or MemorySandbox({"seed": "s"}), scope=scope or Scope())


async def perform(tool: Tool, arguments: dict[str, Any], where: ToolContext) -> ToolResult:
    written = ToolCall("c1", tool.spec.name, json.dumps(arguments))
    ready = read_call(written, {tool.spec.name: tool}, None)
    if isinstance(ready, ToolResult):
        return ready
    result, _ = await run_tool(written, *ready, where)
    return result


def test_every_registered_toolset_is_tried() -> None:
    assert set(KINDS) == {*TOOLSETS, *MAKERS} - {"shell-unprotected"}


def test_definitions_are_ones_that_providers_and_journals_take(kind: Kind) -> None:
    tools = kind.tools()
    assert kind.name in tools
    for tool in tools.values():
        spec = tool.spec
        check_tool_name(spec.name, "here")
        assert msgspec.json.decode(msgspec.json.encode(spec), type=ToolSpec) == spec
        assert spec.parameters["type"] == "object"
        ArgumentChecker(spec.parameters).find_fault({})
        assert spec.effect in Effect
    assert Toolbox(tools).under(Policy(max_result_chars=10)).by_name[kind.name].max_result_chars == 10


async def test_a_good_call_says_what_it_should_and_a_bad_one_what_is_wrong(kind: Kind) -> None:
    tool, where = kind.tools()[kind.name], context()
    assert tool.find_fault(kind.good) is None
    good = await perform(tool, kind.good, where)
    assert (good.is_error, kind.says in good.content) == (False, True), good
    bad = await perform(tool, kind.bad, where)
    assert bad.error_kind is ToolErrorKind.INVALID_ARGUMENTS
    assert len(bad.content) > 20
    await where.scope.close()


async def test_runs_do_not_see_each_other(kind: Kind) -> None:
    tool = kind.tools()[kind.name]
    places = [context(f"r{number}", MemorySandbox({"seed": "s"})) for number in range(20)]
    results = await asyncio.gather(*[perform(tool, kind.good, where) for where in places])
    assert [kind.says in item.content for item in results] == [True] * 20
    if kind.own is not None:
        first, second = kind.own
        await perform(tool, first, places[0])
        mine = await perform(tool, second, places[0])
        assert not mine.is_error
        others = await perform(tool, second, context("fresh"))
        assert others.is_error or others.content != mine.content
    for where in places:
        await where.scope.close()


def test_it_works_on_one_event_loop_after_another(kind: Kind) -> None:
    tool = kind.tools()[kind.name]

    async def once() -> str:
        where = context()
        try:
            return (await perform(tool, kind.good, where)).content
        finally:
            await where.scope.close()

    for _ in range(2):
        assert kind.says in asyncio.run(once())


async def test_it_goes_on_after_a_call_was_cancelled(kind: Kind) -> None:
    tool, where = kind.tools()[kind.name], context()
    for _ in range(3):
        task = asyncio.ensure_future(perform(tool, kind.good, where))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert kind.says in (await perform(tool, kind.good, where)).content
    await where.scope.close()


async def test_a_whole_run_is_kept_replayed_and_forked(kind: Kind) -> None:
    journal = MemoryJournal()
    steps: list[Any] = [[call(kind.name, kind.good)], [call(kind.name, kind.bad)], "done"]
    agent = Agent(ScriptedModel(steps), tools=[kind.text], journal=journal)
    run = await agent.run("go", files={"seed": "s"})
    results = [message for message in run.messages if message.role is Role.TOOL]
    assert [kind.says in results[0].content, results[1].is_error] == [True, True]
    assert check_transcript(run.messages) == []
    assert (await agent.replay(run.run_id)).is_exact
    again = Agent(ScriptedModel([[call(kind.name, kind.good)], "ok"]), tools=[kind.text], journal=journal)
    forked = await again.fork(run.run_id, text="once more")
    assert kind.says in forked.messages[-2].content
