"""The work on the samples of a dataset: making a sample, judging it, and deciding its outcome."""

import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ProviderError
from treadle.core.types import Fault, Message, Role
from treadle.datagen.conversations.dialogue import bill_of
from treadle.datagen.conversations.make import MadeSample, make_sample
from treadle.datagen.conversations.projection import describe_plan
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.generation_progress import GenerationProgress, SampleBegun, SampleEnded
from treadle.datagen.quality.duplicates import DuplicateIndex
from treadle.datagen.quality.pipeline import Pipeline, is_good, mark_row
from treadle.datagen.quality.protocol import Candidate, FilterVerdict
from treadle.datagen.sample_plan import SamplePlan
from treadle.datagen.scenarios.scenario import SampleSpec, sample_id_of
from treadle.export.row_formats.treadle_rows import TREADLE
from treadle.export.rows import Lineage, Row
from treadle.jobs.job import Expected, Job
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, PlannedItem

ROWS, REJECTED = "rows", "rejected"
"""The names of the ledger's files."""
UNFINISHED = "unfinished"
"""The reason for rejecting a sample whose conversation did not end, because of the models that took part."""


class JudgedSample(Struct, frozen=True):
    """A sample that was made, with the verdicts about it."""

    spec: SampleSpec
    made: MadeSample
    verdicts: tuple[FilterVerdict, ...] = ()


class SampleWork:
    """The making and judging of a dataset's samples; see `jobs.job.JobWork`."""

    def __init__(
        self,
        studio: Studio,
        plan: SamplePlan,
        pipeline: Pipeline,
        duplicates: DuplicateIndex | None,
        job: "Job[JudgedSample, GenerationProgress]",
    ) -> None:
        """Make the work. `duplicates` is `None` if duplicates are kept."""
        self._studio = studio
        self._plan = plan
        self._pipeline = pipeline
        self._duplicates = duplicates
        self._job = job
        self._attempts = studio.config.generation.sample_attempts

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        """See `JobWork.make_item`."""
        return self._plan.make_item(number, counts)

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        """See `JobWork.note`."""
        if outcome.status is ItemStatus.REJECTED and outcome.is_final:
            self._plan.give_back(item.share, self._job.counts)
        self._job.tell(
            SampleEnded(
                sample_id=sample_id_of(item.number), status=outcome.status.value, reasons=outcome.reasons
            )
        )

    async def attempt(self, item: PlannedItem, attempt: int, expected: Expected) -> JudgedSample:
        """Make and judge one sample. Raises: `ProviderError` for a fault of the user, such as a wrong key."""
        async with expected.slot():
            topic, kind = tuple(item.spec["topic"]), item.spec.get("kind")
            self._job.tell(SampleBegun(sample_id=sample_id_of(item.number), topic=topic, kind=kind))
            return await self._make(item, attempt)

    async def _make(self, item: PlannedItem, attempt: int) -> JudgedSample:
        spec = msgspec.convert(item.spec, SampleSpec)
        made = await make_sample(self._studio, spec, attempt, item.feedback)
        if made.fault is Fault.USER:
            raise ProviderError(f"sample {spec.sample_id} cannot be made: {made.error}")
        if made.row is None or made.scenario is None:
            return JudgedSample(spec, made)
        candidate = Candidate(
            row=made.row,
            run_id=made.run_id,
            spec=spec,
            scenario=made.scenario,
            environment=made.environment,
            events=made.events,
            journal=self._studio.journal,
            workers=self._studio.workers,
        )
        try:
            verdicts = await self._pipeline.check(candidate)
        except ProviderError as error:
            failed = replace(made, row=None, error=str(error), fault=Fault.INFRASTRUCTURE)
            return JudgedSample(spec, self._add_judge(failed))
        return JudgedSample(spec, self._add_judge(made), verdicts)

    def _add_judge(self, made: MadeSample) -> MadeSample:
        """Return `made` with what the judge has used."""
        if not any(item.name == "judge" for item in self._pipeline.filters):
            return made
        bill = bill_of(self._studio.journal, f"{made.run_id}-judge")
        bill.add(made.usage, made.cost_usd)
        return replace(made, usage=bill.usage, cost_usd=bill.cost_usd)

    def settle(
        self, item: PlannedItem, attempt: int, result: JudgedSample, connection: sqlite3.Connection
    ) -> ItemOutcome:
        """Return the outcome of an attempt, after searching for duplicates among the counted rows."""
        made, verdicts = result.made, list(result.verdicts)
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
            line = _encode(self._describe_unfinished(result), [verdict])
            return replace(outcome, reasons=(f"{UNFINISHED}: {made.error}",), file=REJECTED, line=line)
        if self._duplicates is not None and is_good(verdicts):
            verdicts.append(self._duplicates.find(made.row))
        row = mark_row(made.row, verdicts)
        outcome = replace(outcome, details={"run_id": made.run_id, "verdicts": msgspec.to_builtins(verdicts)})
        failed = [f"{verdict.filter}: {verdict.reason}" for verdict in verdicts if not verdict.is_passed]
        if failed:
            return replace(outcome, reasons=tuple(failed), file=REJECTED, line=_encode(row, verdicts))
        if self._duplicates is not None:
            self._duplicates.add(result.spec.sample_id, row)
        return replace(
            outcome,
            status=ItemStatus.KEPT,
            is_final=True,
            label=_label(row, item),
            file=ROWS,
            line=_encode(row),
        )

    def _describe_unfinished(self, result: JudgedSample) -> Row:
        """Return the plan and the first message of a sample whose conversation was not finished, as a row."""
        made, agent = result.made, self._studio.models["agent"].name
        said = () if made.scenario is None else (Message(Role.USER, made.scenario.message),)
        sample = replace(
            describe_plan(self._studio, result.spec, made.scenario, agent),
            turns=len(said),
            input_tokens=made.usage.input_tokens,
            output_tokens=made.usage.output_tokens,
            cost_usd=made.cost_usd,
        )
        lineage = Lineage(made.run_id, agent, "error", "", sample=sample)
        return Row(said, (), lineage)


def _label(row: Row, item: PlannedItem) -> str:
    """Return the kind under which a row is counted: the planned one if the conversation shows it."""
    kinds = row.lineage.sample.kinds if row.lineage.sample is not None else ()
    return item.label if item.label in kinds or not kinds else kinds[0]


def _encode(row: Row, verdicts: Sequence[FilterVerdict] | None = None) -> bytes:
    """Return a line of the format `treadle`; that of a rejected sample also has the verdicts."""
    raw = TREADLE.write(row, with_reasoning=True)
    if verdicts is not None:
        raw["verdicts"] = verdicts
    return msgspec.json.encode(raw) + b"\n"
