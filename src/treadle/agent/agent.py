"""The class `Agent`, which runs, streams, resumes, forks and replays runs.

An agent puts the parts of a run together and passes them to a driver. The modules of models, tools and journals
that are given by name are imported only when they are needed.
"""

import asyncio
import inspect
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_not
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.agent import driving
from treadle.agent.attachments import Attachable, read_attachments
from treadle.agent.driving import Attached
from treadle.agent.kit import Kit
from treadle.agent.run import Run
from treadle.agent.spec import Files, make_model, make_spec, refuse_missing
from treadle.agent.stream import RunStream
from treadle.agent.sync import iterate_blocking
from treadle.agent.task import Task
from treadle.agent.trust import demands_of
from treadle.core import events as e
from treadle.core.errors import UntrustedError
from treadle.core.policy import Policy
from treadle.core.replay import Replay, replay
from treadle.core.spec import AgentSpec
from treadle.core.state import Status
from treadle.core.types import Json, StopReason
from treadle.http.background import run_blocking
from treadle.journal.protocol import Journal
from treadle.loop.listener import Emit
from treadle.loop.wayout import see_through
from treadle.loop.workbench import Clock, to_decided
from treadle.models.protocol import Model
from treadle.tools.protocol import Approver, Decision, Tool, ToolLike

if TYPE_CHECKING:
    from treadle.agent.session import Session


