"""The kinds of workers by name, and the kind that drives runs in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Unpack

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.journal.protocol import Journal
from treadle.loop.driver import Driver
from treadle.runs.ensure import ensure_run
from treadle.runs.options import Given, SessionOptions, StreamOptions
from treadle.runs.run import Run
from treadle.runs.task import Task
from treadle.workers.protocol import MakeWorkers, WorkedSession, WorkerOptions, Workers, WorkersStatus

WORKERS: Registry[MakeWorkers] = Registry(
    "kind of workers",
    "treadle.workers",
    {
        "here": "treadle.workers.registry:make_here",
        "local": "treadle.workers.local:make_local",
        "ray": "treadle.workers.on_ray:make_ray",
    },
    old_group="treadle.engines",
)
"""The functions that make workers, by the text before the colon of their name."""
_MOST_DIGITS = 4
"""The longest number in the name of workers."""


def make_workers(name: str, journal: Journal, options: WorkerOptions = WorkerOptions()) -> Workers:
    """Return the workers with this name: `here`, `local:N`, `ray` or `ray:N`, or one of another package.

    Nothing is started before the first run. Raises: `ConfigError`.
    """
    kind, _, argument = name.partition(":")
    return WORKERS.load(kind)(journal, argument, options)


def check_workers(name: str) -> None:
    """Check the name of workers. Raises: `ConfigError` for an unknown kind, or a number that it cannot have."""
    kind, _, argument = name.partition(":")
    WORKERS.load(kind)
    if kind == "here":
        _check_here(argument)
    elif kind in WORKERS.table:
        read_count(kind, argument, default=1 if kind == "ray" else None)


def read_count(name: str, argument: str, default: int | None = None) -> int:
    """Return the number in the name of workers, such as `local:4`. Raises: `ConfigError`."""
    if not argument and default is not None:
        return default
    if not argument.isdecimal() or len(argument) > _MOST_DIGITS or not int(argument):
        shown = f"{name}:{argument}" if argument else name
        raise ConfigError(f"workers {shown!r:.60} need a number; write '{name}:4', for example")
    return int(argument)


class RunsInFlight:
    """The runs that this process drives, with their drivers."""

    def __init__(self) -> None:
        self._in_flight: dict[object, Driver | None] = {}

    @contextmanager
    def watch(self) -> Iterator[Callable[[Driver], None]]:
        """Count a run until the context ends. The function that it returns takes the run's driver."""
        key = object()
        self._in_flight[key] = None

        def hold(driver: Driver) -> None:
            self._in_flight[key] = driver

        try:
            yield hold
        finally:
            del self._in_flight[key]

    def status(self) -> WorkersStatus:
        """Return how many runs are in flight, and what they wait for."""
        states = [driver.state for driver in list(self._in_flight.values()) if driver is not None]
        return WorkersStatus(
            workers=1,
            in_flight=len(self._in_flight),
            driven=len(self._in_flight),
            waiting_on_model=sum([state.turn.asked is not None for state in states]),
            waiting_on_tools=sum([state.turn.is_open and state.turn.asked is None for state in states]),
        )


class HereWorkers:
    """This process as the place where runs are driven."""

    def __init__(self) -> None:
        self._driven = RunsInFlight()

    async def run(
        self, agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
    ) -> Run[Any]:
        with self._driven.watch() as hold:
            given = Given(agent.answer, options.get("deps", agent.deps), on_driver=hold)
            return await ensure_run(agent, run_id, task, given, options)

    def session(self, agent: Agent[Any], run_id: str, /, **options: Unpack[SessionOptions]) -> WorkedSession:
        session: Any = agent.session(run_id, **options)
        return session  # type: ignore[no-any-return]

    def status(self) -> WorkersStatus:
        return self._driven.status()

    async def close(self) -> None:
        """See `Workers.close`."""


def make_here(journal: Journal, argument: str, options: WorkerOptions) -> HereWorkers:
    """Return this process as a place for runs. Raises: `ConfigError` if there is an argument."""
    _check_here(argument)
    return HereWorkers()


def _check_here(argument: str) -> None:
    if argument:
        raise ConfigError(f"workers 'here:{argument}' have no number; write 'here', or 'local:{argument}'")
