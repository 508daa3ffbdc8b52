"""Reports of evaluations: the view of a page, Markdown, CSV, curves, and the files of DeepFabric."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec import Struct

from treadle.core.tally import write_usd
from treadle.core.types import Role
from treadle.evals.evaluation_config import ROWS
from treadle.evals.evaluation_folder import Sample
from treadle.evals.evaluation_results import (
    ModelPair,
    ModelResult,
    Results,
    compare_results,
    find_remarks,
    name_apart,
)
from treadle.journal.protocol import Journal
from treadle.runs.run import Run
from treadle.runs.task import split_reference
from treadle.scoring.expectations import LABEL, find_made_calls
from treadle.scoring.statistics import MeanEstimate

_BEFORE = ("run_id", "task", "model", "epoch", "score")
_AFTER = ("stop_reason", "failure", "steps", "calls", "input_tokens", "output_tokens", "cost_usd", "seconds")
_FIGURES = ("score", "solved", "tokens", "steps")
"""The names of the figures of a model that are not those of a scorer."""


class EvaluationView(Struct, frozen=True):
    """One evaluation, or two that are compared, as a page shows them."""

    evaluations: list[Results]
    pairs: list[ModelPair]
    """The differences between the two; empty for one."""
    remarks: list[str] = []
    """What a reader of these differences has to know."""
    has_runs: tuple[bool, ...] = (True, False)
    """Whether the page has the runs of each evaluation."""

    @property
    def title(self) -> str:
        return f"{' and '.join([item.name for item in self.evaluations])}: evaluation"


def make_evaluation_view(*evaluations: Results) -> EvaluationView:
    """Return what a page shows of one evaluation or two."""
    if len(evaluations) < 2:
        return EvaluationView(list(evaluations), [])
    one, other = evaluations
    pairs = compare_results(one, other)
    return EvaluationView([one, other], pairs, find_remarks(one, other, pairs))


def choose_runs(results: Results, most: int) -> list[str]:
    """Return at most `most` runs to look at: failures of all kinds and models first."""
    kinds = [kind.run_ids for kind in results.failures]
    failed = [
        ids[place] for place in range(max(map(len, kinds), default=0)) for ids in kinds if place < len(ids)
    ]
    return list(dict.fromkeys([*failed, *[sample.run_id for sample in results.samples]]))[:most]


def make_rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the table of models, and a row for each model."""
    most = max([k for item in results.models for k in item.pass_at], default=1)
    chances = [f"pass@{most}", f"pass^{most}"] if most > 1 else []
    heads = ["model", "samples", "score", "solved", *chances, "steps", "tokens", "cost in USD", "seconds"]
    rows = [
        [
            item.model,
            f"{item.samples:,}" + (f" (+{item.failed:,} failed)" if item.failed else ""),
            write_estimate(item.score),
            write_estimate(item.pass_at.get(1)),
            *[write_estimate(found.get(most)) for found in (item.pass_at, item.pass_all) if chances],
            *(_write_use(item) if item.samples else ["–"] * 4),
        ]
        for item in results.models
    ]
    return heads, rows


def _write_use(item: ModelResult) -> list[str]:
    cost = "unknown" if item.cost_usd is None else write_usd(item.cost_usd).replace("$", "")
    return [f"{item.steps:.1f}", f"{item.tokens:,.0f}", cost, f"{item.seconds:.2f}"]


def make_scorer_rows(results: Results) -> list[list[str]]:
    """Return a row for each scorer, with its mean for each model; none if there is only one scorer."""
    names = list(dict.fromkeys([name for item in results.models for name in item.scorers]))
    rows = [[name, *[write_estimate(item.scorers.get(name)) for item in results.models]] for name in names]
    return rows if len(rows) > 1 else []


def write_bootstraps(results: Results) -> list[str]:
    """Return the sentence with the scores' intervals of a bootstrap; none if no model has one."""
    told = [f"{item.model} {item.bootstrap}" for item in results.models if item.bootstrap is not None]
    return [f"Score by a bootstrap over tasks: {', '.join(told)}"] if told else []


