"""The making of one sample: a scenario, a conversation, and the row that shows it."""

import asyncio
from collections.abc import Sequence
from itertools import count

from msgspec import Struct
from msgspec.structs import asdict, replace

from treadle.core import events as e
from treadle.core.errors import ExportError, RunExistsError
from treadle.core.events import Event
from treadle.core.state import State
from treadle.core.tally import Charge, Tally
from treadle.core.types import Fault, Json, Message, Role, Usage
from treadle.datagen.config.generation_config import Conversation
from treadle.datagen.conversations.dialogue import (
    AnswerCheck,
    Dialogue,
    Held,
    SampleError,
    check_run,
    count_repairs,
    drop_repaired,
    hold_dialogue,
    labels,
    repair_answer,
    tally_of,
)
from treadle.datagen.conversations.studio import Studio, answer_schema, read_answer, sample_id
from treadle.datagen.quality.exchanges import count_turns, find_missing_thought
from treadle.datagen.quality.protocol import FilterVerdict
from treadle.datagen.scenarios.cast import describe_persona
from treadle.datagen.scenarios.kinds import kinds_of
from treadle.datagen.scenarios.scenario import Environment, Kind, SampleSpec, Scenario, write_facts
from treadle.datagen.scenarios.scenario_writer import MAX_TRIES, PROMPTS, find_scenario_faults
from treadle.export.row_changes import keep_messages
from treadle.export.rows import Lineage, Row, SampleInfo, row_of
from treadle.journal.run_info import RunFilter
from treadle.testbed.roles.speakers import keeps_style


class MadeSample(Struct, frozen=True, kw_only=True):
    """The outcome of the work on one sample. A fault is a value and not an exception."""

    spec: SampleSpec
    run_id: str
    """The run of the agent's conversation. If the scenario failed, there is no such run."""
    scenario: Scenario | None = None
    """`None` if no scenario could be written."""
    row: Row | None = None
    """The row, without the filters that it passed; `None` if there is an error."""
    events: Sequence[Event] = ()
    """The events of the agent's conversation; empty if there is no row."""
    usage: Usage = Usage()
    """The tokens of all runs of the attempt."""
    cost_usd: float | None = 0.0
    """The cost of all runs of the attempt; `None` if a price is unknown."""
    error: str | None = None
    """Why there is no row; `None` if there is one."""
    dialogue: Dialogue | None = None
    """The conversation, whose last answer can be asked for again; `None` if there is none."""
    fault: Fault | None = None
    """Who is responsible for the error. If it is not the sample's, for example because a server did not answer, the
    same attempt can be made again, and continues what is there. `None` if there is no error."""
    is_cut_off: bool = False
    """True if a limit of the job left no room for a request."""
    verdicts: tuple[FilterVerdict, ...] = ()
    """The verdicts about the sample; empty until it was judged."""

    def fail(self, error: SampleError) -> "MadeSample":
        """Return the outcome without a row, because of an error."""
        return replace(
            self, row=None, events=(), error=str(error), fault=error.fault, is_cut_off=error.is_cut_off
        )


async def make_sample(
    studio: Studio,
    spec: SampleSpec,
    attempt: int = 1,
    feedback: Sequence[str] = (),
    *,
    check: AnswerCheck | None = None,
) -> MadeSample:
    """Make a sample, or continue one that was interrupted.

    `feedback` has the reasons for which earlier attempts were rejected. `check` looks at each answer before the
    user goes on. A cancelled sample can be continued by the same call. Raises: `JournalError` if the store fails,
    and `LeaseHeldError` if the sample is made elsewhere.
    """
    sample_id.set(spec.sample_id)
    try:
        return await _make(studio, spec, attempt, feedback, check, is_new=True)
    except RunExistsError:
        return await _make(studio, spec, attempt, feedback, check, is_new=False)


async def _make(
    studio: Studio,
    spec: SampleSpec,
    attempt: int,
    feedback: Sequence[str],
    check: AnswerCheck | None,
    *,
    is_new: bool,
) -> MadeSample:
    """Make a sample. Raises: `RunExistsError`, before any model is asked, if it `is_new` and was begun."""
    run_id = f"{spec.sample_id}-{attempt}"
    # A conversation without tools has no files: the agent could not see them.
    environment = studio.environments.draw(spec) if studio.has_tools else Environment()
    tally, made = Tally(), MadeSample(spec=spec, run_id=run_id)
    try:
        scenario = await _write_scenario(studio, spec, attempt, environment, feedback, tally, is_new=is_new)
        made = replace(made, scenario=scenario)
        if not scenario.is_task:
            environment = replace(environment, task=None, task_input="")
        task = None if environment.task is None else studio.environments.load_task(environment.task)
        shown = studio.instructions(None if task is None else task.instructions)
        advice = studio.advise(feedback)
        name = studio.config.name
        dialogue = Dialogue(
            spec=spec,
            scenario=scenario,
            environment=environment,
            task=task,
            run_id=run_id,
            instructions=f"{shown}\n\n{advice}" if advice else shown,
            shown=shown,
            labels={part: labels(name, part, spec.sample_id, attempt) for part in ("sample", "user")},
            is_new=is_new,
        )
        made = replace(made, dialogue=dialogue)
        held = await hold_dialogue(studio, dialogue, tally, check)
        made = replace(made, row=await show_dialogue(studio, dialogue, held, tally), events=held.events)
    except SampleError as error:
        made = made.fail(error)
    return replace(made, usage=tally.usage, cost_usd=tally.cost_usd)


