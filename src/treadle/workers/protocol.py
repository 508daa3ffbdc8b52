"""The protocol of workers, the places where runs are driven: this process, other processes, other machines."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, Unpack

from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.core.events.narrowing import Event
from treadle.journal.protocol import Journal
from treadle.journal.run_info import DEFAULT_QUEUE
from treadle.runs.options import SessionOptions, StreamOptions
from treadle.runs.retries import RetryPolicy
from treadle.runs.run import Run
from treadle.runs.task import Task

LOSSES_ALONE = 2
"""A run that lost so many drivers in a row is driven alone, so that no other run shares its next loss."""
MAX_LOSSES = 3
"""A run that lost so many drivers in a row is set aside."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The options that `make_workers` passes on."""

    queue: str = DEFAULT_QUEUE
    """The queue in the journal in which runs wait for a worker process."""
    window: int = 64
    """How many runs the caller drives at the same time; all worker processes share them."""
    retries: RetryPolicy = RetryPolicy()
    """How often a worker tries a turn again that ended with a fault of the infrastructure."""
    rest_seconds: float = 0.0
    """How long a worker that has found no run waits at least before it looks again."""


class WorkersStatus(Struct, frozen=True, kw_only=True):
    """The state of the workers at the moment, for live views."""

    workers: int = 0
    """How many processes drive runs. Workers that joined by themselves are not counted."""
    in_flight: int = 0
    """How many runs were given to `run` and have not ended."""
    driven: int = 0
    """How many of the runs in flight are being driven; the others wait for a worker."""
    waiting_on_model: int | None = None
    """How many of the driven runs wait for an answer of a model; `None` if that is not known."""
    waiting_on_tools: int | None = None
    """How many of the driven runs wait for tools; `None` if that is not known."""
    restarts: int = 0
    """How many workers died and were replaced."""


class WorkedSession(Protocol):
    """A session whose turns are driven by workers; see the methods of `Session` with the same names."""

    async def __aenter__(self) -> "WorkedSession": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def finish_turn(self) -> Run[Any]: ...

    async def send(self, text: str, *, is_last: bool = False, is_own: bool = False) -> Run[Any]: ...

    async def grade(self) -> float | None: ...

    async def read_events(self) -> Sequence[Event]: ...


class Workers(Protocol):
    """The workers of one caller: where its runs are driven."""

    async def run(
        self, agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
    ) -> Run[Any]:
        """Return the run `run_id` of a task: the finished one if the journal has it, else begin or continue it.

        A run that ended with an error is continued. If cancelled, a run that a worker drives goes on. Raises: as
        `Agent.run` and `Agent.resume` do; `ConfigError` if workers cannot build the agent; `WorkerError` if no
        worker can be started.
        """

    def session(self, agent: Agent[Any], run_id: str, /, **options: Unpack[SessionOptions]) -> WorkedSession:
        """Return the session `run_id`, which is begun or continued, and whose turns these workers drive."""

    def status(self) -> WorkersStatus:
        """Return what the workers do at the moment."""

    async def close(self) -> None:
        """Stop the worker processes, which give their runs back to the queue. Safe to repeat."""


MakeWorkers: TypeAlias = Callable[[Journal, str, WorkerOptions], Workers]
"""A function that makes workers of one kind, given what follows the colon of their name, or ""."""
