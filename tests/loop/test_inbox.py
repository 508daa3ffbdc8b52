"""Messages from outside: what the driver takes in, when, and what it means."""

import asyncio
from pathlib import Path

import pytest

from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import LeaseHeldError, RunNotFoundError
from treadle.core.inbox import Cancel, Enqueue, GiveAnswer, Interrupt, Note, Steer
from treadle.core.state import Status
from treadle.core.types import Message, Role
from treadle.journal.protocol import Journal
from treadle.models import call
from treadle.runs.recording import send


def said(text: str) -> Message:
    return Message(Role.USER, text)


class Stuck:
    """An agent whose tool waits until it is stopped."""

    def __init__(self, journal: Journal, *answers: str) -> None:
        self.reached = asyncio.Event()

        @tool(effect="pure")
        async def wait() -> str:
            self.reached.set()
            await asyncio.sleep(3600)
            return ""

        self.agent = Agent(ScriptedModel([[call("wait")], *answers]), tools=[wait], journal=journal)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def test_a_cancel_of_another_process_stops_a_tool_and_the_run_goes_on_later(path: Path) -> None:
    with open_journal(path) as journal, open_journal(path) as other:
        stuck = Stuck(journal)
        task = asyncio.ensure_future(stuck.agent.run("go", run_id="r"))
        await stuck.reached.wait()
        sent = await send(other, "r", Cancel("enough"))
        assert sent.is_driven
        run = await asyncio.wait_for(task, 30)
        assert run.status is Status.PAUSED
        paused = journal.read("r")[-1].body
        assert isinstance(paused, e.RunPaused)
        assert (paused.reason, paused.remark, paused.inbox) == ("cancelled", "enough", 1)
        assert journal.inbox("r") == []

        @tool(effect="pure")
        async def wait() -> str:
            return "waited"

        again = Agent(ScriptedModel(["end"]), tools=[wait], journal=journal)
        assert (await again.resume("r")).output == "end"
        assert (await again.replay("r")).is_exact


async def test_a_message_to_a_finished_run_means_nothing_once() -> None:
    journal = open_journal("memory:")
    await Agent(ScriptedModel(["end"]), journal=journal).run("go", run_id="r")
    for message in (Steer(said("x")), Enqueue(said("x")), Cancel(), GiveAnswer("q", "x")):
        sent = await send(journal, "r", message)
        assert sent.refused is not None
    assert journal.inbox("r") == []
    noted = [event.body for event in journal.read("r") if isinstance(event.body, e.Noted)]
    assert [body.refused for body in noted] == ["steer", "queue", "cancel", "answer"]
    assert [body.inbox for body in noted] == [1, 2, 3, 4]
    assert (await send(journal, "r", Note(labels={"a": "b"}))).refused is None
    assert journal.runs()[0].labels == {"a": "b"}
    assert journal.runs()[0].status == "finished"


async def test_interrupts_of_another_process_keep_the_order_of_arrival(path: Path) -> None:
    with open_journal(path) as journal, open_journal(path) as other:
        stuck = Stuck(journal, *[f"to m{number}" for number in range(1, 7)])
        async with stuck.agent.session("s") as session:
            first = asyncio.ensure_future(session.send("m0"))
            await stuck.reached.wait()
            for number in range(1, 7):
                await asyncio.to_thread(other.post, "s", Interrupt(said(f"m{number}")))
            await asyncio.wait_for(first, 30)
            await session.finish_turn()
            async with asyncio.timeout(
                30
            ):  # the last ones may arrive after the session has answered the others
                while len(opened(journal)) < 7 or session.queued or session.is_turn_open:
                    await asyncio.sleep(0.01)
        assert opened(journal) == [f"m{number}" for number in range(7)]
        assert (await stuck.agent.replay("s")).is_exact


def opened(journal: Journal) -> list[str]:
    """Return the messages that began the turns of the session `s`."""
    bodies = [item.body for item in journal.read("s")]
    return [body.message.content for body in bodies if isinstance(body, e.TurnStarted)]


async def test_a_session_answers_a_message_of_another_process(path: Path) -> None:
    with open_journal(path) as journal, open_journal(path) as other:
        agent = Agent(ScriptedModel(["one", "two"]), journal=journal)
        async with agent.session("s") as session:
            await session.send("first")
            assert (await send(other, "s", Enqueue(said("second")))).is_driven
            async with asyncio.timeout(30):
                while session.run.output != "two":
                    await asyncio.sleep(0.01)
        assert journal.inbox("s") == []


async def test_the_next_driver_takes_in_what_the_last_one_left(path: Path) -> None:
    with open_journal(path) as journal:
        agent = Agent(ScriptedModel(["one", "two", "three"]), journal=journal)
        async with agent.session("s") as session:
            await session.send("first")
        for text in ("second", "third"):
            journal.post("s", Enqueue(said(text)))
    with open_journal(path) as journal:
        agent = Agent(ScriptedModel(["two", "three"]), journal=journal)
        async with agent.session("s") as session:
            async with asyncio.timeout(30):
                while session.run.output != "three":
                    await asyncio.sleep(0.01)
        taken = [item.body.inbox for item in journal.read("s") if item.body.inbox is not None]
        assert taken == [1, 2]


async def test_no_message_waits_unseen_when_a_run_ends(path: Path) -> None:
    """Messages that come while the lease is being released are taken in by the driver or by their sender."""
    with open_journal(path) as journal, open_journal(path) as other:
        for number in range(15):
            run_id, sent = f"r{number}", 0
            task = asyncio.ensure_future(
                Agent(ScriptedModel(["end"]), journal=journal).run("go", run_id=run_id)
            )
            while not task.done():
                try:
                    await send(other, run_id, Note(labels={"a": str(sent + 1)}))
                    sent += 1
                except RunNotFoundError:
                    await asyncio.sleep(0)
                except LeaseHeldError:
                    raise AssertionError("a message was stored and reported as an error") from None
            run = await task
            assert run.output == "end"
            taken = [event.body.inbox for event in journal.read(run_id) if event.body.inbox]
            assert taken == list(range(1, sent + 1))
