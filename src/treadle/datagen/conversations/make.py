"""The making of one sample: a scenario, a conversation, and the row that shows it."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import RunExistsError
from treadle.core.events import Event
from treadle.core.tally import Charge, Tally
from treadle.core.types import Fault, Usage
from treadle.datagen.conversations.dialogue import (
    AnswerCheck,
    Dialogue,
    Held,
    SampleError,
    check_run,
    hold_dialogue,
    labels,
    repair_answer,
)
from treadle.datagen.conversations.projection import make_row
from treadle.datagen.conversations.studio import Studio, sample_id
from treadle.datagen.quality.protocol import FilterVerdict
from treadle.datagen.scenarios.scenario import Environment, SampleSpec, Scenario, write_facts
from treadle.datagen.scenarios.scenario_writer import (
    MAX_TRIES,
    find_scenario_faults,
    scenario_facts,
)
from treadle.export.rows import Row


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
    verdicts: tuple[FilterVerdict, ...] = ()
    """The verdicts about the sample; empty until it was judged."""


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
        made = replace(made, error=str(error), fault=error.fault)
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
        made = replace(made, row=None, events=(), error=str(error), fault=error.fault)
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
    """Return the scenario of a sample.

    If the writer's answer has faults, the writer is told about them and asked again. Raises: `SampleError`.
    """
    generation = studio.config.generation
    facts = scenario_facts(
        spec,
        environment,
        studio.environments.describe(environment, spec.seed),
        studio.tools,
        studio.limits,
        conversation=generation.conversation.type,
        guidance=generation.guidance,
        feedback=feedback,
    )
    metadata = labels(studio.config.name, "scenario", spec.sample_id, attempt)
    run_id = f"{spec.sample_id}-{attempt}-scenario"
    async with studio.workers.session(
        studio.writer, run_id, metadata=metadata, begins_with_message=is_new, pauses_when_cancelled=True
    ) as session:
        run = None if is_new else await session.finish_turn()
        if run is None or run.state.turn.number == 0:
            run = await session.send(write_facts(facts), is_last=True)
        try:
            while True:
                check_run(run, "the writer of scenarios")
                written: Scenario = run.value
                if not (faults := find_scenario_faults(written, spec, environment)):
                    return written
                if run.state.turn.number >= MAX_TRIES:
                    raise SampleError(f"the scenario was rejected {MAX_TRIES} times: {' '.join(faults)}")
                again = "\n".join(["The scenario cannot be used. Write it again.", *faults])
                run = await session.send(again, is_last=True, is_own=True)
        finally:
            tally.add(Charge(run.usage, run.cost_usd))
