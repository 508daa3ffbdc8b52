"""Hooks: functions that are called with every event of an agent's runs."""

import asyncio
import logging
from functools import partial
from typing import Any

import pytest

from treadle import Agent, Event, ScriptedModel, open_journal, tool
from treadle.core.errors import ConfigError, ServerError
from treadle.models import call


@tool(effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


class Heard:
    """A hook that keeps what it is told, and checks that it is durable by then."""

    def __init__(self, journal: Any) -> None:
        self.journal = journal
        self.events: list[Event] = []
        self.left: list[str] = []
        self.is_closed = False

    def __call__(self, event: Event) -> None:
        assert self.journal.read(event.run_id, event.seq - 1, event.seq)[0].body == event.body
        self.events.append(event)

    def leave(self, run_id: str) -> None:
        self.left.append(run_id)

    def close(self) -> None:
        self.is_closed = True

    def of(self, run_id: str) -> list[int]:
        return [event.seq for event in self.events if event.run_id == run_id]


def script(*answers: Any) -> ScriptedModel:
    return ScriptedModel(answers or ([call("look")], "done"))


async def test_a_hook_gets_every_event_of_every_way_to_drive_a_run() -> None:
    """Agent runs wrote no log at all; only the chat loop did, and only for turns that were completed."""
    journal = open_journal("memory:")
    heard = Heard(journal)

    def agent(*answers: Any) -> Agent:
        return Agent(script(*answers), tools=[look], journal=journal, hooks=[heard])

    await agent().run("go", run_id="run")
    async for _ in agent().stream("go", run_id="stream"):
        pass
    async with agent("one", "two").session("session") as session:
        await session.send("a")
        await session.send("b")
    await agent([call("look")], ServerError("down")).run("go", run_id="failed")
    await agent("up").resume("failed")
    await agent("other").fork("run", 5, new_run_id="fork")
    async for _ in agent("1", "2").run_many(["a", "b"], batch_id="many"):
        pass
    for info in journal.runs():
        assert heard.of(info.run_id) == list(range(1, info.events + 1)), info.run_id
        assert info.run_id in heard.left


async def test_a_hook_that_raises_is_reported_once_and_does_not_break_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: Event) -> None:
        raise ValueError("no room")

    heard: list[Event] = []
    agent = Agent(script(), tools=[look], journal="memory:", hooks=[broken, heard.append])
    with caplog.at_level(logging.ERROR, "treadle"):
        run = await agent.run("go")
    assert run.stop_reason == "completed"
    assert len(heard) == run.state.seq
    assert len(caplog.records) == 1
    assert "broken" in caplog.text


async def test_a_cancelled_run_is_told_to_its_end() -> None:
    journal = open_journal("memory:")
    heard = Heard(journal)
    agent = Agent(ScriptedModel(["late"], delay_seconds=60), journal=journal, hooks=[heard])
    task = asyncio.ensure_future(agent.run("go", run_id="r"))
    while not heard.events:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert heard.events[-1].type == "run_paused"
    assert heard.of("r") == list(range(1, len(journal.read("r")) + 1))


async def test_hooks_are_closed_with_their_agent() -> None:
    heard = Heard(open_journal("memory:"))
    async with Agent(script(), hooks=[heard]):
        pass
    assert heard.is_closed


@pytest.mark.parametrize("hooks", ["log", 5, [5], {"a": 1}])
def test_what_is_no_hook_is_refused(hooks: Any) -> None:
    with pytest.raises(ConfigError, match="hooks"):
        Agent(script(), hooks=hooks)


async def wait(*arguments: object) -> None:
    raise ValueError("nobody would see this")


class Waiting:
    async def __call__(self, event: Event) -> None:
        await wait()


class WaitingInPart:
    def __call__(self, event: Event) -> None:
        """Do nothing."""

    take = catch_up = leave = close = wait


@pytest.mark.parametrize("hook", [wait, Waiting(), WaitingInPart(), partial(wait, 1), Waiting().__call__])
def test_a_coroutine_function_is_refused(hook: Any) -> None:
    with pytest.raises(ConfigError, match="do not wait"):
        Agent(script(), hooks=[hook])


async def test_a_hook_that_returns_a_coroutine_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(script(), tools=[look], journal="memory:", hooks=[lambda event: wait(event)])
    assert (await agent.run("go")).stop_reason == "completed"
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [
        ("it returned a coroutine, and hooks are not awaited",)
    ]
