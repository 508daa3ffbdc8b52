"""`treadle import`: takes the runs of an exported journal into a journal."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import import_file, open_or_make
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import clean, print_lines, print_note, write_count

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

    The runs keep their ids, which are printed. If an import is interrupted, start it again.
    """
    with closing(open_or_make(journal, level)) as opened:
        found = import_file(opened, file)
    print_lines([clean(run_id).encode() for run_id in (*found.added, *found.known)])
    if found.known:
        verb = "is" if len(found.known) == 1 else "are"
        print_note(f"{write_count(len(found.known), 'run')} of the file {verb} in the journal already")
    if found.added:
        print_note("these runs are not trusted: pass --trust to let a command start or send what they name")
    return ExitCode.DONE
