"""The results of evaluations: the facts of a sample, tables by model and family, failures by kind, comparisons."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from treadle.core.events import DurableBody, Rewarded, TurnCompleted
from treadle.core.types import StopReason
from treadle.evals.evaluation_config import EvaluationSpec
from treadle.evals.evaluation_folder import (
    Sample,
    SampleDetails,
    StoredEvaluation,
    by_task,
    cluster_of,
    read_stored,
)
from treadle.scoring.expectations import find_made_calls
from treadle.scoring.protocol import Subject
from treadle.scoring.registry import RewardSpec, mean_reward
from treadle.scoring.statistics import (
    MeanEstimate,
    ScoreDifference,
    bootstrap_mean,
    compare_paired,
    estimate_mean,
    pass_all_k,
    pass_at_k,
    reaches,
)

_BOOTSTRAPPED = 100
"""Up to so many tasks, scores have the interval of a bootstrap too."""
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\S*[/.]\w\S*|[-+$€£]?\d[\d.,:]*")
"""What differs between two reasons of the same kind: quoted texts, other than names, paths and numbers."""


def describe_sample(subject: Subject, specs: Sequence[RewardSpec], solved_at: float) -> SampleDetails:
    """Return the facts of a graded run."""
    run, bodies = subject.run, subject.bodies
    names = [spec.name for spec in specs]
    rewards = {name: value for name, value in run.state.turn.rewards.items() if name in names}
    score = mean_reward(rewards, specs)
    assert run.stop_reason is not None
    reasons: dict[str, str] = {}
    worst: str | None = None
    kind: str | None = None
    if score is not None and not reaches(score, solved_at):
        given = {body.name: body.detail or "" for body in bodies if isinstance(body, Rewarded)}
        reasons = {name: given[name] for name in rewards if given.get(name)}
        counted = [spec for spec in specs if spec.weight and spec.name in rewards]
        worst = max(counted, key=lambda spec: max(0.0, spec.weight) - spec.weight * rewards[spec.name]).name
        is_cut = run.stop_reason is not StopReason.COMPLETED and not run.state.is_relayed
        heads = [run.stop_reason.value] if is_cut else []
        heads += [worst] if len(counted) > 1 or worst not in reasons else []
        kind = name_failure(reasons.get(worst, ""), _find_names(subject), heads)
    return SampleDetails(
        score=score,
        stop_reason=run.stop_reason,
        scores=rewards,
        reasons=reasons,
        worst=worst,
        kind=kind,
        steps=subject.steps,
        calls=len(find_made_calls(bodies)) if subject.conversations else run.state.turn.spent.tool_calls,
        seconds=_find_seconds(bodies),
        is_without_calls=bool(subject.tools) and not find_made_calls(bodies),
    )


def _find_seconds(bodies: Sequence[DurableBody]) -> float:
    """Return how long a run was worked on, without what came after its end."""
    ended = [body for body in bodies if isinstance(body, TurnCompleted)]
    if not ended:
        return 0.0
    worked = ended[-1].worked_seconds
    return round(ended[-1].at - bodies[0].at if worked is None else worked, 3)


def _find_names(subject: Subject) -> set[str]:
    """Return the names of tools and of their arguments that the reason of a failure may have."""
    names = {call.call.name for call in find_made_calls(subject.bodies)}
    for spec in subject.tools:
        names |= {spec.name, *spec.parameters.get("properties", {})}
    return names


def name_failure(reason: str, names: Collection[str] = (), heads: Sequence[str] = ()) -> str:
    """Return the kind of a failure: the reason without what varies, after `heads`.

    `names` are those of tools and arguments, which stay if they are quoted. `heads` are what stopped the run, if
    anything did, and the scorer, if there are several.
    """
    first = _VARYING.sub(
        lambda found: found[0] if found[0][:1] in "'\"`" and found[0][1:-1] in names else "…",
        reason.partition("; ")[0],
    ).strip()
    return ": ".join([*heads, first] if first else heads)


class ModelResult(Struct, frozen=True, kw_only=True):
    """One line of the table: what the samples of a model say."""

    model: str
    samples: int
    failed: int
    """How many samples have no grade, because of the infrastructure."""
    score: MeanEstimate | None
    bootstrap: MeanEstimate | None
    """The score with the interval of a bootstrap over tasks; `None` for one task, and for many."""
    scorers: dict[str, MeanEstimate]
    """The mean of each scorer."""
    pass_at: dict[int, MeanEstimate]
    """The probability that at least one of k attempts solves a task, by k."""
    pass_all: dict[int, MeanEstimate]
    """The probability that all of k attempts solve a task, by k."""
    steps: float
    """The mean per sample, as of all that follows."""
    calls: float
    is_without_calls: bool
    """True if the model had tools in all of its samples and called none."""
    tokens: float
    seconds: float
    cost_usd: float | None
    """The mean cost in US dollars; `None` if a price is unknown."""


class FailureKind(Struct, frozen=True):
    kind: str
    models: dict[str, int]
    """How many samples of each model failed so."""
    run_ids: list[str]
    """The runs, the first ones of each model first."""
    example: str
    """The reason of the first one."""

    @property
    def count(self) -> int:
        """How many samples failed so."""
        return sum(self.models.values())


class ModelPair(Struct, frozen=True):
    """The comparison of two models on the same tasks."""

    one: str
    other: str
    difference: ScoreDifference


class Results(Struct, frozen=True, kw_only=True):
    """What an evaluation says so far."""

    name: str
    path: str
    planned: int
    rewards: tuple[RewardSpec, ...]
    """The scorers with their weights in the score, and their settings."""
    models: list[ModelResult]
    families: dict[str, dict[str, MeanEstimate]]
    """The mean score by family and model. A family is what ids begin with, up to the last dash."""
    pairs: list[ModelPair]
    failures: list[FailureKind]
    """The kinds of failures, the most frequent ones first."""
    failed: dict[str, str]
    """The runs without a grade, with the reason."""
    failed_specs: dict[str, EvaluationSpec]
    """The plans of these runs."""
    samples: list[Sample]


def read_results(path: Path) -> Results:
    """Return the results in the folder of an evaluation. Raises: `ConfigError` if there is none."""
    return make_results(path, read_stored(path))


def make_results(path: Path, stored: StoredEvaluation) -> Results:
    """Return the results of what a folder has stored."""
    names, solved_at = list(stored.config.model_names()), stored.config.solved_at
    of_model = {name: [item for item in stored.samples if item.spec.model == name] for name in names}
    failed = Counter([spec.model for spec in stored.failed_specs.values()])
    scores = {name: _scores(samples) for name, samples in of_model.items()}
    pairs = [
        ModelPair(one, other, difference)
        for one, other in combinations(names, 2)
        if (difference := compare_paired(scores[one], scores[other])) is not None
    ]
    return Results(
        name=stored.config.name,
        path=str(path),
        planned=stored.planned,
        rewards=stored.config.scorers(),
        models=[_summarise(name, of_model[name], solved_at, failed[name]) for name in names],
        families=_by_family(stored.samples),
        pairs=pairs,
        failures=_group_failures(stored.samples),
        failed=stored.failed,
        failed_specs=stored.failed_specs,
        samples=stored.samples,
    )


def _scores(
    samples: Iterable[Sample],
    read: Callable[[SampleDetails], float | None] = lambda details: details.score,
) -> dict[str, list[float]]:
    """Return the scores by task, or row; or, with `read`, another figure, without the samples that lack it."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        if (value := read(sample.details)) is not None:
            found.setdefault(cluster_of(sample.spec.task), []).append(value)
    return found


