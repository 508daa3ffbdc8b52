"""The class `Agent`, which runs, streams, resumes, forks and replays runs.

An agent puts the parts of a run together and passes them to a driver. The modules of models, tools and journals
that are given by name are imported only when they are needed.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from operator import is_not
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from msgspec.structs import replace

from treadle.agent.run_stream import RunStream
from treadle.agent.sync import block, iterate_blocking
from treadle.core.errors import ConfigError, UntrustedError
from treadle.core.events.narrowing import Item
from treadle.core.policy import Policy
from treadle.core.registry import check_options
from treadle.core.replay import Replay, replay
from treadle.core.spec import AgentSpec, ContextSpec, PartSpec
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.loop.listener import Hooks
from treadle.models.protocol import Model, part_of
from treadle.runs.agent_parts import Toolboxes, demands_of, is_agent, path_of, refuse_missing
from treadle.runs.begin import run_task
from treadle.runs.ensure import Batch, batch_work
from treadle.runs.options import (
    AgentOptions,
    BatchOptions,
    ForkOptions,
    Given,
    ResumeOptions,
    RunOptions,
    SessionOptions,
    StreamOptions,
    check_agent,
    check_given,
    check_run,
    check_run_id,
    check_tools,
    read_context,
)
from treadle.runs.recording import Driven, delete_session
from treadle.runs.resume import fork_run, resume_run
from treadle.runs.run import AnswerType, Run, T_co, V, answer_type
from treadle.runs.task import Task
from treadle.tools.context import NO_DEPS
from treadle.tools.protocol import Approver, Asker, Tool, ToolLike
from treadle.tools.user_code import FirstFailures

if TYPE_CHECKING:
    from treadle.agent.session import Session
    from treadle.agent.subagent import AgentTool
    from treadle.knowledge.surroundings import Surroundings
    from treadle.routing.judging import MessageJudge

_SCHEMA = frozenset({"schema"})
"""The option that is a parameter of its own, for the type of the answers."""


class Agent(Generic[T_co]):
    """A model with instructions, tools and a policy. One agent can drive any number of runs at the same time.

    `Agent[Invoice]` is an agent whose answers are `Invoice`s; without a schema it is an `Agent[str]`.
    """

    failures: FirstFailures | None = None
    """If given, a mistake in the code of a tool ends a run with an error; see `Workbench.failures`."""

    @overload
    def __init__(
        self: "Agent[str]",
        model: Model | str | None = None,
        *,
        schema: None = None,
        **options: Unpack[AgentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "Agent[V]",
        model: Model | str | None = None,
        *,
        schema: type[V],
        **options: Unpack[AgentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "Agent[Any]", model: Model | str | None = None, *, schema: Any, **options: Unpack[AgentOptions]
    ) -> None: ...
    def __init__(
        self, model: Model | str | None = None, *, schema: Any = None, **options: Unpack[AgentOptions]
    ) -> None:
        """Make an agent from its parts. `AgentOptions` describes the options.

        `model` is a model or a name for `treadle.model`; by default, the model of the persona. `schema` is the
        type of the answers: a pydantic model, a dataclass, a TypedDict, a struct of msgspec, any other type that
        pydantic knows, or a JSON Schema. Every final answer must fit it, its validators included, and `Run.value`
        is the answer as a value of that type.

        Raises: `ConfigError` for a part of a wrong type, if a part given by name cannot be loaded, if two tools
        have the same name, or if `schema` has no JSON Schema; `UntrustedError` for the file of a persona that
        needs `trust`.
        """
        check_options(options, AgentOptions.__optional_keys__, "Agent")
        context, face = read_context(options)
        model = face.model if model is None else model
        check_agent(model, options)
        policy, journal = options.get("policy"), options.get("journal")
        if isinstance(model, str):
            from treadle.models.config.presets import is_tiered
            from treadle.models.config.recipe import make_model
            from treadle.models.config.recipe import model as load_model

            model = make_model(model) if is_tiered(model) else load_model(model)
        self.model: Model = model  # type: ignore[assignment]
        self.instructions = options.get("instructions")
        self.policy = policy or face.policy
        self.has_policy = policy is not None
        """True if a policy was given, which then also applies to runs that this agent resumes."""
        is_path = journal is None or isinstance(journal, str | Path)
        self._journal_path = journal if is_path else None
        self._opened: Journal | None = None if is_path else journal  # type: ignore[assignment]
        self.clock = options.get("clock", time)
        self.known: Surroundings | None = None
        """What the agent knows besides its instructions: a persona, memories, skills and documents."""
        tools, judge = options.get("tools"), options.get("judge")
        self._know(
            context,
            face.tools if tools is None else tools,
            judge=None if isinstance(judge, str) else judge,
        )
        if policy is not None:
            self.kit.check_policy(policy)
        self.files = options.get("files")
        self.deps: object = options.get("deps", NO_DEPS)
        self.approver = options.get("approver")
        self.asker = options.get("asker")
        self.hooks = Hooks(options.get("hooks", ()))
        self.answer: AnswerType[T_co] = answer_type(schema)
        self._spec: AgentSpec | None = None
        self._spec_parts: tuple[object, ...] = ()
        """The attributes that `_spec` was made from."""

    def _know(
        self,
        context: ContextSpec | None,
        tools: Iterable[ToolLike],
        *,
        judge: "MessageJudge | None" = None,
        is_strict: bool = True,
    ) -> None:
        """Open what the agent knows, and make its judge and its toolboxes. `judge` is used if it is given."""
        self._context, self.judge = context, judge
        if judge is None and context is not None and context.judge is not None:
            from treadle.routing.judging import judge_of_part

            try:
                self.judge = judge_of_part(context.judge)
            except ConfigError as error:
                if is_strict:
                    raise
                logging.getLogger("treadle").warning("nothing judges messages: %s", error)
        if context is not None and replace(context, judge=None) != ContextSpec():
            from treadle.knowledge.surroundings import Surroundings

            self.known = Surroundings(context, lambda: self.journal, clock=self.clock, is_strict=is_strict)
        built = [_build_agent(item) if is_agent(item) else item for item in tools]
        if context is not None and context.memory is not None:
            # The agent's own memory has the same tools.
            built = [item for item in built if item not in ("memory", PartSpec(name="memory"))]
        self.kit = Toolboxes(built, self.model, () if self.known is None else self.known.tools)

    @classmethod
    def from_spec(
        cls,
        spec: AgentSpec,
        *,
        model: Model | str | None = None,
        tools: Iterable[ToolLike] | None = None,
        api_key: str | None = None,
        journal: Journal | str | Path | None = None,
        approver: Approver | None = None,
        asker: Asker | None = None,
        trust: bool = False,
    ) -> "Agent[Any]":
        """Build the agent that a spec, such as `Run.spec`, describes.

        `model` and `tools`, if given, replace those of the spec. `trust` must be true for the spec of a run that
        comes from elsewhere, because its parts may start programs and send keys.

        Raises: `ConfigError` for the same reasons as the constructor, and if a part of the spec that was not given
        cannot be built from its name; the message names each such part. `UntrustedError` for a spec that needs
        `trust`; the message names what its parts would do.
        """
        if not isinstance(spec, AgentSpec):
            raise ConfigError(f"the spec is {spec!r:.200}; give an AgentSpec, such as `run.spec`")
        if spec.is_foreign and not trust:
            raise UntrustedError("the agent", demands_of(spec))
        if tools is not None:
            check_tools(tools)
        given = None if tools is None else tuple(tools)
        refuse_missing(spec, has_model=model is not None, has_tools=given is not None)
        if model is None:
            from treadle.models.config.recipe import make_model

            model = make_model(spec.model, api_key=api_key)
        agent = cls(
            model,
            instructions=spec.instructions,
            tools=spec.tools if given is None else given,
            journal=journal,
            files=spec.files,
            approver=approver,
            asker=asker,
            schema=spec.schema,
        )
        if spec.context is not None:
            agent._know(spec.context, agent.kit.given, is_strict=False)
        # The policy may name tools that were replaced.
        agent.policy, agent.has_policy = spec.policy, True
        agent.failures = FirstFailures() if spec.stops_at_mistakes else None
        return agent

    @property
    def spec(self) -> AgentSpec:
        """The description of the agent in its present state, from which another process can build it again. It
        has no instructions if they come from a function; the spec of a run has what the function returned.
        """
        text = self.instructions if isinstance(self.instructions, str) else None
        parts = (self.model, text, self.policy, self.answer, self.files, self._context)
        if self._spec is None or any(map(is_not, parts, self._spec_parts)):
            tools: tuple[PartSpec, ...] = ()
            if self.kit.given:
                from treadle.tools.resolve import parts_of

                tools = parts_of(self.kit.given)
            self._spec = AgentSpec(
                model=part_of(self.model),
                instructions=text,
                tools=tools,
                policy=self.policy,
                schema=self.answer.schema,
                files=path_of(self.files),
                context=self._context,
            )
            self._spec_parts = parts
        if self.failures is not None and not self._spec.stops_at_mistakes:
            self._spec = replace(self._spec, stops_at_mistakes=True)
        return self._spec

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The agent's own tools by name. Without any, a run of a task offers those that the task names."""
        return self.kit.own.tools

    @property
    def journal(self) -> Journal:
        """The journal that keeps the runs. A journal given by path is opened when it is first needed."""
        if self._opened is None:
            from treadle.journal.registry import open_journal

            self._opened = open_journal(self._journal_path)  # type: ignore[arg-type]
        return self._opened

    @overload
    async def run(
        self, task: str | Task, *, schema: None = None, **options: Unpack[RunOptions]
    ) -> Run[T_co]: ...
    @overload
    async def run(self, task: str | Task, *, schema: type[V], **options: Unpack[RunOptions]) -> Run[V]: ...
    @overload
    async def run(self, task: str | Task, *, schema: Any, **options: Unpack[RunOptions]) -> Run[Any]: ...
    async def run(self, task: str | Task, *, schema: Any = None, **options: Unpack[RunOptions]) -> Run[Any]:
        """Run a task, or a text as the user's message, to the end of the turn, and return the run.

        `RunOptions` describes the options. A `Task` has its own files and tools, and its check grades the run.
        `schema` replaces the agent's.

        A run that fails does not raise an exception: `Run.stop_reason` and `Run.fault` say why it ended. A
        cancelled run can be resumed.

        Raises: `RunExistsError` if the journal already has a run `run_id`; `JournalError` if the store fails;
        `ConfigError` for an option of a wrong name or type, an attachment that cannot be read, or if a tool needs
        `deps` that were not given; and what `on_event` raises.
        """
        check_options(options, RunOptions.__optional_keys__ | _SCHEMA, "run")
        return await run_task(self, task, self._given(options, schema), options)

    @overload
    def stream(
        self, task: str | Task, *, schema: None = None, **options: Unpack[StreamOptions]
    ) -> RunStream[T_co]: ...
    @overload
    def stream(
        self, task: str | Task, *, schema: type[V], **options: Unpack[StreamOptions]
    ) -> RunStream[V]: ...
    @overload
    def stream(
        self, task: str | Task, *, schema: Any, **options: Unpack[StreamOptions]
    ) -> RunStream[Any]: ...
    def stream(
        self, task: str | Task, *, schema: Any = None, **options: Unpack[StreamOptions]
    ) -> RunStream[Any]:
        """Return an async iterator that runs a task as `run` does, and yields its events and deltas."""
        check_options(options, StreamOptions.__optional_keys__ | _SCHEMA, "stream")
        check_run(task, options)
        given, driven = self._given(options, schema), Driven(self.journal)
        return RunStream(
            lambda emit: run_task(self, task, replace(given, emit=emit, on_driver=driven.hold), options),
            driven.steer,
        )

    @overload
    def run_many(
        self,
        tasks: Iterable[str | Task] | AsyncIterable[str | Task],
        *,
        schema: None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch[Run[T_co]]: ...
    @overload
    def run_many(
        self,
        tasks: Iterable[str | Task] | AsyncIterable[str | Task],
        *,
        schema: type[V],
        **options: Unpack[BatchOptions],
    ) -> Batch[Run[V]]: ...
    def run_many(
        self,
        tasks: Iterable[str | Task] | AsyncIterable[str | Task],
        *,
        schema: Any = None,
        **options: Unpack[BatchOptions],
    ) -> Batch[Any]:
        """Return an async iterator that runs tasks, `window` at a time, and yields each run when it has ended.

        `BatchOptions` describes the options. Any number of tasks needs only the memory for `window` runs.
        `Run.metadata["number"]` is the number of the task, from 1. With a `batch_id`, the same call continues a
        batch that was interrupted: finished runs are read from the journal, others are resumed, and runs that
        ended with an infrastructure fault are tried again. A run that fails is yielded like any other.

        The iterator raises `ConfigError` if the batch had another task with the same number, and what `run`
        raises. All other runs are then cancelled, and can be resumed.
        """
        check_options(options, BatchOptions.__optional_keys__ | _SCHEMA, "run_many")
        check_given(options)
        batch_id = options.get("batch_id")
        work = batch_work(self, self._given(options, schema), batch_id, options)
        return Batch(work, tasks, options.get("window", 64))

    @overload
    async def resume(
        self, run_id: str, *, schema: None = None, **options: Unpack[ResumeOptions]
    ) -> Run[T_co]: ...
    @overload
    async def resume(self, run_id: str, *, schema: type[V], **options: Unpack[ResumeOptions]) -> Run[V]: ...
    @overload
    async def resume(self, run_id: str, *, schema: Any, **options: Unpack[ResumeOptions]) -> Run[Any]: ...
    async def resume(self, run_id: str, *, schema: Any = None, **options: Unpack[ResumeOptions]) -> Run[Any]:
        """Continue a run that was interrupted, waits for an answer or an approval, or ended with an error.

        `ResumeOptions` describes the options. A finished run is returned unchanged. Calls whose outcome was lost
        run again or not, depending on their effect. From here on the run uses this agent's model and tools, and
        its policy if one was given. The run's own schema, which is recorded, still checks the answer; `schema` is
        the type of `Run.value`, by default the agent's.

        Raises: `RunNotFoundError`; `LeaseHeldError` if another process drives the run; `ConfigError` for an
        answer or an approval that the run does not wait for, or if a tool needs `deps` that were not given;
        `UntrustedError` for a run from elsewhere that nobody trusts.
        """
        check_options(options, ResumeOptions.__optional_keys__ | _SCHEMA, "resume")
        check_run_id(run_id)
        check_given(options)
        return await resume_run(self, run_id, self._given(options, schema), options)

    @overload
    async def fork(
        self, run_id: str, at: int | None = None, *, schema: None = None, **options: Unpack[ForkOptions]
    ) -> Run[T_co]: ...
    @overload
    async def fork(
        self, run_id: str, at: int | None = None, *, schema: type[V], **options: Unpack[ForkOptions]
    ) -> Run[V]: ...
    @overload
    async def fork(
        self, run_id: str, at: int | None = None, *, schema: Any, **options: Unpack[ForkOptions]
    ) -> Run[Any]: ...
    async def fork(
        self, run_id: str, at: int | None = None, *, schema: Any = None, **options: Unpack[ForkOptions]
    ) -> Run[Any]:
        """Make a new run from a copy of the events up to number `at`, with the files at that point, and drive it.

        `ForkOptions` describes the options. `at` is by default the last event. This agent's parts replace the
        recorded ones; the recorded schema stays, unless this agent has a schema or `schema` is given.

        Raises: `RunNotFoundError`; `ConfigError` if the run has no event `at`, if `text` is missing or not allowed,
        or if a tool needs `deps` that were not given; `UntrustedError` for a run from elsewhere that nobody trusts.
        """
        check_options(options, ForkOptions.__optional_keys__ | _SCHEMA, "fork")
        check_run_id(run_id)
        check_given(options)
        if at is not None and not isinstance(at, int):
            raise ConfigError(f"at is {at!r}; give the number of an event, an int")
        return await fork_run(self, run_id, at, self._given(options, schema), options)

    async def replay(self, run_id: str, *, policy: Policy | None = None) -> Replay:
        """Make all decisions of a run again from its journal, without calling a model or a tool.

        `policy`, if given, replaces the recorded policy; the divergence is then the first decision that differs
        under it. Raises: `RunNotFoundError`.
        """
        from treadle.tools.schema.answer_schema import find_output_fault

        check_run_id(run_id)
        return await asyncio.to_thread(lambda: replay(self.journal.read(run_id), find_output_fault, policy))

    def session(self, run_id: str | None = None, **options: Unpack[SessionOptions]) -> "Session[T_co]":
        """Return a session, to be used with `async with`. If `run_id` is a session in the journal, continue it.

        `SessionOptions` describes the options.
        """
        from treadle.agent.session import Session

        check_options(options, SessionOptions.__optional_keys__, "session")
        if run_id is not None:
            check_run_id(run_id)
        check_given(options)
        return Session(self, run_id, self._given(options, None), options)

    async def sessions(self, limit: int | None = None) -> list[RunInfo]:
        """Return the newest `limit` sessions in the journal; `None` returns all. `RunInfo.title` is for people."""
        condition = RunFilter(is_session=True)
        return await asyncio.to_thread(lambda: self.journal.runs(condition, limit=limit, newest_first=True))

    async def delete_session(self, run_id: str) -> list[str]:
        """Delete a session or another run, with the runs of its sub-agents and the episodes that memories have of
        it. Return the ids of the runs.

        Raises: `RunNotFoundError`; `LeaseHeldError` if one of the runs is being driven.
        """
        check_run_id(run_id)
        return await asyncio.to_thread(delete_session, self.journal, run_id, self.clock)

    def as_tool(
        self,
        name: str = "agent",
        description: str | None = None,
        *,
        shares_files: bool = False,
        max_depth: int = 3,
    ) -> "AgentTool":
        """Return a tool that gives a task to this agent and returns its answer, for the `tools` of another agent.

        Each call is a run of its own in the journal of the calling run. It is cancelled and resumed together with
        that run, uses what is left of its budgets, and counts for them. `description` tells the model what the
        agent is for; the default shows its instructions. With `shares_files` the agent works on the files of the
        calling run, else on its own. `max_depth` limits how deep calls of agents may be nested.
        """
        from treadle.agent.subagent import AgentTool

        return AgentTool(self, name, description, shares_files=shares_files, max_depth=max_depth)

    def keep_in(self, journal: Journal) -> None:
        """Keep the runs in `journal` from now on."""
        self._opened, self._journal_path = journal, None

    async def close(self) -> None:
        """Close the toolset objects and hooks that this agent was given, such as connections to servers.

        The journal stays open. Toolsets that were given by name end with the process.
        """
        self.hooks.close()
        for item in self.kit.given:
            close = getattr(item, "aclose", None) or getattr(item, "close", None)
            if callable(close) and not isinstance(item, str):
                closing = close()
                if inspect.isawaitable(closing):
                    await closing

    async def __aenter__(self) -> "Agent[T_co]":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    def run_sync(
        self, task: str | Task, *, schema: None = None, **options: Unpack[RunOptions]
    ) -> Run[T_co]: ...
    @overload
    def run_sync(self, task: str | Task, *, schema: type[V], **options: Unpack[RunOptions]) -> Run[V]: ...
    @overload
    def run_sync(self, task: str | Task, *, schema: Any, **options: Unpack[RunOptions]) -> Run[Any]: ...
    def run_sync(self, task: str | Task, *, schema: Any = None, **options: Unpack[RunOptions]) -> Run[Any]:
        """Call `run` and block until it returns."""
        return block(lambda: self.run(task, schema=schema, **options), "await agent.run(...)")

    def stream_sync(
        self, task: str | Task, *, schema: Any = None, **options: Unpack[StreamOptions]
    ) -> Iterator[Item]:
        """Return the items of `stream` as a plain iterator."""
        stream = self.stream(task, schema=schema, **options)
        return iterate_blocking(stream, "async for event in agent.stream(...)")

    @overload
    def run_many_sync(
        self, tasks: Iterable[str | Task], *, schema: None = None, **options: Unpack[BatchOptions]
    ) -> Iterator[Run[T_co]]: ...
    @overload
    def run_many_sync(
        self, tasks: Iterable[str | Task], *, schema: type[V], **options: Unpack[BatchOptions]
    ) -> Iterator[Run[V]]: ...
    def run_many_sync(
        self, tasks: Iterable[str | Task], *, schema: Any = None, **options: Unpack[BatchOptions]
    ) -> Iterator[Run[Any]]:
        """Return the runs of `run_many` as a plain iterator."""
        batch = self.run_many(tasks, schema=schema, **options)
        return iterate_blocking(batch, "async for run in agent.run_many(...)")

    def resume_sync(self, run_id: str, **options: Unpack[ResumeOptions]) -> Run[T_co]:
        """Call `resume` and block until it returns."""
        return block(lambda: self.resume(run_id, **options), "await agent.resume(...)")

    def fork_sync(self, run_id: str, at: int | None = None, **options: Unpack[ForkOptions]) -> Run[T_co]:
        """Call `fork` and block until it returns."""
        return block(lambda: self.fork(run_id, at, **options), "await agent.fork(...)")

    def replay_sync(self, run_id: str, *, policy: Policy | None = None) -> Replay:
        """Call `replay` and block until it returns."""
        return block(lambda: self.replay(run_id, policy=policy), "await agent.replay(...)")

    def _given(self, options: Mapping[str, Any], schema: Any) -> Given:
        answer = self.answer if schema is None else answer_type(schema)
        return Given(
            answer,
            options.get("deps", self.deps),
            options.get("on_event"),
            trust=options.get("trust", False),
            keeps_events=options.get("keeps_events", False),
            renews_instructions=options.get("renews_instructions", False),
        )


def _build_agent(part: PartSpec) -> "AgentTool":
    from treadle.agent.subagent import build_agent_tool

    return build_agent_tool(part, Agent.from_spec)
