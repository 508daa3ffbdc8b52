"""The folder of an evaluation: its files, its configuration, and the samples that its ledger has counted."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.masking import hide_password
from treadle.core.types import StopReason
from treadle.evals.evaluation_config import ROWS, EvaluationConfig, EvaluationSpec
from treadle.jobs.ledger import ItemStatus, Ledger, check_unchanged
from treadle.jobs.sections import hide_secrets
from treadle.journal.identity import is_sealed, make_seal
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.tasks.conversation_set import find_row_files, hash_rows

_SEAL = "evaluation"
"""The fact of the ledger that proves who wrote its settings."""
_RESCORING = "rescoring"
"""The fact of the ledger that samples are being graded again."""
_TASKS = "tasks"
"""The fact of the ledger that has the hashes of the list of tasks and of the files of rows."""
_FIXED = {"name", "seed", "tasks", "rows", "models", "max_tasks", "epochs", "agent", "journal"}
"""The keys that cannot change when an evaluation is continued: the runs, and what they are about, follow from
them."""


class EvaluationFolder(Struct, frozen=True):
    """The files of one evaluation."""

    path: Path

    @property
    def ledger(self) -> Path:
        """The plan, and the outcome of each sample."""
        return self.path / "evaluation.db"

    @property
    def journal(self) -> Path:
        """The journal of the runs, unless the configuration names another one."""
        return self.path / "runs.db"


class SampleDetails(Struct, frozen=True, omit_defaults=True):
    """What the ledger has of a graded sample."""

    score: float | None
    """The weighted mean of `scores`; `None` if no scorer had anything to say."""
    stop_reason: StopReason
    scores: dict[str, float] = {}
    """The value of each scorer."""
    reasons: dict[str, str] = {}
    """The sentences of the scorers, of samples that are not solved."""
    kind: str | None = None
    """The kind of the failure; `None` if the sample is solved, or has no score."""
    steps: int = 0
    calls: int = 0
    seconds: float = 0.0


class Sample(Struct, frozen=True):
    """One graded sample."""

    run_id: str
    spec: EvaluationSpec
    details: SampleDetails
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class StoredEvaluation(Struct, frozen=True):
    """The stored content of a folder."""

    config: EvaluationConfig
    """The configuration, without values that may be secret."""
    is_trusted: bool
    """True if this user made the folder."""
    samples: list[Sample]
    failed: dict[str, str]
    """The runs without a grade, with the reason."""
    planned: int
    """How many samples are wanted."""


def read_stored(path: Path) -> StoredEvaluation:
    """Return what is stored in the folder `path`. Raises: `ConfigError` if it is no folder of an evaluation."""
    folder = EvaluationFolder(path)
    if not folder.ledger.exists():
        raise ConfigError(
            f"{str(path)!r} has no evaluation; give the folder that `treadle eval --out` wrote to"
        )
    with Ledger(folder.ledger, is_readonly=True) as ledger:
        settings = ledger.get("settings")
        if settings is None:
            raise ConfigError(f"the ledger in {str(path)!r} is not one of an evaluation; give another folder")
        config = EvaluationConfig.model_validate_json(settings)
        samples, failed = [], {}
        for entry in ledger.entries():
            run_id = f"{config.name}-{entry.number}"
            if entry.status != ItemStatus.KEPT:
                failed[run_id] = entry.reasons[0] if entry.reasons else ""
                continue
            failed.pop(run_id, None)
            spec = msgspec.convert(entry.spec, EvaluationSpec)
            details = msgspec.convert(entry.details, SampleDetails)
            tokens = entry.input_tokens, entry.output_tokens
            samples.append(Sample(run_id, spec, details, *tokens, entry.cost_usd))
        is_trusted = is_sealed(ledger.get(_SEAL) or "", _SEAL, settings)
        return StoredEvaluation(config, is_trusted, samples, failed, int(ledger.get("wanted") or 0))


def find_journal(path: Path, stored: StoredEvaluation, journal: str | None = None) -> str | Path:
    """Return the address of the journal of the runs; `journal` may be that address with its password.

    Raises: `ConfigError` if the folder comes from elsewhere and names another journal.
    """
    named = stored.config.journal
    if journal is not None and (named is None or hide_password(journal) == named):
        return journal
    if named is not None and not stored.is_trusted:
        raise ConfigError(
            f"the evaluation in {str(path)!r} comes from elsewhere, and its runs are in the journal {named!r}: "
            "name it with --journal if you trust it"
        )
    return named or EvaluationFolder(path).journal


def check_continued(
    config: EvaluationConfig, ledger: Ledger, journal: Journal, *, is_rescored: bool = False
) -> None:
    """Check that the folder and the journal belong to `config`, and record the configuration.

    Raises: `ConfigError` that names the keys that have changed.
    """
    public = config.model_copy(
        update={
            "models": [hide_secrets(model) for model in config.models],
            "journal": None if config.journal is None else hide_password(config.journal),
        }
    )
    is_new = ledger.get("config") is None
    if is_new and journal.runs(RunFilter(id_prefix=f"{config.name}-"), limit=1):
        raise ConfigError(
            f"the journal has runs of another evaluation with the name {config.name!r}; give another --name, or "
            "continue that one in its folder"
        )
    check_unchanged(ledger, public.model_dump(mode="json", include=_FIXED), config.path)
    rewards = msgspec.json.encode([msgspec.to_builtins(spec) for spec in config.scorers()]).decode()
    if not is_new and not is_rescored and ledger.get("rewards") != rewards:
        raise ConfigError(
            f"the samples in {str(config.path)!r} were graded with other scorers; give the same ones (--reward), "
            "or grade all samples again with --rescore"
        )
    settings = public.model_dump_json()
    ledger.keep({"settings": settings, _SEAL: make_seal(_SEAL, settings), "rewards": rewards})
    if is_rescored:
        ledger.reopen(ItemStatus.KEPT, is_forgotten=True)
        ledger.set(_RESCORING, "yes")
    # Samples that failed because of the infrastructure are always tried again.
    ledger.reopen(ItemStatus.FAILED, ItemStatus.REJECTED)


def check_tasks(config: EvaluationConfig, ledger: Ledger, tasks: Sequence[str]) -> None:
    """Check that an evaluation is continued with the tasks and files of rows that it was begun with, and record
    them if it is new. Raises: `ConfigError` that names what has changed."""
    paths = [*map(Path, config.rows), *find_row_files(tasks)]
    facts = {f"the file {str(path)!r}": hash_rows(path) for path in paths}
    facts["the list of tasks"] = sha256("\n".join(tasks).encode()).hexdigest()
    known = ledger.get(_TASKS)
    before = facts if known is None else msgspec.json.decode(known, type=dict[str, str])
    if changed := [name for name, value in facts.items() if before.get(name) != value]:
        raise ConfigError(
            f"{' and '.join(changed)} changed since the evaluation in {str(config.path)!r} was begun; put back "
            "what was there, or give another folder (--out)"
        )
    ledger.set(_TASKS, msgspec.json.encode(facts).decode())


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
