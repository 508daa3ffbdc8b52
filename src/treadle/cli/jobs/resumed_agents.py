"""The construction of agents for commands: from options, or from the agent spec in a run's journal."""

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TypeVar

from msgspec.structs import asdict, replace

from treadle.agent.agent import Agent
from treadle.cli.options.agent_options import AgentFlags, KnowledgeOptions, PolicyOptions
from treadle.cli.terminal.output import print_note
from treadle.core.errors import ConfigError, UntrustedError
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.types import Json
from treadle.journal.protocol import Journal
from treadle.models.config.recipe import load_config
from treadle.models.config.recipe import make_model as make_from_part
from treadle.models.protocol import Model
from treadle.runs.agent_parts import demands_of, settle_trust
from treadle.runs.options import Files
from treadle.runs.resume import load_task_of
from treadle.runs.run import Run
from treadle.runs.statuses import read_started
from treadle.runs.task import Task
from treadle.telemetry.turn_log import configured_hooks

T = TypeVar("T")
NOTHING = KnowledgeOptions()


def make_agent(
    options: AgentFlags,
    journal: Journal,
    *,
    limits: PolicyOptions,
    task: Task | None = None,
    instructions: str | None = None,
    files: Files | None = None,
    schema: Json = None,
    knowledge: KnowledgeOptions = NOTHING,
    is_trusted: bool = False,
    is_chat: bool = False,
) -> Agent:
    """Return an agent as the options describe it. Files bring the toolset `files` if no tools are given.

    With `is_chat`, knowledge that is not given comes from the section `chat` of treadle.toml, and messages are
    judged by patterns if nothing names a judge.

    Raises: `ConfigError`, also for a user without a memory; `UntrustedError` for a persona that needs --trust.
    """
    if options.own_agent is not None:
        others = {"--instructions": instructions, "--schema": schema, "--mount": files is not None}
        others["--persona and the other options of knowledge"] = knowledge.is_given
        return load_own_agent(options.own_agent, journal, options, limits, others)
    persona, user = None, knowledge.user
    knowledge = knowledge.over_file() if is_chat else knowledge
    if knowledge.persona is not None:
        from treadle.knowledge.surroundings import read_persona

        persona = read_persona(knowledge.persona, trust=is_trusted)
    policy = Policy()
    tools: tuple[str | PartSpec, ...] = options.tools
    if persona is not None:
        policy = Policy() if persona.autonomy is None else Policy(autonomy=persona.autonomy)
        tools = tools or persona.parts
        options = options if options.model is not None else replace(options, model=persona.model)
    judge = knowledge.judge or (None if persona is None else persona.judge) or load_config().file.judge
    has_memory = knowledge.memory
    if has_memory is None:
        has_memory = persona is not None and persona.memory_spec is not None
    if user is not None and not has_memory:
        raise ConfigError("--user names the user whom memories are about; add --memory, or leave --user out")
    if files is not None and not options.tools and (persona is None or not persona.tools):
        tools = ("files", *tools)
    if limits.given.get("summary_model") is not None:
        _check_summary_model(limits.given["summary_model"])
    return Agent(
        _tools_first(options.tools, lambda: make_model(options, task)),
        instructions=instructions,
        tools=tools,
        policy=limits.over(policy),
        journal=journal,
        files=files,
        schema=schema,
        hooks=configured_hooks(),
        persona=persona,
        memory=knowledge.memory,
        user=knowledge.user,
        skills=knowledge.skills or (),
        documents=knowledge.documents or (),
        judge=judge or ("patterns" if is_chat else None),
    )


def _check_summary_model(name: str) -> None:
    """Make a model for summaries before it is needed. Raises: `ConfigError` that names the option."""
    from treadle.models.config.recipe import make_model as make

    try:
        make(name)
    except ConfigError as error:
        raise ConfigError(f"--summary-model {name!r}: {error}") from error


def print_knowledge(agent: Agent) -> None:
    """Print which parts of an agent's knowledge did not fit into its system message, or could not be used."""
    for line in () if agent.known is None else agent.known.report.lines():
        print_note(line)


def _tools_first(tools: Sequence[str], make: Callable[[], T]) -> T:
    """Return what `make` makes. If `make` fails, a misspelt tool is reported first. No server is started."""
    try:
        return make()
    except ConfigError:
        from treadle.tools.resolve import TOOLSETS, resolve_tools

        resolve_tools([text for text in tools if f"{text.partition(':')[0]}:" not in TOOLSETS])
        raise


def make_model(options: AgentFlags, task: Task | None = None) -> Model:
    """Return the model that `options` name, or the default of treadle.toml. Raises: `ConfigError`."""
    name = options.model or load_config().default_model
    if name is None:
        raise ConfigError(
            "no model is given; pass --model openai:gpt-5-mini (with OPENAI_API_KEY set), or --model NAME "
            "--base-url URL for your own server, or set TREADLE_MODEL, or write a treadle.toml with `treadle "
            "init`. To try Treadle without a model: "
            "`treadle demo`, or `treadle run --task files:csv_sum-0001 --model oracle`"
        )
    settings = _given_settings(options)
    part = PartSpec(name=_full_name(name, settings), settings=settings)
    return make_from_part(part, task=task, api_key=options.api_key)


