"""The continuation of runs, of the turns of sessions, and the answers and approvals that they wait for."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.asking import Answerable, open_questions, read_answer
from treadle.core.calls import waiting_calls
from treadle.core.errors import ConfigError
from treadle.core.state import State, Status
from treadle.core.types import (
    Message,
    Role,
    StopReason,
    ToolErrorKind,
    ToolResult,
)
from treadle.journal.protocol import RunWriter
from treadle.loop.calls.results import read_call, to_decided
from treadle.loop.driver import Driver
from treadle.loop.wayout import see_through
from treadle.runs.agent_parts import AgentParts
from treadle.runs.drive import Terms, drive, make_driver, restore, resumed, warm_up
from treadle.runs.options import (
    Given,
    ResumeOptions,
)
from treadle.runs.retries import NO_RETRIES, RetryPolicy
from treadle.runs.run import Run
from treadle.runs.task import Task, load_task
from treadle.runs.trust import require_trust
from treadle.runs.turns import open_turn, write_back
from treadle.tools.protocol import Decision, Tool


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
    retries: RetryPolicy = NO_RETRIES,
) -> Run[Any]:
    """Continue a run in `state`, whose lease `writer` holds. The lease is released in any case.

    A turn that ends with a fault of the infrastructure is tried again as `retries` says.
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
    except BaseException:
        await see_through(writer.release)
        raise
    return await drive(agent, driver, task, given.answer, answers_queued=True, retries=retries)


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
    """Append the event that the waiting turn is driven again, with the given answers and decisions. Raises:
    `ConfigError`."""
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
                f"no call {call_id!r} waits for a decision; the waiting calls are: {', '.join(waiting) or 'none'}"
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
    from treadle.tools.schema.answer_schema import find_output_fault

    known = {body.question_id: body for body in open_questions(state)}
    if question_id not in known:
        raise ConfigError(
            f"no question {question_id!r} is open; the open questions are: {', '.join(known) or 'none'}"
        )
    answer = read_answer(known[question_id], said, find_output_fault)
    return e.QuestionAnswered(question_id=question_id, text=answer.text)


async def hand_over(
    agent: AgentParts, run_id: str, given: Given, task: Task | None = None, text: str | None = None
) -> State:
    """Leave a run to the workers of its queue, and return its state.

    With `text`, the next turn of the session is opened; without, the turn that failed or was interrupted goes on.
    Raises: as `reopen` does.
    """
    state, writer = await reopen(agent, run_id, trust=given.trust)
    try:
        driver = await go_on(agent, state, writer, given, task)
        if text is not None:
            driver.put(await open_turn(agent, driver, Message(Role.USER, text)))
        await driver.leave()
    except BaseException:
        await see_through(writer.release)
        raise
    return driver.state


def load_task_of(started: e.RunStarted | None) -> Task | None:
    """Return the task of a run; `None` if the run has no task. Raises: `ConfigError` if the task cannot be
    loaded."""
    ref = started.task if started is not None else None
    return None if ref is None else load_task(f"{ref.task_set}:{ref.task_id}")