def _estimate(
    samples: Iterable[Sample],
    read: Callable[[SampleDetails], float | None] = lambda details: details.score,
) -> MeanEstimate | None:
    return estimate_mean(list(_scores(samples, read).values()))


def _summarise(model: str, samples: list[Sample], solved_at: float, failed: int) -> ModelResult:
    tasks, scores = by_task(samples), [*_scores(samples).values()]
    names = dict.fromkeys([name for sample in samples for name in sample.details.scores])
    scorers = {name: _estimate(samples, partial(_score_of, name)) for name in names}
    solved = [
        [reaches(sample.details.score, solved_at) for sample in group if sample.details.score is not None]
        for group in tasks.values()
    ]
    solved = [group for group in solved if group]
    least = min(map(len, solved), default=0)
    chances = sorted({k for k in (1, 2, 4, 8, 16, 32, 64, least) if 1 <= k <= least})
    costs = [sample.cost_usd for sample in samples]
    return ModelResult(
        model=model,
        samples=len(samples),
        failed=failed,
        score=estimate_mean(scores),
        bootstrap=bootstrap_mean(scores) if 1 < len(scores) <= _BOOTSTRAPPED else None,
        scorers={name: found for name, found in scorers.items() if found is not None},
        pass_at={k: _estimate_chance(solved, k, pass_at_k) for k in chances},
        pass_all={k: _estimate_chance(solved, k, pass_all_k) for k in chances},
        steps=_mean([sample.details.steps for sample in samples]),
        calls=_mean([sample.details.calls for sample in samples]),
        is_without_calls=bool(samples) and all(sample.details.is_without_calls for sample in samples),
        tokens=_mean([sample.input_tokens + sample.output_tokens for sample in samples]),
        seconds=_mean([sample.details.seconds for sample in samples]),
        cost_usd=None if None in costs else _mean([cost for cost in costs if cost is not None]),
    )