def load_own_agent(
    reference: str,
    journal: Journal,
    options: AgentFlags,
    limits: PolicyOptions,
    others: Mapping[str, object] = {},
    policy: Policy | None = None,
) -> Agent:
    """Return the agent of a program, at `file.py:NAME` or `package.module:NAME`, with the given limits.

    `others` are further options that describe an agent, by their names. `policy` is that of the run which goes on,
    and holds if the agent has none. Raises: `ConfigError` if one of the options was given.
    """
    from treadle.regression.regression_suite import load_agent

    model = None if options.model == os.environ.get("TREADLE_MODEL") else options.model
    given = {"--model": model, "--tools": options.tools, **others}
    given["--base-url and the settings of models"] = (
        replace(options, own_agent=None, model=None, tools=()) != AgentFlags()
    )
    if taken := [name for name, value in given.items() if value]:
        raise ConfigError(f"--agent names an agent that has all its parts; leave out {', '.join(taken)}")
    agent = copy(load_agent(reference))
    agent.keep_in(journal)
    if policy is not None and not agent.has_policy:
        agent.policy, agent.has_policy = policy, True
    agent.policy = limits.over(agent.policy)
    agent.kit.check_policy(agent.policy)
    return agent


class ResumedAgents:
    """The agents with which commands continue runs: those of the runs, with the parts that options replace."""

    def __init__(
        self, journal: Journal, given: AgentFlags, limits: PolicyOptions, *, is_trusted: bool
    ) -> None:
        from treadle.workers.worker import RunAgents

        self.journal = journal
        self._is_trusted = is_trusted
        self._given = given
        self._limits = limits
        hooks, tools = configured_hooks(), given.tools or None
        self._agents = RunAgents(journal, hooks, api_key=given.api_key, tools=tools)

    def agent_for_run(self, run_id: str, until_seq: int | None = None) -> Agent:
        """Return the agent of a run, as of event `until_seq`, with the given parts in place of its own.

        Raises: `ConfigError` that names the parts which the journal does not have and the options for them;
        `UntrustedError` for a run from elsewhere, unless --trust was given.
        """
        started = read_started(self.journal, run_id)
        run = Run.load(run_id, self.journal, until_seq)
        spec = self._override(run.spec)
        if spec.is_foreign:
            if not settle_trust(self.journal, run_id, trust=self._is_trusted):
                raise UntrustedError(f"run {run_id!r}", demands_of(spec, run.state))
            spec = replace(spec, is_foreign=False)
        if (own := self._given.own_agent) is not None:
            return load_own_agent(own, self.journal, self._given, self._limits, policy=run.spec.policy)
        _refuse_missing(run_id, spec)
        agent = copy(_tools_first(self._given.tools, lambda: self._agents.agent_for(spec, started)))
        agent.kit.check_policy(self._limits.over(Policy()), load_task_of(started))
        agent.policy, agent.has_policy = spec.policy, True
        return agent

    def _override(self, spec: AgentSpec) -> AgentSpec:
        """Return `spec` with the model, settings, tools and limits that were given on the command line."""
        given, model = self._given, spec.model
        settings = _given_settings(given)
        name = None if given.model is None else _full_name(given.model, settings)
        if name is not None and name != model.name:
            # Another model has another server, and settings of its own.
            model = PartSpec(name=name, settings=settings)
        else:
            is_given = given.model is not None or given.base_url is not None
            recorded = dict(model.settings or {})
            if given.base_url is not None:
                # The recorded key belongs to the recorded server.
                recorded.pop("api_key_env", None)
            model = replace(
                model,
                settings={**recorded, **settings} or None,
                missing=None if is_given else model.missing,
            )
        tools = tuple([PartSpec(name=text) for text in given.tools]) or spec.tools
        return replace(spec, model=model, tools=tools, policy=self._limits.over(spec.policy))


def _given_settings(options: AgentFlags) -> dict[str, Json]:
    """Return the model settings that were given on the command line, by the names of `treadle.model`."""
    settings = {name: value for name, value in asdict(options.settings).items() if value is not None}
    if options.renderer is not None:
        from treadle.renderers.registry import locate

        settings["renderer"] = locate(options.renderer)
    return settings if options.base_url is None else {"base_url": options.base_url, **settings}


def _full_name(name: str, settings: Mapping[str, Json]) -> str:
    """Return the name of a model with its provider, unless it is that of a configured model or of the oracle."""
    url = settings.get("base_url")
    return load_config().full_name(name, base_url=None if url is None else str(url))


def _refuse_missing(run_id: str, spec: AgentSpec) -> None:
    """Raise an error if a part can neither be built from the journal nor was given. Raises: `ConfigError`."""
    needed = []
    if spec.model.missing is not None:
        needed.append(f"--model for the model {spec.model.name!r} ({spec.model.missing})")
    tools = [f"{part.name!r} ({part.missing})" for part in spec.tools if part.missing is not None]
    if tools:
        needed.append(f"--tools for {', '.join(tools)}")
    if needed:
        raise ConfigError(
            f"the journal of run {run_id!r} does not have its whole agent; give {' and '.join(needed)}, or "
            "--agent FILE:NAME"
        )
