"""The line after each turn of a chat: what the turn and the session used."""

import asyncio
from contextlib import suppress

import pytest

from treadle import Agent, Policy, Run, ScriptedModel, tool
from treadle.cli.terminal.format import format_outcome, summarize
from treadle.cli.terminal.session_meter import SessionMeter, TurnView
from treadle.core.types import Completion, FinishReason, Message, Request, Role, Usage
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.models.protocol import Watch
from treadle.tools.protocol import ApprovalRequest


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


async def test_the_time_in_which_a_person_decides_is_not_counted() -> None:
    clock = Clock()

    @tool
    async def pay() -> str:
        """Pay."""
        clock.now += 2
        return "paid"

    answers = [None, True]

    def decide(request: ApprovalRequest) -> bool | None:
        answer = answers.pop(0)
        clock.now += 100 if answer else 0
        return answer

    script = ScriptedModel([[call("pay")], "Paid.", "Bye."])
    asks = Policy(approve={"pay": "ask"})
    agent = Agent(script, tools=[pay], policy=asks, journal=MemoryJournal(), clock=clock, approver=decide)
    meter = SessionMeter()
    async with agent.session() as session:
        run = await session.send("Pay.")
        assert run.approvals
        meter.take(run)
        clock.now += 1000
        said = meter.take(await session.finish_turn())
        assert " · 2.0 s · session: 1 turn," in said
        assert said.endswith(", 2.0 s")
        said = meter.take(await session.send("Bye."))
        assert " · 0.00 s · session: 2 turns," in said
        assert session.run_id
        assert SessionMeter.of(Run.load(session.run_id, agent.journal)).seconds == meter.seconds


async def test_the_time_of_every_turn_is_counted() -> None:
    """Also of those that end while queued messages are answered, and of one that is stopped."""
    clock = Clock()
    turns: list[asyncio.Task[Run]] = []

    @tool
    async def work(seconds: int) -> str:
        """Work."""
        clock.now += seconds
        if seconds == 7:
            turns[0].cancel()
            await asyncio.sleep(60)
        return "done"

    script = ScriptedModel([[call("work", {"seconds": n})] if n else "Done." for n in (3, 0, 5, 0, 7, 1, 0)])
    agent = Agent(script, tools=[work], journal=MemoryJournal(), clock=clock)
    meter = SessionMeter()
    async with agent.session() as session:
        view = TurnView(is_live=False, shows_input=False)
        view.meter, view.session = meter, session
        session.post("One.")
        session.post("Two.")
        run = await session.finish_turn(on_event=view.on_event)
        said = meter.take(run)
        assert " · 8.0 s · session: 2 turns," in said
        assert said.endswith(", 8.0 s")
        turns.append(asyncio.ensure_future(session.send("Three.", on_event=view.on_event)))
        with suppress(asyncio.CancelledError):
            await turns[0]
        assert " · 7.0 s · session: 3 turns," in meter.take(session.run)
        assert meter.take(await session.send("Four.", on_event=view.on_event)).endswith(", 16.0 s")
        assert SessionMeter.of(session.run).seconds == meter.seconds


class Endless:
    """A model whose second answer never ends, and whose answers have a cost."""

    name = "endless"

    def __init__(self, cost_usd: float) -> None:
        self._cost_usd = cost_usd
        self._asked = 0
        self.is_asked = asyncio.Event()

    async def infer(self, request: Request, watch: Watch) -> Completion:
        self._asked += 1
        if self._asked == 2:
            self.is_asked.set()
            await asyncio.sleep(60)
        said = Message(Role.ASSISTANT, "Done.")
        return Completion(said, FinishReason.STOP, Usage(10, 5), cost_usd=self._cost_usd)


@pytest.mark.parametrize(
    ("cost_usd", "known", "all_turns"),
    [(0.0, "$0", "cost unknown"), (0.25, "$0.2500", "$0.2500 + 1 unknown")],
)
async def test_an_answer_that_was_stopped_is_no_cost_of_zero(
    cost_usd: float, known: str, all_turns: str
) -> None:
    """It may have been paid for, so that neither the turn nor the session has cost what is known."""
    model = Endless(cost_usd)
    agent = Agent(model, journal=MemoryJournal())
    meter = SessionMeter()
    async with agent.session() as session:
        said = meter.take(await session.send("One."))
        assert f", 5 out · {known} · " in said
        assert summarize(session.run)["cost_usd"] == cost_usd
        assert f" · session: 1 turn, 15 tokens, {known}, " in said
        stopped = asyncio.ensure_future(session.send("Two."))
        await model.is_asked.wait()
        stopped.cancel()
        with suppress(asyncio.CancelledError):
            await stopped
        said = meter.take(session.run)
        assert ", 0 out · cost unknown · " in said
        assert f" · session: 2 turns, 15 tokens, {all_turns}, " in said
        assert f" tokens (10 in, 5 out) · {all_turns} · run " in format_outcome(session.run)
        assert summarize(session.run)["cost_usd"] is None
        # The newest turn has a known cost again, and the session has not.
        said = meter.take(await session.send("Three."))
        assert f", 5 out · {known} · " in said
        assert SessionMeter.of(session.run).lost == meter.lost == 1
