"""`treadle memory list`: the memories of a persona about a user."""

import shlex
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.memory import shared as m
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_json, print_note
from treadle.knowledge.surroundings import LIBRARY

EXAMPLES = (
    "treadle memory list",
    "treadle memory list --persona ada --user kim --store self_facts --json",
)


def list_memories(
    place: m.Place,
    store: m.Stores = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="How many are listed; 0 lists all.")
    ] = 50,
    is_json: o.IsJson = False,
) -> int:
    """List memories, the newest first."""
    with place.opened() as memory:
        found = memory.store.entries(store or (), limit or None, newest_first=True)
        owners = memory.store.owners()
    if is_json:
        print_json(*found)
        return ExitCode.DONE
    for entry in found:
        m.print_entry(entry)
    if not found:
        others = [
            f"--persona {shlex.quote(who)} --user {shlex.quote(whom)}"
            for who, whom in owners
            if who != LIBRARY
        ]
        more = f"; this journal has memories of: {', '.join(others)}" if others else ""
        where = " in these stores" if store else ""
        print_note(f"{place.persona!r} has no memories about {place.user!r}{where}{more}")
    return ExitCode.DONE
