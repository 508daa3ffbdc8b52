"""`treadle eval` and `treadle eval report`: how well models do tasks."""

from pathlib import Path
from typing import Literal, TypeAlias

from treadle.cli.options import common as o
from treadle.cli.options.option_groups import OptionGroup
from treadle.core.errors import ConfigError


class EvalOptions(OptionGroup, frozen=True, kw_only=True):
    """The options that override keys of the configuration. Each field has the name of its key."""

    tasks: list[str] | None = None
    rows: list[str] | None = None
    models: list[str] | None = None
    base_url: str | None = None
    epochs: int | None = None
    max_tasks: int | None = None
    rewards: list[str] | None = None
    reports: list[str] | None = None
    seed: int | None = None
    window: int | None = None
    workers: str | None = None
    name: str | None = None
    path: Path | None = None
    journal: str | None = None


ReportFormat: TypeAlias = Literal["table", "markdown", "json", "html", "inspect", "csv", "deepfabric"]


def evaluate(
    config: Path | None = None,
    *,
    options: EvalOptions,
    settings: list[str] | None = None,
    is_rescored: bool = False,
    is_dry: bool = False,
    shown: o.ViewOptions,
) -> int:
    """Evaluate models on tasks or on rows of a dataset, and say how sure the scores are.

    The same command continues what was interrupted. The first Ctrl-C finishes the samples in flight, the second
    stops at once.

    Examples:
        treadle eval --task files:test --model oracle --model mock:mediocre --epochs 4
        treadle eval --rows dataset/rows.jsonl --model hf:checkpoints/final --report csv=samples.csv
    """
    # The modules of the work are not needed for the help.
    from treadle.cli.jobs import evaluating
    from treadle.cli.jobs.job_command import read_changes

    if options.base_url is not None and not options.models:
        raise ConfigError(
            "--base-url is the address of the models of --model; give one, or write it into CONFIG"
        )
    changes = read_changes(options.given_values, settings or ())
    if is_dry and is_rescored:
        raise ConfigError("--dry-run plans samples, and --rescore makes none; leave one of them out")
    if is_dry:
        return evaluating.print_dry_run(config, changes, is_json=shown.is_json)
    return evaluating.run(config, changes, shown, is_rescored=is_rescored)


def report(
    folder: Path = Path("evaluation"),
    other: Path | None = None,
    format: ReportFormat = "table",
    out: Path | None = None,
    journal: str | None = None,
    labels: Path | None = None,
) -> None:
    """Report on an evaluation, or compare two: in a terminal, as a page, or as a file of another format.

    Examples:
        treadle eval report before after
        treadle eval report evaluation --format html --out report.html
    """
    from treadle.cli.jobs import evaluating
    from treadle.cli.terminal.output import print_line

    if labels is not None:
        if other is not None or out is not None or format not in ("table", "json"):
            raise ConfigError("--labels is about one evaluation; give only --format table or json beside it")
        evaluating.print_agreement(folder, labels, is_json=format == "json")
        return
    for path in evaluating.write_report(folder, other, format, out, journal):
        print_line(str(path))