def _score_of(name: str, details: SampleDetails) -> float | None:
    return details.scores.get(name)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _estimate_chance(
    solved: list[list[bool]], k: int, chance: Callable[[int, int, int], float]
) -> MeanEstimate:
    """Return pass@k or pass^k, with an interval over tasks. With k = 1, it is the share of solved samples."""
    groups = [list(map(float, group)) for group in solved]
    if k > 1:
        groups = [[chance(len(group), sum(group), k)] for group in solved]
    found = estimate_mean(groups)
    assert found is not None
    return found


def _by_family(samples: Iterable[Sample]) -> dict[str, dict[str, MeanEstimate]]:
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        task = sample.spec.task
        family = task.rpartition("#")[0] or task.rpartition("-")[0] or task
        groups.setdefault((family, sample.spec.model), []).append(sample)
    made: dict[str, dict[str, MeanEstimate]] = {}
    for (family, model), group in groups.items():
        if (found := _estimate(group)) is not None:
            made.setdefault(family, {})[model] = found
    return made


def _group_failures(samples: Iterable[Sample]) -> list[FailureKind]:
    kinds: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.details.kind is not None:
            kinds.setdefault(sample.details.kind, []).append(sample)
    made = [
        FailureKind(
            _name_in_full(kind, group),
            dict(Counter([sample.spec.model for sample in group])),
            [sample.run_id for sample in group],
            _find_reason(group[0].details),
        )
        for kind, group in kinds.items()
    ]
    return sorted(made, key=lambda item: -item.count)


def _name_in_full(kind: str, group: Sequence[Sample]) -> str:
    """Return a kind with the names and numbers of its reason, if they are the same in all of its samples."""
    reasons = {_find_reason(sample.details).partition("; ")[0].strip() for sample in group}
    if len(reasons) > 1 or "…" not in kind or not (reason := reasons.pop()):
        return kind
    heads = ""
    for head in (group[0].details.stop_reason.value, group[0].details.worst):
        heads += f"{head}: " if kind.startswith(f"{heads}{head}: ") else ""
    return heads + reason


def _find_reason(details: SampleDetails) -> str:
    """Return the reason of the worst score, which the kind of a failure is named after."""
    worst = details.worst or min(details.scores, key=lambda name: details.scores[name], default="")
    return details.reasons.get(worst, "")


def compare_results(one: Results, other: Results) -> list[ModelPair]:
    """Return the differences between two evaluations, the second minus the first, of each model that both have; if
    they have none in common, of the first models. Only tasks that both have count."""
    before, after = ([item.model for item in results.models] for results in (one, other))
    names = [(name, name) for name in before if name in after] or [(before[0], after[0])]
    first, second = name_apart(one, other)
    pairs = []
    for old, new in names:
        scores_of = {
            results.path: _scores([sample for sample in results.samples if sample.spec.model == name])
            for results, name in ((other, new), (one, old))
        }
        if (difference := compare_paired(scores_of[other.path], scores_of[one.path])) is not None:
            pairs.append(ModelPair(f"{second}: {new}", f"{first}: {old}", difference))
    return pairs


def name_apart(one: Results, other: Results) -> tuple[str, str]:
    """Return names by which two evaluations are told apart: their own, or their folders if these are the same."""
    return (one.path, other.path) if one.name == other.name else (one.name, other.name)


def find_remarks(one: Results, other: Results, pairs: Sequence[ModelPair]) -> list[str]:
    """Return what a reader of the comparison of two evaluations has to know."""
    if not pairs:
        return ["no task has a grade in both evaluations, so they are not compared"]
    counted = [[spec for spec in item.rewards if spec.weight] for item in (one, other)]
    if {*map(repr, counted[0])} == {*map(repr, counted[1])}:
        return []
    first, second = name_apart(one, other)
    graded = [", ".join([f"{spec.name}={spec.weight:g}" for spec in specs]) for specs in counted]
    settings = " with other settings" if graded[0] == graded[1] else ""
    return [
        f"the two were graded by different scorers, {first} by {graded[0]}, {second} by {graded[1]}{settings}, so "
        "their difference may be one of the scorers; grade one of them again with --rescore"
    ]
