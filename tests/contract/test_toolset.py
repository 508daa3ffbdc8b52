"""The contract between toolsets and the loop, tested on every registered toolset."""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from tests.loop.workbench import make_call
from tests.tools.web import Asked, serve

from treadle import Agent, Policy, RunNotFoundError, ScriptedModel
from treadle.core.asking import Question
from treadle.core.errors import ServerError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.types import (
    Effect,
    Request,
    Role,
    StopReason,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
)
from treadle.journal.memory import MemoryJournal
from treadle.loop.calls.workbench import Workbench
from treadle.models import call
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.function.decorator import check_tool_name
from treadle.tools.protocol import Tool
from treadle.tools.resolve import TOOLSETS, resolve_tools
from treadle.tools.schema.validation import ArgumentChecker
from treadle.tools.toolbox import Toolbox

MCP_SERVER = Path(__file__).parents[1] / "tools" / "mcp" / "small_server.py"
Call = tuple[str, dict[str, Any]]


class Kind(Struct, frozen=True):
    """One toolset, with example calls."""

    text: str
    good: Call
    says: str
    """A text that the result of `good` contains."""
    bad: Call
    """A call with invalid arguments; `at_fault` is the name of the invalid one."""
    at_fault: str
    fails: Call
    """A call with valid arguments that fails."""
    why: str
    """A text that the result of `fails` contains."""
    own: Callable[[str], tuple[Call, Call]] | None = None
    """Two calls; the second must return the text that the first left in the run."""
    slow: Call | None = None
    """A call that takes minutes unless it is cancelled."""


def answer_question(question: Question) -> str:
    return "Decide by yourself."


def _files(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        "files",
        good=("write_file", {"file_path": "a", "content": "mine"}),
        says="wrote 4 bytes",
        bad=("write_file", {"file_path": 1, "content": ""}),
        at_fault="file_path",
        fails=("read_file", {"file_path": "absent"}),
        why="absent",
        own=lambda text: (
            ("write_file", {"file_path": "own", "content": text}),
            ("read_file", {"file_path": "own"}),
        ),
    )


def _vfs(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        "vfs",
        good=("write_file", {"file_path": "a", "content": "mine"}),
        says="Successfully wrote 4 bytes to a",
        bad=("read_file", {"file_path": 1}),
        at_fault="file_path",
        fails=("delete_file", {"file_path": "absent"}),
        why="absent",
        own=lambda text: (
            ("write_file", {"file_path": "own", "content": text}),
            ("read_file", {"file_path": "own"}),
        ),
    )


def _python(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        "python",
        good=("python", {"code": "6 * 7"}),
        says="42",
        bad=("python", {"cod": "1"}),
        at_fault="code",
        fails=("python", {"code": "1 / 0"}),
        why="ZeroDivisionError",
        own=lambda text: (("python", {"code": f"mine = {text!r}"}), ("python", {"code": "mine"})),
        slow=("python", {"code": "while True:\n    pass"}),
    )


def _shell(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        "shell",
        good=("shell", {"command": "echo hi"}),
        says="hi",
        bad=("shell", {"command": 5}),
        at_fault="command",
        fails=("shell", {"command": "echo sorry; exit 3"}),
        why="sorry",
        own=lambda text: (("shell", {"command": f"echo {text} > own"}), ("shell", {"command": "cat own"})),
        slow=("shell", {"command": "sleep 100"}),
    )


def _mcp(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        f"mcp:{sys.executable} {MCP_SERVER}",
        good=("add", {"a": 40, "b": 2}),
        says="42",
        bad=("add", {"a": 40, "b": "two"}),
        at_fault="/b",
        fails=("show", {"what": "nothing"}),
        why="there is no 'nothing' to show",
        slow=("wait", {"seconds": 100}),
    )


