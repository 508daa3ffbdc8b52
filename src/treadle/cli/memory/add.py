"""`treadle memory add`: a new memory, or a new version of one."""

from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.memory import shared as m
from treadle.cli.terminal.output import print_note
from treadle.knowledge.memory.protocol import Draft, Epistemic, Outcome, Store

EXAMPLES = (
    "treadle memory add 'Kim is allergic to nuts.'",
    "treadle memory add 'Trains are never late.' --store worldview --epistemic contested",
)


def add(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to remember.", show_default=False)],
    place: m.Place,
    store: Annotated[Store, typer.Option("--store", help="The kind of the memory.")] = Store.SELF_FACTS,
    epistemic: Annotated[
        Epistemic | None, typer.Option("--epistemic", help="How sure it is; only for --store worldview.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why it is worth remembering.")
    ] = None,
    replaces: Annotated[
        str | None,
        typer.Option("--replaces", metavar="ID", help="The memory of which this is a new version."),
    ] = None,
) -> int:
    """Write a memory, as the user."""
    draft = Draft(store=store, text=text, epistemic=epistemic, reason=reason)
    with place.opened(is_made=True) as memory:
        written = execute(memory.write(draft, replaces=replaces))
    assert written.entry is not None
    if written.outcome is Outcome.MERGED:
        print_note("a memory says the same already; it is stronger now")
    m.print_entry(written.entry)
    return ExitCode.DONE
