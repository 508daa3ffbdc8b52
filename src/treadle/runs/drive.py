"""The driving of a run: making its driver, opening its turns with what the agent recalls for them, driving it until
it ends or pauses, storing completed turns in the agent's memory, and releasing its lease."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import State, Status
from treadle.core.types import Fault, Json, Message, OutputSpec, Role, StopReason, Window
from treadle.journal.protocol import DONE, Journal, RunWriter
from treadle.knowledge.protocol import CompletedTurn, turn_key
from treadle.loop.calls.questions import RunRules
from treadle.loop.calls.workbench import Workbench
from treadle.loop.driver import Driver
from treadle.loop.inference import Inference
from treadle.loop.wayout import see_through
from treadle.models.protocol import Model, has_price
from treadle.runs.agent_parts import AgentParts, path_of
from treadle.runs.options import Files, Given
from treadle.runs.recording import end_called, take_in_rest
from treadle.runs.run import Run
from treadle.runs.task import Task, check_task, find_reply, find_step_rewards
from treadle.sandbox.protocol import RunFiles, Sandbox
from treadle.tools.read_again import find_readers
from treadle.tools.user_code import blaming

if TYPE_CHECKING:
    from treadle.routing.judging import Judgement, MessageJudge


MAX_TURNS = 100
"""How many turns a run with a simulated user has at most, if its task does not say: a user who never ends would
cost without end."""


class Terms(Struct, frozen=True):
    """The conditions under which a run is driven from now on."""

    task: Task | None
    output: OutputSpec | None
    policy: Policy
    window: Window | None


async def drive(
    agent: AgentParts, driver: Driver, task: Task | None, given: Given, *, answers_queued: bool = False
) -> Run[Any]:
    """Drive a run until it ends or pauses, grade it, and release its lease. Completed turns are remembered.

    With `answers_queued`, the messages that wait for a session's next turns are answered too, and so is what the
    simulated user of the task says. A turn that ends with a fault of the infrastructure is reopened as `given`
    says. The tools are closed and the lease is released even after an error, and after any number of cancellations.
    """
    try:
        state = await _drive_turn(agent, driver, task, given)
        while (reply := await _find_reply(driver, task)) is not None:
            opened = await open_turn(agent, driver, Message(Role.USER, reply))
            snapshot, blobs = driver.bench.take_snapshot()  # the user may have changed files
            driver.put(*snapshot, opened, blobs=blobs or None)
            await _drive_turn(agent, driver, task, given)
        if _is_between_turns(state):
            end = state.ending
            assert end.stop_reason is not None
            snapshot, blobs = driver.bench.take_snapshot()
            finished = e.RunFinished(stop_reason=end.stop_reason, error=end.error, fault=end.fault)
            driver.put(*snapshot, finished, blobs=blobs or None)
        while answers_queued and (waiting := next_queued(state)) is not None:
            await write_back(agent, driver.run_id, driver.state)
            driver.put(await open_turn(agent, driver, waiting[1], queued_seq=waiting[0]))
            await driver.drive()
        if task is not None and state.status is Status.FINISHED and not state.turn.rewards:
            await grade_run(driver, task)
        if driver.state.status is Status.RUNNING and not driver.state.turn.is_open:
            driver.put(e.RunPaused(reason="closed"))  # the session waits for its next message
        await _release(driver)
    except BaseException as error:
        reason = "cancelled" if isinstance(error, asyncio.CancelledError) else None
        await leave(driver, reason)
        raise
    if agent.known is not None:
        await write_back(agent, driver.run_id, driver.state)
    return Run(driver.run_id, driver.state, agent.journal, given.answer)


async def _drive_turn(agent: AgentParts, driver: Driver, task: Task | None, given: Given) -> State:
    """Drive the open turn, again after faults of the infrastructure as `given` says. Return the state."""
    state, attempt = await driver.drive(), 1
    while (pause := given.retries.pause_after(attempt, state)) is not None:
        await driver.kept()
        await asyncio.sleep(pause)
        driver.put(resumed(agent, driver, Terms(task, state.output_spec, state.policy, state.window)))
        attempt += 1
        await driver.drive()
    return state


def _is_between_turns(state: State) -> bool:
    """Return whether a turn of a run with a simulated user is over, and the run is not."""
    has_user = state.stays_open and not state.is_session
    return has_user and state.status is Status.RUNNING and state.turn.number > 0 and not state.turn.is_open


async def _find_reply(driver: Driver, task: Task | None) -> str | None:
    """Return what the simulated user of a run's task says now; `None` if there is no user, or nothing to say, or if
    the run has had its turns. Raises: `UserCodeError` if the code of the user has a mistake."""
    state = driver.state
    if not _is_between_turns(state) or state.ending.stop_reason is not StopReason.COMPLETED:
        return None
    if state.turn.number >= getattr(task, "max_turns", MAX_TURNS):
        return None
    name = "" if task is None else f"{task.task_set}:{task.task_id}"
    with blaming(f"the user of the task '{name}' failed in run {driver.run_id!r}"):
        return await find_reply(task, list(state.transcript), driver.bench.sandbox)


def resumed(
    agent: AgentParts, driver: Driver, terms: Terms, *, renews_instructions: bool = False
) -> e.RunResumed:
    """Return the event with which a process drives a run again; see `Given.renews_instructions`."""
    started = driver.state.started
    assert started is not None
    begun = started.spec
    output = terms.output
    spec = spec_for(agent, terms.task, None if output is None else output.schema, begun.files)
    told: str | None = None
    if renews_instructions and agent.known is None:
        told = system_message(spec, spec.instructions, output) or spec.instructions or ""
        first = next(iter(driver.state.messages), None)
        if told == (first.content if first is not None and first.role is Role.SYSTEM else ""):
            told = None
    else:
        spec = replace(spec, instructions=begun.instructions)  # those of a persona stay
    spec = replace(spec, policy=terms.policy)
    if find_readers(driver.state.tools):
        driver.bench.offer_reading()
    tools, window = driver.bench.toolbox.specs, terms.window
    drops = output is None and driver.state.output_spec is not None
    return e.RunResumed(
        agent=spec, tools=tools, output=output, drops_output=drops, window=window, instructions=told
    )


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
        await _release(driver)

    try:
        await see_through(*(() if reason is None else (pause,)), go)
    except JournalError:
        return


async def _release(driver: Driver) -> None:
    """Close the tools of a run, release its lease, and take in what came before the release was durable."""
    await driver.leave()
    if driver.mail.is_waiting and driver.bench.journal is not None:
        await take_in_rest(driver.bench.journal, driver.run_id, driver.state)


def make_driver(
    agent: AgentParts, state: State, writer: RunWriter, sandbox: Sandbox, given: Given, terms: Terms
) -> Driver:
    """Return a driver for a run with the agent's model, tools, approver and asker.

    If the context can be compacted, the model gets tools that read again what was cut: from the start if the agent
    has tools and the window is known, else once a compaction has cut something.

    Raises: `ConfigError` if the policy limits a cost that is not known.
    """
    policy, task = terms.policy, terms.task
    judging: Model | None = getattr(agent.judge, "model", None)
    for model in (agent.model, judging) if policy.max_cost_usd is not None else ():
        if model is not None and not has_price(model):
            extra = "" if find_spec("genai_prices") else "pip install 'treadle[cost]', or "
            raise ConfigError(
                f"max_cost_usd (--max-cost) limits the cost, and no price of the model {model.name!r} is known: "
                f"{extra}give its price, as model(..., price=Price(...)) or `price` in treadle.toml"
            )
    toolbox, reading = agent.kit.toolbox(task, terms.output, given.answer), None
    if policy.compact_at is not None and task is None:
        reading = agent.kit.reading(toolbox, terms.output)
    is_limited = terms.window is not None or policy.compact_threshold is not None
    if reading is not None and agent.kit.own.tools and is_limited:
        toolbox, reading = reading, None
    bench = Workbench(
        toolbox.under(policy),
        run_id=writer.run_id,
        sandbox=sandbox,
        approver=agent.approver,
        asker=agent.asker,
        rules=RunRules(state),
        journal=agent.journal,
        deps=given.deps,
        hooks=agent.hooks,
        clock=agent.clock,
    )
    bench.reading = None if reading is None else reading.under(policy)
    bench.failures = agent.failures
    if bench.toolbox.drivers:
        bench.end_called = partial(end_called, agent.journal, writer.run_id)
    driver = Driver(state, writer, _make_inference(agent), bench, given.emit, agent.hooks)
    if given.keeps_events:
        driver.recorder.keep_events()
    driver.find_answer_fault = given.answer.find_fault
    if given.on_driver is not None:
        given.on_driver(driver)
    return driver


def _make_inference(agent: AgentParts) -> Inference:
    """Return the performer of one run's inferences. Raises: `ConfigError` for a router that cannot be used."""
    if agent.kit.has_tiers:
        from treadle.loop.routing import RoutedInference
        from treadle.models.wrappers.tiered import TieredModel

        if isinstance(agent.model, TieredModel):
            return RoutedInference(agent.model, agent.journal.read_blob, agent.clock)
    return Inference(agent.model, agent.journal.read_blob, agent.clock)


