"""Closing a session while one of its turns is under way."""

import asyncio

import pytest
from tests.loop.test_loop import Gate, Lab, lab

from treadle import ScriptedModel, tool
from treadle.core.errors import ConfigError
from treadle.models import call

__all__ = ["lab"]


async def test_a_close_that_is_cancelled_closes_all_the_same(lab: Lab) -> None:
    gate = Gate()

    @tool(effect="pure")
    async def wait() -> str:
        await gate.pass_through()
        return "waited"

    model = ScriptedModel([[call("wait")], "ok"])
    session = await lab.agent(model=model, tools=[wait]).session().open()
    turns = [asyncio.ensure_future(session.send(text)) for text in ("a", "b")]
    await gate.reached.wait()
    closing = asyncio.ensure_future(session.close())
    for _ in range(3):
        await asyncio.sleep(0)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not lab.journal.runs()[0].is_driven
    first, second = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, ConfigError)
    assert len(model.requests) == 1
    again = lab.agent("to b", "to c").session(session.run_id)
    async with again:
        # The message that was not answered is kept.
        assert [message.content for message in again.queued] == ["b"]
        assert (await again.send("c")).output == "to c"
        assert not again.queued
