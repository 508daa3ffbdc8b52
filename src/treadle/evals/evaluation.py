"""The work of an evaluation: from its configuration to graded samples. It continues after any interruption."""

import asyncio
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.types import Json, StopReason
from treadle.evals.evaluation_config import (
    PROGRAM,
    READER,
    ROWS,
    EvaluationConfig,
    EvaluationPlan,
    EvaluationSpec,
    choose,
    find_oracles,
    find_unsolved,
)
from treadle.evals.evaluation_folder import (
    EvaluationFolder,
    check_continued,
    finish_rescoring,
    is_grading_again,
)
from treadle.evals.evaluation_results import Results, describe_sample, read_results
from treadle.evals.report_files import MakePage, WrittenReport, check_page, write_reports
from treadle.evals.row_samples import DriveAnswer, RowAnswer, read_answers
from treadle.jobs.attempt import (
    Attempt,
    AttemptDriver,
    AttemptFailedError,
    AttemptRetried,
    ids_of,
    judges_of,
    outcome_of,
)
from treadle.jobs.job import Job, JobEnd, JobSettings, open_job
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, PlannedItem
from treadle.jobs.progress import Average, JobListener, JobNotice, JobProgress, JobWords
from treadle.jobs.seeded_agents import MakeModel, SeededAgents, find_model
from treadle.jobs.slots import Expected
from treadle.journal.run_info import RunFilter
from treadle.models.config.tables import ModelTable
from treadle.models.protocol import Model
from treadle.runs.task import find_tasks, load_task
from treadle.scoring.expectations import LABEL, Expectation
from treadle.scoring.grade import read_subject
from treadle.workers.protocol import Workers


class EvaluationProgress(JobProgress, kw_only=True):
    WORDS: ClassVar[JobWords] = JobWords(noun="sample", item="sample", kept="graded", in_flight="sample")

    scores: dict[str, Average] = msgspec.field(default_factory=dict)
    """The scores so far, by model."""

    def note_score(self, model: str, score: float | None) -> None:
        """Add the score of a sample; `None` if it has none."""
        if score is not None:
            self.scores.setdefault(model, Average()).add(score)

    def results(self) -> list[str]:
        return [f"{model} {average.mean:.3f}" for model, average in self.scores.items()]


class SampleGraded(JobNotice, frozen=True, tag="sample_graded"):
    """A sample was graded, or failed through a fault of the infrastructure."""

    run_id: str
    task: str
    model: str
    epoch: int
    score: float | None
    scores: dict[str, float] = msgspec.field(default_factory=dict)
    reason: str | None = None
    """Why there is no score; `None` if there is one."""

    def line(self) -> str | None:
        return None if self.reason is None else f"{self.run_id} failed: {self.reason}"


class SampleRetried(AttemptRetried, frozen=True, tag="sample_retried"):
    """A sample failed because of the infrastructure and is tried again."""


class Evaluated(Struct, frozen=True):
    """The outcome of an evaluation."""

    end: JobEnd
    progress: EvaluationProgress
    folder: EvaluationFolder
    results: Results
    """The samples that were graded so far."""
    reports: tuple[WrittenReport, ...] = ()
    """The reports that were written, or why they could not be."""


class EvaluationWork:
    """The samples of an evaluation; see `jobs.job.JobWork`."""

    def __init__(
        self,
        config: EvaluationConfig,
        job: Job[Any, EvaluationProgress],
        driver: AttemptDriver,
        plan: EvaluationPlan,
        answers: Mapping[str, RowAnswer],
    ) -> None:
        """Make the work. `answers` are the samples that are answers of rows, by their names."""
        self._config = config
        self._job = job
        self._driver = driver
        self._plan = plan
        self._answers = answers
        for entry in job.ledger.entries(ItemStatus.KEPT):
            job.progress.note_score(entry.label, entry.details["score"])

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        return self._plan.make_item(number)

    async def attempt(self, item: PlannedItem, attempt: int, expected: Expected) -> ItemOutcome:
        """See `JobWork.attempt`. Raises: as `AttemptDriver.drive` does."""
        spec = msgspec.convert(item.spec, EvaluationSpec)
        metadata: dict[str, Json] = {"evaluation": self._config.name, "epoch": spec.epoch}
        answer = self._answers.get(spec.task)
        task = load_task(spec.task) if answer is None else answer.task
        if isinstance(expectation := getattr(task, "data", None), Expectation):
            metadata[LABEL] = msgspec.to_builtins(expectation)  # so that a report needs no task
        planned = Attempt(
            run_id=find_run_id(self._config, item),
            task=task,
            seed=spec.seed_of(self._config.seed),
            model=spec.model,
            metadata=metadata,
            drive=None if answer is None else DriveAnswer(answer),
        )
        try:
            run = await self._driver.drive(planned, expected)
        except AttemptFailedError as failed:
            return outcome_of(failed)
        subject = read_subject(run, task, self._job.journal)
        details = describe_sample(subject, self._driver.rewards, self._config.solved_at)
        if answer is not None and run.stop_reason is StopReason.MAX_STEPS:
            details = replace(details, stop_reason=StopReason.COMPLETED)  # it is asked for one message only
        if run.run_id != planned.run_id:
            details = replace(details, run_id=run.run_id)
        return outcome_of(run, label=item.label, details=msgspec.to_builtins(details))

    def set_aside(self, item: PlannedItem, attempt: int, reason: str) -> ItemOutcome:
        return outcome_of(AttemptFailedError(f"infrastructure: {reason}", ItemStatus.FAILED))

    def settle(
        self, item: PlannedItem, attempt: int, result: ItemOutcome, _: sqlite3.Connection
    ) -> ItemOutcome:
        return result

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        spec, details = msgspec.convert(item.spec, EvaluationSpec), outcome.details or {}
        self._job.progress.note_score(spec.model, details.get("score"))
        self._job.tell(
            SampleGraded(
                run_id=details.get("run_id") or find_run_id(self._config, item),
                task=spec.task,
                model=spec.model,
                epoch=spec.epoch,
                score=details.get("score"),
                scores=details.get("scores", {}),
                reason=outcome.reasons[0] if outcome.reasons else None,
            )
        )


