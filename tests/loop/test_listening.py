"""What a listener is told, and when."""

import asyncio
import threading

import pytest
from tests.loop.test_loop import Lab, lab

from treadle import ToolContext, tool
from treadle.core import events as e
from treadle.events import Item
from treadle.models import call

__all__ = ["lab"]


async def test_a_result_is_told_while_other_calls_of_the_step_run(lab: Lab) -> None:
    told = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        async with asyncio.timeout(30):
            await told.wait()
        return "told"

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    def listen(item: e.Event | e.Ephemeral) -> None:
        if isinstance(item.body, e.ToolCompleted):
            told.set()

    run = await lab.agent([call("wait"), call("look")], "ok", tools=[wait, look]).run("go", on_event=listen)
    assert [item.content for item in run.results] == ["seen", "told"]


@pytest.mark.parametrize("is_session", [False, True])
async def test_a_listener_is_told_nothing_after_its_turn(lab: Lab, is_session: bool) -> None:
    heard: list[str] = []
    threads: list[threading.Thread] = []
    is_over = threading.Event()

    @tool(effect="pure")
    async def leave_a_thread(context: ToolContext) -> str:
        def report() -> None:
            is_over.wait(30)
            context.progress("late")

        threads.append(threading.Thread(target=report))
        threads[0].start()
        return "left"

    def listen(item: e.Event | e.Ephemeral) -> None:
        heard.append(item.type)

    async def report_late() -> list[str]:
        before = list(heard)
        is_over.set()
        await asyncio.to_thread(threads[0].join)
        await asyncio.sleep(0)
        return heard[len(before) :]

    agent = lab.agent([call("leave_a_thread")], "ok", tools=[leave_a_thread])
    if not is_session:
        await agent.run("go", on_event=listen)
        assert await report_late() == []
        return
    async with agent.session() as session:
        await session.send("go", on_event=listen)
        assert await report_late() == []


async def test_an_asynchronous_listener_is_awaited_in_order(lab: Lab) -> None:
    heard: list[str] = []
    busy = 0

    async def listen(item: Item) -> None:
        nonlocal busy
        busy += 1
        assert busy == 1
        for _ in range(3):
            await asyncio.sleep(0)
        heard.append(item.type)
        busy -= 1

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    calls = [call("look"), call("look"), call("look")]
    run = await lab.agent(calls, "a longer answer", tools=[look]).run("go", on_event=listen)
    durable = [kind for kind in heard if not kind.endswith(("delta", "progress"))]
    assert durable == [event.type for event in run.events]
    assert heard.index("text_delta") < len(heard) - 1 - heard[::-1].index("inference_completed")
    assert heard[-1] == "run_finished"


@pytest.mark.parametrize("kind", ["text_delta", "tool_started", "run_finished"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_exception_of_a_listener_is_raised(lab: Lab, kind: str, is_async: bool) -> None:
    def fail(item: Item) -> None:
        if item.type == kind:
            raise LookupError(kind)

    async def fail_later(item: Item) -> None:
        await asyncio.sleep(0)
        fail(item)

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    agent = lab.agent([call("look")], "ok", "ok", tools=[look])
    with pytest.raises(LookupError, match=kind):
        await agent.run("go", run_id="r", on_event=fail_later if is_async else fail)
    run = await agent.resume("r")
    assert run.stop_reason == "completed"


async def test_a_cancelled_run_does_not_wait_for_its_listener(lab: Lab) -> None:
    is_stuck = asyncio.Event()

    async def hang(item: Item) -> None:
        is_stuck.set()
        await asyncio.Event().wait()

    agent = lab.agent("ok")
    task = asyncio.create_task(agent.run("go", run_id="r", on_event=hang))
    await is_stuck.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await agent.resume("r")).output == "ok"


async def test_a_session_does_not_wait_for_the_listener_of_a_cancelled_turn(lab: Lab) -> None:
    is_stuck = asyncio.Event()

    async def hang(item: Item) -> None:
        is_stuck.set()
        await asyncio.Event().wait()

    async with lab.agent("one", "two").session() as session:
        task = asyncio.create_task(session.send("go", on_event=hang))
        await is_stuck.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.send("again")).stop_reason == "completed"
