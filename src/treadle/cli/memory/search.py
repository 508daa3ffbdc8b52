"""`treadle memory search`: the memories that fit a text, as a turn would recall them."""

from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.memory import shared as m
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_json, print_note

EXAMPLES = (
    "treadle memory search 'what may Kim not eat?'",
    "treadle memory search 'allergies' --embeddings ollama:nomic-embed-text --limit 3",
)


def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for.", show_default=False)],
    place: m.Place,
    store: m.Stores = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many are shown.")] = 8,
    embeddings: m.Embeddings = None,
    is_json: o.IsJson = False,
) -> int:
    """Search memories and documents by their words, and by their meaning with --embeddings."""
    with place.opened(embeddings) as memory:
        found = execute(memory.search(text, stores=store or (), limit=limit))
    if found.note:
        print_note(found.note)
    if is_json:
        print_json(*found.hits)
        return ExitCode.DONE
    for hit in found.hits:
        m.print_entry(hit.entry, f" {hit.score:.4f}")
    if not found.hits:
        print_note("nothing was found")
    return ExitCode.DONE