def warm_up(agent: AgentParts) -> Awaitable[None]:
    """Check the model's renderer, and prepare what a router needs, if the agent's model has one: how fast models
    answered in earlier runs, and the tables of prices and windows.

    Raises: `ConfigError` for the renderer of another model.
    """
    kit = agent.kit
    return DONE if kit.has_checked_ids and not kit.has_tiers else _warm_up(agent)


async def _warm_up(agent: AgentParts) -> None:
    if not agent.kit.has_checked_ids:
        await agent.kit.check_ids()
    if not agent.kit.has_tiers:
        return
    from treadle.models.wrappers.tiered import TieredModel
    from treadle.routing import LATENCIES, facts_of

    if isinstance(agent.model, TieredModel):
        await asyncio.to_thread(LATENCIES.warm, agent.journal)
        await asyncio.to_thread(facts_of, agent.model, "")


async def restore(journal: Journal, state: State) -> Sandbox:
    """Return a sandbox with the files and tool states of `state`, read from the journal."""
    from treadle.sandbox.in_memory import MemorySandbox

    if not state.sandbox.files and not state.sandbox.tool_states:
        return MemorySandbox.restore({}, journal.read_stored)
    return await asyncio.to_thread(
        MemorySandbox.restore, state.sandbox.files, journal.read_stored, state.sandbox.tool_states
    )


