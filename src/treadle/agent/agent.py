"""Agent: a model, instructions, tools and a policy; it runs, streams, resumes, forks and replays.

What it does is bring a run's parts together and hand them to the driver. Models, tools and journals that
are given by name are loaded when they are first needed.
"""

import asyncio
import contextlib
import inspect
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from treadle.agent.run import Run
from treadle.agent.sync import iterate_blocking
from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError
from treadle.core.policy import Policy
from treadle.core.registry import load
from treadle.core.state import State, Status, fold
from treadle.core.types import (
    Fault,
    Json,
    Message,
    OutputSpec,
    Parent,
    Role,
    StopReason,
    TaskRef,
    ToolErrorKind,
    ToolResult,
)
from treadle.http.background import run_blocking
from treadle.journal.protocol import Journal, RunWriter
from treadle.loop.driver import Driver, Emit
from treadle.loop.perform import read_call
from treadle.loop.replay import Replay, Replayer
from treadle.loop.toolcalls import approval_decided
from treadle.models.protocol import Model, output_mode_of
from treadle.sandbox.protocol import Sandbox
from treadle.tools.protocol import Approver, Decision, Tool, Toolbox, ToolLike

if TYPE_CHECKING:
    from treadle.agent.session import Session
    from treadle.tasks.protocol import Task

Files = Mapping[str, bytes] | Mapping[str, str] | str | Path
"""Initial files: path to content, or a folder, which is read and never written to."""


