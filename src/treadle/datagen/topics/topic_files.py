"""Files of topics: Treadle's own, and those of DeepFabric, which are read and written too."""

import re
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import decode_or
from treadle.core.types import Json
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.topics import deepfabric_topics as deepfabric
from treadle.datagen.topics.topic_graph import Topic, TopicGraph, topic_id
from treadle.export.whole import whole_file
from treadle.journal.named_files import read_named

VERSION = 1


class TopicFormat(StrEnum):
    """A format of files of topics."""

    TREADLE = "treadle"
    DEEPFABRIC_TREE = "deepfabric-tree"
    """Lines of JSON, one for the path of each leaf, as DeepFabric saves trees."""
    DEEPFABRIC_GRAPH = "deepfabric-graph"
    """A JSON document, as DeepFabric saves graphs."""


class TopicFile(Struct, frozen=True):
    """The content of a file of topics."""

    graph: TopicGraph
    format: TopicFormat
    notes: tuple[str, ...] = ()
    """What was changed or left out when the file was read, in words."""


class _Document(TopicGraph, kw_only=True, omit_defaults=True):
    treadle_topics: int


def read_topics(path: Path | str) -> TopicFile:
    """Return the content of a file in any of the formats, or of the one in the folder of a dataset.

    Raises: `ConfigError` if the file cannot be read or is damaged, with the line.
    """
    if Path(path).is_dir():
        path = DatasetFolder(Path(path)).topics
    return parse_topics(read_named("the topics of ", path), str(path))


def parse_topics(data: bytes, origin: str) -> TopicFile:
    """Return the content of a file. `origin` is its name for errors. Raises: `ConfigError`."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise ConfigError(f"{origin} is empty; it has no topics")
    if _is_lines(data):
        graph, notes = deepfabric.parse_tree(data, origin)
        return TopicFile(graph, TopicFormat.DEEPFABRIC_TREE, notes)
    document = deepfabric.decode(data, origin)
    if isinstance(document, dict) and "nodes" in document:
        graph, notes = deepfabric.parse_graph(document, data, origin)
        return TopicFile(graph, TopicFormat.DEEPFABRIC_GRAPH, notes)
    if not isinstance(document, dict) or "treadle_topics" not in document:
        raise ConfigError(
            f"{origin} is not a file of topics: it is {msgspec.json.encode(document).decode():.80}, and has "
            "neither 'treadle_topics' nor 'nodes', nor lines with 'path'"
        )
    return TopicFile(_read_own(document, data, origin), TopicFormat.TREADLE)


def _is_lines(data: bytes) -> bool:
    """Return whether a file has lines with paths, which is so if its first line is a whole object."""
    first = decode_or(data.lstrip().partition(b"\n")[0])
    return isinstance(first, dict) and bool(first.keys() & {"path", "failed_generation"})


def _read_own(document: dict[str, Json], data: bytes, origin: str) -> TopicGraph:
    """Return the graph of a document in Treadle's format. Raises: `ConfigError`."""
    version = document["treadle_topics"]
    if version != VERSION:
        raise ConfigError(
            f"{origin} has version {version!r} of the format, and this version of Treadle reads {VERSION}; update "
            "Treadle"
        )
    topics = document.get("topics")
    found: dict[str, Topic] = {}
    for key, topic in topics.items() if isinstance(topics, dict) else ():
        try:
            found[key] = msgspec.convert(topic, Topic)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{origin}:{deepfabric.line_of(data, key)}: topic {key!r:.40}: {error}"
            ) from error
    try:
        graph = msgspec.convert({**document, "topics": {}}, _Document)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {error}") from error
    graph.topics = found
    for key, fault in _find_faults(graph):
        raise ConfigError(f"{origin}:{deepfabric.line_of(data, key)}: topic {key!r:.40} {fault}")
    return TopicGraph(root_id=graph.root_id, topics=found, mode=graph.mode, origin=graph.origin)


def _find_faults(graph: TopicGraph) -> Iterator[tuple[str, str]]:
    """Yield the contradictions in a graph, each as the id of a topic and the rest of a sentence."""
    if graph.root_id not in graph.topics:
        yield graph.root_id, "is the root, and is missing"
        return
    for key, topic in graph.topics.items():
        if not topic.path or topic.text != topic.path[-1] or {key, topic.topic_id} != {topic_id(topic.path)}:
            yield key, "does not fit its path: the id is a hash of the path, whose end is the text"
        for other in (*topic.parents, *topic.children):
            if other not in graph.topics:
                yield key, f"names {other!r:.40}, which is missing"
                return
        if (key == graph.root_id) is bool(topic.parents):
            yield key, "has no parent" if not topic.parents else "is the root and has a parent"
    for key, topic in graph.topics.items():
        if any(graph.topics[child].parents[:1] != [key] for child in topic.children):
            yield key, "has a child that was made for another topic"
    made = {child for topic in graph.topics.values() for child in topic.children}
    for key in graph.topics.keys() - made - {graph.root_id}:
        yield key, "is not among the children of its first parent"
    try:
        TopologicalSorter({key: topic.parents for key, topic in graph.topics.items()}).prepare()
    except CycleError as error:
        yield error.args[1][0], "closes a cycle"


def load_topics(path: Path | str) -> TopicGraph:
    """Return the graph of a file in any of the formats. Raises: `ConfigError`."""
    return read_topics(path).graph


def encode_topics(
    graph: TopicGraph, format: TopicFormat = TopicFormat.TREADLE
) -> tuple[bytes, tuple[str, ...]]:
    """Return the content of a file, and the data that the format cannot hold, in words."""
    if format is TopicFormat.DEEPFABRIC_TREE:
        return deepfabric.write_tree(graph)
    if format is TopicFormat.DEEPFABRIC_GRAPH:
        return deepfabric.write_graph(graph)
    data = msgspec.json.encode({"treadle_topics": VERSION, **msgspec.to_builtins(graph)})
    return msgspec.json.format(data, indent=1) + b"\n", ()


def save_topics(
    graph: TopicGraph, path: Path | str, format: TopicFormat = TopicFormat.TREADLE
) -> tuple[str, ...]:
    """Write a file, which is replaced only when the new one is complete. Return the data that the format cannot
    hold.

    Raises: `ConfigError` or `ExportError` if the file cannot be written.
    """
    data, losses = encode_topics(graph, format)
    with whole_file(Path(path)) as file:
        file.write(data)
    return losses


_SPECIAL = re.compile(r"[^\w ,.\-+/?!…–—]")
_WIDTH = 30


def draw_mermaid(graph: TopicGraph) -> str:
    """Return a flowchart of topics. Cross-links are dotted, and failed topics have a dashed outline."""
    names = {topic.topic_id: f"t{number}" for number, topic in enumerate(graph.walk())}
    lines = ["flowchart LR"]
    for topic in graph.walk():
        kind = ":::failed" if topic.error is not None else ""
        lines.append(f'    {names[topic.topic_id]}["{_label(topic)}"]{kind}')
    for topic in graph.walk():
        for position, parent in enumerate(topic.parents):
            arrow = "-.->" if position else "-->"
            lines.append(f"    {names[parent]} {arrow} {names[topic.topic_id]}")
    if any(graph.failed()):
        lines.append("    classDef failed stroke:#c33,stroke-dasharray:4")
    return "\n".join(lines) + "\n"


def _label(topic: Topic) -> str:
    """Return the text of a node, in lines, with every special character as an entity."""
    lines = textwrap.wrap(topic.text, _WIDTH) or [topic.text]
    return "<br/>".join(_SPECIAL.sub(lambda found: f"#{ord(found[0])};", line) for line in lines)