def _mock(folder: Path, urls: dict[str, str]) -> Kind:
    schema = {"type": "object", "properties": {"put": {"type": "string"}, "get": {"type": "boolean"}}}
    fixtures: list[Any] = [
        {"match": {"put": {"$any": True}}, "result": "put {{put}}", "set": {"seen": "{{put}}"}},
        {"match": {"get": True}, "when": {"seen": {"$any": True}}, "result": "seen {{state.seen}}"},
    ]
    path = folder / "mock.json"
    keep = {"name": "keep", "description": "Keeps.", "inputSchema": schema, "fixtures": fixtures}
    path.write_text(json.dumps({"tools": [keep]}))
    return Kind(
        f"mock:{path}",
        good=("keep", {"put": "one"}),
        says="put one",
        bad=("keep", {"put": 1}),
        at_fault="put",
        fails=("keep", {"get": False}),
        why="keep",
        own=lambda text: (("keep", {"put": text}), ("keep", {"get": True})),
    )


def _openapi(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        f"openapi:{urls['openapi']}/openapi.json",
        good=("double", {"n": 21}),
        says="42",
        bad=("double", {"n": "x"}),
        at_fault="/n",
        fails=("double", {"n": 0}),
        why="HTTP 404\nno zero",
        slow=("double", {"n": -1}),
    )


def _ask(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        "ask",
        good=("ask_user", {"question": "Which file?"}),
        says="Decide by yourself",
        bad=("ask_user", {"question": 1}),
        at_fault="question",
        fails=("ask_user", {"question": " "}),
        why="give a text that is not empty",
    )


def _spin(folder: Path, urls: dict[str, str]) -> Kind:
    return Kind(
        f"spin:{urls['spin']}",
        good=("write_file", {"file_path": "a", "content": "mine"}),
        says="wrote a",
        bad=("write_file", {"file_path": 1, "content": ""}),
        at_fault="file_path",
        fails=("read_file", {"file_path": "absent"}),
        why="there is no absent",
        own=lambda text: (
            ("write_file", {"file_path": "own", "content": text}),
            ("read_file", {"file_path": "own"}),
        ),
        slow=("read_file", {"file_path": "slow"}),
    )


