"""`treadle skills check`: all mistakes of skills."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import print_error, print_note, write_count
from treadle.knowledge.skills.catalog import Catalog

EXAMPLES = (
    "treadle skills check ./skills",
    "treadle skills check ./skills/csv-report",
)


def check(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of skills.", show_default=False)
    ],
) -> int:
    """Check skills, and print every mistake with its line."""
    found = Catalog(folders)
    for text in found.notices:
        print_error(text)
    print_note(f"{write_count(len(found.skills), 'skill')} without mistakes")
    return ExitCode.FAILED if found.notices else ExitCode.DONE
