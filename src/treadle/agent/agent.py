"""Agent: a model, instructions, tools and a policy. It runs, streams, resumes, forks and replays.

An agent brings a run's parts together and hands them to the driver. Models, tools and journals that are given by
name are loaded when they are first needed.
"""

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
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
from treadle.core import events as e
from treadle.core.policy import Policy
from treadle.core.replay import Replay, replay
from treadle.core.spec import AgentSpec
from treadle.core.state import Status
from treadle.core.types import Json, StopReason
from treadle.http.background import run_blocking
from treadle.journal.protocol import Journal
from treadle.loop.driver import Emit
from treadle.loop.wayout import see_through
from treadle.loop.workbench import to_decided
from treadle.models.protocol import Model
from treadle.tools.protocol import Approver, Decision, Tool, ToolLike

if TYPE_CHECKING:
    from treadle.agent.session import Session


class Agent:
    """A model with tools. One agent may drive any number of runs at a time."""

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
    ) -> None:
        """Make an agent of its parts.

        `model` may be a name for `treadle.model`, `journal` a path for `treadle.open_journal`. `approver` is asked
        about the calls that the policy says to ask about; without one, or if it returns `None`, such a run is
        paused, and goes on with `resume(run_id, approvals=...)`. `schema`, a pydantic type or a JSON Schema, is
        what every final answer must fit; the answer is `Run.value` then.

        Raises: `ConfigError` if something given by name cannot be had, two tools share a name, or `schema` is no
        JSON Schema.
        """
        self.model: Model = _load_model(model) if isinstance(model, str) else model
        self.instructions = instructions
        self.policy = policy or Policy()
        self.has_policy = policy is not None
        """True if a policy was given: it holds for runs that are gone on with, too. Otherwise they keep theirs."""
        self.kit = Kit(tools, self.model)
        """The tools for the agent's runs."""
        self.files = files
        self.approver = approver
        self.schema = None if schema is None else _to_schema(schema)
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
    ) -> "Agent":
        """Build the agent that a spec describes, as `Run.spec` has it. Parts that are given win over the spec's.

        Raises: `ConfigError` that names the parts which are only objects of a program and must be given, and as
        the constructor does.
        """
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

    @cached_property
    def spec(self) -> AgentSpec:
        """The agent as a value, with which another process can build it again."""
        return make_spec(self.model, self.instructions, self.kit.given, self.policy, self.schema, self.files)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools that the model may call, by name. Without any, it may call those that a task brings."""
        return self.kit.own.tools

    @property
    def journal(self) -> Journal:
        """The journal that runs are kept in; a file is opened when it is first needed."""
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
        """Run one turn to its end. A `Task` brings its own files and tools, and is graded.

        `attach` adds images, audio or documents to the message: paths of files, or `Artifact`s. `schema` takes the
        place of the agent's. A run that fails returns: `stop_reason` and `fault` say why. Cancelling leaves a run
        that can be resumed. `on_event` is called with every event once it is durable, and the deltas between.

        Raises: `RunExistsError` if the journal has a `run_id`; `JournalError` if the store fails; `ConfigError` for
        an attachment that cannot be read.
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
        """Return the run's events as they are kept, and the deltas between; options as for `run`."""
        return RunStream(lambda emit: self.run(task, on_event=emit, **options))

    async def resume(
        self,
        run_id: str,
        *,
        answers: Mapping[str, str] | None = None,
        approvals: Mapping[str, Decision | bool] | None = None,
        on_event: Emit | None = None,
    ) -> Run:
        """Go on with a run that was interrupted, waits for an answer or an approval, or ended with an error.

        A run that is over is returned as it is. Calls whose outcome was lost are handled by their effect. This
        agent's parts count from here on, and its policy if it was given one. `answers` are by question id,
        `approvals` by call id.

        Raises: `RunNotFoundError`; `LeaseHeldError` if a live process drives the run; `ConfigError` for an answer
        or approval that nothing waits for.
        """
        state, writer = await driving.reopen(self, run_id)
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
    ) -> Run:
        """Make a new run from the events up to `at`, with the files of that moment, and drive it on.

        `at` is the last event if left out. This agent's parts take the place of the recorded ones. `text` opens a
        new turn; a prefix that ends with a finished turn needs one.

        Raises: `RunNotFoundError`; `ConfigError` if `at` is no event of the run, or `text` is missing or comes
        within a turn.
        """
        driver, task = await driving.fork(self, run_id, at, text, new_run_id, on_event)
        return await driving.drive(driver, self.journal, task)

    async def replay(self, run_id: str, *, policy: Policy | None = None) -> Replay:
        """Decide a run again from its journal, without a model or a tool.

        `policy`, if given, takes the place of the recorded one: where it would have decided otherwise is the
        divergence. Raises: `RunNotFoundError`.
        """
        from treadle.tools.schema.output import find_output_fault

        return await asyncio.to_thread(lambda: replay(self.journal.read(run_id), find_output_fault, policy))

    def session(self, run_id: str | None = None, *, files: Files | None = None) -> "Session":
        """Return a conversation in one journal, to be used with `async with`; a known `run_id` is opened again."""
        from treadle.agent.session import Session

        return Session(self, run_id, files)

    async def close(self) -> None:
        """Close the toolsets that this agent was given and that can be closed, such as servers that it started.

        Its journal stays open. Toolsets that are given by name end with the process.
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
        """Return what `stream` gives as a plain iterator."""
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