class Agent:
    """Runs a model with tools. One agent may drive any number of runs at a time."""

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
        """`model` may be a name for `treadle.model`, `journal` a path for `treadle.open_journal`.

        `approver` is asked about the calls that the policy says to ask about. Without one, or if it says `None`,
        such a run is paused, and goes on with `resume(run_id, approvals=...)`.
        `schema`, a pydantic type or a JSON Schema, is what every final answer must fit; it is `Run.value` then.
        Raises: `ConfigError` if something given by name cannot be had, two tools share a name, or `schema` is no
        JSON Schema.
        """
        self.model: Model = load("treadle.models:model")(model) if isinstance(model, str) else model
        self.instructions = instructions
        self._given = tuple(tools)
        self._toolbox = Toolbox(_by_name(self._given))
        self._task_toolboxes: dict[tuple[str, ...], Toolbox] = {}
        self._output_toolboxes: dict[tuple[int, int], tuple[dict[str, Json], Toolbox]] = {}
        self.policy = policy or Policy()
        self.files = files
        self.approver = approver
        self.schema = None if schema is None else _to_schema(schema)
        is_path = journal is None or isinstance(journal, str | Path)
        self._journal_path = journal if is_path else None
        self._opened: Journal | None = None if is_path else journal  # type: ignore[assignment]

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What the model may call, by name. Without any, it may call what a task brings."""
        return self._toolbox.tools

    @property
    def journal(self) -> Journal:
        """Where runs are kept; a file is opened when it is first needed."""
        if self._opened is None:
            self._opened = load("treadle.journal.registry:open_journal")(self._journal_path)
        assert self._opened is not None
        return self._opened

    async def run(
        self,
        task: "str | Task",
        *,
        run_id: str | None = None,
        files: Files | None = None,
        metadata: Mapping[str, Json] | None = None,
        schema: Any = None,
        on_event: Emit | None = None,
    ) -> Run:
        """One turn, to its end. A `Task` brings its own files and tools, and is graded.

        `schema` takes the place of the agent's. A run that fails returns: `stop_reason` and `fault` say why.
        Cancelling leaves a run that can be resumed. `on_event` hears every event once it is kept, and the deltas
        between.

        Raises: `RunExistsError` if the journal has a `run_id`; `JournalError` if the store fails.
        """
        driver, writer = self._begin(
            task,
            run_id=run_id,
            files=files,
            metadata=metadata,
            schema=self.schema if schema is None else _to_schema(schema),
            is_session=False,
            emit=on_event,
        )
        return await self._drive(driver, writer, None if isinstance(task, str) else task)

    def stream(self, task: "str | Task", **options: Any) -> "RunStream":
        """The run's events as they are kept, and the deltas between; options as for `run`."""
        return RunStream(lambda emit: self.run(task, on_event=emit, **options))

    async def resume(
        self,
        run_id: str,
        *,
        answers: Mapping[str, str] | None = None,
        approvals: Mapping[str, Decision | bool] | None = None,
        on_event: Emit | None = None,
    ) -> Run:
        """Go on with a run that was interrupted, waits for an answer or a yes, or ended with an error.

        A run that is over is returned as it is. Calls whose outcome was lost are handled by their effect.
        `answers` are by question id, `approvals` by call id.

        Raises: `RunNotFoundError`; `LeaseHeldError` if a live process drives the run; `ConfigError` for an answer
        or approval that nothing waits for.
        """
        state, writer = await self._open(run_id)
        try:
            _check_answers(state, answers or {})
            decisions = _read_approvals(state, approvals or {}, self.tools)
            task = _load_task(state.started)
            is_over = state.status is Status.FINISHED and state.stop_reason is not StopReason.ERROR
            if is_over and (task is None or state.rewards):
                await writer.release()
                return Run(run_id, state, self.journal)
            driver = self._driver(state, writer, self._restore(state), on_event, task)
            if not is_over:
                driver.record(e.RunResumed(at=time.time()))
            for question_id, text in (answers or {}).items():
                driver.record(e.QuestionAnswered(at=time.time(), question_id=question_id, text=text))
            for call_id, decision in decisions.items():
                driver.record(approval_decided(call_id, decision))
        except BaseException:
            await writer.release()
            raise
        return await self._drive(driver, writer, task)

    async def fork(
        self,
        run_id: str,
        at: int | None = None,
        *,
        text: str | None = None,
        new_run_id: str | None = None,
        on_event: Emit | None = None,
    ) -> Run:
        """A new run from the events up to `at` (all, if `None`), with the files of that moment, driven on.

        This agent's model, tools and policy take the place of the recorded ones. `text` opens a new turn;
        a prefix that ends with a finished turn needs one.

        Raises: `RunNotFoundError`; `ConfigError` if `at` is no event of the run, or `text` is missing or
        comes within a turn.
        """
        prefix, task = self._prefix(run_id, at)
        new_run_id = new_run_id or make_run_id()
        writer = self.journal.create(new_run_id)
        state = fold([event.body for event in prefix])
        if state.is_turn_open is (text is not None):
            raise ConfigError(_explain_fork(state, prefix[-1].seq))
        head = prefix[0].body
        output = head.output if isinstance(head, e.RunStarted) else None
        driver = self._driver(State(policy=self.policy), writer, self._restore(state), on_event, task, output)
        driver.adopt(prefix)
        driver.record(e.RunResumed(at=time.time()))
        if text is not None:
            driver.record(turn_started(driver.state, text))
        return await self._drive(driver, writer, task)

    async def replay(self, run_id: str, *, policy: Policy | None = None) -> Replay:
        """Decide a run again from its journal, without a model or a tool.

        `policy`, if given, takes the place of the recorded one: where it would have decided otherwise is
        the divergence. Raises: `RunNotFoundError`.
        """
        return await Replayer(self.journal.read(run_id), policy).replay()

    def session(self, run_id: str | None = None, *, files: Files | None = None) -> "Session":
        """A conversation in one journal, to be used with `async with`; a known `run_id` is opened again."""
        session: Session = load("treadle.agent.session:Session")(self, run_id, files)
        return session

    async def close(self) -> None:
        """Close the toolsets that this agent was given and that can be closed, as servers that were started.

        Its journal stays open. Toolsets that are given by name end with the process.
        """
        for item in self._given:
            close = getattr(item, "aclose", None) or getattr(item, "close", None)
            if callable(close) and not isinstance(item, str):
                closing = close()
                if inspect.isawaitable(closing):
                    await closing

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def run_sync(self, task: "str | Task", **options: Any) -> Run:
        """`run`, blocking."""
        return run_blocking(self.run(task, **options))

    def stream_sync(self, task: "str | Task", **options: Any) -> Iterator[e.Event | e.Ephemeral]:
        """`stream`, as a plain iterator."""
        return iterate_blocking(self.stream(task, **options))

    def resume_sync(self, run_id: str, **options: Any) -> Run:
        """`resume`, blocking."""
        return run_blocking(self.resume(run_id, **options))

    def fork_sync(self, run_id: str, at: int | None = None, **options: Any) -> Run:
        """`fork`, blocking."""
        return run_blocking(self.fork(run_id, at, **options))

    def replay_sync(self, run_id: str, **options: Any) -> Replay:
        """`replay`, blocking."""
        return run_blocking(self.replay(run_id, **options))

    def _begin(
        self,
        task: "str | Task | None",
        *,
        run_id: str | None,
        files: Files | None,
        metadata: Mapping[str, Json] | None,
        schema: dict[str, Json] | None,
        is_session: bool,
        emit: Emit | None,
    ) -> tuple[Driver, RunWriter]:
        """A driver for a new run, its first events recorded."""
        instructions, text, ref = self.instructions, task, None
        whole_task = None if isinstance(task, str) else task
        if task is not None and not isinstance(task, str):
            instructions = instructions if instructions is not None else task.instructions
            text, files = task.input, files if files is not None else task.files
            ref = TaskRef(task.task_set, task.task_id, task.seed)
        sandbox = _make_sandbox(files if files is not None else self.files)
        output = self._choose_output(schema, whole_task)
        writer = self.journal.create(run_id or make_run_id())
        driver = self._driver(State(policy=self.policy), writer, sandbox, emit, whole_task, output)
        started = e.RunStarted(
            at=time.time(),
            policy=self.policy,
            version=e.VERSION,
            model=self.model.name,
            instructions=instructions if output is None else _instruct(instructions, output),
            tools=driver.toolbox.specs,
            is_session=is_session,
            task=ref,
            metadata=dict(metadata) if metadata else None,
            output=output,
        )
        snapshot, blobs = driver.take_snapshot()
        first_turn = (turn_started(driver.state, text),) if isinstance(text, str) else ()
        # All or none: without its turn a run could never go on.
        driver.record(started, *snapshot, *first_turn, blobs=blobs)
        return driver, writer

    async def _open(self, run_id: str) -> tuple[State, RunWriter]:
        writer = await self.journal.acquire(run_id)
        try:
            return fold([event.body for event in self.journal.read(run_id)]), writer
        except BaseException:
            await writer.release()
            raise

    def _driver(
        self,
        state: State,
        writer: RunWriter,
        sandbox: Sandbox,
        emit: Emit | None,
        task: "Task | None" = None,
        output: OutputSpec | None = None,
    ) -> Driver:
        toolbox = self._toolbox_for(task, output or state.output_spec)
        return Driver(state, writer, self.model, toolbox, sandbox, emit, self.approver)

    def _choose_output(self, schema: dict[str, Json] | None, task: "Task | None") -> OutputSpec | None:
        """How this agent's model is asked for answers in `schema`."""
        if schema is None:
            return None
        tools = self._toolbox_for(task).tools
        mode = output_mode_of(self.model, schema, has_tools=bool(tools))
        chosen: OutputSpec = load("treadle.tools.schema.output:choose_output")(schema, mode, tools)
        return chosen

    async def _drive(self, driver: Driver, writer: RunWriter, task: "Task | None") -> Run:
        """Drive to the end, grade, give the lease back."""
        try:
            state = await driver.drive()
            if task is not None and state.status is Status.FINISHED and not state.rewards:
                _grade(driver, task)
        except asyncio.CancelledError:
            await asyncio.shield(self._pause(driver, writer))
            raise
        except BaseException:
            await writer.release()
            raise
        finally:
            await driver.close()
        # One commit for the run's end and its lease's.
        await writer.release()
        await driver.sync()
        return Run(writer.run_id, driver.state, self.journal)

    async def _pause(self, driver: Driver, writer: RunWriter) -> None:
        # A store that refuses now loses only the note: the run is as after a crash, and resumes as one.
        with contextlib.suppress(JournalError):
            await driver.pause("cancelled")
            await writer.release()

    def _restore(self, state: State) -> Sandbox:
        sandbox: Sandbox = load("treadle.sandbox.memory:MemorySandbox").restore(
            state.files, self.journal.read_blob, state.tool_states
        )
        return sandbox

    def _toolbox_for(self, task: "Task | None", output: OutputSpec | None = None) -> Toolbox:
        """An agent without tools takes those that the task names, for its runs of that task.

        With `output`, also the tool that takes the answer, if one does.
        """
        if output is not None and output.tool is not None:
            base = self._toolbox_for(task)
            known = self._output_toolboxes.get((id(output.schema), id(base)))
            if known is None:
                answer = load("treadle.tools.schema.output:AnswerTool")(output)
                # The entry keeps the schema alive, so that its id stays its own.
                known = (output.schema, Toolbox({**base.tools, output.tool: answer}))
                self._output_toolboxes[id(output.schema), id(base)] = known
            return known[1]
        if task is None or self._toolbox.tools:
            return self._toolbox
        names = tuple(task.tools)
        if names not in self._task_toolboxes:
            self._task_toolboxes[names] = Toolbox(_by_name(names))
        return self._task_toolboxes[names]

    def _prefix(self, run_id: str, at: int | None) -> "tuple[list[e.Event], Task | None]":
        """The first `at` events, the run's own parts replaced by this agent's; and its task."""
        events = self.journal.read(run_id)
        at = len(events) if at is None else at
        if not 1 <= at <= len(events):
            raise ConfigError(f"run {run_id!r} has events 1 to {len(events)}; it cannot be forked at {at}")
        started = events[0].body
        assert isinstance(started, e.RunStarted)
        task = _load_task(started)
        recorded = started.output
        schema = self.schema or (None if recorded is None else recorded.schema)
        output = self._choose_output(schema, task)
        head = e.RunStarted(
            at=time.time(),
            policy=self.policy,
            version=e.VERSION,
            model=self.model.name,
            instructions=started.instructions,
            tools=self._toolbox_for(task, output).under(self.policy).specs,
            is_session=started.is_session,
            task=started.task,
            parent=Parent(run_id, at),
            metadata=started.metadata,
            output=output,
        )
        return [e.Event(run_id, 1, head), *events[1:at]], task


