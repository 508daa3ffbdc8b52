"""The origins of a run: its task, the run that it was forked from, and the call that started it."""

from msgspec import Struct

from treadle.core.types import Usage


class TaskRef(Struct, frozen=True, omit_defaults=True, gc=False):
    """A reference to the task of a run."""

    task_set: str
    """The name of the task set."""
    task_id: str
    """The id of the task in its set."""
    seed: int | None = None
    """The seed that the task's parameters were drawn from; `None` if they were not drawn."""


class Parent(Struct, frozen=True, gc=False):
    """The point at which a fork begins to differ from the run that it was forked from."""

    run_id: str
    """The id of the other run."""
    seq: int
    """The number of the last event that the fork copied."""


class Caller(Struct, frozen=True, omit_defaults=True, gc=False):
    """The tool call of another run that started this run, as its sub-agent."""

    run_id: str
    """The id of the other run."""
    call_id: str
    """The id of the call in that run."""
    place: str = ""
    """Where the call stands in that run, as STEP.NUMBER, after the place of that run in the one that called it. The
    seeds of the run are made of it; see `Request.place`."""


class Child(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run that a tool call drove, and what it used during that call."""

    run_id: str
    """The id of the run."""
    usage: Usage = Usage()
    """The tokens that the run used during the call; they count for the caller's budgets."""
    cost_usd: float | None = 0.0
    """The cost of these tokens in US dollars; `None` if it is not known."""
