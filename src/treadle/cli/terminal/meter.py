"""The steps, tokens, cost and time of a session, for each turn and in total."""

from collections.abc import Iterable

from msgspec import Struct

from treadle.agent.run import Run
from treadle.cli.terminal.output import write_cost, write_count, write_seconds, write_usage
from treadle.cli.terminal.view import TextView, print_outcome
from treadle.core.events import Event, TurnCompleted
from treadle.core.state import State, advance
from treadle.core.types import Usage


class Meter(Struct):
    """The totals of a session up to its newest turn."""

    turns: int = 0
    steps: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    """The cost; `None` if the cost of an inference is unknown."""
    seconds: float = 0.0
    """The time that was spent on turns, without the time between them and the time of waiting for a person."""
    finished_seconds: float = 0.0
    """The part of `seconds` that was spent on turns that are over."""

    @classmethod
    def of(cls, run: Run) -> "Meter":
        """Return the meter of a session in its current state."""
        state = run.state
        finished = _count_seconds(run.events)
        seconds = finished + (state.work_seconds if state.is_turn_open else 0.0)
        return cls(state.turn, state.step, state.usage, state.cost_usd, seconds, finished)

    def take(self, run: Run) -> str:
        """Count a turn, or a part of one, and return what it and the session used, as text."""
        cost = run.cost_usd
        turn_cost = None if cost is None or self.cost_usd is None else cost - self.cost_usd
        turn = (
            write_count(run.steps - self.steps, "step"),
            write_usage(run.usage - self.usage),
            write_cost(turn_cost),
            write_seconds(self.finished_seconds + run.state.work_seconds - self.seconds),
        )
        self.turns, self.steps, self.usage, self.cost_usd = run.state.turn, run.steps, run.usage, cost
        self.seconds = self.finished_seconds + run.state.work_seconds
        if not run.state.is_turn_open:
            self.finished_seconds = self.seconds
        session = (
            write_count(self.turns, "turn"),
            write_count(self.usage.total_tokens, "token"),
            write_cost(cost),
            write_seconds(self.seconds),
        )
        return f"{' · '.join(turn)} · session: {', '.join(session)}"


def _count_seconds(events: Iterable[Event]) -> float:
    """Return the time that the finished turns of a session took."""
    state, seconds = State(), 0.0
    for event in events:
        advance(state, event.body)
        if isinstance(event.body, TurnCompleted):
            seconds += state.work_seconds
    return seconds


class TurnView(TextView):
    """A view of one turn of a session, which ends with what the turn and the session used."""

    meter: Meter

    def _print_outcome(self, run: Run, seconds: float) -> None:
        print_outcome(run, details=self.meter.take(run))
