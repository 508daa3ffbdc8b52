"""`treadle import`: runs from an exported journal."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle import runs.jsonl",
    "zcat runs.jsonl.gz | treadle import -",
)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines; - is standard input.")],
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
) -> None:
    """Take the runs of an exported journal into this one, and print their ids."""
    from contextlib import closing

    from treadle.cli.import_runs import import_file, warn_of_options
    from treadle.cli.terminal.output import print_lines
    from treadle.cli.terminal.setup import open_or_make

    with closing(open_or_make(journal, level)) as opened:
        run_ids = import_file(opened, file)
        print_lines([run_id.encode() for run_id in run_ids])
        warn_of_options(opened, run_ids)
