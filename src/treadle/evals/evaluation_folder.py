"""The folder of an evaluation: its files, its configuration, and the samples that its ledger has counted."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import StopReason
from treadle.evals.evaluation_config import ROWS, EvaluationConfig, EvaluationSpec
from treadle.jobs.config_changes import Change, find_changes
from treadle.jobs.job_folder import JobFolder, StoredJob
from treadle.jobs.ledger import ItemStatus, Ledger
from treadle.journal.protocol import Journal

_RESCORING = "rescoring"
"""The fact of the ledger that samples are being graded again."""


class EvaluationFolder(JobFolder[EvaluationConfig], frozen=True):
    """The files of one evaluation."""

    LEDGER = "evaluation.db"
    NOUN = "evaluations"
    SEAL = "evaluation"
    COMMAND = "treadle eval"
    CONFIG = EvaluationConfig
    FIXED = ("name", "seed", "tasks", "rows", "models", "max_tasks", "epochs", "agent", "journal")


class SampleDetails(Struct, frozen=True, omit_defaults=True):
    """What the ledger has of a graded sample."""

    score: float | None
    """The weighted mean of `scores`; `None` if no scorer had anything to say."""
    stop_reason: StopReason
    scores: dict[str, float] = {}
    """The value of each scorer."""
    reasons: dict[str, str] = {}
    """The sentences of the scorers, of samples that are not solved."""
    worst: str | None = None
    """The scorer that took the most from the score; its sentence is the kind of the failure."""
    kind: str | None = None
    """The kind of the failure; `None` if the sample is solved, or has no score."""
    steps: int = 0
    calls: int = 0
    seconds: float = 0.0
    is_without_calls: bool = False
    """True if the model had tools and called none."""
    run_id: str | None = None
    """The run, if it was made anew because one before it lost a tool."""


class Sample(Struct, frozen=True):
    run_id: str
    spec: EvaluationSpec
    details: SampleDetails
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class StoredEvaluation(StoredJob[EvaluationConfig], frozen=True):
    """The stored content of a folder."""

    samples: list[Sample]
    failed: dict[str, str]
    """The runs without a grade, with the reason."""
    failed_specs: dict[str, EvaluationSpec]
    """The plans of these runs."""
    planned: int
    """How many samples are wanted."""


def read_stored(path: Path) -> StoredEvaluation:
    """Return what is stored in the folder `path`. Raises: `ConfigError` if it is no folder of an evaluation."""
    with EvaluationFolder(path).read() as (ledger, found):
        samples, failed, specs = [], {}, {}
        for entry in ledger.entries():
            run_id = f"{found.config.name}-{entry.number}"
            spec = specs[run_id] = msgspec.convert(entry.spec, EvaluationSpec)
            if entry.status != ItemStatus.KEPT:
                failed[run_id] = entry.reasons[0] if entry.reasons else ""
                continue
            failed.pop(run_id, None)
            details = msgspec.convert(entry.details, SampleDetails)
            tokens = entry.input_tokens, entry.output_tokens
            samples.append(Sample(details.run_id or run_id, spec, details, *tokens, entry.cost_usd))
        wanted = int(ledger.get("wanted") or 0)
        lost = {run_id: specs[run_id] for run_id in failed}
        return StoredEvaluation(found.config, found.is_trusted, samples, failed, lost, wanted)


def check_continued(
    config: EvaluationConfig, ledger: Ledger, journal: Journal, *, is_rescored: bool = False
) -> None:
    """Check that the folder and the journal belong to `config`, and record the configuration.

    Raises: `ConfigError` that names the keys that have changed.
    """
    folder = EvaluationFolder(config.path)
    is_new = folder.is_new(config, ledger, journal)
    if is_rescored and is_new:
        raise ConfigError(
            f"{str(config.path)!r} has no samples to grade again; make them first, without --rescore"
        )
    begun = None if is_rescored or is_new else ledger.get("settings")
    if begun and (
        changes := list(_find_grading_changes(EvaluationConfig.model_validate_json(begun), config))
    ):
        raise ConfigError(
            f"the samples in {str(config.path)!r} were graded with other settings: {'; '.join(map(str, changes))}. "
            "Give the same values, or grade all samples again with --rescore"
        )
    folder.check_continued(config, ledger, journal)
    if is_rescored:
        ledger.reopen(ItemStatus.KEPT, is_forgotten=True)
        ledger.set(_RESCORING, "yes")
    # Samples that failed because of the infrastructure are always tried again.
    ledger.reopen(ItemStatus.FAILED, ItemStatus.REJECTED)


def _find_grading_changes(before: EvaluationConfig, after: EvaluationConfig) -> Iterator[Change]:
    """Yield what differs in the settings that the details of a sample follow from."""
    old, new = [{spec.name: msgspec.to_builtins(spec) for spec in item.scorers()} for item in (before, after)]
    yield from find_changes(old, new, "rewards")
    yield from find_changes(before.solved_at, after.solved_at, "solved_at")


def is_grading_again(ledger: Ledger) -> bool:
    """Return whether samples are being graded again, also by a process that was interrupted."""
    return ledger.get(_RESCORING) == "yes"


def finish_rescoring(ledger: Ledger) -> None:
    """Record that all samples have their new grades."""
    ledger.set(_RESCORING, "no")


def cluster_of(task: str) -> str:
    """Return what a sample is alike with others of: its task, or the row of its answer."""
    return task.rpartition(".")[0] if task.startswith(ROWS) else task


def by_task(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Return samples by task, in the order of the first of each."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.spec.task, []).append(sample)
    return found
