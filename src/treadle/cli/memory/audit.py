"""`treadle memory audit`: who changed which memory, and what was refused."""

from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.memory import shared as m
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_json, shorten, stdout

EXAMPLES = (
    "treadle memory audit",
    "treadle memory audit self_facts-3 --json",
)


def audit(
    place: m.Place,
    entry_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="One memory. Without it, all of them.", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="How many are listed; 0 lists all.")
    ] = 50,
    is_json: o.IsJson = False,
) -> int:
    """List the changes of memories and the refused ones, the newest first."""
    with place.opened() as memory:
        found = memory.store.audit(entry_id, limit or None)
    if is_json:
        print_json(*found)
        return ExitCode.DONE
    for item in found:
        told = [item.entry_id or item.store.value, f"by {item.author.value}"]
        told += [f"in run {item.run_id}"] if item.run_id else []
        told += [f"({shorten(item.reason, 120)})"] if item.reason else []
        stdout().print(f"{m.write_day(item.at)} {item.action:<11} {' '.join(told)}", soft_wrap=True)
    return ExitCode.DONE