def find_gaps(results: Results) -> list[str]:
    """Return a sentence for each model whose samples are not all in its score, or that never called its tools, and
    for each scorer without a verdict on some of them."""
    told = []
    for item in results.models:
        samples = [sample for sample in results.samples if sample.spec.model == item.model]
        for name in [spec.name for spec in results.rewards]:
            expected = _find_expected(name, samples)
            missing = sum([name not in sample.details.scores for sample in expected])
            if missing:
                told.append(
                    f"{item.model}: the scorer {name!r} had no verdict on {missing:,} of {len(expected):,} samples"
                )
        missing = item.samples - (0 if item.score is None else item.score.samples)
        if missing:
            told.append(
                f"{item.model}: {missing:,} of {item.samples:,} samples have no score, because no reward with a "
                "weight has a verdict"
            )
        if item.is_without_calls and item.score is not None and item.score.mean < 0.5:
            told.append(
                f"{item.model}: no tool was called in any sample; `treadle models check` says whether the model "
                "is shown the tools"
            )
    return told


def _find_expected(name: str, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that a scorer should have a verdict on: those of tasks, of rows, or both. A scorer is not
    for a kind of which it judges no sample, if it judges one of the other kind."""
    judged = {sample.spec.task.startswith(ROWS) for sample in samples if name in sample.details.scores}
    return [sample for sample in samples if not judged or sample.spec.task.startswith(ROWS) in judged]


def write_view(view: EvaluationView) -> str:
    """Return the report of one evaluation, or of two and their differences, as Markdown."""
    if len(view.evaluations) < 2:
        return write_markdown(view.evaluations[0])
    one, other = view.evaluations
    names = name_apart(one, other)
    remarks = [f"{text[:1].upper()}{text[1:]}." for text in view.remarks]
    head = "\n\n".join([f"# {' and '.join(names)}", *remarks, *_write_pairs(view.pairs)]) + "\n"
    return "\n".join([head, *map(write_markdown, (one, other), names)])


def write_markdown(results: Results, title: str | None = None) -> str:
    """Return the report of an evaluation as Markdown. The title is its name by default."""
    done = sum([item.samples for item in results.models])
    heads, rows = make_rows(results)
    parts = [
        f"# {title or results.name}",
        f"{done:,} of {results.planned:,} samples. Intervals are of 95 %, over tasks.",
        _write_table(heads, rows),
        *write_bootstraps(results),
        *find_gaps(results),
    ]
    if lines := make_scorer_rows(results):
        parts += [
            "## Scores by scorer",
            _write_table(["scorer", *[item.model for item in results.models]], lines),
        ]
    parts += _write_pairs(results.pairs)
    names = [item.model for item in results.models]
    families = [
        [family, *[write_estimate(found.get(name)) for name in names]]
        for family, found in results.families.items()
    ]
    if families:
        parts += ["## Scores by family", _write_table(["family", *names], families)]
    if results.failures:
        kinds = [
            [kind.kind, *[f"{kind.models.get(name, 0):,}" for name in names], f"`{kind.run_ids[0]}`"]
            for kind in results.failures
        ]
        parts += ["## Failures by kind", _write_table(["kind", *names, "such as"], kinds)]
    if results.failed:
        parts += [
            "## Samples without a grade",
            _write_table(["reason", *names, "such as"], _count_lost(results)),
        ]
    return "\n\n".join(parts) + "\n"


def _count_lost(results: Results) -> list[list[str]]:
    """Return a row for each reason for which samples have no grade, with how many there are of each model."""
    lost: dict[str, list[str]] = {}
    for run_id, reason in results.failed.items():
        lost.setdefault(reason.replace(f"run {run_id} ", "the run ", 1), []).append(run_id)
    rows = []
    for reason, run_ids in lost.items():
        count = Counter([results.failed_specs[run_id].model for run_id in run_ids])
        rows.append([reason, *[f"{count[item.model]:,}" for item in results.models], f"`{run_ids[0]}`"])
    return rows


def name_scorers(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Return the names of scorers beside other names: the scorer `calls` is `calls_score` beside the calls."""
    return [f"{name}_score" if name in taken else name for name in names]


def _write_pairs(pairs: Sequence[ModelPair]) -> list[str]:
    lines = [
        [
            f"{pair.one} - {pair.other}",
            f"{pair.difference.mean:+.3f} [{pair.difference.low:+.3f}, {pair.difference.high:+.3f}]",
            f"{pair.difference.p_value:.3g}",
            f"{pair.difference.tasks:,}",
            "–" if pair.difference.needed_tasks is None else f"{pair.difference.needed_tasks:,}",
        ]
        for pair in pairs
    ]
    heads = ["models", "difference", "p", "tasks", "tasks needed"]
    return ["## Differences", _write_table(heads, lines)] if lines else []


def write_csv(results: Results) -> str:
    """Return a line for each sample, with its scores and what it took; if it has no grade, with the reason."""
    scorers = list(dict.fromkeys([name for sample in results.samples for name in sample.details.scores]))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_BEFORE, *name_scorers(scorers, (*_BEFORE, *_AFTER)), *_AFTER])
    for sample in results.samples:
        spec, details = sample.spec, sample.details
        table.writerow(
            [
                *(sample.run_id, spec.task, spec.model, spec.epoch + 1, details.score),
                *[details.scores.get(name) for name in scorers],
                *(details.stop_reason.value, details.kind, details.steps, details.calls),
                *(sample.input_tokens, sample.output_tokens, sample.cost_usd, details.seconds),
            ]
        )
    for run_id, spec in results.failed_specs.items():
        given = run_id, spec.task, spec.model, spec.epoch + 1, *[None] * (len(scorers) + 1)
        table.writerow([*given, None, results.failed[run_id], *[None] * (len(_AFTER) - 2)])
    return text.getvalue()


