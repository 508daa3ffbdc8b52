"""The work of `treadle eval`: applies the options to the configuration, makes the evaluation, shows its tables."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.job_command import ConfigChanges, JobCommand, find_program_workers, print_job_plan
from treadle.cli.options import common as o
from treadle.cli.terminal.job_view import NewestFeed
from treadle.cli.terminal.output import (
    clean,
    print_error,
    print_json,
    print_line,
    print_note,
    shorten,
    stdout,
    write_command,
    write_count,
    write_output,
)
from treadle.cli.terminal.printed_tables import make_table, print_table
from treadle.core.errors import ConfigError
from treadle.core.texts.masking import hide_password
from treadle.core.types import Json
from treadle.evals.evaluation import (
    Evaluated,
    EvaluationProgress,
    SampleGraded,
    evaluate,
    find_samples,
    make_plan,
)
from treadle.evals.evaluation_config import READER
from treadle.evals.evaluation_reports import (
    find_gaps,
    make_evaluation_view,
    make_rows,
    make_scorer_rows,
    write_bootstraps,
)
from treadle.evals.evaluation_results import ModelPair, Results, read_results
from treadle.evals.label_agreement import measure_labels, read_labels
from treadle.evals.report_files import OF_MODELS, PAGE, WrittenReport, encode_report, write_by_model

if TYPE_CHECKING:
    from rich.text import Text

_SHOWN_KINDS = 8
"""How many of the kinds of failures are shown."""


def run(path: Path | None, changes: ConfigChanges, shown: o.ViewOptions, *, is_rescored: bool) -> int:
    """Make the evaluation, or continue it, and return the exit code."""
    if path is None and not changes.options and not changes.settings:
        raise ConfigError(
            "give a configuration, or options: treadle eval --task files:test --model oracle --epochs 4"
        )
    config = READER.load(path, changes.by_key(), changes.flags, print_note)
    progress, feed = EvaluationProgress(), NewestFeed(SampleGraded, _write_sample)
    job = JobCommand(config.name, progress, feed, changes.command("eval", path), shown)
    workers = find_program_workers(config)
    make = partial(
        evaluate, config, is_rescored=is_rescored, workers=workers, listener=job.listen, progress=progress
    )
    return job.run(
        lambda stop: make(stop=stop, make_page=_make_page), partial(_conclude, job, config.journal)
    )


def _conclude(job: JobCommand, address: str | None, result: Evaluated) -> int:
    """Print what became of the evaluation, whose journal has the `address`, and return the exit code."""
    advice = "some samples have no grade; see the reasons above"
    code = job.report(result.end, result.progress, result.folder.path, advice)
    if not job.shown.is_json:
        print_results(result.results)
    else:
        found = result.results
        told = {"models": found.models, "pairs": found.pairs, "failed": len(found.failed)}
        print_json({"event": "results", **told})
    code = _tell_reports(result.reports) or code
    if job.says_more:
        folder = str(result.folder.path)
        print_note(f"journal: {hide_password(address or str(result.folder.journal))}")
        print_note(f"look at the samples: {write_command('view', folder)}")
    return code


def _make_page(path: Path, other: Path | None = None, *, journal: str | None = None) -> bytes:
    from treadle.viewer import make_page  # it loads what no other report needs

    return make_page(path, other, journal=journal)


def print_dry_run(path: Path | None, changes: ConfigChanges, *, is_json: bool) -> int:
    """Check a configuration, print the plan, and return the exit code. No model is asked. Raises: `ConfigError`."""
    config = READER.load(path, changes.by_key(), changes.flags, print_note)
    find_program_workers(config)
    tasks, answers = find_samples(config)
    facts: dict[str, Json] = {"answers": len(answers)} if config.rows else {}
    facts |= {
        "models": list(config.model_names()),
        "epochs": config.epochs,
        "samples": make_plan(config, [*tasks, *answers]).wanted,
        "scorers": [spec.name for spec in config.scorers()],
    }
    return print_job_plan(config, tasks, facts, is_json=is_json)


def _tell_reports(reports: Iterable[WrittenReport]) -> ExitCode:
    """Tell which reports were written, and return the exit code."""
    code = ExitCode.DONE
    for report in reports:
        for place in report.places:
            print_note(f"report written: {place}")
        if report.error is not None:
            print_error(f"cannot write the report {report.given!r}: {report.error}")
            code = ExitCode.FAILED
    return code


def _write_sample(sample: SampleGraded) -> "Text":
    from rich.text import Text

    score = "-" if sample.score is None else f"{sample.score:.2f}"
    style = "yellow" if sample.score is None else "green" if sample.score >= 1 else "red"
    line = Text("  ").append(f"{score:5}", style=style).append(clean(f"{sample.task}  "), style="cyan")
    return line.append(clean(sample.model), style="dim")


def print_results(results: Results) -> None:
    """Print the tables of an evaluation."""
    heads, rows = make_rows(results)
    table = make_table(*heads, numbers=("samples", "steps", "tokens", "cost in USD", "seconds"))
    for row in rows:
        table.add_row(*map(clean, row))
    print_line("")
    print_table(table)
    for line in write_bootstraps(results):
        print_line(line, "dim")
    for line in find_gaps(results):
        print_line(line, "yellow")
    if scored := make_scorer_rows(results):
        scorers = make_table("scorer", *[clean(item.model) for item in results.models])
        for row in scored:
            scorers.add_row(*map(clean, row))
        print_table(scorers)
    print_pairs(results.pairs)
    for kind in results.failures[:_SHOWN_KINDS]:
        told = ", ".join([f"{model} {count:,}" for model, count in kind.models.items()])
        line = f"{kind.count:5,}  {shorten(kind.kind, 100)}  ({told}; such as {kind.run_ids[0]})"
        print_line(line, "dim")
    if results.failed:
        run_id, reason = next(iter(results.failed.items()))
        print_note(
            f"{write_count(len(results.failed), 'sample')} without a grade, such as {run_id}: {reason}"
        )


def print_pairs(pairs: list[ModelPair]) -> None:
    """Print the differences between models."""
    for pair in pairs:
        found = pair.difference
        verdict = "differs" if found.is_significant else "no difference is shown"
        need = ""
        if not found.is_significant and found.needed_tasks is not None:
            need = f"; about {found.needed_tasks:,} tasks would show this one"
        print_line(
            f"{pair.one} - {pair.other}: {found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}], "
            f"p = {found.p_value:.3g} over {write_count(found.tasks, 'task')}: {verdict}{need}"
        )


def print_agreement(folder: Path, labels: Path, *, is_json: bool) -> None:
    """Print how far the scorers of an evaluation agree with labels. Raises: `ConfigError`."""
    found = measure_labels(read_results(folder), read_labels(labels))
    if is_json:
        print_json(found)
        return
    table = make_table("scorer", "labels", "agreement", "kappa", numbers=("labels", "kappa"))
    for name, agreement in found.items():
        kappa = "–" if agreement.kappa is None else f"{agreement.kappa:.3f}"
        table.add_row(clean(name), f"{agreement.share.samples:,}", str(agreement.share), kappa)
    print_table(table)


def write_report(
    folder: Path, other: Path | None, format: str, out: Path | None, journal: str | None
) -> list[Path]:
    """Write the report of one evaluation or of two compared ones, and return the files. Raises: `ConfigError`."""
    written = [] if out is None or format == "table" else [out]
    if format == PAGE:
        write_output(_make_page(folder, other, journal=journal), out)
        return written
    if other is not None and format in (*OF_MODELS, "csv"):
        raise ConfigError(f"the format {format!r} is of one evaluation; leave out {str(other)!r}")
    results = read_results(folder)
    if format in OF_MODELS:
        if out is None:
            raise ConfigError(
                f"--format {format} writes a file for each model; name one with --out, such as log.json"
            )
        return write_by_model(folder, results, out, journal, format)
    view = make_evaluation_view(results, *([] if other is None else [read_results(other)]))
    if format == "table":
        for found in view.evaluations:
            if other is not None:
                stdout().print(f"\n{clean(found.name)} in {clean(str(found.path))}", style="bold", end="")
            print_results(found)
            done = len(found.samples) + len(found.failed)
            if done < found.planned:
                print_line(f"unfinished: {done:,} of {write_count(found.planned, 'sample')}", "yellow")
        print_pairs(view.pairs)
        for remark in view.remarks:
            print_note(remark)
    else:
        write_output(encode_report(view, format), out)
    return written
