"""`treadle memory embed`: makes the embeddings that are missing."""

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.memory import shared as m
from treadle.cli.terminal.output import print_note

if TYPE_CHECKING:
    from treadle.knowledge.memory import Memory

EXAMPLES = (
    "treadle memory embed --embeddings ollama:nomic-embed-text",
    "treadle memory embed --embeddings openai:text-embedding-3-small --again",
)


def embed(
    embeddings: Annotated[
        str,
        typer.Option(
            "--embeddings", metavar="MODEL", help="The model: provider:name, or a name of treadle.toml."
        ),
    ],
    place: m.Place,
    is_again: Annotated[
        bool, typer.Option("--again", help="Delete the embeddings of this model first, in the whole journal.")
    ] = False,
) -> int:
    """Make the embeddings of all memories and documents that have none."""
    with place.opened(embeddings) as memory:
        if is_again and memory.embedder is not None:
            memory.store.drop_vectors(memory.embedder.name)
        print_note(f"{execute(_embed(memory)):,} embeddings made")
    return ExitCode.DONE


async def _embed(memory: "Memory") -> int:
    from treadle.knowledge.memory import BATCH

    made = 0
    while count := await memory.embed_missing(8 * BATCH):
        made += count
    return made