def find_run_id(config: EvaluationConfig, item: PlannedItem) -> str:
    return f"{config.name}-{item.number}"


def _name_models(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Model | MakeModel]]:
    """Return options in which models of the program have names, and these models by their names.

    Raises: `ConfigError` if two have the same name.
    """
    given: Any = options.get("models")
    if isinstance(given, Mapping):
        is_made = {name: not isinstance(item, str | Mapping | ModelTable) for name, item in given.items()}
        found = {f"{PROGRAM}{name}": item for name, item in given.items() if is_made[name]}
        named = {f"{PROGRAM}{name}" if is_made[name] else name: item for name, item in given.items()}
        return options | {"models": named | {name: name for name in found}}, found
    models = [item for item in given if hasattr(item, "infer")] if isinstance(given, list | tuple) else []
    found = {f"{PROGRAM}{item.name}": item for item in models}
    if len(found) < len(models):
        raise ConfigError(
            "two models of the program have the same name; give models as a mapping of names to them"
        )
    listed = [f"{PROGRAM}{item.name}" if item in models else item for item in given] if models else given
    return options | ({"models": listed} if models else {}), found


async def evaluate(
    config: EvaluationConfig | str | Path | None = None,
    *,
    is_rescored: bool = False,
    workers: Workers | None = None,
    listener: JobListener = lambda notice, progress: None,
    stop: asyncio.Event | None = None,
    progress: EvaluationProgress | None = None,
    make_page: MakePage | None = None,
    **options: Any,
) -> Evaluated:
    """Make an evaluation, or continue it, and return its outcome.

    `config` is a configuration or the path of one, and `options` are the keys of one, such as `models=["oracle"]`,
    `tasks=["files:test"]`. `workers` take the place of the configured ones. If `is_rescored`, all samples are
    graded again, with the scorers that are given now; no model is asked for what was sampled. If `stop` is set,
    samples in flight are finished and no new ones begun. A cancellation stops at once; the same call goes on.
    The counts are kept in `progress` if it is given. At the end, the `reports` are written; for `html`, give
    `make_page=treadle.viewer.make_page`.

    `models` may also have models that the program made, and as a mapping of names also functions of a task and a
    seed that return one; their names are then `program:NAME`.

    Raises: `ConfigError` if another process works in the folder, or if a key was changed that cannot change;
    `ProviderError` for a fault of the user, such as a wrong key; `JournalError`.
    """
    async with AsyncExitStack() as stack:
        options, made = _name_models(options)
        config = READER.resolve(config, options)
        check_page(config.reports, make_page)
        if made and (workers is not None or config.workers != "here"):
            raise ConfigError("only this process has the models of the program; leave out the workers")
        models = {name: made.get(name) or find_model(given) for name, given in config.model_names().items()}
        folder, progress = EvaluationFolder(config.path), progress or EvaluationProgress()
        given = folder.options(config, workers=workers, stop=stop, listener=listener)
        check = partial(check_continued, config, is_rescored=is_rescored)
        judges = judges_of(config)
        job = open_job(stack, given, progress, partial(_runs_of, config), others=judges, check=check)
        agents = {
            name: SeededAgents(config.agent, model, job.journal, wrap=job.meter.measure)
            for name, model in models.items()
        }
        driver = AttemptDriver(
            job,
            agents,
            config,
            SampleRetried,
            rewards=config.scorers(),
            is_grading_again=is_grading_again(job.ledger),
        )
        tasks, answers = await asyncio.to_thread(find_samples, config)
        folder.check_tasks(job.ledger, [*tasks, *answers], rows=config.rows)
        plan = await asyncio.to_thread(make_plan, config, [*tasks, *answers])
        work = EvaluationWork(config, job, driver, plan, answers)
        progress.wanted = plan.wanted
        job.ledger.set("wanted", str(plan.wanted))
        async with job.beating():
            end = await job.run(work, JobSettings(wanted=plan.wanted, max_items=plan.wanted))
        if end.reason == "done":
            finish_rescoring(job.ledger)
    results = read_results(config.path)
    reports = await asyncio.to_thread(write_reports, config, results, make_page)
    return Evaluated(end, progress, folder, results, reports)


def find_samples(config: EvaluationConfig) -> tuple[list[str], dict[str, RowAnswer]]:
    """Return the tasks of an evaluation and its answers of rows by name. Raises: as `read_answers` does."""
    answers = read_answers(config.rows, config.max_tasks)
    return choose(find_tasks(config.tasks), config.max_tasks), answers


def make_plan(config: EvaluationConfig, names: Sequence[str]) -> EvaluationPlan:
    """Return the plan of tasks and answers, and warn of tasks that oracles leave out. Raises: `ConfigError`."""
    tasks = [name for name in names if not name.startswith(ROWS)]
    unsolved = find_unsolved(tasks) if find_oracles(config) else []
    plan = EvaluationPlan(config, names, unsolved)
    if unsolved:
        logging.getLogger("treadle").warning(
            "%d of %d tasks have no reference solution, and the oracle leaves them out: %s",
            *(len(unsolved), len(tasks), ", ".join(unsolved[:5])),
        )
    return plan


def _runs_of(config: EvaluationConfig, item: PlannedItem) -> RunFilter:
    return RunFilter(run_ids=ids_of(find_run_id(config, item)))