def spec_for(
    agent: AgentParts,
    task: Task | None,
    schema: dict[str, Json] | None,
    files: Files | None,
) -> AgentSpec:
    """Return the agent's spec with the task, the schema and the files of one run."""
    spec = agent.spec
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


def system_message(spec: AgentSpec, said: str | None, output: OutputSpec | None) -> str | None:
    """Return the system message if it differs from the spec's instructions, else `None`. `said` is the text of
    the message without the schema of `output`."""
    if output is not None:
        from treadle.tools.schema.answer_schema import instruct

        said = instruct(said, output)
    return None if said == spec.instructions else said


def without_schema(message: str | None, output: OutputSpec) -> str | None:
    """Return the text of a recorded system message without the schema of `output`."""
    from treadle.tools.schema.answer_schema import instruct

    added = instruct("", output) or ""
    if message is None or not added:
        return message
    return message.removesuffix(added).removesuffix("\n\n") or None


async def grade_run(driver: Driver, task: Task) -> None:
    """Run the task's check and append its grade. A run that failed through no fault of the model gets no grade, nor
    does one of a `SimpleTask` without a grader, which other scorers grade.

    Raises: `UserCodeError` if the code of the check has a mistake.
    """
    state, sandbox = driver.state, driver.bench.sandbox
    if state.ending.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        return
    if getattr(task, "grader", task) is None:
        return
    files = {} if sandbox is None else RunFiles.of(sandbox)
    name = f"{task.task_set}:{task.task_id}"
    with blaming(f"the check of the task '{name}' failed for run {driver.run_id!r}"):
        grade = await check_task(task, state.ending.output, files, list(state.transcript))
        steps = find_step_rewards(task, list(state.transcript))
    driver.put(e.Rewarded(reward=grade.reward, detail=grade.detail or None, step_rewards=steps))


