"""What a listener is told, and when."""

import asyncio
import threading

import pytest
from tests.loop.test_loop import Lab, lab

from treadle import ToolContext, tool
from treadle.core import events as e
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
