"""What a listener is told, and when."""

import asyncio

from tests.test_loop import Lab, lab

from treadle import tool
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
