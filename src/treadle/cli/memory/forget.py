"""`treadle memory forget`: deletes memories for good."""

from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.memory import shared as m
from treadle.cli.terminal.output import print_note
from treadle.knowledge.memory.protocol import Author

EXAMPLES = (
    "treadle memory forget self_facts-3",
    "treadle memory forget episodic-17 episodic-18 --persona ada --user kim",
)


def forget(
    entry_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="The ids of memories.", show_default=False)
    ],
    place: m.Place,
) -> int:
    """Delete memories with all their versions.

    The texts are overwritten in the file. Transcripts of runs in which they were said are kept.
    """
    with place.opened() as memory:
        for entry_id in entry_ids:
            m.find(memory, entry_id)
        for entry_id in entry_ids:
            memory.store.forget(entry_id, Author.USER, memory.clock.time())
    print_note(f"{len(entry_ids):,} forgotten")
    return ExitCode.DONE
