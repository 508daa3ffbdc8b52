"""The samples of a dataset: what each is about, its making and judging, and its outcome.

The topic, kind, difficulty, persona and seed of a sample depend only on the configuration and its number, with two
exceptions: the kind, and the topic of a sample that replaces a rejected one.
"""

import heapq
import sqlite3
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ProviderError
from treadle.core.events import Event
from treadle.core.tally import Charge, Tally
from treadle.core.types import Fault, Message, Role
from treadle.datagen.config.estimate import wanted_rows
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.dialogue import (
    AnswerFindings,
    Dialogue,
    Held,
    SampleError,
    count_repairs,
    tally_of,
)
from treadle.datagen.conversations.make import (
    MadeSample,
    describe_plan,
    make_sample,
    repair_sample,
    show_dialogue,
)
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.generation_progress import GenerationProgress, SampleBegun, SampleEnded
from treadle.datagen.quality.duplicates import DuplicateIndex
from treadle.datagen.quality.pipeline import Pipeline, find_repairs, is_good, mark_row
from treadle.datagen.quality.protocol import Candidate, FilterVerdict
from treadle.datagen.scenarios.cast import draw_persona
from treadle.datagen.scenarios.kinds import plan_difficulty, plan_kind
from treadle.datagen.scenarios.scenario import Kind, SampleSpec, sample_id_of
from treadle.datagen.topics.topic_graph import Topic
from treadle.export.row_formats.treadle_rows import TREADLE
from treadle.export.rows import Lineage, Row
from treadle.jobs.job import CutOffError, Job
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, PlannedItem
from treadle.jobs.slots import Expected
from treadle.journal.run_info import RunFilter
from treadle.runs.retries import is_cut_off
from treadle.tasks.draws import Draw


class SamplePlan:
    """The plan of one dataset over its leaf topics."""

    def __init__(
        self, config: GenerationConfig, leaves: Sequence[Topic], kinds: Mapping[Kind, float]
    ) -> None:
        """Make a plan. `kinds` are the weights of the kinds that are possible."""
        if not leaves:
            raise ConfigError("there is no topic to write about; build the topics again, or give other ones")
        self.wanted = wanted_rows(config, len(leaves))
        self._config = config
        self._kinds = kinds
        order = Draw(f"{config.seed}/topics").shuffled(leaves)
        self._order = order
        self._topics = {topic.topic_id: (index, topic) for index, topic in enumerate(order)}
        self._queue: list[tuple[int, int, str]] = [
            (0, index, topic.topic_id) for index, topic in enumerate(order)
        ]

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        """Return the sample with this number. The topics take turns; a sample that replaces a rejected one is for
        the topic that has the fewest."""
        topic = (
            self._next_topic(counts) if number > self.wanted else self._order[(number - 1) % len(self._order)]
        )
        spec = self._make_spec(number, topic, counts)
        kind = "" if spec.kind is None else spec.kind.value
        return PlannedItem(number, kind, topic.topic_id, msgspec.to_builtins(spec))

    def _next_topic(self, counts: JobCounts) -> Topic:
        """Return the topic with the fewest samples. Rejected samples are not counted."""
        while True:
            seen, index, topic_id = self._queue[0]
            now = counts.shares.get(topic_id, 0)
            if seen != now:
                heapq.heapreplace(self._queue, (now, index, topic_id))
                continue
            heapq.heapreplace(self._queue, (now + 1, index, topic_id))
            return self._topics[topic_id][1]

    def give_back(self, topic_id: str, counts: JobCounts) -> None:
        """Note that a sample of a topic was rejected, so that the topic comes earlier again."""
        if topic_id in self._topics:
            heapq.heappush(self._queue, (counts.shares.get(topic_id, 0), self._topics[topic_id][0], topic_id))

    def _make_spec(self, number: int, topic: Topic, counts: JobCounts) -> SampleSpec:
        config, generation = self._config, self._config.generation
        draw = Draw(f"{config.seed}/{number}")
        conversation = generation.conversation
        # Samples that replace rejected ones have the kinds that are still missing.
        kept = {kind: counts.labels.get(kind, 0) for kind in self._kinds} if number > self.wanted else None
        return SampleSpec(
            number=number,
            topic_id=topic.topic_id,
            topic=topic.path,
            kind=plan_kind(number, self._kinds, seed=config.seed, kept=kept),
            difficulty=plan_difficulty(number, generation.difficulties, seed=config.seed),
            persona=draw_persona(config.seed, number, generation.personas),
            turns=draw.between(conversation.min_turns, conversation.max_turns),
            seed=draw.below(2**31),
        )


