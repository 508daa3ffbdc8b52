"""`treadle topics draw`: a picture of topics."""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_bytes, print_note, write_count
from treadle.cli.topics.files import File, read, refuse_existing
from treadle.core.errors import ConfigError
from treadle.datagen.topics.draw import draw_svg
from treadle.datagen.topics.topic_files import MAX_EDGES, draw_mermaid
from treadle.datagen.topics.topic_graph import TopicGraph
from treadle.export.whole import whole_file

EXAMPLES = (
    "treadle topics draw dataset/topics.json --rows dataset -o topics.svg",
    "treadle topics draw topics.json -o topics.mmd",
)


class Picture(StrEnum):
    """A kind of picture."""

    SVG = "svg"
    MERMAID = "mermaid"


def draw(
    file: File,
    out: o.Out = None,
    rows: Annotated[
        Path | None,
        typer.Option("--rows", metavar="PATH", help="A dataset or its rows, which colour its topics."),
    ] = None,
    kind: Annotated[
        Picture | None,
        typer.Option("--as", help="The kind of picture. Default: by the name of --out, else svg."),
    ] = None,
    is_forced: o.IsForced = False,
) -> int:
    """Draw topics as an SVG picture or a Mermaid diagram.

    The SVG needs nothing from the network, and shows more about the topic under the pointer.
    """
    if kind is None:
        is_mermaid = out is not None and out.suffix.lower() in (".mmd", ".mermaid", ".md")
        kind = Picture.MERMAID if is_mermaid else Picture.SVG
    if kind is Picture.MERMAID and rows is not None:
        raise ConfigError("--rows colours an SVG; a Mermaid diagram has no colours")
    refuse_existing(out, is_forced=is_forced)
    graph = read(file)
    counts = None if rows is None else _count(rows, graph)
    text = draw_mermaid(graph) if kind is Picture.MERMAID else draw_svg(graph, counts)
    if out is not None and out.suffix.lower() == ".md":
        text = f"```mermaid\n{text}```\n"
    if kind is Picture.MERMAID and len(graph.topics) > MAX_EDGES:
        print_note(
            f"Mermaid draws only {MAX_EDGES} edges unless `maxEdges` is configured; an SVG has no limit"
        )
    if out is None:
        print_bytes(text.encode())
        return ExitCode.DONE
    with whole_file(out) as written:
        written.write(text.encode())
    print_note(f"{write_count(len(graph.topics), 'topic')} drawn to {out}")
    return ExitCode.DONE


def _count(path: Path, graph: TopicGraph) -> Counter[str]:
    """Return the number of rows of each topic. Raises: `ConfigError`, `ExportError`."""
    from treadle.datagen.dataset.entries import read_entries

    samples = [entry.row.lineage.sample for entry in read_entries(path)]
    counts = Counter([sample.topic_id for sample in samples if sample is not None])
    unknown = len(samples) - sum(count for key, count in counts.items() if key in graph.topics)
    if unknown:
        print_note(f"{write_count(unknown, 'row')} of {path} belong to none of the topics")
    return counts
