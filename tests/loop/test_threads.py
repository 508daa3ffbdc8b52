"""Tools that run in threads, which cannot be stopped: what the model is told, and what waits for them."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from treadle import Agent, Policy, ScriptedModel, ToolContext, tool
from treadle.core.types import StopReason, ToolErrorKind
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.threads import THREADS


class Stage:
    """A tool that runs in a thread until it is released."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.release = threading.Event()
        self.running = self.most_running = self.calls = 0

    def act(self) -> str:
        """Act."""
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.began.set()
        self.release.wait(60)
        self.running -= 1
        return "acted"


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.release.set()


@pytest.fixture(autouse=True)
async def _no_thread_is_left() -> AsyncIterator[None]:
    yield
    while THREADS.left:
        await asyncio.sleep(0.001)


def make(tools: list[Any], *answers: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(answers) or [[call("act")], "done"]), tools=tools, **options)


@pytest.mark.parametrize("effect", ["pure", "idempotent", "once"])
async def test_a_thread_that_ran_out_of_time_may_still_be_running(stage: Stage, effect: Any) -> None:
    act = tool(stage.act, effect=effect, timeout_seconds=0.3)
    run = await make([act], journal=MemoryJournal()).run("go")
    result = run.results[0]
    assert result.error_kind is ToolErrorKind.TIMEOUT
    assert "could not be stopped and may still be running" in result.content
    assert ("its outcome is unknown" in result.content) is (effect == "once")
    assert stage.running == 1


async def test_a_coroutine_that_ran_out_of_time_was_stopped_but_may_have_acted() -> None:
    async def act() -> str:
        """Act."""
        await asyncio.sleep(60)
        return "acted"

    texts = []
    for effect in ("pure", "once"):
        agent = make([tool(act, effect=effect, timeout_seconds=0.01)], journal=MemoryJournal())
        texts.append((await agent.run("go")).results[0].content)
    assert texts == [
        "act did not finish within 0.01 s and was stopped.",
        "act did not finish within 0.01 s and was stopped. Its outcome is unknown: it may or may not have taken "
        "effect. Check before you call it again.",
    ]


async def cancel_within(agent: Agent, stage: Stage) -> None:
    task = asyncio.ensure_future(agent.run("go", run_id="r"))
    await asyncio.to_thread(stage.began.wait)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_call_is_not_run_beside_an_earlier_attempt_that_goes_on(stage: Stage) -> None:
    journal, told = MemoryJournal(), []
    act = tool(stage.act, effect="idempotent")
    await cancel_within(make([act], journal=journal), stage)

    def on_event(event: Any) -> None:
        if event.type == "tool_progress":
            told.append(event.body.text)
            stage.release.set()

    agent = make([act], "done", journal=journal)
    run = await agent.resume("r", on_event=on_event)
    assert told == ["waiting for an earlier attempt at this call, which is still running"]
    assert run.results[0].content == "acted"
    assert (stage.calls, stage.most_running) == (2, 1)
    assert (await agent.replay("r")).is_exact


async def test_a_call_whose_earlier_attempt_does_not_end_is_not_run(stage: Stage) -> None:
    journal = MemoryJournal()
    await cancel_within(make([tool(stage.act, effect="pure")], journal=journal), stage)
    agent = make([tool(stage.act, effect="pure", timeout_seconds=0.01)], "done", journal=journal)
    run = await agent.resume("r")
    assert run.results[0].content.startswith("Not run: an earlier attempt at this call is still running")
    assert stage.calls == 1
    assert (await agent.replay("r")).is_exact


async def test_the_result_of_a_call_that_the_deadline_stopped_says_that_it_goes_on(stage: Stage) -> None:
    act = tool(stage.act, effect="once")
    agent = make([act], journal=MemoryJournal(), policy=Policy(deadline_seconds=0.3))
    run = await agent.run("go")
    assert run.stop_reason is StopReason.DEADLINE
    assert run.results[0].content.endswith("It runs in a thread that could not be stopped, and goes on.")
    assert (await agent.replay(run.run_id)).is_exact


async def test_what_a_tool_holds_is_closed_after_its_thread_has_ended(stage: Stage) -> None:
    order: list[str] = []

    @contextlib.asynccontextmanager
    async def hold() -> AsyncIterator[None]:
        yield
        order.append(f"closed with {stage.running} running")

    @tool(effect="pure")
    async def take(context: ToolContext) -> str:
        """Hold something for the run."""
        await context.scope.get("held", hold)
        return "held"

    class Releasing(ScriptedModel):
        async def infer(self, *args: Any) -> Any:
            if len(self.requests) == 2:
                asyncio.get_running_loop().call_later(0.02, stage.release.set)
            return await super().infer(*args)

    act = tool(stage.act, effect="pure", timeout_seconds=0.01)
    model = Releasing([[call("take")], [call("act")], "done"])
    await Agent(model, tools=[take, act], journal=MemoryJournal()).run("go")
    assert order == ["closed with 0 running"]


async def test_a_function_that_did_not_begin_is_never_run() -> None:
    act = threading.Event()
    free = threading.Event()
    hogs = [asyncio.ensure_future(THREADS.run(free.wait, {})) for _ in range(64)]
    await asyncio.sleep(0)
    task = asyncio.ensure_future(THREADS.run(act.set, {}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as error:
        await task
    assert not THREADS.keep("r/c", error.value)
    free.set()
    await asyncio.gather(*hogs)
    assert not act.is_set()


@pytest.mark.parametrize("count", [999, 1000, 1001, 2500])
async def test_long_lists_are_the_same_text_as_short_ones(count: int) -> None:
    @tool(effect="pure")
    def act() -> list[dict[str, int]]:
        """Act."""
        return [{"id": number} for number in range(count)]

    run = await make([act], journal=MemoryJournal()).run("go")
    assert json.loads(run.results[0].content) == [{"id": number} for number in range(count)]


async def test_a_large_result_is_the_same_as_a_small_one() -> None:
    text = "é\ud800x" * 1_000_000

    @tool(effect="pure")
    def act(context: ToolContext) -> str:
        """Act."""
        context.sandbox.write("large", b"1" * 3_000_000)  # type: ignore[union-attr]
        return text

    run = await make([act], journal=MemoryJournal()).run("go")
    artifact = run.results[0].artifacts[0]
    assert run.read_artifact(artifact.digest or "") == text.encode(errors="backslashreplace")
    assert run.files == {"large": b"1" * 3_000_000}
