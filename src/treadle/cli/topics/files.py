"""What the commands for topics share: their arguments, and the reading and writing of files."""

import os
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from treadle.cli.terminal.output import print_bytes, print_note, write_count
from treadle.core.errors import ConfigError
from treadle.datagen.topics.topic_files import (
    TopicFormat,
    encode_topics,
    parse_topics,
    read_topics,
    save_topics,
)
from treadle.datagen.topics.topic_graph import TopicGraph

File: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A file of topics: Treadle's, or a tree or graph of DeepFabric; - is standard input.",
        show_default=False,
    ),
]
Format: TypeAlias = Annotated[
    TopicFormat,
    typer.Option("--format", metavar="FORMAT", help="treadle, deepfabric-tree or deepfabric-graph."),
]


def read(file: str) -> TopicGraph:
    """Return the topics of a file, and print what was changed when it was read. Raises: `ConfigError`."""
    found = parse_topics(sys.stdin.buffer.read(), "standard input") if file == "-" else read_topics(file)
    for note in found.notes:
        print_note(note)
    return found.graph


def refuse_existing(out: Path | None, *, is_forced: bool) -> None:
    """Raise an error if `out` cannot be written. Raises: `ConfigError`."""
    if out is None:
        return
    if not is_forced and os.path.lexists(out):
        raise ConfigError(f"{str(out)!r} exists; --force replaces it")
    if out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder; name a file in it")


def write(graph: TopicGraph, out: Path | None, format: TopicFormat = TopicFormat.TREADLE) -> None:
    """Write topics to a file or to standard output, and print what the format cannot hold."""
    if out is None:
        data, losses = encode_topics(graph, format)
        print_bytes(data)
    else:
        losses = save_topics(graph, out, format)
        print_note(f"{describe(graph)} written to {out}")
    if losses:
        print_note(f"the format {format} cannot hold: {', '.join(losses)}")


def describe(graph: TopicGraph) -> str:
    """Return the counts of a graph in words."""
    failed, links = len(list(graph.failed())), graph.count_links()
    parts = [
        write_count(len(graph.topics), "topic"),
        f"{len(list(graph.leaves())):,} of them leaves",
        *([write_count(links, "cross-link")] if links else []),
        *([f"{failed:,} failed"] if failed else []),
    ]
    return ", ".join(parts)
