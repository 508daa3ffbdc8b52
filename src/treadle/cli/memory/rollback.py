"""`treadle memory rollback`: makes an older version of a memory the newest one."""

from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.memory import shared as m
from treadle.knowledge.memory.protocol import Draft

EXAMPLES = (
    "treadle memory rollback self_facts-3 1",
    "treadle memory rollback self_facts-3 1 --reason 'a misunderstanding'",
)


def rollback(
    entry_id: m.Id,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", help="The version to return to.", show_default=False)
    ],
    place: m.Place,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why it is right.")] = None,
) -> int:
    """Write the text of an older version as a new version, as the user."""
    with place.opened() as memory:
        draft = Draft(store=m.find(memory, entry_id).store, text="", reason=reason)
        m.print_entry(memory.store.rollback(entry_id, version, draft, memory.clock.time()))
    return ExitCode.DONE
