"""Runners: the places where runs are driven, in this process or by workers."""

from collections.abc import Sequence
from typing import Any, Protocol, Unpack

from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.core.events.narrowing import Event
from treadle.journal.protocol import DEFAULT_QUEUE, Journal
from treadle.runs.options import SessionOptions, StreamOptions
from treadle.runs.retries import RetryPolicy
from treadle.runs.run import Run
from treadle.runs.task import Task


class RunnerOptions(Struct, frozen=True, kw_only=True):
    """The options that `make_runner` passes to a runner."""

    queue: str = DEFAULT_QUEUE
    """The queue of the runs, if workers drive them."""
    window: int = 64
    """How many runs the caller drives at the same time; the runner's workers share them."""
    retries: RetryPolicy = RetryPolicy()
    """How often a worker tries a turn again that ended with a fault of the infrastructure."""


class RunnerStatus(Struct, frozen=True, kw_only=True):
    """What a runner does at the moment, for live views."""

    workers: int = 0
    """How many processes drive runs. Workers that joined by themselves are not counted."""
    in_flight: int = 0
    """How many runs were given to `run` and have not ended."""
    driven: int = 0
    """How many of them are being driven; the others wait for a worker."""
    waiting_on_model: int | None = None
    """How many of those wait for an answer of a model; `None` if that is not known."""
    waiting_on_tools: int | None = None
    """How many of those wait for tools; `None` if that is not known."""
    restarts: int = 0
    """How many workers died and were replaced."""


class Turns(Protocol):
    """A session, as an asynchronous context. See the methods of `Session` that have the same names."""

    async def __aenter__(self) -> "Turns": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def finish_turn(self) -> Run[Any]: ...

    async def send(self, text: str) -> Run[Any]: ...

    async def grade(self) -> float | None: ...

    async def read_events(self) -> Sequence[Event]: ...


class Runner(Protocol):
    """A place where runs are driven."""

    async def run(
        self, agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
    ) -> Run[Any]:
        """Return the run `run_id` of a task: the finished one if the journal has it, else begin or continue it.

        A run that ended with an error is continued. If cancelled, a run that a worker drives goes on. Raises: as
        `Agent.run` and `Agent.resume` do; `ConfigError` if workers cannot build the agent; `WorkerError` if no
        worker can be started.
        """
        ...

    def session(self, agent: Agent[Any], run_id: str, /, **options: Unpack[SessionOptions]) -> Turns:
        """Return the session `run_id`, which is begun or continued, and whose turns are driven in this place."""
        ...

    def status(self) -> RunnerStatus:
        """Return what the runner does at the moment."""
        ...

    async def close(self) -> None:
        """Stop the runner's workers, which give the runs that they drive back to the queue. Safe to repeat."""
        ...


class MakeRunner(Protocol):
    """A function that makes runners of one kind, as entries of `RUNNERS` are."""

    def __call__(self, journal: Journal, argument: str, options: RunnerOptions) -> Runner:
        """Return a runner. `argument` is the text after the colon of its name; empty if there is none."""
        ...
