"""Builds the agents of the commands: from the options, or from what a run's journal says.

`RunAgents.agent_for_run` is the one place where an agent is built for a recorded run.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.cli.terminal.journals import read_started
from treadle.core.errors import ConfigError
from treadle.core.events import RunStarted
from treadle.core.policy import Policy
from treadle.core.types import Json, Settings
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model

if TYPE_CHECKING:
    from treadle.agent.task import Task

METADATA_KEY = "cli"
"""The key of a run's metadata that holds the options it was started with."""

_SECRET = re.compile(r"://[^/\s]*@|[?&][^=\s&]+=|(?:^|[\s:])\w+=(?!\$\{)\S|\"(?:env|headers)\"\s*:")
"""A user or a query in a URL, an environment variable with a value other than `${NAME}`, or headers."""


class _Recorded(Struct):
    model: str | None = None
    base_url: str | None = None
    tools: tuple[str, ...] = ()


def make_model(options: AgentOptions, task: "Task | None" = None) -> Model:
    """Return the model that `options` name, or the default of treadle.toml. Raises: `ConfigError`."""
    from treadle.models.config.file import load_config

    config = load_config()
    name = options.model or config.default_model
    if name is None:
        raise ConfigError(
            "no model is given; pass --model openai:gpt-5-mini (with OPENAI_API_KEY set), or --model NAME "
            "--base-url URL for your own server, or set TREADLE_MODEL, or write a treadle.toml with `treadle "
            "init`. To try Treadle without a model: "
            "treadle demo, or treadle run --task files:csv_sum-0001 --model oracle"
        )
    stem, colon, rate = name.partition(":")
    if stem == "oracle" and options.base_url is None:
        if task is None:
            raise ConfigError(
                "the model 'oracle' solves the tasks of a task set; pass --task files:csv_sum-0001, or another "
                "--model"
            )
        return _make_oracle(task, rate if colon else "0")
    settings = msgspec.structs.asdict(options.settings)
    return config.model(name, base_url=options.base_url, api_key=options.api_key, **settings)


def _make_oracle(task: "Task", rate: str) -> Model:
    try:
        mistake_rate = float(rate)
    except ValueError:
        raise ConfigError(
            f"--model 'oracle:{rate}': {rate!r} is not a rate of mistakes; write 'oracle:0.2', from 0 to 1"
        ) from None
    from treadle.teacher import oracle_for

    oracle = oracle_for(task, mistake_rate=mistake_rate)
    if oracle is None:
        raise ConfigError(f"the task {task.task_set}:{task.task_id} has no oracle; give another --model")
    return oracle


def make_agent(
    options: AgentOptions,
    journal: Journal,
    *,
    task: "Task | None" = None,
    policy: Policy | None = None,
    instructions: str | None = None,
    files: Path | None = None,
    schema: Json = None,
) -> Agent:
    """Return an agent as the options describe it. Raises: `ConfigError`."""
    return Agent(
        make_model(options, task),
        instructions=instructions,
        tools=options.tools,
        policy=policy,
        journal=journal,
        files=files,
        schema=schema,
    )


class RunAgents:
    """Builds the agents that continue the runs of a journal; runs that were started alike share an agent."""

    def __init__(self, journal: Journal, given: AgentOptions, limits: PolicyOptions) -> None:
        self.journal = journal
        self._given = given
        self._limits = limits
        self._agents: dict[bytes, Agent] = {}

    def agent_for_run(self, run_id: str) -> Agent:
        """Return an agent with the model, tools and policy of a run, or those that were given instead.

        Raises: `ConfigError` if a part is neither recorded nor given.
        """
        started = read_started(self.journal, run_id)
        options = _override(self._given, recorded_options(started))
        if started.tools and not options.tools and started.task is None:
            names = ", ".join(spec.name for spec in started.tools)
            raise ConfigError(
                f"the journal does not say where the tools of run {run_id!r} come from ({names}); give them with "
                "--tools"
            )
        key = msgspec.json.encode((options, started.policy, started.task and started.task.task_set))
        if key not in self._agents:
            task = _load_task(started)
            if task is not None and not options.tools:
                options = replace(options, tools=tuple(task.tools))
            policy = self._limits.over(started.policy)
            self._agents[key] = make_agent(options, self.journal, task=task, policy=policy)
        return self._agents[key]


def to_metadata(options: AgentOptions) -> Mapping[str, Json]:
    """Return what a run's journal keeps of its options, without secrets, so that it can be resumed."""
    kept: dict[str, Json] = msgspec.to_builtins(options.settings)
    if options.model is not None:
        kept["model"] = options.model
    if options.base_url is not None:
        parts = urlsplit(options.base_url)
        if not (parts.username or parts.password or parts.query):
            kept["base_url"] = options.base_url
    kept["tools"] = [text for text in options.tools if ":" not in text or not _SECRET.search(text)]
    return {METADATA_KEY: kept}


def recorded_options(started: RunStarted) -> AgentOptions:
    """Return the options that a run was started with, or only its model's name if it was not started here."""
    kept = (started.metadata or {}).get(METADATA_KEY)
    try:
        recorded, settings = msgspec.convert(kept, _Recorded), msgspec.convert(kept, Settings)
    except msgspec.ValidationError:
        return AgentOptions(model=started.model)
    return AgentOptions(
        model=recorded.model, base_url=recorded.base_url, tools=recorded.tools, settings=settings
    )


def _override(given: AgentOptions, recorded: AgentOptions) -> AgentOptions:
    """Return `given`, completed by `recorded`."""
    if given.model is not None and given.model != recorded.model:
        # Another model has another server, and settings of its own.
        recorded = AgentOptions(tools=recorded.tools)
    settings = {
        name: value for name, value in msgspec.structs.asdict(given.settings).items() if value is not None
    }
    return AgentOptions(
        model=given.model or recorded.model,
        base_url=given.base_url or recorded.base_url,
        api_key=given.api_key,
        tools=given.tools or recorded.tools,
        settings=replace(recorded.settings, **settings),
    )


def _load_task(started: RunStarted) -> "Task | None":
    if started.task is None:
        return None
    from treadle.agent.task import load_task

    return load_task(f"{started.task.task_set}:{started.task.task_id}")