def read_curves(results: Results) -> dict[str, float]:
    """Return the means of an evaluation by name, as `MODEL/score`; without the model if there is only one."""
    found: dict[str, float] = {}
    for item in results.models:
        place = f"{item.model}/" if len(results.models) > 1 else ""
        names = name_scorers(item.scorers, _FIGURES)
        estimates = {"score": item.score, "solved": item.pass_at.get(1)}
        estimates |= dict(zip(names, item.scorers.values(), strict=True))
        found |= {f"{place}{name}": made.mean for name, made in estimates.items() if made is not None}
        found |= {f"{place}tokens": item.tokens, f"{place}steps": item.steps}
    return found


def make_deepfabric_result(results: Results, model: ModelResult, journal: Journal) -> dict[str, Any]:
    """Return the samples of one model as DeepFabric's evaluator writes them. Blocks. Raises: `JournalError`.

    The metrics are those of this evaluation; 0 if it has no scorer of a name. Source: `EvaluationResult` of
    DeepFabric 4.13.
    """
    samples = [sample for sample in results.samples if sample.spec.model == model.model]
    means = {name: estimate.mean for name, estimate in model.scorers.items()}
    names = ("tool_selection_accuracy", "parameter_accuracy", "execution_success_rate", "response_quality")
    return {
        "metrics": {
            **{name: means.get(name, 0.0) for name in names},
            "overall_score": 0.0 if model.score is None else model.score.mean,
            "samples_evaluated": model.samples + model.failed,
            "samples_processed": model.samples,
            "processing_errors": model.failed,
        },
        "predictions": [
            _write_prediction(place, sample, Run.load(sample.run_id, journal))
            for place, sample in enumerate(samples)
        ],
        "config": {
            "dataset_path": _find_dataset(next((sample.spec.task for sample in samples), "")),
            "model": model.model,
            "inference_config": {"model": model.model},
        },
    }


def _find_dataset(task: str) -> str:
    """Return the file of rows that a sample is from."""
    if task.startswith(ROWS):
        return task.removeprefix(ROWS).partition("#")[0]
    return split_reference(task)[0].partition(":")[2]


def _write_prediction(place: int, sample: Sample, run: Run[Any]) -> dict[str, Any]:
    expected: Any = run.metadata.get(LABEL)
    expected = expected if isinstance(expected, dict) else {}
    scores = sample.details.scores
    wanted: dict[str, Any] = next(iter(expected.get("calls") or ()), {})
    made = next(iter(find_made_calls([event.body for event in run.events])), None)
    arguments = None if made is None else made.arguments
    asked = [item.content for item in run.messages if item.role is Role.USER and not item.is_own]
    return {
        "sample_id": place,
        "query": asked[0 if expected.get("is_conversation") else -1] if asked else "",
        "available_tools": [tool.name for tool in run.state.tools],
        "expected_tool": wanted.get("name"),
        "predicted_tool": None if made is None else made.call.name,
        "expected_parameters": wanted.get("arguments", {}),
        "predicted_parameters": arguments if isinstance(arguments, dict) else {},
        "expected_answer": expected.get("answer"),
        "predicted_answer": run.output,
        "tool_selection_correct": scores.get("tool_selection_accuracy") == 1,
        "parameters_correct": scores.get("parameter_accuracy") == 1,
        "execution_valid": scores.get("execution_success_rate") == 1,
        "response_score": scores.get("response_quality", 0.0),
        "error": None,
    }


def write_estimate(estimate: MeanEstimate | None) -> str:
    """Return a mean with its interval as text; a dash if there is none."""
    return "–" if estimate is None else str(estimate)


def _write_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join([f"| {' | '.join(line)} |" for line in cells])
