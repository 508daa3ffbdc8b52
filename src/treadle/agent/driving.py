"""The work of an agent on one run: begin it, open it again, fork it, drive it to its end, and release it."""

import asyncio
import os
import random
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from treadle.agent.answer import AnswerType
from treadle.agent.kit import Kit
from treadle.agent.options import Given, Instructions
from treadle.agent.run import Run
from treadle.agent.spec import Files, path_of, read_mount
from treadle.agent.task import Task, load_task
from treadle.agent.trust import require_trust
from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import State, Status, fold
from treadle.core.types import (
    Artifact,
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
from treadle.journal.protocol import Journal, RunWriter
from treadle.loop.driver import Driver
from treadle.loop.wayout import see_through
from treadle.loop.workbench import Clock, read_call, to_decided
from treadle.models.protocol import Model, has_price
from treadle.sandbox.protocol import Sandbox
from treadle.tools.protocol import Approver, Decision, Tool

T = TypeVar("T")

Attached: TypeAlias = tuple[tuple[Artifact, ...], dict[str, bytes]]
"""The parts of a message, and a mapping of hash to content for the store."""


class AgentParts(Protocol):
    """The attributes of an agent that its runs use."""

    model: Model
    instructions: Instructions | None
    policy: Policy
    has_policy: bool
    kit: Kit
    files: Files | None
    approver: Approver | None
    deps: object
    clock: Clock

    @property
    def spec(self) -> AgentSpec:
        """The agent as a value."""
        ...

    @property
    def journal(self) -> Journal:
        """The journal that the runs are kept in."""
        ...


def begin(
    agent: AgentParts,
    work: str | Task | None,
    given: Given,
    *,
    run_id: str,
    files: Files | None = None,
    metadata: Mapping[str, Json] | None = None,
    attached: Attached = ((), {}),
) -> Driver:
    """Create a run, append its first events, and return its driver. If `work` is `None`, the run is a session."""
    task = None if work is None or isinstance(work, str) else work
    text = task.input if task is not None else work if isinstance(work, str) else None
    if files is None:
        files = agent.files if task is None else task.files
    output = agent.kit.output(given.answer.schema, task)
    sandbox = make_sandbox(files)
    agent.kit.toolbox(task).check_deps(given.deps)
    if task is not None:
        agent.kit.check_policy(agent.policy, task)
    writer = agent.journal.create(run_id)
    spec = _spec_for(agent, task, given.answer.schema, files, given.instructions)
    driver = make_driver(agent, State(), writer, sandbox, given, task, output, spec.policy)
    started = e.RunStarted(
        version=e.VERSION,
        agent=spec,
        instructions=_system_message(spec, output),
        tools=driver.bench.toolbox.specs,
        is_session=text is None,
        task=None if task is None else TaskRef(task.task_set, task.task_id, task.seed),
        output=output,
        metadata=dict(metadata) if metadata else None,
    )
    snapshot, blobs = driver.bench.take_snapshot()
    turn = () if text is None else (turn_started(driver.state, text, attached[0]),)
    # Appended together, because a run without its turn could never go on.
    driver.put(started, *snapshot, *turn, blobs={**(blobs or {}), **attached[1]} or None)
    return driver


async def reopen(agent: AgentParts, run_id: str, *, trust: bool) -> tuple[State, RunWriter]:
    """Acquire the lease of a run, and return the run's state and a writer for it.

    Raises: `RunNotFoundError`; `LeaseHeldError` if another process drives the run; `UntrustedError`.
    """
    journal = agent.journal
    await asyncio.to_thread(require_trust, journal, run_id, agent.spec, trust=trust)
    writer = await journal.acquire(run_id)
    try:
        return (await asyncio.to_thread(Run.load, run_id, journal)).state, writer
    except BaseException:
        await see_through(writer.release)
        raise


async def go_on(
    agent: AgentParts, state: State, writer: RunWriter, given: Given, task: Task | None = None
) -> Driver:
    """Return a driver for an existing run, with its files restored.

    Appends `run_resumed`, unless the run is over and only its grade is missing.
    """
    agent.kit.toolbox(task).check_deps(given.deps)
    sandbox = await restore(agent.journal, state)
    policy = agent.policy if agent.has_policy else state.policy
    recorded = state.output_spec
    # Another model may have to be asked in another way.
    output = agent.kit.output(None if recorded is None else recorded.schema, task)
    driver = make_driver(agent, state, writer, sandbox, given, task, output, policy)
    if state.status is not Status.FINISHED or state.stop_reason is StopReason.ERROR:
        driver.put(_resumed(agent, driver, task, policy, output))
    return driver


async def fork(
    agent: AgentParts,
    run_id: str,
    at: int | None,
    text: str | None,
    new_run_id: str | None,
    given: Given,
) -> tuple[Driver, Task | None]:
    """Create a run that begins with a copy of another run's first `at` events; return its driver and its task.

    Raises: `RunNotFoundError`; `ConfigError` if the run has no event `at`, or if `text` is missing or not allowed;
    `UntrustedError`.
    """
    await asyncio.to_thread(require_trust, agent.journal, run_id, agent.spec, trust=given.trust)
    until_seq = at if at is not None and at > 0 else None
    events = await asyncio.to_thread(agent.journal.read, run_id, until_seq=until_seq)
    at = len(events) if at is None else at
    if not 1 <= at <= len(events):
        raise ConfigError(f"run {run_id!r} has events 1 to {len(events)}; it cannot be forked at {at}")
    started = events[0].body
    assert isinstance(started, e.RunStarted)
    task = load_task_of(started)
    agent.kit.toolbox(task).check_deps(given.deps)
    head = _forked(agent, started, Parent(run_id, at), given, task)
    state = fold([head, *[event.body for event in events[1:at]]])
    if state.is_turn_open is (text is not None):
        raise ConfigError(_explain_fork(state, at))
    sandbox = await restore(agent.journal, state)
    writer = agent.journal.create(new_run_id or make_run_id())
    policy = head.spec.policy
    driver = make_driver(agent, State(), writer, sandbox, given, task, head.output, policy)
    driver.put(head)
    driver.adopt(events[1:at])
    driver.put(_resumed(agent, driver, task, policy, head.output))
    if text is not None:
        driver.put(turn_started(driver.state, text))
    return driver, task


async def drive(driver: Driver, journal: Journal, task: Task | None, answer: AnswerType[T]) -> Run[T]:
    """Drive a run until it ends or pauses, grade it, and release its lease.

    The tools are closed and the lease is released even after an error, and after any number of cancellations.
    """
    try:
        state = await driver.drive()
        if task is not None and state.status is Status.FINISHED and not state.rewards:
            _grade(driver, task)
        await driver.leave()
    except BaseException as error:
        reason = "cancelled" if isinstance(error, asyncio.CancelledError) else None
        await leave(driver, reason)
        raise
    return Run(driver.run_id, driver.state, journal, answer)


async def leave(driver: Driver, reason: str | None) -> None:
    """Close the tools of a run and release its lease, even if cancelled. With a `reason`, also record a pause.

    An asynchronous listener is not told about the pause. If the store fails here, only the record of the pause is
    lost: the run can be resumed as after a crash.
    """
    driver.give_up_listener()

    async def pause() -> None:
        if reason is not None:
            await driver.pause(reason)

    async def go() -> None:
        await driver.leave()

    try:
        await see_through(pause, go)
    except JournalError:
        return


def make_driver(
    agent: AgentParts,
    state: State,
    writer: RunWriter,
    sandbox: Sandbox,
    given: Given,
    task: Task | None,
    output: OutputSpec | None,
    policy: Policy,
) -> Driver:
    """Return a driver for a run with the agent's model, tools and approver.

    Raises: `ConfigError` if the policy limits a cost that is not known.
    """
    if policy.max_cost_usd is not None and not has_price(agent.model):
        extra = "" if find_spec("genai_prices") else "pip install 'treadle[cost]', or "
        raise ConfigError(
            f"max_cost_usd (--max-cost) limits the cost, and no price of the model {agent.model.name!r} is known: "
            f"{extra}give its price, as model(..., price=Price(...)) or `price` in treadle.toml"
        )
    toolbox = agent.kit.toolbox(task, output, given.answer).under(policy)
    driver = Driver(
        state,
        writer,
        agent.model,
        toolbox,
        sandbox,
        given.emit,
        agent.approver,
        read_blob=agent.journal.read_blob,
        clock=agent.clock,
    )
    driver.bench.deps = given.deps
    driver.find_answer_fault = given.answer.find_fault
    return driver


def make_sandbox(files: Files | None) -> Sandbox:
    """Return a sandbox in memory with `files`."""
    from treadle.sandbox.memory import MemorySandbox

    return MemorySandbox(read_mount(files) if isinstance(files, str | Path) else files)


async def restore(journal: Journal, state: State) -> Sandbox:
    """Return a sandbox with the files and tool states of `state`, read from the journal."""
    from treadle.sandbox.memory import MemorySandbox

    if not state.files and not state.tool_states:
        return MemorySandbox.restore({}, journal.read_stored)
    return await asyncio.to_thread(MemorySandbox.restore, state.files, journal.read_stored, state.tool_states)


def turn_started(state: State, text: str, parts: tuple[Artifact, ...] = ()) -> e.TurnStarted:
    """Return the event that opens the next turn with the user's message."""
    return e.TurnStarted(turn=state.turn + 1, message=Message(Role.USER, text, parts=parts))


def load_task_of(started: e.RunStarted | None) -> Task | None:
    """Return the task of a run; `None` if it has none. Raises: `ConfigError` if the task cannot be loaded."""
    ref = started.task if started is not None else None
    return None if ref is None else load_task(f"{ref.task_set}:{ref.task_id}")


_random = random.Random()
"""A generator of its own, so that a program that seeds the global one still gets different run ids."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def make_run_id() -> str:
    """Return a new run id. Ids sort by the time at which they were made."""
    return f"{int(time.time() * 1000):011x}{_random.getrandbits(32):08x}"


def resume_turn(
    agent: AgentParts, driver: Driver, answers: Mapping[str, str], approvals: Mapping[str, Decision | bool]
) -> None:
    """Append the events that continue a waiting turn, with the answers and decisions. Raises: `ConfigError`."""
    state = driver.state
    check_answers(state, answers)
    decisions = read_approvals(state, approvals, driver.bench.toolbox.tools)
    driver.put(
        _resumed(agent, driver, None, state.policy, state.output_spec),
        *[e.QuestionAnswered(question_id=key, text=text) for key, text in answers.items()],
        *[to_decided(call_id, decision) for call_id, decision in decisions.items()],
    )


def check_answers(state: State, answers: Mapping[str, str]) -> None:
    """Check that every answer belongs to an open question. Raises: `ConfigError`."""
    questions = state.questions
    for question_id in answers:
        if questions.get(question_id, "") is not None:
            known = [key for key, answer in questions.items() if answer is None]
            raise ConfigError(f"no question {question_id!r} is open; open are: {known or 'none'}")


def read_approvals(
    state: State, approvals: Mapping[str, Decision | bool], tools: Mapping[str, Tool]
) -> dict[str, Decision]:
    """Return the decisions by call id.

    Raises: `ConfigError` for a call that does not wait for a decision, or for new arguments that do not fit its
    tool.
    """
    waiting = {item.call.call_id: item.call for item in state.waiting_calls}
    decisions: dict[str, Decision] = {}
    for call_id, said in approvals.items():
        if call_id not in waiting:
            known = ", ".join(waiting) or "none"
            raise ConfigError(f"no call {call_id!r} waits for a decision; waiting are: {known}")
        decision = Decision(said) if isinstance(said, bool) else said
        if decision.arguments is not None:
            call = replace(waiting[call_id], arguments=decision.arguments)
            ready = read_call(call, tools)
            if isinstance(ready, ToolResult) and ready.error_kind is not ToolErrorKind.UNKNOWN_TOOL:
                raise ConfigError(f"call {call_id!r} cannot be run with these arguments: {ready.content}")
        decisions[call_id] = decision
    return decisions


def _spec_for(
    agent: AgentParts,
    task: Task | None,
    schema: dict[str, Json] | None,
    files: Files | None,
    instructions: str | None = None,
) -> AgentSpec:
    """Return the agent's spec with the task, the schema, the files and the instructions of one run."""
    spec = agent.spec
    if instructions is not None:
        spec = replace(spec, instructions=instructions)
    if task is not None:
        names = agent.kit.names_for(task)
        spec = replace(
            spec,
            instructions=task.instructions if spec.instructions is None else spec.instructions,
            tools=tuple([PartSpec(name=name) for name in names]) or spec.tools,
            task_set=task.task_set,
        )
    folder = path_of(files)
    if schema == spec.schema and folder == spec.files:
        return spec
    return replace(spec, schema=schema, files=folder)


def _resumed(
    agent: AgentParts, driver: Driver, task: Task | None, policy: Policy, output: OutputSpec | None
) -> e.RunResumed:
    started = driver.state.started
    assert started is not None
    begun = started.spec
    spec = _spec_for(agent, task, None if output is None else output.schema, begun.files)
    # The system message of a run never changes.
    spec = replace(spec, instructions=begun.instructions, policy=policy)
    return e.RunResumed(agent=spec, tools=driver.bench.toolbox.specs, output=output)


def _forked(
    agent: AgentParts, started: e.RunStarted, parent: Parent, given: Given, task: Task | None
) -> e.RunStarted:
    """Return the first event of a fork, in which the agent's parts replace the recorded ones."""
    recorded = started.output
    schema = given.answer.schema or (None if recorded is None else recorded.schema)
    output = agent.kit.output(schema, task)
    policy = agent.policy if agent.has_policy else started.spec.policy
    spec = _spec_for(agent, task, schema, started.spec.files)
    instructions = started.system_message
    if output is not None and output != recorded:
        # The text of the schema, if another model needs it, is not in the recorded message.
        instructions = _system_message(started.spec, output) or started.spec.instructions
    return replace(
        started,
        version=e.VERSION,
        agent=replace(spec, instructions=started.spec.instructions, policy=policy),
        instructions=instructions,
        tools=agent.kit.toolbox(task, output, given.answer).under(policy).specs,
        parent=parent,
        output=output,
        policy=None,
        model=None,
    )


def _system_message(spec: AgentSpec, output: OutputSpec | None) -> str | None:
    """Return the system message if it differs from the spec's instructions, else `None`."""
    if output is None:
        return None
    from treadle.tools.schema.output import instruct

    text = instruct(spec.instructions, output)
    return None if text == spec.instructions else text


def _grade(driver: Driver, task: Task) -> None:
    """Run the task's check and append its grade. A run that failed through no fault of the model gets no grade."""
    state, sandbox = driver.state, driver.bench.sandbox
    if state.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        return
    files = {} if sandbox is None else {path: sandbox.read(path) for path in sandbox.paths()}
    grade = task.check(state.output, files)
    driver.put(e.Rewarded(reward=grade.reward, detail=grade.detail))


def _explain_fork(state: State, at: int) -> str:
    if state.is_turn_open:
        return f"the turn is not over at event {at}, so the fork continues it; do not give a text"
    return f"the turn is over at event {at}; give a text for the next turn, or an earlier event"
