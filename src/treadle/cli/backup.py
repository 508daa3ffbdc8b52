"""`treadle backup`: a copy of a journal that is consistent while runs are being driven."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.jobs.journals import open_existing
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_note, write_command, write_count

EXAMPLES = (
    "treadle backup runs-backup.db",
    "treadle backup /mnt/backups/runs.db --journal .treadle/runs.db",
)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write. It must not exist.")],
    journal: o.Journal = None,
) -> int:
    """Copy a journal to a new file, also while it is in use.

    The copy has everything that was stored when the command began. It holds no leases, so its runs can be resumed.
    """
    with closing(open_existing(journal)) as opened:
        runs = opened.backup(file)
    print_note(f"{write_count(runs, 'run')} ({file.stat().st_size:,} bytes) written to {str(file)!r}")
    print_note(f"list them with: {write_command('runs', journal=str(file))}")
    return 0
