"""`treadle runs`: what is in a journal."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle runs",
    "treadle runs --status unfinished --json",
)


def runs(
    journal: o.Journal = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS",
            help="finished, running, unfinished, waiting, open, or a stop reason such as completed or max_steps.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="The newest N; 0 is all.")] = 20,
    is_json: o.IsJson = False,
) -> None:
    """List the runs of a journal, the newest first."""
    from contextlib import closing

    from treadle.cli.runs_table import print_runs
    from treadle.cli.terminal.setup import open_existing

    with closing(open_existing(journal)) as opened:
        print_runs(opened, status, limit or None, is_json=is_json)
