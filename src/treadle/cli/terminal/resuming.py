"""The agents of commands that go on with runs: as the runs were started, but for what was given."""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.cli.terminal.setup import (
    Limits,
    ModelOptions,
    load_task_of,
    make_agent,
    read_started,
    recorded_options,
)
from treadle.core.errors import ConfigError
from treadle.journal.protocol import Journal


class Resuming:
    """Makes the agents for runs that are gone on with; runs that were started alike share one."""

    def __init__(
        self,
        journal: Journal,
        path: Path | None,
        given: ModelOptions,
        api_key: str | None,
        limits: Limits | None = None,
    ) -> None:
        self.journal = journal
        self.path = path
        self._given = given
        self._api_key = api_key
        self._limits = limits or Limits()
        self._agents: dict[bytes, Agent] = {}

    def agent_for(self, run_id: str) -> Agent:
        """An agent with the model and tools of a run, or those that were given. Raises: `ConfigError`."""
        started = read_started(self.journal, run_id)
        recorded = recorded_options(started)
        options = self._given.over(recorded)
        if started.tools and not options.tools and started.task is None:
            raise ConfigError(
                f"run {run_id!r} was not started by this command, and its tools are unknown "
                f"({', '.join(spec.name for spec in started.tools)}); give them with --tools"
            )
        key = msgspec.json.encode(
            (options, started.spec.policy, started.task.task_set if started.task else None)
        )
        if key not in self._agents:
            task = load_task_of(started)
            if task is not None and not options.tools:
                options = replace(options, tools=tuple(task.tools))
            policy = self._limits.over(started.spec.policy)
            self._agents[key] = make_agent(options, self._api_key, self.journal, task=task, policy=policy)
        return self._agents[key]