class RunStream:
    """An async iterator over a run's events. Leaving it early cancels the run, which can be resumed."""

    def __init__(self, start: Callable[[Emit], Any]) -> None:
        self.run: Run | None = None
        """The outcome, once the last event was given."""
        self._items = self._iterate(start)

    def __aiter__(self) -> AsyncIterator[e.Event | e.Ephemeral]:
        return self

    async def __anext__(self) -> e.Event | e.Ephemeral:
        return await self._items.__anext__()

    async def aclose(self) -> None:
        """Cancel the run if it is not over, and wait until its journal is in order."""
        await self._items.aclose()

    async def _iterate(self, start: Callable[[Emit], Any]) -> AsyncGenerator[e.Event | e.Ephemeral, None]:
        items: asyncio.Queue[e.Event | e.Ephemeral | None] = asyncio.Queue()
        task = asyncio.ensure_future(start(items.put_nowait))
        task.add_done_callback(lambda _: items.put_nowait(None))
        try:
            while (item := await items.get()) is not None:
                yield item
            self.run = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


_random = random.Random()
"""Seeded by the system, whatever the program does with the global one."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def make_run_id() -> str:
    """A new id; ids made later sort later."""
    return f"{int(time.time() * 1000):011x}{_random.getrandbits(32):08x}"


def _by_name(tools: Iterable[ToolLike]) -> dict[str, Tool]:
    items = list(tools)
    if not items:
        return {}
    return {tool.spec.name: tool for tool in load("treadle.tools.resolve:resolve_tools")(items)}


def _make_sandbox(files: Files | None) -> Sandbox:
    kind = load("treadle.sandbox.memory:MemorySandbox")
    sandbox: Sandbox = kind.from_folder(files) if isinstance(files, str | Path) else kind(files)
    return sandbox


def turn_started(state: State, text: str) -> e.TurnStarted:
    """The event that opens the next turn with the user's `text`."""
    return e.TurnStarted(at=time.time(), turn=state.turn + 1, message=Message(Role.USER, text))


