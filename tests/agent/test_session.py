"""Turns of a session that wait for somebody."""

import pytest

from treadle import Agent, Policy, ScriptedModel, tool
from treadle.core.errors import ConfigError
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import call


async def test_a_waiting_turn_is_decided_within_the_session():
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        sent.append(to)
        return "sent"

    script = [[call("send", {"to": "a"})], "done", [call("send", {"to": "b"})], "done"]
    said = [None, True]
    agent = Agent(
        ScriptedModel(script),
        tools=[send],
        journal=MemoryJournal(),
        policy=Policy(approve={"once": "ask"}),
        approver=lambda request: said.pop(0) if said else None,
    )
    async with agent.session() as session:
        waiting = await session.send("one")
        assert list(waiting.approvals) == ["call_1_0"]
        with pytest.raises(ConfigError, match=r"session\.finish_turn"):
            await session.send("two")
        assert (await session.finish_turn()).output == "done"  # the approver is asked again
        waiting = await session.send("two")
        with pytest.raises(ConfigError, match="no call 'x' waits"):
            await session.finish_turn(approvals={"x": True})
        assert (await session.finish_turn(approvals=dict.fromkeys(waiting.approvals, True))).output == "done"
    assert sent == ["a", "b"]
    assert (await agent.replay(session.run_id)).is_exact