KINDS: dict[str, Callable[[Path, dict[str, str]], Kind]] = {
    "ask": _ask,
    "files": _files,
    "vfs": _vfs,
    "python": _python,
    "shell": _shell,
    "mcp": _mcp,
    "mock": _mock,
    "openapi": _openapi,
    "spin": _spin,
}
DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {
        "/double": {
            "get": {
                "operationId": "double",
                "parameters": [{"name": "n", "in": "query", "required": True, "schema": {"type": "integer"}}],
            }
        }
    },
}


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """The addresses of the services that some toolsets need, by name."""
    is_over = threading.Event()
    sessions: dict[str, dict[str, str]] = {}

    def answer_openapi(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.path == "/openapi.json":
            return 200, {"content-type": "application/json"}, json.dumps(DOCUMENT).encode()
        number = int(asked.path.partition("n=")[2])
        if number < 0:
            is_over.wait(100)
        if number == 0:
            return 404, {"content-type": "text/plain"}, b"no zero"
        return 200, {"content-type": "application/json"}, str(2 * number).encode()

    def answer_spin(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.method == "DELETE":
            sessions.pop(asked.path.rpartition("/")[2], None)
            return 200, {}, b"{}"
        body = json.loads(asked.body)
        files, path = sessions.setdefault(body["session_id"], {}), body["args"].get("file_path", "")
        if path == "slow":
            is_over.wait(100)
        if body["tool"] == "write_file":
            files[path] = body["args"]["content"]
            return 200, {}, json.dumps({"success": True, "result": f"wrote {path}"}).encode()
        said = files.get(path, f"there is no {path}")
        return 200, {}, json.dumps({"success": path in files, "result": said}).encode()

    with serve(answer_openapi) as one, serve(answer_spin) as two:
        yield {"openapi": one.url, "spin": two.url}
        is_over.set()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, urls: dict[str, str]) -> Kind:
    return KINDS[request.param](tmp_path, urls)


@pytest.fixture
def make(kind: Kind) -> Iterator[Callable[[], Any]]:
    """A function that makes the toolset, as a new object if possible. All objects are closed after the test."""
    made: list[Any] = []
    # Toolsets that other tests gave by name end with this process.
    before = _children("small_server.py", "bwrap")

    def make() -> Any:
        name, colon, rest = kind.text.partition(":")
        made.append(TOOLSETS.load(name + colon)(*([rest] if colon else [])))
        return made[-1]

    yield make
    for toolset in made:
        getattr(toolset, "close", lambda: None)()
    deadline = time.monotonic() + 20
    while (left := _children("small_server.py", "bwrap")) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == before


def _children(*names: str) -> list[str]:
    """Return the commands of this process's descendants that contain one of `names`."""
    parents: dict[str, str] = {}
    commands: dict[str, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[folder.name] = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            commands[folder.name] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    found = {str(os.getpid())}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(commands[pid] for pid in found if any(name in commands.get(pid, "") for name in names))


@pytest.fixture
def tools(make: Callable[[], Any]) -> dict[str, Tool]:
    return _tools_of(make())


def _tools_of(toolset: Any) -> dict[str, Tool]:
    return {tool.spec.name: tool for tool in resolve_tools([toolset])}


class Place:
    """One run's files and scope, in which calls can be made."""

    def __init__(self, tools: dict[str, Tool], run_id: str = "r") -> None:
        self.tools = tools
        self.sandbox = MemorySandbox({"seed": "s"})
        self.bench = Workbench(Toolbox(tools), run_id=run_id, sandbox=self.sandbox)
        self.scope = self.bench.scope

    async def __call__(self, wanted: Call) -> ToolResult:
        name, arguments = wanted
        written = ToolCall("c1", name, json.dumps(arguments))
        return await make_call(written, self.tools, bench=self.bench)

    async def __aenter__(self) -> "Place":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scope.close()


def test_every_registered_toolset_is_tried() -> None:
    # One differs from `shell` only in the sandbox, and the others have the tools of clients.
    left_out = {"shell-unprotected", "client", "client-mcp"}
    assert set(KINDS) == {name.rstrip(":") for name in TOOLSETS.table} - left_out


def test_definitions_are_ones_that_providers_and_journals_take(kind: Kind, tools: dict[str, Tool]) -> None:
    assert {kind.good[0], kind.bad[0], kind.fails[0]} <= tools.keys()
    for tool in tools.values():
        spec = tool.spec
        check_tool_name(spec.name, "here")
        assert msgspec.json.decode(msgspec.json.encode(spec), type=ToolSpec) == spec
        assert spec.parameters["type"] == "object"
        ArgumentChecker(spec.parameters).find_fault({})
        assert spec.effect in Effect
        assert spec.description
    name = kind.good[0]
    assert Toolbox(tools).under(Policy(max_result_chars=10)).by_name[name].max_result_chars == 10


async def test_good_calls_bad_arguments_and_failures_are_values(kind: Kind, tools: dict[str, Tool]) -> None:
    async with Place(tools) as place:
        good = await place(kind.good)
        assert (good.is_error, kind.says in good.content) == (False, True), good
        bad = await place(kind.bad)
        assert bad.error_kind is ToolErrorKind.INVALID_ARGUMENTS
        assert kind.at_fault in bad.content
        assert "accepted parameters: " in bad.content
        failed = await place(kind.fails)
        assert (failed.error_kind, kind.why in failed.content) == (ToolErrorKind.FAILED, True), failed
        assert kind.says in (await place(kind.good)).content


async def test_runs_do_not_see_each_other(kind: Kind, tools: dict[str, Tool]) -> None:
    places = [Place(tools, f"isolated-{number}") for number in range(20)]
    results = await asyncio.gather(*[place(kind.good) for place in places])
    assert [kind.says in item.content for item in results] == [True] * 20
    if kind.own is not None:
        texts = [f"text-of-{number}." for number in range(20)]
        pairs = [kind.own(text) for text in texts]
        left = await asyncio.gather(*[place(pair[0]) for place, pair in zip(places, pairs, strict=True)])
        assert not any(item.is_error for item in left)
        seen = await asyncio.gather(*[place(pair[1]) for place, pair in zip(places, pairs, strict=True)])
        assert [[text for text in texts if text in item.content] for item in seen] == [[t] for t in texts]
        async with Place(tools, "fresh") as fresh:
            nothing = await fresh(pairs[0][1])
        assert nothing.is_error
        assert not any(text in nothing.content for text in texts)
    for place in places:
        await place.scope.close()


def test_it_works_on_one_event_loop_after_another(kind: Kind, tools: dict[str, Tool]) -> None:
    async def once() -> str:
        async with Place(tools) as place:
            return (await place(kind.good)).content

    for _ in range(2):
        assert kind.says in asyncio.run(once())


async def test_it_goes_on_after_a_call_was_cancelled(kind: Kind, tools: dict[str, Tool]) -> None:
    async with Place(tools) as place:
        await place(kind.good)
        for ticks in (0, 1, 2, 5):
            task = asyncio.ensure_future(place(kind.good))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if kind.slow is not None:
            task = asyncio.ensure_future(place(kind.slow))
            await asyncio.wait([task], timeout=0.2)
            assert not task.done()
            task.cancel()
            # This is much less than the call takes.
            async with asyncio.timeout(30):
                await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
        assert kind.says in (await place(kind.good)).content


async def test_a_whole_run_is_kept_replayed_and_forked(kind: Kind, make: Callable[[], Any]) -> None:
    journal = MemoryJournal()
    steps: list[Any] = [[call(*kind.good), call(*kind.fails)], [call(*kind.bad)], "done"]
    async with Agent(ScriptedModel(steps), tools=[make()], asker=answer_question, journal=journal) as agent:
        run = await agent.run("go", files={"seed": "s"})
        results = [message for message in run.messages if message.role is Role.TOOL]
        assert [kind.says in results[0].content, results[1].is_error, results[2].is_error] == [True] * 3
        assert check_transcript(run.messages) == []
        assert (await agent.replay(run.run_id)).is_exact
    async with Agent(
        ScriptedModel([[call(*kind.good)], "ok"]), tools=[make()], asker=answer_question, journal=journal
    ) as again:
        forked = await again.fork(run.run_id, text="once more")
        assert kind.says in forked.messages[-2].content


async def test_a_run_that_broke_off_goes_on_elsewhere(kind: Kind, make: Callable[[], Any]) -> None:
    journal = MemoryJournal()
    first, second = kind.own("left-before") if kind.own is not None else (kind.good, kind.good)
    steps: list[Any] = [[call(*first)], ServerError("gone")]
    async with Agent(ScriptedModel(steps), tools=[make()], asker=answer_question, journal=journal) as agent:
        broken = await agent.run("go", files={"seed": "s"})
        assert broken.stop_reason is StopReason.ERROR
    async with Agent(
        ScriptedModel([[call(*second)], "done"]), tools=[make()], asker=answer_question, journal=journal
    ) as again:
        run = await again.resume(broken.run_id)
        assert run.stop_reason is StopReason.COMPLETED
        assert ("left-before" if kind.own is not None else kind.says) in run.messages[-2].content
        assert (await again.replay(run.run_id)).is_exact


async def test_a_run_that_is_cancelled_anywhere_can_be_resumed(kind: Kind, make: Callable[[], Any]) -> None:
    def answer(request: Request) -> Any:
        is_answered = request.messages[-1].role is Role.TOOL
        return "done" if is_answered else [call(*kind.good), call(*kind.good)]

    async with Agent(
        ScriptedModel(answer), tools=[make()], asker=answer_question, journal=MemoryJournal()
    ) as agent:
        for ticks in (1, 2, 3, 4, 6, 9, 14, 30):
            task = asyncio.ensure_future(agent.run("go", run_id=f"run-{ticks}", files={"seed": "s"}))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            try:
                run = await agent.resume(f"run-{ticks}")
            except RunNotFoundError:
                continue
            assert run.stop_reason in (StopReason.COMPLETED, StopReason.CANCELLED)
            assert check_transcript(run.messages) == []
            assert (await agent.replay(run.run_id)).is_exact