def next_queued(state: State) -> tuple[int, Message] | None:
    """Return the message that begins the next turn of a session, with the number of its event; `None` if none
    waits, or if a turn is open."""
    if state.turn.is_open or not state.queued or state.started is None or not state.started.is_session:
        return None
    return state.queued[0]


def takes_time(agent: "AgentParts") -> bool:
    """Return whether the agent's judge, or what it recalls, may take long, so that a message is stored before its
    turn begins."""
    return agent.known is not None or (
        agent.judge is not None and not getattr(agent.judge, "is_instant", False)
    )


async def open_turn(
    agent: AgentParts, driver: Driver, message: Message, *, queued_seq: int | None = None
) -> e.TurnStarted:
    """Return the event that opens the next turn. It has the user's message, the judgement of the agent's judge
    about it, and the memories that the agent recalls for it."""
    number, recalled, judgement, hint = driver.state.turn.number + 1, None, None, None
    if agent.judge is not None:
        judgement, hint = await _judge(agent, agent.judge, driver, message)
    if agent.known is not None:
        key = turn_key(driver.run_id, number)
        recalled = await agent.known.recall(
            message.content, turn_key=key, now=agent.clock.time(), told=driver.state.shown.told
        )
    return e.TurnStarted(
        turn=number,
        message=message,
        recalled=recalled,
        judgement=judgement,
        hint=hint,
        queued_seq=queued_seq,
    )


async def _judge(
    agent: "AgentParts", judge: "MessageJudge", driver: Driver, message: Message
) -> tuple["Judgement", str | None]:
    """Return what the judge says about the next turn's message, and the hint for the model, if there is one."""
    from treadle.routing.judging import facts_of_message, judge_safely, write_hint

    tools, known = driver.bench.toolbox.specs, agent.known
    facts = facts_of_message(
        driver.state,
        message,
        tools=tools,
        topics=() if known is None else known.topics,
        has_documents=known is not None and known.has_documents,
    )
    judgement = await judge_safely(judge, message.content, facts)
    policy = agent.policy if driver.state.started is None else driver.state.policy
    return judgement, write_hint(judgement, policy, tools)


async def write_back(agent: AgentParts, run_id: str, state: State) -> None:
    """Remember the newest turn if it is completed and the agent does so. Doing it again changes nothing."""
    known, opened = agent.known, state.turn.opened
    if known is None or not known.writes_back or opened is None:
        return
    if not state.turn.is_open and state.ending.stop_reason is StopReason.COMPLETED:
        text, answer = opened.message.content, state.ending.output
        turn = CompletedTurn(
            run_id=run_id,
            number=state.turn.number,
            text=text,
            answer=answer,
            began_at=opened.at,
            tools=_tools_of(state),
        )
        await known.write_back(turn)


def _tools_of(state: State) -> tuple[str, ...]:
    """Return the tools that the newest turn called, as far as its messages were not compacted."""
    results = [item for item in state.messages.after(state.turn.position) if item.role is Role.TOOL]
    worked = {item.name for item in results if not item.is_error}
    names = dict.fromkeys(item.name for item in results if item.name is not None)
    return tuple(name if name in worked else f"{name} (failed)" for name in names)
