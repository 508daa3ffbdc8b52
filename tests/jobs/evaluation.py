"""An evaluation over `jobs/`: tasks x models x epochs (`python -m tests.jobs.evaluation CONFIG`), and its means."""

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Struct
from pydantic import Field

from treadle.jobs.attempt import Attempt, AttemptDriver, AttemptFailedError, SeededAgents, outcome_of
from treadle.jobs.job import Expected, Job, JobEnd, JobOptions, JobSettings, check_unchanged, open_job
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, Ledger, PlannedItem
from treadle.jobs.progress import Average, JobListener, JobNotice, JobProgress, JobWords
from treadle.jobs.sections import AttemptSection, Count, read_document
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.runs.run import Run
from treadle.runs.task import find_tasks, load_task
from treadle.scoring.registry import total_reward
from treadle.tasks.draws import fraction

GRADES = "grades"
"""The name of the ledger's file with the grades."""
_FIXED = {"name", "seed", "models", "tasks", "epochs", "agent", "rewards"}
"""The keys that cannot change when an evaluation is continued."""


class EvaluationConfig(AttemptSection):
    """The configuration of an evaluation."""

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    epochs: Count = 1
    """How often each model attempts each task, each time with another seed."""


class EvaluationProgress(JobProgress, kw_only=True):
    """The counts of an evaluation."""

    WORDS: ClassVar[JobWords] = JobWords(noun="attempt", item="attempt", kept="graded", in_flight="attempt")

    grades: Average = msgspec.field(default_factory=Average)
    """The rewards of all graded attempts."""

    def note(self, reward: float | None) -> None:
        """Add a reward; `None` if an attempt has none."""
        if reward is not None:
            self.grades.add(reward)

    def results(self) -> list[str]:
        """See `JobProgress.results`."""
        return [f"reward {self.grades.mean:.3f} ± {self.grades.deviation:.3f}"] if self.grades.count else []


class AttemptGraded(JobNotice, frozen=True, tag="attempt_graded"):
    """An attempt was graded, or failed."""

    run_id: str
    model: str
    task: str
    reward: float | None
    reason: str | None = None

    def line(self) -> str | None:
        """See `JobNotice.line`."""
        return None if self.reason is None else f"{self.run_id} failed: {self.reason}"


class ModelMeans(Struct, frozen=True):
    """One line of the table: the means over the attempts of a model."""

    model: str
    attempts: int
    reward: float
    error: float
    """The standard error of the mean reward."""
    steps: float


class EvaluationResult(Struct, frozen=True):
    """The outcome of an evaluation."""

    end: JobEnd
    progress: EvaluationProgress
    table: tuple[ModelMeans, ...]


class EvaluationWork:
    """The plan of an evaluation, and what its attempts mean; see `JobWork`."""

    def __init__(
        self, config: EvaluationConfig, job: Job[Any, EvaluationProgress], driver: AttemptDriver
    ) -> None:
        self._config = config
        self._job = job
        self._driver = driver
        tasks = find_tasks(config.tasks)
        for entry in job.ledger.entries(ItemStatus.KEPT):
            job.progress.note(entry.details["reward"])
        self._plan = list(product(range(config.epochs), tasks, config.models))
        self.wanted = len(self._plan)

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        """See `JobWork.make_item`."""
        epoch, task, model = self._plan[number - 1]
        return PlannedItem(number, model, task, {"task": task, "model": model, "epoch": epoch})

    async def attempt(
        self, item: PlannedItem, attempt: int, expected: Expected
    ) -> Run[Any] | AttemptFailedError:
        """See `JobWork.attempt`."""
        spec, config = item.spec, self._config
        planned = Attempt(
            run_id=f"{config.name}-{item.number}",
            task=await asyncio.to_thread(load_task, spec["task"]),
            seed=int(fraction(config.seed, spec["task"], spec["epoch"]) * 2**31),
            model=spec["model"],
            metadata={"evaluation": config.name, **spec},
        )
        try:
            return await self._driver.drive(planned, expected)
        except AttemptFailedError as failed:
            return failed

    def settle(
        self, item: PlannedItem, attempt: int, result: Run[Any] | AttemptFailedError, _: sqlite3.Connection
    ) -> ItemOutcome:
        """See `JobWork.settle`."""
        if isinstance(result, AttemptFailedError):
            return outcome_of(result, details={"reward": None})
        rewards = result.state.turn.rewards
        reward = total_reward(rewards, self._driver.rewards)
        details = {"reward": reward, "rewards": rewards, "steps": result.steps}
        line = {"run_id": result.run_id, **item.spec, **details, "stop_reason": result.stop_reason}
        encoded = msgspec.json.encode(line) + b"\n"
        return outcome_of(result, label=item.label, details=details, file=GRADES, line=encoded)

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        """See `JobWork.note`."""
        reward, reason = outcome.details["reward"], outcome.reasons[0] if outcome.reasons else None
        self._job.progress.note(reward)
        run_id = f"{self._config.name}-{item.number}"
        self._job.tell(
            AttemptGraded(run_id=run_id, model=item.label, task=item.share, reward=reward, reason=reason)
        )


async def evaluate(
    config: EvaluationConfig,
    *,
    listener: JobListener = lambda notice, progress: None,
    stop: asyncio.Event | None = None,
) -> EvaluationResult:
    """Make an evaluation, or continue it, and return the outcome. Raises: `ConfigError`, `JournalError`."""
    files = {GRADES: config.path / "grades.jsonl"}
    options = JobOptions.of_attempts(config, files, stop=stop, listener=listener)

    def check(ledger: Ledger, journal: Journal) -> None:
        check_unchanged(ledger, config.model_dump(mode="json", include=_FIXED), config.path)
        ledger.reopen(ItemStatus.FAILED)

    def runs_of(item: PlannedItem) -> RunFilter:
        return RunFilter(run_ids=[f"{config.name}-{item.number}"])

    progress = EvaluationProgress()
    async with AsyncExitStack() as stack:
        job = open_job(stack, options, progress, runs_of, check=check)
        agents = {
            name: SeededAgents(config.agent, name, job.journal, wrap=job.meter.measure)
            for name in config.models
        }
        work = EvaluationWork(config, job, AttemptDriver(job, agents, config))
        progress.wanted = work.wanted
        end = await job.run(work, JobSettings(wanted=work.wanted, max_items=work.wanted))
        return EvaluationResult(end, progress, means_of(config.models, job.ledger))


def means_of(models: Sequence[str], ledger: Ledger) -> tuple[ModelMeans, ...]:
    """Return the means over the graded attempts of each model."""
    found = {model: (Average(), Average()) for model in models}
    for entry in ledger.entries(ItemStatus.KEPT):
        if (reward := entry.details["reward"]) is not None:
            found[entry.label][0].add(reward)
            found[entry.label][1].add(entry.details["steps"])
    return tuple(
        ModelMeans(model, one.count, one.mean, one.deviation / max(1, one.count) ** 0.5, steps.mean)
        for model, (one, steps) in found.items()
    )


if __name__ == "__main__":
    made = asyncio.run(evaluate(EvaluationConfig.model_validate(read_document(sys.argv[1]).value)))
    for row in made.table:
        print(f"{row.model:20} {row.reward:.3f} ± {row.error:.3f}  {row.attempts} attempts")
    sys.exit(made.end.reason != "done")
