"""The runners by name, and the one that drives runs in this process."""

from typing import Any, Unpack

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.journal.protocol import Journal
from treadle.runs.ensure import ensure_run
from treadle.runs.options import Given, SessionOptions, StreamOptions
from treadle.runs.run import Run
from treadle.runs.task import Task
from treadle.workers.protocol import MakeRunner, Runner, RunnerOptions, RunnerStatus, Turns
from treadle.workers.watched import Watched

RUNNERS: Registry[MakeRunner] = Registry(
    "engine",
    "treadle.workers",
    {
        "here": "treadle.workers.registry:make_here",
        "local": "treadle.workers.local:make_local",
        "ray": "treadle.workers.on_ray:make_ray",
    },
)
"""The functions that make runners, by the text before the colon of an engine's name."""


def make_runner(name: str, journal: Journal, options: RunnerOptions = RunnerOptions()) -> Runner:
    """Return the runner with this name: `here`, `local:N`, `ray` or `ray:N`, or one of another package.

    Nothing is started before the first run. Raises: `ConfigError`.
    """
    kind, _, argument = name.partition(":")
    return RUNNERS.load(kind)(journal, argument, options)


def read_count(name: str, argument: str, default: int | None = None) -> int:
    """Return the number of workers in an engine's name. Raises: `ConfigError`."""
    if not argument and default is not None:
        return default
    if not argument.isdecimal() or not int(argument):
        raise ConfigError(
            f"the engine {f'{name}:{argument}'!r} needs a number of workers; write '{name}:4', for example"
        )
    return int(argument)


class HereRunner:
    """A runner that drives runs in this process."""

    def __init__(self) -> None:
        self._watched = Watched()

    async def run(
        self, agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
    ) -> Run[Any]:
        """See `Runner.run`."""
        with self._watched.watch() as hold:
            given = Given(agent.answer, options.get("deps", agent.deps), on_driver=hold)
            return await ensure_run(agent, run_id, task, given, options)

    def session(self, agent: Agent[Any], run_id: str, /, **options: Unpack[SessionOptions]) -> Turns:
        """See `Runner.session`."""
        session: Any = agent.session(run_id, **options)
        return session  # type: ignore[no-any-return]

    def status(self) -> RunnerStatus:
        """See `Runner.status`."""
        count = self._watched.count()
        return RunnerStatus(
            workers=1,
            in_flight=count.in_flight,
            driven=count.in_flight,
            waiting_on_model=count.waiting_on_model,
            waiting_on_tools=count.waiting_on_tools,
        )

    async def close(self) -> None:
        """See `Runner.close`."""


def make_here(journal: Journal, argument: str, options: RunnerOptions) -> HereRunner:
    """Return a runner in this process. Raises: `ConfigError` for an argument."""
    if argument:
        raise ConfigError(f"the engine 'here:{argument}' has no number; write 'here', or 'local:{argument}'")
    return HereRunner()
