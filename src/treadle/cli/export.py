"""`treadle export`: runs as rows for training, or as a journal in JSON lines."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle export --all --format trl -o rows.jsonl",
    "treadle export last --format journal | gzip > run.jsonl.gz",
)


def export(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Run ids, their beginnings, or 'last'.", show_default=False),
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="All runs; for training rows, all that are finished.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", "-f", metavar="NAME", help="openai, trl, or journal.")
    ] = "openai",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Standard output unless given."),
    ] = None,
    journal: o.Journal = None,
) -> None:
    """Write runs as JSON lines, in a format for training or as a journal that treadle import reads."""
    from contextlib import closing

    from treadle.cli.export_runs import export_runs
    from treadle.cli.terminal.setup import find_runs, open_existing

    with closing(open_existing(journal)) as opened:
        export_runs(opened, find_runs(opened, runs, is_all=is_all), format_, out, is_all=is_all)
