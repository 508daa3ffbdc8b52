"""The line after each turn of a chat: what the turn and the session used."""

from treadle import Agent, Policy, Run, ScriptedModel, tool
from treadle.cli.terminal.meter import Meter
from treadle.journal.memory import MemoryJournal
from treadle.models import call
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
    meter = Meter()
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
        assert Meter.of(Run.load(session.run_id, agent.journal)).seconds == meter.seconds
