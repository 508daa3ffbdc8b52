"""`treadle topics prune`: a file of topics with fewer topics."""

from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_note, write_count
from treadle.cli.topics.files import File, read, refuse_existing, write
from treadle.core.errors import ConfigError
from treadle.datagen.topics.topic_graph import find_topic
from treadle.datagen.topics.topic_graph import prune as prune_graph

EXAMPLES = (
    "treadle topics prune topics.json --drop 'Sports > Cricket' -o fewer.json",
    "treadle topics prune topics.json --failed --max-depth 2 -o fewer.json",
)
_TOPIC = "An id, a text, or a path such as 'Sports > Cricket'. May be given several times."


def prune(
    file: File,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="TOPIC", help=f"Leave out a topic with all below it. {_TOPIC}"),
    ] = None,
    below: Annotated[
        list[str] | None,
        typer.Option("--below", metavar="TOPIC", help="Leave out all below a topic, which becomes a leaf."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="TOPIC", help="Keep only a topic, and what is above and below it."),
    ] = None,
    max_depth: Annotated[
        int | None, typer.Option("--max-depth", metavar="N", min=1, help="Keep only N levels below the root.")
    ] = None,
    is_failed: Annotated[
        bool, typer.Option("--failed", help="Leave out topics that could not be expanded.")
    ] = False,
    out: o.Out = None,
    is_forced: o.IsForced = False,
) -> int:
    """Write a new file of topics without some of them.

    A branch that loses all its topics is left out too, and does not become a leaf.
    """
    if not (drop or below or keep or max_depth or is_failed):
        raise ConfigError("say what to leave out, with --drop, --below, --keep, --max-depth or --failed")
    refuse_existing(out, is_forced=is_forced)
    graph = read(file)

    def ids(names: list[str] | None) -> list[str]:
        return [find_topic(graph, name).topic_id for name in names or ()]

    made = prune_graph(
        graph,
        drop=ids(drop),
        below=ids(below),
        keep=ids(keep),
        max_depth=max_depth,
        is_without_failed=is_failed,
    )
    print_note(f"{write_count(len(graph.topics) - len(made.topics), 'topic')} left out")
    write(made, out)
    return ExitCode.DONE