async def repair_sample(studio: Studio, made: MadeSample, reasons: Sequence[str]) -> MadeSample:
    """Ask for the last answer of a sample again, with the reasons for which it was rejected."""
    assert made.dialogue is not None
    tally = Tally()
    tally.add(Charge(made.usage, made.cost_usd))
    try:
        held = await repair_answer(studio, made.dialogue, reasons, tally)
        row = await show_dialogue(studio, made.dialogue, held, tally)
        made = replace(made, row=row, events=held.events)
    except SampleError as error:
        made = made.fail(error)
    return replace(made, usage=tally.usage, cost_usd=tally.cost_usd)


async def show_dialogue(studio: Studio, dialogue: Dialogue, held: Held, tally: Tally) -> Row:
    """Return the row of a dialogue, or of its beginning. `tally` is what it has used. Raises: `SampleError`."""
    # It may ask for prices, or read the journal.
    return await asyncio.to_thread(make_row, studio, dialogue, held, tally)


async def _write_scenario(
    studio: Studio,
    spec: SampleSpec,
    attempt: int,
    environment: Environment,
    feedback: Sequence[str],
    tally: Tally,
    *,
    is_new: bool,
) -> Scenario:
    """Return the scenario of a sample, after telling the writer about faults. Raises: `SampleError`."""
    metadata = labels(studio.config.name, "scenario", spec.sample_id, attempt)
    run_id = f"{spec.sample_id}-{attempt}-scenario"
    async with studio.workers.session(
        studio.writer, run_id, metadata=metadata, begins_with_message=is_new, pauses_when_cancelled=True
    ) as session:
        run = None if is_new else await session.finish_turn()
        if run is None or run.state.turn.number == 0:
            facts = _find_facts(studio, spec, environment, feedback)
            run = await session.send(write_facts(facts), is_last=True)
        try:
            while True:
                check_run(run, "the writer of scenarios")
                written: Scenario = run.value
                faults = find_scenario_faults(written, spec, environment, studio.least_words)
                if not faults:
                    return written
                if run.state.turn.number >= MAX_TRIES:
                    raise SampleError(f"the scenario was rejected {MAX_TRIES} times: {' '.join(faults)}")
                again = "\n".join(["The scenario cannot be used. Write it again.", *faults])
                run = await session.send(again, is_last=True, is_own=True)
        finally:
            tally.add(Charge(run.usage, run.cost_usd))


def _find_facts(
    studio: Studio, spec: SampleSpec, environment: Environment, feedback: Sequence[str]
) -> dict[str, Json]:
    """Return the facts that a scenario is written from."""
    generation, task = studio.config.generation, environment.task
    return {
        "write": "scenario",
        "topic": list(spec.topic),
        "kind": spec.kind,
        "kind_means": "" if spec.kind is None else PROMPTS["kinds"][spec.kind],
        "difficulty": spec.difficulty,
        "persona": asdict(spec.persona),
        "turns": spec.turns,
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in studio.tools
        ],
        "limits": studio.limits,
        **studio.environments.describe(environment, spec.seed),
        "task": None if task is None else {"reference": task, "input": environment.task_input},
        "conversation": generation.conversation.type,
        "guidance": generation.guidance,
        "seed": spec.seed,
        "feedback": list(feedback),
    }


TEACHERS = ("teacher", "oracle", "mediocre")
"""The names of Treadle's built-in models, without their provider and their rate of mistakes."""


def make_row(studio: Studio, dialogue: Dialogue, held: Held, tally: Tally) -> Row:
    """Return the row of a dialogue that was `held`. Raises: `SampleError` if it cannot be shown as one."""
    events = held.events
    conversation = studio.config.generation.conversation
    try:
        row = project(dialogue.run_id, events, conversation, held.state)
    except ExportError as error:
        raise SampleError(str(error)) from error
    ran_with = row.messages[0].content if row.messages[0].role is Role.SYSTEM else None
    messages = row.messages
    output = studio.config.output
    system = (output.system_message or dialogue.shown) if output.include_system_message else None
    if system != ran_with:
        said = [message for message in messages if message.role is not Role.SYSTEM]
        messages = (*([Message(Role.SYSTEM, system)] if system else []), *said)
    info = _describe(studio, dialogue, row.lineage, messages, tally)
    info = replace(
        info,
        instructions=None if system == ran_with else ran_with,
        repairs=sum([repairs > 0 for repairs in count_repairs(events)]),
    )
    # A row about recovery is for what follows an error, so that all of it is trained on.
    untrained = () if dialogue.spec.kind == Kind.RECOVERY else row.untrained
    return Row(messages, row.tools, replace(row.lineage, sample=info), untrained=untrained)