def _to_schema(given: Any) -> dict[str, Json]:
    schema: dict[str, Json] = load("treadle.tools.schema.output:to_output_schema")(given)
    return schema


def _instruct(instructions: str | None, output: OutputSpec) -> str | None:
    text: str | None = load("treadle.tools.schema.output:instruct")(instructions, output)
    return text


def _load_task(started: e.RunStarted | None) -> "Task | None":
    ref = started.task if started is not None else None
    if ref is None:
        return None
    task: Task = load("treadle.tasks:load_task")(f"{ref.task_set}:{ref.task_id}")
    return task


def _grade(driver: Driver, task: "Task") -> None:
    """Check the outcome; a run that failed through no fault of its own gets no grade."""
    state = driver.state
    if state.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        return
    sandbox = driver.sandbox
    files = {} if sandbox is None else {path: sandbox.read(path) for path in sandbox.paths()}
    grade = task.check(state.output, files)
    driver.record(e.Rewarded(at=time.time(), reward=grade.reward, detail=grade.detail))


def _check_answers(state: State, answers: Mapping[str, str]) -> None:
    """Raises: `ConfigError` for an answer whose question is not open."""
    questions = state.questions
    for question_id in answers:
        if questions.get(question_id, "") is not None:
            known = [key for key, answer in questions.items() if answer is None]
            raise ConfigError(f"no question {question_id!r} is open; open are: {known or 'none'}")


def _read_approvals(
    state: State, approvals: Mapping[str, Decision | bool], tools: Mapping[str, Tool]
) -> dict[str, Decision]:
    """Raises: `ConfigError` for a call that waits for no decision, or arguments that it cannot be run with."""
    waiting = {item.call.call_id: item.call for item in state.waiting_calls}
    decisions: dict[str, Decision] = {}
    for call_id, said in approvals.items():
        if call_id not in waiting:
            known = ", ".join(waiting) or "none"
            raise ConfigError(f"no call {call_id!r} waits for a decision; waiting are: {known}")
        decision = Decision(said) if isinstance(said, bool) else said
        if decision.arguments is not None:
            call = replace(waiting[call_id], arguments=decision.arguments)
            ready = read_call(call, tools, None)
            if isinstance(ready, ToolResult) and ready.error_kind is not ToolErrorKind.UNKNOWN_TOOL:
                raise ConfigError(f"call {call_id!r} cannot be run with these arguments: {ready.content}")
        decisions[call_id] = decision
    return decisions


def _explain_fork(state: State, at: int) -> str:
    if state.is_turn_open:
        return f"the turn is not over at event {at}, so the fork goes on with it; leave text away"
    return f"the turn is over at event {at}; give a text for the next one, or an earlier event"
