"""The scores of held-out tasks for each version of the weights, as the ledger has them."""

from collections.abc import Iterable
from statistics import fmean

import msgspec
from msgspec import Struct

from treadle.jobs.ledger import ItemStatus, LedgerEntry
from treadle.scoring.statistics import MeanEstimate, estimate_mean, reaches


class HeldOutRound(Struct, frozen=True):
    """The plan of one evaluation: an item beside the plan of the groups."""

    version: str | None
    """The version of the weights that the evaluation was planned for; `None` if it was not known then."""
    tasks: tuple[str, ...]
    """The tasks, each as `SET:ID`."""
    epochs: int = 1
    """How often each task is attempted."""
    groups: int = 0
    """How many groups were delivered when the evaluation was planned."""

    @property
    def places(self) -> list[tuple[str, int]]:
        """The task and the epoch of each attempt."""
        return [(task, epoch) for task in self.tasks for epoch in range(self.epochs)]


class HeldOutSample(Struct, frozen=True):
    """One graded attempt at a held-out task."""

    run_id: str
    task: str
    reward: float
    own_answers: float = 1.0
    """The share of its answers that the version of its evaluation alone sampled."""
    is_solved: bool | None = None
    """True if the attempt solved the task; `None` in ledgers that do not say it."""


class HeldOutDetails(Struct, frozen=True):
    """What the ledger has about an evaluation."""

    version: str | None
    """The version that sampled the first answers; `None` if it is not known."""
    groups: int
    """How many groups were delivered when the evaluation was planned."""
    samples: tuple[HeldOutSample, ...] = ()
    left_out: int = 0
    """How many attempts were not begun, because the weights had changed."""
    failed: dict[str, str] = {}
    """Why attempts have no grade, by run."""


class HeldOutScore(Struct, frozen=True, omit_defaults=True):
    """The score of one version of the weights on the held-out tasks."""

    number: int
    """The number of the evaluation, from 1."""
    version: str | None
    """The version; `None` if it is not known."""
    groups: int
    """How many groups were delivered when the evaluation was planned."""
    score: MeanEstimate | None = None
    """The mean reward with its interval; `None` if there are no samples."""
    solved: float = 0.0
    """The share of the samples that solved their task."""
    own_answers: float = 1.0
    """The share of the answers that this version alone sampled."""
    left_out: int = 0
    """How many attempts were not begun, because the weights had changed."""
    failed: int = 0
    """How many attempts have no grade, because of the infrastructure."""

    def __str__(self) -> str:
        name = "unknown" if self.version is None else self.version
        if self.score is None:
            return f"weights {name:.30}: no samples ({self.left_out} left out, {self.failed} failed)"
        parts = [f"{self.score.samples} samples"]
        parts += [f"{self.left_out} left out"] if self.left_out else []
        parts += [f"{self.failed} failed"] if self.failed else []
        if self.own_answers < 1:
            parts.append(f"{self.own_answers:.0%} of the answers of this version")
        return f"weights {name:.30}: {self.score} ({', '.join(parts)})"


def score_round(number: int, details: HeldOutDetails, solved_at: float) -> HeldOutScore:
    """Return the score of an evaluation. `number` is that of its item."""
    samples, by_task = details.samples, dict[str, list[float]]()
    for sample in samples:
        by_task.setdefault(sample.task, []).append(sample.reward)
    solved = [
        reaches(sample.reward, solved_at) if sample.is_solved is None else sample.is_solved
        for sample in samples
    ]
    return HeldOutScore(
        number=-number,
        version=details.version,
        groups=details.groups,
        score=estimate_mean(list(by_task.values())),
        solved=fmean(solved) if samples else 0.0,
        own_answers=fmean([sample.own_answers for sample in samples]) if samples else 1.0,
        left_out=details.left_out,
        failed=len(details.failed),
    )


def read_scores(entries: Iterable[LedgerEntry], solved_at: float) -> list[HeldOutScore]:
    """Return the scores of the evaluations among the entries beside a plan, in their order."""
    found = [
        score_round(entry.number, msgspec.convert(entry.details, HeldOutDetails), solved_at)
        for entry in entries
        if entry.status == ItemStatus.KEPT
    ]
    return sorted(found, key=lambda score: score.number)