def project(
    run_id: str, events: Sequence[e.Event], conversation: Conversation, state: State | None = None
) -> Row:
    """Return the events of a conversation's run as a row, with the system message that the agent had.

    `state` is as for `row_of`. Raises: as `load_row` does.
    """
    bodies = [event.body for event in events]
    row = row_of(run_id, bodies, state)
    row = keep_messages(row, drop_repaired(row.messages))
    return row if answer_schema(conversation) is None else _show_answers(events, row, conversation)


def _describe(
    studio: Studio, dialogue: Dialogue, lineage: Lineage, messages: Sequence[Message], tally: Tally
) -> SampleInfo:
    """Return the origin of a row."""
    conversation = studio.config.generation.conversation
    planned = describe_plan(studio, dialogue.spec, dialogue.scenario, lineage.model or "")
    models = planned.models
    if dialogue.spec.turns > 1:
        models = models | {"user": studio.models["user"].name}
    tally = _add_earlier(studio, dialogue, tally)
    return replace(
        planned,
        kinds=tuple([kind.value for kind in kinds_of(messages)]) if studio.has_tools else (),
        reasoning=None if find_missing_thought(messages) else conversation.reasoning,
        turns=count_turns(messages),
        models=models,
        input_tokens=tally.usage.input_tokens,
        output_tokens=tally.usage.output_tokens,
        cost_usd=tally.cost_usd,
        prices={role: text for role, text in studio.prices.items() if role in models},
        tool_hashes=studio.tool_hashes,
        environment=dialogue.environment.task or dialogue.environment.source,
    )


def describe_plan(studio: Studio, spec: SampleSpec, scenario: Scenario | None, agent: str) -> SampleInfo:
    """Return what is known about a sample before its conversation. `agent` is the name of the agent's model."""
    writer, persona = studio.models["scenarios"].name, spec.persona
    if _is_teacher(writer) and not keeps_style(persona.style):
        persona = replace(persona, style="")
    return SampleInfo(
        sample_id=spec.sample_id,
        dataset=studio.config.name,
        topic=spec.topic,
        topic_id=spec.topic_id,
        seed=spec.seed,
        kind=spec.kind,
        difficulty=spec.difficulty,
        persona=describe_persona(persona),
        goal="" if scenario is None else scenario.goal,
        conversation=studio.config.generation.conversation.type,
        models={"agent": agent, "scenarios": writer},
        is_from_teacher=_is_teacher(agent),
    )


def _is_teacher(model: str) -> bool:
    return not set(model.split(":")).isdisjoint(TEACHERS)


def _add_earlier(studio: Studio, dialogue: Dialogue, tally: Tally) -> Tally:
    """Return `tally` with what earlier attempts at the sample have used."""
    sample_id, run_id = dialogue.spec.sample_id, dialogue.run_id
    if run_id == f"{sample_id}-1":
        return tally
    runs = studio.journal.runs(RunFilter(id_prefix=f"{sample_id}-"))
    total = tally_of([info for info in runs if not f"{info.run_id}-".startswith(f"{run_id}-")])
    total.add(Charge(tally.usage, tally.cost_usd))
    return total


def _show_answers(events: Sequence[e.Event], row: Row, conversation: Conversation) -> Row:
    """Return a row with its answers in the form that the configuration asks for. An answer that was given through a
    tool becomes a message, and the tool is left out."""
    bodies = [event.body for event in events]
    tool = next((body.output.tool for body in bodies if isinstance(body, e.RunStarted) and body.output), None)
    given = [body.output for body in bodies if isinstance(body, e.TurnCompleted)]
    later = [*count_repairs(events)[1:], 0]
    outputs = iter([output for output, repairs in zip(given, later, strict=False) if not repairs])
    shown: list[Message] = []
    numbers, untrained, answers = count(), list[int](), 0
    for index, message in enumerate(row.messages):
        if message.role is Role.TOOL and message.name == tool:
            continue
        if message.role is Role.ASSISTANT:
            number = next(numbers)
            calls = tuple([call for call in message.tool_calls if call.name != tool])
            if not calls:
                following = row.messages[index + 1 :]
                if not _ends_turn(following, tool):
                    continue
                spoken = read_answer(next(outputs), conversation)
                reasoning = spoken.reasoning if spoken.reasoning is not None else message.reasoning
                message = Message(Role.ASSISTANT, spoken.text, reasoning=reasoning)
            elif calls != message.tool_calls:
                message = replace(message, tool_calls=calls)
            untrained += [answers] if number in row.untrained else []
            answers += 1
        shown.append(message)
    tools = tuple([item for item in row.tools if item.name != tool])
    return Row(tuple(shown), tools, row.lineage, untrained=tuple(untrained))


def _ends_turn(following: Sequence[Message], tool: str | None) -> bool:
    """Return whether an answer is the final answer of its turn, which the messages after it show."""
    rest = [message for message in following if not (message.role is Role.TOOL and message.name == tool)]
    return not rest or rest[0].role is Role.USER
