"""Messages that are taken back while they wait, and copies of sessions between two turns."""

import asyncio

import pytest

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.errors import ConfigError
from treadle.core.events import Noted
from treadle.core.state import fold
from treadle.core.types import Message, Role


async def test_a_message_that_waits_is_taken_back() -> None:
    agent = Agent(ScriptedModel(["one", "three"], delay_seconds=0.2), journal=open_journal("memory:"))
    async with agent.session("s") as session:
        turn = asyncio.ensure_future(session.send("1"))
        await asyncio.sleep(0.05)
        session.post("2")
        session.post("3")
        assert [message.content for message in session.queued] == ["2", "3"]
        await session.withdraw(session.queued[0])
        await turn
        while session.queued and not session.is_turn_open:
            await session.finish_turn()
        assert session.queued == []
        assert session.run.state.turn.number == 2
        said = [message.content for message in session.messages if message.role is Role.USER]
    assert said == ["1", "3"]
    events = agent.journal.read("s")
    taken = [event.body.withdrawn_seq for event in events if isinstance(event.body, Noted)]
    assert len(taken) == 1
    assert fold([event.body for event in events]).queued == ()
    assert (await agent.replay("s")).is_exact


async def test_what_no_longer_waits_is_not_taken_back() -> None:
    agent = Agent(ScriptedModel(["one"]), journal=open_journal("memory:"))
    async with agent.session("s") as session:
        await session.send("1")
        await session.withdraw(Message(Role.USER, "1"))
    (noted,) = [event.body for event in agent.journal.read("s") if isinstance(event.body, Noted)]
    assert (noted.refused, noted.withdrawn_seq) == ("withdraw", None)
    assert "no such message waits" in str(noted.remark)


async def test_a_session_is_copied_between_two_turns() -> None:
    agent = Agent(ScriptedModel(["one", "two"]), journal=open_journal("memory:"))
    async with agent.session("s") as session:
        await session.send("1")
        copy = await agent.fork("s", new_run_id="c")  # while the session is open
        assert (copy.run_id, copy.output) == ("c", "one")
    async with agent.session("c") as session:
        run = await session.send("2")
    assert (run.output, run.state.turn.number) == ("two", 2)
    assert (await agent.replay("c")).is_exact
    run = await Agent(ScriptedModel(["x"]), journal=agent.journal).run("go", run_id="r")
    with pytest.raises(ConfigError, match="give a text for the next turn"):
        await agent.fork("r")