class Agent:
    """A model with instructions, tools and a policy. One agent can drive any number of runs at the same time."""

    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str | None = None,
        tools: Iterable[ToolLike] = (),
        policy: Policy | None = None,
        journal: Journal | str | Path | None = None,
        files: Files | None = None,
        approver: Approver | None = None,
        schema: Any = None,
        clock: Clock = time,
    ) -> None:
        """Make an agent from its parts.

        `model` is a model or a name for `treadle.model`; `journal` is a journal or a path for
        `treadle.open_journal`. `files` are the initial files of every run's sandbox. `approver` is asked about
        the calls that the policy says to ask about; without one, or if it returns `None`, the run pauses until
        `resume(run_id, approvals=...)`. `schema` is a pydantic type or a JSON Schema that every final answer must
        fit; `Run.value` is then the answer. `clock` gives the times and durations of events.

        Raises: `ConfigError` if a part given by name cannot be loaded, two tools have the same name, or `schema` is
        not a JSON Schema.
        """
        self.model: Model = _load_model(model) if isinstance(model, str) else model
        self.instructions = instructions
        self.policy = policy or Policy()
        self.has_policy = policy is not None
        """True if a policy was given. It then also applies to runs that this agent resumes; else they keep
        theirs."""
        self.kit = Kit(tools, self.model)
        """The toolboxes for the agent's runs."""
        self.files = files
        self.approver = approver
        self.schema = None if schema is None else _to_schema(schema)
        self.clock = clock
        self._spec: AgentSpec | None = None
        self._spec_parts: tuple[object, ...] = ()
        """The attributes that `_spec` was made from."""
        is_path = journal is None or isinstance(journal, str | Path)
        self._journal_path = journal if is_path else None
        self._opened: Journal | None = None if is_path else journal  # type: ignore[assignment]

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
        trust: bool = False,
    ) -> "Agent":
        """Build the agent that a spec, such as `Run.spec`, describes.

        `model` and `tools`, if given, replace those of the spec. `trust` must be true for the spec of a run that
        comes from elsewhere, because its parts may start programs and send keys.

        Raises: `ConfigError` for the same reasons as the constructor, and if a part of the spec that was not given
        cannot be built from its name; the message names each such part. `UntrustedError` for a spec that needs
        `trust`; the message names what its parts would do.
        """
        if spec.is_foreign and not trust:
            raise UntrustedError("the agent", demands_of(spec))
        given = None if tools is None else tuple(tools)
        refuse_missing(spec, has_model=model is not None, has_tools=given is not None)
        return cls(
            make_model(spec.model, api_key) if model is None else model,
            instructions=spec.instructions,
            tools=spec.tools if given is None else given,
            policy=spec.policy,
            journal=journal,
            files=spec.files,
            approver=approver,
            schema=spec.schema,
        )

    @property
    def spec(self) -> AgentSpec:
        """The description of the agent, as it is now, from which another process can build it again."""
        parts = (self.model, self.instructions, self.policy, self.schema, self.files)
        if self._spec is None or any(map(is_not, parts, self._spec_parts)):
            self._spec = make_spec(
                self.model, self.instructions, self.kit.given, self.policy, self.schema, self.files
            )
            self._spec_parts = parts
        return self._spec

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The agent's own tools by name. If there are none, a run of a task offers the tools that the task
        names."""
        return self.kit.own.tools

    @property
    def journal(self) -> Journal:
        """The journal that keeps the runs. A journal given by path is opened when it is first needed."""
        if self._opened is None:
            from treadle.journal.registry import open_journal

            self._opened = open_journal(self._journal_path)  # type: ignore[arg-type]
        return self._opened

    async def run(
        self,
        task: str | Task,
        *,
        run_id: str | None = None,
        files: Files | None = None,
        attach: Sequence[Attachable] = (),
        metadata: Mapping[str, Json] | None = None,
        schema: Any = None,
        on_event: Emit | None = None,
    ) -> Run:
        """Run a task, or a text as the user's message, to the end of the turn, and return the run.

        A `Task` has its own files and tools, and its check grades the run. `attach` adds images, audio or
        documents to the message: paths of files, or `Artifact`s. `schema` replaces the agent's. `on_event` is
        called with every event once it is durable, and with the deltas in between.

        A run that fails does not raise: `Run.stop_reason` and `Run.fault` tell why it ended. A cancelled run can be
        resumed.

        Raises: `RunExistsError` if the journal already has a run `run_id`; `JournalError` if the store fails;
        `ConfigError` for an attachment that cannot be read.
        """
        attached: Attached = await asyncio.to_thread(read_attachments, attach) if attach else ((), {})
        driver = driving.begin(
            self,
            task,
            run_id=run_id,
            files=files,
            metadata=metadata,
            schema=self.schema if schema is None else _to_schema(schema),
            attached=attached,
            emit=on_event,
        )
        return await driving.drive(driver, self.journal, None if isinstance(task, str) else task)

    def stream(self, task: str | Task, **options: Any) -> RunStream:
        """Return an async iterator that runs a task as `run` does, and yields its events and deltas as they
        come."""
        return RunStream(lambda emit: self.run(task, on_event=emit, **options))

    async def resume(
        self,
        run_id: str,
        *,
        answers: Mapping[str, str] | None = None,
        approvals: Mapping[str, Decision | bool] | None = None,
        on_event: Emit | None = None,
        trust: bool = False,
    ) -> Run:
        """Continue a run that was interrupted, waits for an answer or an approval, or ended with an error.

        A run that is over is returned unchanged. Calls whose outcome was lost run again or not, depending on
        their effect. From here on the run uses this agent's model and tools, and its policy if one was given.
        `answers` maps question ids to texts, `approvals` maps call ids to decisions. `trust` records that a run
        which comes from elsewhere is trusted.

        Raises: `RunNotFoundError`; `LeaseHeldError` if another process drives the run; `ConfigError` for an
        answer or an approval that the run does not wait for; `UntrustedError` for a run from elsewhere that nobody
        trusts.
        """
        state, writer = await driving.reopen(self, run_id, trust=trust)
        try:
            driving.check_answers(state, answers or {})
            decisions = driving.read_approvals(state, approvals or {}, self.tools)
            task = driving.load_task_of(state.started)
            is_over = state.status is Status.FINISHED and state.stop_reason is not StopReason.ERROR
            if is_over and (task is None or state.rewards):
                await see_through(writer.release)
                return Run(run_id, state, self.journal)
            driver = await driving.go_on(self, state, writer, task, on_event)
            driver.put(
                *[e.QuestionAnswered(question_id=key, text=text) for key, text in (answers or {}).items()]
            )
            driver.put(*[to_decided(call_id, decision) for call_id, decision in decisions.items()])
        except BaseException:
            await see_through(writer.release)
            raise
        return await driving.drive(driver, self.journal, task)

    async def fork(
        self,
        run_id: str,
        at: int | None = None,
        *,
        text: str | None = None,
        new_run_id: str | None = None,
        on_event: Emit | None = None,
        trust: bool = False,
    ) -> Run:
        """Make a new run from a copy of the events up to number `at`, with the files at that point, and drive it.

        `at` is by default the last event. This agent's parts replace the recorded ones. `text` opens a new turn; it
        must be given if the copied events end with a finished turn, and must not be given otherwise. `trust` is as
        for `resume`.

        Raises: `RunNotFoundError`; `ConfigError` if the run has no event `at`, or if `text` is missing or not
        allowed; `UntrustedError` for a run from elsewhere that nobody trusts.
        """
        driver, task = await driving.fork(self, run_id, at, text, new_run_id, on_event, trust=trust)
        return await driving.drive(driver, self.journal, task)

    async def replay(self, run_id: str, *, policy: Policy | None = None) -> Replay:
        """Make all decisions of a run again from its journal, without calling a model or a tool.

        `policy`, if given, replaces the recorded policy; the divergence is then the first decision that differs
        under it. Raises: `RunNotFoundError`.
        """
        from treadle.tools.schema.output import find_output_fault

        return await asyncio.to_thread(lambda: replay(self.journal.read(run_id), find_output_fault, policy))

    def session(
        self, run_id: str | None = None, *, files: Files | None = None, trust: bool = False
    ) -> "Session":
        """Return a session, to be used with `async with`. If `run_id` is a session in the journal, continue it.

        `trust` is as for `resume`.
        """
        from treadle.agent.session import Session

        return Session(self, run_id, files, trust=trust)

    async def close(self) -> None:
        """Close the toolset objects that this agent was given, such as connections to servers.

        The journal stays open. Toolsets that were given by name end with the process.
        """
        for item in self.kit.given:
            close = getattr(item, "aclose", None) or getattr(item, "close", None)
            if callable(close) and not isinstance(item, str):
                closing = close()
                if inspect.isawaitable(closing):
                    await closing

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def run_sync(self, task: str | Task, **options: Any) -> Run:
        """Call `run` and block until it returns."""
        return run_blocking(self.run(task, **options))

    def stream_sync(self, task: str | Task, **options: Any) -> Iterator[e.Event | e.Ephemeral]:
        """Return the items of `stream` as a plain iterator."""
        return iterate_blocking(self.stream(task, **options))

    def resume_sync(self, run_id: str, **options: Any) -> Run:
        """Call `resume` and block until it returns."""
        return run_blocking(self.resume(run_id, **options))

    def fork_sync(self, run_id: str, at: int | None = None, **options: Any) -> Run:
        """Call `fork` and block until it returns."""
        return run_blocking(self.fork(run_id, at, **options))

    def replay_sync(self, run_id: str, **options: Any) -> Replay:
        """Call `replay` and block until it returns."""
        return run_blocking(self.replay(run_id, **options))


def _load_model(name: str) -> Model:
    from treadle.models.config.build import model

    return model(name)


def _to_schema(given: Any) -> dict[str, Json]:
    from treadle.tools.schema.output import to_output_schema

    return to_output_schema(given)
