"""The continuation of runs, of the turns of sessions, and the answers and approvals that they wait for."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.asking import Answerable, open_questions, read_answer
from treadle.core.calls import waiting_calls
from treadle.core.errors import ConfigError
from treadle.core.state import State, Status
from treadle.core.types import (
    Fault,
    StopReason,
    ToolErrorKind,
    ToolResult,
)
from treadle.journal.protocol import Journal, RunWriter
from treadle.loop.calls.orders import read_call, to_decided
from treadle.loop.calls.workbench import Workbench
from treadle.loop.driver import Driver
from treadle.loop.wayout import see_through
from treadle.models.scripted import ScriptedModel
from treadle.runs.agent_parts import AgentParts
from treadle.runs.drive import Terms, drive, make_driver, restore, spec_for, warm_up
from treadle.runs.options import (
    Given,
    ResumeOptions,
)
from treadle.runs.run import Run
from treadle.runs.task import Task, load_task
from treadle.runs.trust import require_trust
from treadle.runs.turns import write_back
from treadle.tools.protocol import Decision, Tool
from treadle.tools.toolbox import Toolbox


async def resume_run(
    agent: AgentParts, run_id: str, given: Given, options: ResumeOptions | None = None
) -> Run[Any]:
    """Continue a run; see `Agent.resume`."""
    state, writer = await reopen(agent, run_id, trust=given.trust)
    return await continue_run(agent, state, writer, given, options)


async def continue_run(
    agent: AgentParts,
    state: State,
    writer: RunWriter,
    given: Given,
    options: ResumeOptions | None = None,
    *,
    retries: int = 0,
) -> Run[Any]:
    """Continue a run in `state`, whose lease `writer` holds. The lease is released in any case.

    A turn that ends with a fault of the infrastructure is continued up to `retries` times, after a pause.
    """
    given_options, run_id = options or {}, writer.run_id
    try:
        decided = _read_decisions(
            state, given_options.get("answers"), given_options.get("approvals"), agent.kit.own.tools
        )
        task = load_task_of(state.started)
        is_over = state.status is Status.FINISHED and state.ending.stop_reason is not StopReason.ERROR
        if is_over and (task is None or state.turn.rewards):
            agent.hooks.leave(run_id)
            await see_through(writer.release)
            await write_back(agent, run_id, state)
            return Run(run_id, state, agent.journal, given.answer)
        driver = await go_on(agent, state, writer, given, task)
        driver.put(*decided)
        retry = partial(_retry, agent, task, retries)
    except BaseException:
        await see_through(writer.release)
        raise
    return await drive(
        agent, driver, task, given.answer, answers_queued=True, retry=retry if retries else None
    )


_RETRY_SECONDS = 1.0
"""The pause before the first time that a turn is continued after a fault; each further one is twice as long."""


async def _retry(agent: AgentParts, task: Task | None, retries: int, driver: Driver, count: int) -> bool:
    """Reopen a turn that ended with a fault of the infrastructure, after a pause. Return whether that was done."""
    state = driver.state
    has_failed = not state.turn.is_open and state.ending.stop_reason is StopReason.ERROR
    if count >= retries or not has_failed or state.ending.fault is not Fault.INFRASTRUCTURE:
        return False
    await driver.kept()
    await asyncio.sleep(_RETRY_SECONDS * 2**count)
    resume_turn(agent, driver, task, None, None)
    return True


async def reopen(agent: AgentParts, run_id: str, *, trust: bool) -> tuple[State, RunWriter]:
    """Acquire the lease of a run, and return the run's state and a writer for it.

    Raises: `RunNotFoundError`; `LeaseHeldError` if another process drives the run; `UntrustedError`.
    """
    journal = agent.journal
    await asyncio.to_thread(require_trust, journal, run_id, agent.spec, trust=trust)
    writer = await journal.acquire(run_id)
    try:
        state = (await asyncio.to_thread(Run.load, run_id, journal)).state
        await agent.hooks.catch_up(run_id, lambda: journal.scan(run_id))
        return state, writer
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
    await warm_up(agent)
    policy = agent.policy if agent.has_policy else state.policy
    recorded = state.output_spec
    # Another model may have to be asked in another way.
    output = agent.kit.output(None if recorded is None else recorded.schema, task)
    terms = Terms(task, output, policy, await agent.kit.window(policy))
    driver = make_driver(agent, state, writer, sandbox, given, terms)
    if state.status is not Status.FINISHED or state.ending.stop_reason is StopReason.ERROR:
        driver.put(resumed(agent, driver, terms))
    return driver


def resume_turn(
    agent: AgentParts,
    driver: Driver,
    task: Task | None,
    answers: Mapping[str, Answerable] | None,
    approvals: Mapping[str, Decision | bool] | None,
) -> None:
    """Append that the turn that waits is driven again, with answers and decisions. Raises: `ConfigError`."""
    state = driver.state
    decided = _read_decisions(state, answers, approvals, driver.bench.toolbox.tools)
    terms = Terms(task, state.output_spec, state.policy, state.window)
    driver.put(resumed(agent, driver, terms), *decided)


def _read_decisions(
    state: State,
    answers: Mapping[str, Answerable] | None,
    approvals: Mapping[str, Decision | bool] | None,
    tools: Mapping[str, Tool],
) -> list[e.DurableBody]:
    """Return the events of answers by question id and of decisions by call id.

    Raises: `ConfigError` for an answer or a decision that the run does not wait for, or for new arguments that do
    not fit their tool.
    """
    found: list[e.DurableBody] = []
    for question_id, answer in (answers or {}).items():
        found.append(read_given(state, question_id, answer))
    waiting = {item.call.call_id: item.call for item in waiting_calls(state)}
    for call_id, said in (approvals or {}).items():
        if call_id not in waiting:
            raise ConfigError(
                f"no call {call_id!r} waits for a decision; waiting are: {', '.join(waiting) or 'none'}"
            )
        decision = Decision(said) if isinstance(said, bool) else said
        if decision.arguments is not None:
            ready = read_call(replace(waiting[call_id], arguments=decision.arguments), tools)
            if isinstance(ready, ToolResult) and ready.error_kind is not ToolErrorKind.UNKNOWN_TOOL:
                raise ConfigError(f"call {call_id!r} cannot be run with these arguments: {ready.content}")
        found.append(to_decided(call_id, decision))
    return found


def read_given(state: State, question_id: str, said: Answerable) -> e.QuestionAnswered:
    """Return the event for an answer. Raises: `ConfigError` if the question is not open, or the answer does not
    fit."""
    from treadle.tools.schema.output import find_output_fault

    known = {body.question_id: body for body in open_questions(state)}
    if question_id not in known:
        raise ConfigError(f"no question {question_id!r} is open; open are: {', '.join(known) or 'none'}")
    answer = read_answer(known[question_id], said, find_output_fault)
    return e.QuestionAnswered(question_id=question_id, text=answer.text)


async def record_answers(journal: Journal, run_id: str, answers: Mapping[str, Answerable]) -> State:
    """Record answers to questions of a run that waits, without driving it, and return the run's state.

    Raises: `ConfigError` if a question is not open, or an answer does not fit; `RunNotFoundError`;
    `LeaseHeldError` if a process drives the run.
    """

    def read(state: State) -> list[e.DurableBody]:
        return [read_given(state, question_id, said) for question_id, said in answers.items()]

    return await record(journal, run_id, read)


async def record(journal: Journal, run_id: str, make: Callable[[State], Sequence[e.DurableBody]]) -> State:
    """Append what `make` returns for a run's state, without driving the run, and return the new state.

    Raises: `RunNotFoundError`; `LeaseHeldError` if a process drives the run; what `make` raises.
    """
    writer = await journal.acquire(run_id)
    try:
        state = (await asyncio.to_thread(Run.load, run_id, journal)).state
        # The driver appends, and asks nothing of its model.
        driver = Driver(state, writer, ScriptedModel(()), Workbench(Toolbox({}), run_id=run_id))
        driver.put(*make(state))
        await driver.kept()
    finally:
        await see_through(writer.release)
    return state


def load_task_of(started: e.RunStarted | None) -> Task | None:
    """Return the task of a run; `None` if it has none. Raises: `ConfigError` if the task cannot be loaded."""
    ref = started.task if started is not None else None
    return None if ref is None else load_task(f"{ref.task_set}:{ref.task_id}")


def resumed(agent: AgentParts, driver: Driver, terms: Terms) -> e.RunResumed:
    """Return the event with which a process drives a run again."""
    started = driver.state.started
    assert started is not None
    begun = started.spec
    output = terms.output
    spec = spec_for(agent, terms.task, None if output is None else output.schema, begun.files)
    # The system message of a run never changes.
    spec = replace(spec, instructions=begun.instructions, policy=terms.policy)
    return e.RunResumed(agent=spec, tools=driver.bench.toolbox.specs, output=output, window=terms.window)
