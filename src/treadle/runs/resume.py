"""The continuation of runs and of the turns of sessions, with the answers and approvals that they wait for, and
forks: runs that begin with a copy of the events of another."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.asking import Answerable
from treadle.core.calls import waiting_calls
from treadle.core.errors import ConfigError
from treadle.core.lineage import Parent
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import State, Status, fold
from treadle.core.types import Message, Role, StopReason, ToolErrorKind, ToolResult
from treadle.journal.protocol import RunWriter
from treadle.loop.calls.results import read_call, to_decided
from treadle.loop.driver import Driver
from treadle.loop.wayout import released_on_error, see_through
from treadle.models.protocol import fingerprints_of
from treadle.runs.agent_parts import AgentParts, require_trust
from treadle.runs.begin import make_run_id
from treadle.runs.drive import (
    Terms,
    drive,
    leave,
    make_driver,
    open_turn,
    restore,
    resumed,
    spec_for,
    system_message,
    warm_up,
    without_schema,
    write_back,
)
from treadle.runs.options import ForkOptions, Given, ResumeOptions
from treadle.runs.recording import read_given
from treadle.runs.run import Run
from treadle.runs.task import Task, load_task
from treadle.tools.protocol import Decision, Tool


async def resume_run(
    agent: AgentParts, run_id: str, given: Given, options: ResumeOptions | None = None
) -> Run[Any]:
    """Continue a run; see `Agent.resume`."""
    state, writer = await reopen(agent, run_id, trust=given.trust)
    return await continue_run(agent, state, writer, given, options)


async def continue_run(
    agent: AgentParts, state: State, writer: RunWriter, given: Given, options: ResumeOptions | None = None
) -> Run[Any]:
    """Continue a run in `state`, whose lease `writer` holds. The lease is released in any case."""
    given_options, run_id = options or {}, writer.run_id
    async with released_on_error(writer):
        decided = _read_decisions(
            state, given_options.get("answers"), given_options.get("approvals"), agent.kit.own.tools
        )
        task = load_task_of(state.started)
        is_over = state.status is Status.FINISHED and not state.has_failed_turn
        if is_over and (task is None or state.turn.rewards):
            agent.hooks.leave(run_id)
            await see_through(writer.release)
            await write_back(agent, run_id, state)
            return Run(run_id, state, agent.journal, given.answer)
        driver = await go_on(agent, state, writer, given, task)
        driver.put(*decided)
    return await drive(agent, driver, task, given, answers_queued=True)


async def reopen(agent: AgentParts, run_id: str, *, trust: bool) -> tuple[State, RunWriter]:
    """Acquire the lease of a run, and return the run's state and a writer for it.

    Raises: `RunNotFoundError`; `LeaseHeldError` if another process drives the run; `UntrustedError`.
    """
    journal = agent.journal
    await asyncio.to_thread(require_trust, journal, run_id, agent.spec, trust=trust)
    writer = await journal.acquire(run_id)
    async with released_on_error(writer):
        state = (await asyncio.to_thread(Run.load, run_id, journal)).state
        await agent.hooks.catch_up(run_id, lambda: journal.scan(run_id))
        return state, writer


async def go_on(
    agent: AgentParts, state: State, writer: RunWriter, given: Given, task: Task | None = None
) -> Driver:
    """Return a driver for an existing run, with its files restored.

    Appends `run_resumed`, unless the run is over and only its grade is missing.
    """
    await agent.kit.renew()
    agent.kit.toolbox(task).check_deps(given.deps)
    sandbox = await restore(agent.journal, state)
    await warm_up(agent)
    policy = agent.policy if agent.has_policy else state.policy
    recorded = state.output_spec
    schema = None if recorded is None else recorded.schema
    if given.renews_instructions:
        schema = agent.answer.schema
    # Another model may have to be asked in another way.
    output = agent.kit.output(schema, task)
    terms = Terms(task, output, policy, await agent.kit.window(policy))
    driver = make_driver(agent, state, writer, sandbox, given, terms)
    if state.status is not Status.FINISHED or state.ending.stop_reason is StopReason.ERROR:
        _tell_other_ids(agent, state, state.agent, writer.run_id)
        driver.put(resumed(agent, driver, terms, renews_instructions=given.renews_instructions))
    return driver


def _tell_other_ids(agent: AgentParts, state: State, before: AgentSpec | None, run_id: str) -> None:
    """Warn if the exact ids of a run cannot be continued, because the agent's model makes its prompts of others.
    `before` is the agent that drove the run."""
    prior, known = state.shown.prior, fingerprints_of(agent.model)
    if prior is None or not prior.messages or prior.tokenizer in known:
        return
    logging.getLogger("treadle").warning(
        "run %r has the token ids of %s, which %s cannot continue: its prompts are made anew from the messages, "
        "and its answers are another branch of the trajectory",
        run_id,
        "another model" if before is None else _name_model(before.model, prior.tokenizer),
        _name_model(agent.spec.model, *known),
    )


def _name_model(part: PartSpec, *fingerprints: str | None) -> str:
    renderer = (part.settings or {}).get("renderer")
    if renderer is None and None not in fingerprints:
        return repr(part.name)
    return f"{part.name!r} " + (
        "without a renderer" if renderer is None else f"with the renderer {renderer!r}"
    )


def resume_turn(
    agent: AgentParts,
    driver: Driver,
    task: Task | None,
    answers: Mapping[str, Answerable] | None,
    approvals: Mapping[str, Decision | bool] | None,
) -> None:
    """Record that the waiting turn is driven again, with answers and decisions. Raises: `ConfigError`."""
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
    """Return the events of answers by question id and of decisions by call id. Raises: `ConfigError` for an answer
    or a decision that the run does not wait for, or for new arguments that do not fit their tool."""
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
        if not isinstance(decision, Decision):
            raise ConfigError(
                f"the decision about call {call_id!r} is {said!r:.100}; give a bool or a Decision"
            )
        if (new := decision.new_arguments) is not None:
            ready = read_call(replace(waiting[call_id], arguments=new), tools)
            if isinstance(ready, ToolResult) and ready.error_kind is not ToolErrorKind.UNKNOWN_TOOL:
                raise ConfigError(f"call {call_id!r} cannot be run with these arguments: {ready.content}")
        found.append(to_decided(call_id, decision))
    return found


async def hand_over(
    agent: AgentParts, run_id: str, given: Given, task: Task | None = None, message: Message | None = None
) -> State:
    """Leave a run to the workers of its queue, and return its state.

    With `message`, the next turn of the session is opened; without, the turn that failed or was interrupted goes
    on.
    Raises: as `reopen` does.
    """
    state, writer = await reopen(agent, run_id, trust=given.trust)
    async with released_on_error(writer):
        driver = await go_on(agent, state, writer, given, task)
        if message is not None:
            driver.put(await open_turn(agent, driver, message))
        await driver.leave()
    return driver.state


def load_task_of(started: e.RunStarted | None) -> Task | None:
    """Return the task of a run; `None` if it has none. Raises: `ConfigError` if it cannot be loaded."""
    ref = started.task if started is not None else None
    return None if ref is None else load_task(f"{ref.task_set}:{ref.task_id}")


async def fork_run(
    agent: AgentParts,
    run_id: str,
    at: int | None,
    given: Given,
    options: ForkOptions,
) -> Run[Any]:
    """Create a run that begins with a copy of another run's first `at` events, and drive it.

    A session of which no turn is open, and that gets no `text`, is not driven.

    Raises: `RunNotFoundError`; `ConfigError` if the run has no event `at`, or if `text` is missing or not allowed;
    `UntrustedError`.
    """
    text = options.get("text")
    await asyncio.to_thread(require_trust, agent.journal, run_id, agent.spec, trust=given.trust)
    until_seq = at if at is not None and at > 0 else None
    events = await asyncio.to_thread(agent.journal.read, run_id, until_seq=until_seq)
    at = len(events) if at is None else at
    if not 1 <= at <= len(events):
        raise ConfigError(f"run {run_id!r} has events 1 to {len(events)}; it cannot be forked at {at}")
    started = events[0].body
    assert isinstance(started, e.RunStarted)
    task = load_task_of(started)
    await agent.kit.renew()
    agent.kit.toolbox(task).check_deps(given.deps)
    head = _forked(agent, started, Parent(run_id, at), given, task)
    if more := options.get("metadata"):
        head = replace(head, metadata={**(head.metadata or {}), **more})
    state = fold([head, *[event.body for event in events[1:at]]])
    is_closed = text is None and not state.turn.is_open
    is_idle = is_closed and state.is_session
    is_between = is_idle or (is_closed and state.stays_open and state.turn.number > 0)
    if is_between and not is_idle and isinstance(events[at - 1].body, e.SnapshotTaken):
        # The user of the task made this change for the next turn, and would make it twice.
        return await fork_run(agent, run_id, at - 1, given, options)
    if state.turn.is_open is (text is not None) and not is_between:
        raise ConfigError(
            f"the turn is not over at event {at}, so the fork continues it; do not give a text"
            if state.turn.is_open
            else f"the turn is over at event {at}; give a text for the next turn, or an earlier event"
        )
    sandbox = await restore(agent.journal, state)
    window = await agent.kit.window(head.spec.policy)
    await warm_up(agent)
    writer = agent.journal.create(options.get("new_run_id") or make_run_id())
    resumes = [event.body for event in events[:at] if isinstance(event.body, e.RunResumed)]
    agents = [started.spec, *[body.agent for body in resumes if body.agent is not None]]
    _tell_other_ids(agent, state, agents[-1], writer.run_id)
    terms = Terms(task, head.output, head.spec.policy, window)
    driver = make_driver(agent, State(), writer, sandbox, given, terms)
    driver.put(head)
    driver.recorder.adopt(events[1:at])
    driver.put(replace(resumed(agent, driver, terms), begins_fork=True))
    if is_idle:
        await leave(driver, "closed")
        return Run(driver.run_id, driver.state, agent.journal, given.answer)
    if text is not None:
        driver.put(await open_turn(agent, driver, Message(Role.USER, text)))
    return await drive(agent, driver, task, given)


def _forked(
    agent: AgentParts, started: e.RunStarted, parent: Parent, given: Given, task: Task | None
) -> e.RunStarted:
    """Return the first event of a fork, in which the agent's parts replace the recorded ones."""
    recorded = started.output
    schema = given.answer.schema or (None if recorded is None else recorded.schema)
    output = agent.kit.output(schema, task)
    policy = agent.policy if agent.has_policy else started.spec.policy
    spec = spec_for(agent, task, schema, started.spec.files)
    instructions = started.system_message
    if output is not None and output != recorded:
        # The text of the schema, if another model needs it, is not in the recorded message.
        told = (
            started.system_message if recorded is None else without_schema(started.system_message, recorded)
        )
        instructions = system_message(started.spec, told, output) or started.spec.instructions
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
