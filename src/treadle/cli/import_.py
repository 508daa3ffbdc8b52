"""`treadle import`: takes the runs of an exported journal into a journal."""

from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer

from treadle.agent.run import Run
from treadle.cli.options import shared as o
from treadle.cli.terminal.files import import_file
from treadle.cli.terminal.journals import open_or_make
from treadle.cli.terminal.output import print_lines, print_note
from treadle.journal.protocol import Journal

EXAMPLES = (
    "treadle import runs.jsonl",
    "zcat runs.jsonl.gz | treadle import -",
)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines of JSON; - is standard input.")],
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
) -> int:
    """Import the runs of an exported journal.

    Prints the ids of the runs, which they keep.
    """
    with closing(open_or_make(journal, level)) as opened:
        run_ids = import_file(opened, file)
        print_lines([run_id.encode() for run_id in run_ids])
        _warn(opened, run_ids)
    return 0


def _warn(journal: Journal, run_ids: Sequence[str]) -> None:
    """Print the servers and tools that the runs name, because resuming a run uses them."""
    from treadle.tools.resolve import TOOLSETS

    named: set[str] = set()
    for run_id in run_ids:
        spec = Run.load(run_id, journal).spec
        url = (spec.model.settings or {}).get("base_url")
        named.update(
            name for name in (url, *[part.name for part in spec.tools]) if name and name not in TOOLSETS
        )
    if named:
        print_note(
            f"these runs name {', '.join(sorted(named))}; check that before you resume them, or resume them with "
            "your own --base-url and --tools"
        )
