"""Finished runs are freed by their last reference, and do not wait for the cyclic garbage collector."""

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from treadle import Agent, Policy, ScriptedModel, ToolContext, tool
from treadle.core.errors import ServerError
from treadle.core.types import Request
from treadle.journal.memory import MemoryJournal
from treadle.loop.driver import Driver
from treadle.models import call
from treadle.models.wrappers.retry import RetryModel


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.freeze()  # so that what other tests have left is not looked through
    gc.disable()
    yield
    gc.enable()


@tool(effect="pure")
async def hang(context: ToolContext) -> str:
    await asyncio.sleep(60)
    return ""


@tool(effect="pure")
async def relay(context: ToolContext, name: str) -> str:
    return (await context.call_tool(name, {})).content


@tool(effect="pure")
async def fail(context: ToolContext) -> str:
    raise ValueError("no")


def agent(*answers: Any, **options: Any) -> Agent:
    model = ScriptedModel(list(answers), keeps_requests=False)
    return Agent(model, tools=[hang, relay, fail], journal=MemoryJournal(), **options)


async def count_left() -> int:
    """Return how many drivers are alive once everything that is ready has run."""
    for _ in range(50):
        await asyncio.sleep(0)
    return sum(isinstance(item, Driver) for item in gc.get_objects())


async def cancel(work: Any, times: int = 1) -> None:
    task = asyncio.ensure_future(work)
    for _ in range(20):
        await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_run_that_ends() -> None:
    await agent([call("fail"), call("fail")], [call("relay", {"name": "fail"})], "ok").run("go")
    assert await count_left() == 0


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("calls", [[call("hang")], [call("hang")] * 2, [call("relay", {"name": "hang"})] * 2])
async def test_a_run_that_is_cancelled(calls: list[Any], times: int) -> None:
    await cancel(agent(calls).run("go"), times)
    assert await count_left() == 0


async def test_a_run_that_its_deadline_stops() -> None:
    await agent([call("hang"), call("hang")], policy=Policy(deadline_seconds=0.01)).run("go")
    assert await count_left() == 0


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_run_whose_model_fails(attempts: int) -> None:
    def answer(request: Request) -> Any:
        raise ServerError("down")

    scripted = ScriptedModel(answer, keeps_requests=False)
    model = RetryModel(scripted, max_attempts=attempts, min_delay_seconds=0.0, max_delay_seconds=0.0)
    await Agent(model, journal=MemoryJournal()).run("go")
    assert await count_left() == 0


async def test_a_run_whose_listener_fails() -> None:
    def listen(item: object) -> None:
        raise ValueError("no")

    with contextlib.suppress(ValueError):
        await agent([call("fail"), call("fail")], "ok").run("go", on_event=listen)
    assert await count_left() == 0


async def test_a_session_with_a_cancelled_turn() -> None:
    async with agent([call("hang"), call("hang")], "ok").session() as session:
        await cancel(session.send("go"), 2)
        await session.send("go on")
    del session
    assert await count_left() == 0


async def test_a_stream_that_is_left() -> None:
    stream = agent([call("hang"), call("hang")]).stream("go")
    async for _ in stream:
        break
    del stream, _
    assert await count_left() == 0
