"""The steps, tokens, cost and time of a session, for each turn and in total."""

from msgspec import Struct

from treadle.agent.session import Session
from treadle.cli.terminal.format import print_outcome
from treadle.cli.terminal.output import write_cost, write_count, write_directions, write_seconds
from treadle.cli.terminal.view import TextView
from treadle.core import events as e
from treadle.core.state import State, advance
from treadle.core.types import Usage
from treadle.runs.run import Run


class SessionMeter(Struct):
    """The totals of a session up to its newest turn."""

    steps: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    """The cost; `None` if the cost of an inference is unknown."""
    lost: int = 0
    """How many answers were lost that may have been paid for."""
    turn_lost: int = 0
    """Those of the newest turn."""
    seconds: float = 0.0
    """The time spent on turns, without the time between them and that of waiting for a person."""
    turn: int = 0
    """The number of the newest turn whose time is in `seconds`."""
    turn_seconds: float = 0.0
    """The part of `seconds` that was spent on that turn."""
    told_seconds: float = 0.0
    """`seconds` when `take` was last called."""
    told_lost: int = 0
    """`lost` when `take` was last called."""

    @classmethod
    def of(cls, run: Run) -> "SessionMeter":
        """Return the meter of a session in its current state."""
        meter, state = cls(), State()
        for event in run.events:
            meter.on_event(event.body, advance(state, event.body))
        meter.take(run)
        return meter

    def on_event(self, body: e.DurableBody | e.Delta, state: State) -> None:
        """Count the time of each turn that ends: several may end before `take` is called. `state` is the state
        after the event."""
        if isinstance(body, e.TurnCompleted):
            self._count(state)

    def take(self, run: Run) -> str:
        """Count a turn, or a part of one, and return what it and the session used, as text."""
        steps, usage, cost = run.steps - self.steps, run.usage - self.usage, run.cost_usd
        turn_cost = None if cost is None or self.cost_usd is None else cost - self.cost_usd
        self._count(run.state)
        seconds, self.told_seconds = self.seconds - self.told_seconds, self.seconds
        lost, self.told_lost = self.lost - self.told_lost, self.lost
        self.steps, self.usage, self.cost_usd = run.steps, run.usage, cost
        turn = [write_count(steps, "step"), write_directions(usage), write_seconds(seconds)]
        if turn_cost is not None:
            turn.insert(2, write_cost(turn_cost, lost))
        session = (
            write_count(self.turn, "turn"),
            write_count(self.usage.total_tokens, "token"),
            write_cost(cost, self.lost),
            write_seconds(self.seconds),
        )
        return f"{' · '.join(turn)} · session: {', '.join(session)}"

    def _count(self, state: State) -> None:
        """Count what the newest turn has taken so far."""
        if state.turn.number != self.turn:
            self.turn, self.turn_seconds, self.turn_lost = state.turn.number, 0.0, 0
        self.seconds += max(0.0, state.work_seconds - self.turn_seconds)
        self.turn_seconds = state.work_seconds
        self.lost += state.turn.spent.lost - self.turn_lost
        self.turn_lost = state.turn.spent.lost


class TurnView(TextView):
    """A view of the turns that follow one message, which ends with the tokens, cost and time that the turns and
    the session used."""

    meter: SessionMeter
    session: Session
    typed: str | None = None
    """The message that the person has just typed, which is on the screen already; `None` if there is none."""

    def on_event(self, item: e.Event | e.Ephemeral) -> None:
        if isinstance(item.body, e.TurnCompleted):
            self.meter.on_event(item.body, self.session.run.state)
        if isinstance(item.body, e.TurnStarted) and item.body.message.content == self.typed:
            self.typed = None
        else:
            super().on_event(item)

    def _print_outcome(self, run: Run, seconds: float) -> None:
        print_outcome(run, details=self.meter.take(run))