ROWS, REJECTED = "rows", "rejected"
"""The names of the ledger's files."""
UNFINISHED = "unfinished"
"""The reason for rejecting a sample whose conversation did not end, because of the models that took part."""


class SampleWork:
    """The making and judging of a dataset's samples; see `jobs.job.JobWork`."""

    def __init__(
        self,
        studio: Studio,
        plan: SamplePlan,
        pipeline: Pipeline,
        duplicates: DuplicateIndex | None,
        job: "Job[MadeSample, GenerationProgress]",
    ) -> None:
        """Make the work. `duplicates` is `None` if duplicates are kept."""
        self._studio = studio
        self._plan = plan
        self.make_item = plan.make_item
        self._pipeline = pipeline
        self._duplicates = duplicates
        self._job = job
        self._attempts = studio.config.generation.sample_attempts

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        if outcome.status is ItemStatus.REJECTED and outcome.is_final:
            self._plan.give_back(item.share, self._job.counts)
        self._job.tell(
            SampleEnded(
                sample_id=sample_id_of(item.number), status=outcome.status.value, reasons=outcome.reasons
            )
        )

    async def attempt(self, item: PlannedItem, attempt: int, expected: Expected) -> MadeSample:
        """Make and judge one sample. Raises: `CutOffError`; `ProviderError` for a wrong key and the like."""
        async with expected.slot():
            topic, kind = tuple(item.spec["topic"]), item.spec.get("kind")
            self._job.tell(SampleBegun(sample_id=sample_id_of(item.number), topic=topic, kind=kind))
            made = await self._make(item, attempt)
        if made.is_cut_off:
            raise CutOffError
        return made

    def set_aside(self, item: PlannedItem, attempt: int, reason: str) -> MadeSample:
        spec = msgspec.convert(item.spec, SampleSpec)
        return MadeSample(
            spec=spec,
            run_id=f"{spec.sample_id}-{attempt}",
            error=f"{reason}, or try it again with --retry-failed",
            fault=Fault.INFRASTRUCTURE,
        )

    async def _make(self, item: PlannedItem, attempt: int) -> MadeSample:
        spec = msgspec.convert(item.spec, SampleSpec)
        check = self._check_answer if self._studio.config.generation.answer_repairs else None
        made = await make_sample(self._studio, spec, attempt, item.feedback, check=check)
        if made.fault is Fault.USER:
            raise ProviderError(f"sample {spec.sample_id} cannot be made: {made.error}")
        if made.row is None or (dialogue := made.dialogue) is None:
            return made
        try:
            verdicts = await self._check(dialogue, made.row, made.events)
            while (reasons := find_repairs(verdicts)) and self._has_repairs(made.events):
                made = await repair_sample(self._studio, made, reasons)
                if made.row is None:
                    return self._add_judge(made)
                verdicts = await self._check(dialogue, made.row, made.events)
        except ProviderError as error:
            failure = SampleError(str(error), Fault.INFRASTRUCTURE, is_cut_off(error))
            return self._add_judge(made.fail(failure))
        return self._add_judge(replace(made, verdicts=verdicts))

    def _has_repairs(self, events: Sequence[Event]) -> bool:
        """Return whether the newest answer of a run may be asked for again."""
        return count_repairs(events)[-1] < self._studio.config.generation.answer_repairs

    async def _check_answer(self, dialogue: Dialogue, held: Held) -> AnswerFindings:
        """Check the newest answer of a dialogue that goes on. Raises: `SampleError`."""
        row = await show_dialogue(self._studio, dialogue, held, Tally())
        try:
            verdicts = await self._check(dialogue, row, held.events, is_whole=False)
        except ProviderError as error:
            raise SampleError(str(error), Fault.INFRASTRUCTURE, is_cut_off(error)) from error
        reasons = find_repairs(verdicts) if self._has_repairs(held.events) else ()
        return AnswerFindings(reasons, is_good(verdicts))

    async def _check(
        self, dialogue: Dialogue, row: Row, events: Sequence[Event], *, is_whole: bool = True
    ) -> tuple[FilterVerdict, ...]:
        candidate = Candidate(
            row=row,
            run_id=dialogue.run_id,
            spec=dialogue.spec,
            scenario=dialogue.scenario,
            environment=dialogue.environment,
            events=events,
            journal=self._studio.journal,
            workers=self._studio.workers,
        )
        return await self._pipeline.check(candidate, is_whole=is_whole)

    def _add_judge(self, made: MadeSample) -> MadeSample:
        """Return `made` with what the judge has used."""
        if not any(item.cost == 2 for item in self._pipeline.filters):
            return made
        runs = self._studio.journal.runs(RunFilter(id_prefix=f"{made.run_id}-judge"))
        tally = tally_of(runs)
        tally.add(Charge(made.usage, made.cost_usd))
        return replace(made, usage=tally.usage, cost_usd=tally.cost_usd)

    def settle(
        self, item: PlannedItem, attempt: int, result: MadeSample, connection: sqlite3.Connection
    ) -> ItemOutcome:
        """Return the outcome of an attempt, after searching for duplicates among the counted rows."""
        made, verdicts = result, list(result.verdicts)
        outcome = ItemOutcome(
            status=ItemStatus.REJECTED,
            input_tokens=made.usage.input_tokens,
            output_tokens=made.usage.output_tokens,
            cost_usd=made.cost_usd,
            is_final=attempt >= self._attempts,
            details={"run_id": made.run_id},
        )
        if made.fault is Fault.INFRASTRUCTURE:
            return replace(
                outcome, status=ItemStatus.FAILED, is_final=True, reasons=(f"infrastructure: {made.error}",)
            )
        if made.row is None:
            verdict = FilterVerdict(UNFINISHED, False, made.error or "")
            line = _encode(self._describe_unfinished(made), [verdict])
            return replace(outcome, reasons=(f"{UNFINISHED}: {made.error}",), file=REJECTED, line=line)
        if self._duplicates is not None and is_good(verdicts):
            verdicts.append(self._duplicates.find(made.row))
        row = mark_row(made.row, verdicts)
        outcome = replace(outcome, details={"run_id": made.run_id, "verdicts": msgspec.to_builtins(verdicts)})
        failed = [f"{verdict.filter}: {verdict.reason}" for verdict in verdicts if not verdict.is_kept]
        if failed:
            return replace(outcome, reasons=tuple(failed), file=REJECTED, line=_encode(row, verdicts))
        if self._duplicates is not None:
            self._duplicates.add(made.spec.sample_id, row)
        kinds = row.lineage.sample.kinds if row.lineage.sample is not None else ()
        return replace(
            outcome,
            status=ItemStatus.KEPT,
            is_final=True,
            # The planned kind, if the conversation shows it.
            label=item.label if item.label in kinds or not kinds else kinds[0],
            file=ROWS,
            line=_encode(row),
        )

    def _describe_unfinished(self, made: MadeSample) -> Row:
        """Return the plan and the first message of a sample whose conversation was not finished, as a row."""
        agent = self._studio.models["agent"].name
        said = () if made.scenario is None else (Message(Role.USER, made.scenario.message),)
        sample = replace(
            describe_plan(self._studio, made.spec, made.scenario, agent),
            turns=len(said),
            input_tokens=made.usage.input_tokens,
            output_tokens=made.usage.output_tokens,
            cost_usd=made.cost_usd,
        )
        lineage = Lineage(made.run_id, agent, "error", "", sample=sample)
        return Row(said, (), lineage)


def _encode(row: Row, verdicts: Sequence[FilterVerdict] | None = None) -> bytes:
    """Return a line of the format `treadle`; that of a rejected sample also has the verdicts."""
    raw = TREADLE.write(row, with_reasoning=True)
    if verdicts is not None:
        raw["verdicts"] = verdicts
    return msgspec.json.encode(raw) + b"\n"
