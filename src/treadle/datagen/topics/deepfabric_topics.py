"""DeepFabric's files of topics: trees as lines of JSON, and graphs as one JSON document.

Source: DeepFabric 4.4.0, `tree.py` and `graph.py`; 4.13 for the metadata of nodes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json
from treadle.datagen.topics.topic_graph import Topic, TopicGraph, clean_topic, topic_id

_PLACEHOLDER = re.compile(r"subtopic_\d+_for_(.*)", re.DOTALL)
"""What DeepFabric 4.4 wrote in place of the topics that its model did not give."""
_OWN = "treadle"
"""The key of a node's metadata that holds data for which DeepFabric has no field."""


class Notes:
    """Counted remarks about a file, each with the place of its first case."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, str]] = {}

    def add(self, text: str, where: str = "") -> None:
        """Count a case of `text`."""
        count, first = self._counts.get(text, (0, where))
        self._counts[text] = (count + 1, first)

    def written(self) -> tuple[str, ...]:
        """Return the remarks as sentences."""
        return tuple(
            f"{text}: {count:,}{f', first at {first}' if first else ''}"
            for text, (count, first) in self._counts.items()
        )


def decode(data: bytes, origin: str) -> Json:
    """Return a JSON value. Raises: `ConfigError` with the line of the mistake."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place = re.search(r"\(byte (\d+)\)", str(error))
        line = data.count(b"\n", 0, int(place[1])) + 1 if place else data.count(b"\n") + 1
        raise ConfigError(f"{origin}:{line} is not valid JSON: {error}") from error
    except RecursionError:
        raise ConfigError(f"{origin} is nested too deeply") from None


class _Tree:
    """Topics by their paths."""

    def __init__(self, root: str) -> None:
        self.root = self._make((root,), None)
        self.topics = {self.root.topic_id: self.root}

    def add(self, path: tuple[str, ...]) -> Topic:
        """Return the topic at `path`, from the root on; make it and those above it if they do not exist."""
        found = self.topics.get(topic_id(path))
        if found is not None:
            return found
        parent = self.add(path[:-1])
        made = self._make(path, parent)
        parent.children.append(made.topic_id)
        self.topics[made.topic_id] = made
        return made

    def _make(self, path: tuple[str, ...], parent: Topic | None) -> Topic:
        parents = [] if parent is None else [parent.topic_id]
        return Topic(topic_id=topic_id(path), text=path[-1], path=path, parents=parents)


def parse_tree(data: bytes, origin: str) -> tuple[TopicGraph, tuple[str, ...]]:
    """Return the topics of lines with the path of a leaf, and notes about what was changed or left out.

    Raises: `ConfigError` with the line that is damaged.
    """
    notes, failures = Notes(), list[tuple[Topic, dict[str, Json]]]()
    leaves, made_up = set[str](), set[str]()
    tree: _Tree | None = None
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{origin}:{number}"
        path, failed = _read_path(line, where, notes)
        tree = tree or _Tree(path[0])
        if path[0] != tree.root.text:
            raise ConfigError(
                f"{where}: the path begins with {path[0]!r:.80}, and the first one with {tree.root.text!r:.80}; a "
                "file of topics has one root"
            )
        place = _find_placeholder(path)
        if place is not None:
            parent, key = tree.add(path[:place]), topic_id(path[: place + 1])
            parent.missing += key not in made_up
            made_up.add(key)
            notes.add("left out, paths with topics that DeepFabric made up when its model failed", where)
            continue
        topic = tree.add(path)
        if failed is not None:
            failures.append((topic, failed))
        elif topic.topic_id in leaves:
            notes.add("left out, repeated paths", where)
        else:
            leaves.add(topic.topic_id)
    if tree is None:
        raise ConfigError(f"{origin} has no paths")
    _mark_failures(tree, failures)
    for topic in tree.topics.values():
        if topic.topic_id in leaves and topic.children:
            notes.add(
                "paths of leaves that other paths continue, so that their topics are not leaves",
                f"{topic.text!r:.80}",
            )
    return TopicGraph(root_id=tree.root.topic_id, topics=tree.topics), notes.written()


def _read_path(line: bytes, where: str, notes: Notes) -> tuple[tuple[str, ...], dict[str, Json] | None]:
    """Return the path in a line, and the failure that the line reports; `None` if the path is that of a leaf."""
    try:
        entry = msgspec.json.decode(line)
    except UNREADABLE as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is {entry!r:.80}; a line is an object with 'path' or 'failed_generation'")
    failed = entry.get("failed_generation")
    key, inner = ("path", "path") if failed is None else ("failed_generation", "node_path")
    given = (entry if failed is None else failed).get(inner) if isinstance(failed, dict | None) else None
    if not isinstance(given, list) or not given or not all(isinstance(item, str) for item in given):
        name = key if failed is None else f"{key}.{inner}"
        raise ConfigError(f"{where}: {name!r} is {given!r:.80}; it must be a list of texts, from the root on")
    path = tuple(clean_topic(item) for item in given)
    if not all(path):
        raise ConfigError(f"{where}: the path {given!r:.80} has an empty topic")
    if list(path) != given:
        notes.add("paths from which control characters or blanks were removed", where)
    for name in entry.keys() - {key}:
        notes.add(f"left out, the key {name!r:.40} of lines", where)
    return path, failed


def _find_placeholder(path: tuple[str, ...]) -> int | None:
    """Return the position of the first topic that DeepFabric made up; `None` if there is none."""
    for index in range(1, len(path)):
        found = _PLACEHOLDER.fullmatch(path[index])
        if found is not None and found[1] == path[index - 1]:
            return index
    return None


def _mark_failures(tree: _Tree, failures: Iterable[tuple[Topic, dict[str, Json]]]) -> None:
    """Set the errors of the topics that could not be expanded."""
    for topic in tree.topics.values():
        if topic.missing and not topic.children:
            topic.error = "DeepFabric's model failed"
    for topic, failed in failures:
        rest = {key: value for key, value in failed.items() if key not in ("node_path", "error")}
        if rest:
            topic.metadata["failed_generation"] = rest
        if not topic.children:
            topic.error = str(failed.get("error") or "DeepFabric's model failed")


def write_tree(graph: TopicGraph) -> tuple[bytes, tuple[str, ...]]:
    """Return the lines of a tree, and the data that this format cannot hold."""
    lines: list[dict[str, Json]] = []
    lost = missing = 0
    for topic in graph.walk():
        known = topic.metadata.get("failed_generation") if topic.error is not None else None
        lost += len(topic.metadata) - (known is not None)
        missing += bool(topic.missing and topic.error is None)
        if topic.error is not None:
            rest: dict[str, Any] = known or {}
            lines.append({"failed_generation": {"node_path": topic.path, "error": topic.error, **rest}})
        elif not topic.children:
            lines.append({"path": topic.path})
    links = graph.count_links()
    losses = [
        *([f"cross-links ({links:,})"] if links else []),
        *([f"entries of metadata ({lost:,})"] if lost else []),
        *([f"numbers of missing subtopics ({missing:,})"] if missing else []),
        *(["how the topics were built"] if graph.origin is not None else []),
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines), tuple(losses)


def parse_graph(document: dict[str, Json], data: bytes, origin: str) -> tuple[TopicGraph, tuple[str, ...]]:
    """Return the topics of a graph document, and notes about what was changed or left out. `data` is its text.

    The first parent of a node is the topic that it was made for; other edges become cross-links. Edges that would
    close a cycle are left out.

    Raises: `ConfigError` with the line of the node that is damaged.
    """
    notes = Notes()
    nodes = _read_nodes(document, data, origin, notes)
    root = str(document.get("root_id", 0))
    if root not in nodes:
        raise ConfigError(f"{origin}: 'root_id' is {document.get('root_id')!r}, and there is no such node")
    parents = _join_edges(nodes, notes)
    below = _attach(nodes, parents, root)
    tree = _Tree(nodes[root].topic)
    kept = {root: tree.root}
    stack = [root]
    while stack:
        key = stack.pop()
        for child in below[key]:
            path = (*kept[key].path, nodes[child].topic)
            if topic_id(path) in tree.topics:
                notes.add("merged, nodes with the same topic and parent")
            kept[child] = tree.add(path)
        stack.extend(reversed(below[key]))
    graph = TopicGraph(root_id=tree.root.topic_id, topics=tree.topics, mode="graph")
    for key, topic in kept.items():
        metadata = dict(nodes[key].metadata or {})
        own = metadata.pop(_OWN, None)
        if isinstance(own, dict):
            topic.error, topic.missing = own.get("error"), own.get("missing", 0)
        topic.metadata.update(metadata)
        for parent_id in [kept[parent].topic_id for parent in parents[key] if parent in kept]:
            if parent_id not in topic.parents and not graph.link(parent_id, topic.topic_id):
                notes.add("left out, edges that close a cycle")
    for _ in range(len(nodes) - len(kept)):
        notes.add("left out, nodes that the root does not lead to")
    return graph, notes.written()


class _GraphNode(Struct):
    topic: str
    children: list[int | str] = []
    parents: list[int | str] = []
    metadata: dict[str, Json] | None = None


_NODE_KEYS = {"id", *_GraphNode.__struct_fields__}


def _read_nodes(document: dict[str, Json], data: bytes, origin: str, notes: Notes) -> dict[str, _GraphNode]:
    """Return the nodes by id, with clean topics. Raises: `ConfigError` with the line of the first damaged node."""
    for key in document.keys() - {"nodes", "root_id"}:
        notes.add(f"left out, the key {key!r:.40} of the document")
    raw = document["nodes"]
    if not isinstance(raw, dict) or not raw:
        raise ConfigError(f"{origin}: 'nodes' is {raw!r:.80}; it must be an object of nodes by id")
    nodes: dict[str, _GraphNode] = {}
    for key, item in raw.items():
        where = f"{origin}:{line_of(data, key)}"
        try:
            node = nodes[key] = msgspec.convert(item, _GraphNode)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: node {key!r:.40}: {error}") from error
        if (text := clean_topic(node.topic)) != node.topic:
            notes.add("topics from which control characters or blanks were removed", where)
            node.topic = text
        if not text:
            raise ConfigError(f"{where}: the topic of node {key!r:.40} is empty")
        for name in item.keys() - _NODE_KEYS:
            notes.add(f"left out, the key {name!r:.40} of nodes", where)
    return nodes


def _join_edges(nodes: Mapping[str, _GraphNode], notes: Notes) -> dict[str, list[str]]:
    """Return the parents of each node, whichever end lists the edge, without those that do not exist."""
    edges = [(str(parent), key) for key, node in nodes.items() for parent in node.parents]
    edges += [(key, str(child)) for key, node in nodes.items() for child in node.children]
    parents: dict[str, list[str]] = {key: [] for key in nodes}
    for parent, child in dict.fromkeys(edges):
        if parent not in nodes or child not in nodes:
            notes.add("left out, edges to nodes that do not exist")
        elif parent == child:
            notes.add("left out, edges from a node to itself")
        else:
            parents[child].append(parent)
    return parents


def _attach(
    nodes: Mapping[str, _GraphNode], parents: Mapping[str, Sequence[str]], root: str
) -> dict[str, list[str]]:
    """Return the children of each node, in its own order. A node is the child of one other node, so that there is a
    path from the root to it: of its first parent, if possible."""
    firsts: dict[str, list[str]] = {key: [] for key in nodes}
    others: dict[str, list[str]] = {key: [] for key in nodes}
    for key, listed in parents.items():
        for position, parent in enumerate(listed):
            (others if position else firsts)[parent].append(key)
    below: dict[str, list[str]] = {key: [] for key in nodes}
    found = {root: None}
    for edges in (firsts, others):
        queue = list(found)
        for key in queue:
            for child in (*edges[key], *(firsts[key] if edges is others else ())):
                if child not in found:
                    found[child] = None
                    below[key].append(child)
                    queue.append(child)
    for key, children in below.items():
        order = {str(child): index for index, child in enumerate(nodes[key].children)}
        children.sort(key=lambda child: order.get(child, len(order)))
    return below


def write_graph(graph: TopicGraph) -> tuple[bytes, tuple[str, ...]]:
    """Return the document of a graph, and the data that this format cannot hold."""
    numbers = {topic.topic_id: number for number, topic in enumerate(graph.walk())}
    linked: dict[str, list[str]] = {key: [] for key in numbers}
    for topic in graph.walk():
        for parent in topic.parents[1:]:
            linked[parent].append(topic.topic_id)
    nodes = {str(numbers[topic.topic_id]): _write_node(topic, numbers, linked) for topic in graph.walk()}
    document = {"nodes": nodes, "root_id": numbers[graph.root_id]}
    losses = ("how the topics were built",) if graph.origin is not None else ()
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n", losses


def _write_node(topic: Topic, numbers: dict[str, int], linked: dict[str, list[str]]) -> dict[str, Json]:
    own = {
        **({"error": topic.error} if topic.error is not None else {}),
        **({"missing": topic.missing} if topic.missing else {}),
    }
    return {
        "id": numbers[topic.topic_id],
        "topic": topic.text,
        "children": [numbers[key] for key in (*topic.children, *linked[topic.topic_id])],
        "parents": [numbers[key] for key in topic.parents],
        "metadata": {**topic.metadata, **({_OWN: own} if own else {})},
    }


def line_of(data: bytes, key: str) -> int:
    """Return the line of the first object under `key`; the first line if it is not found."""
    found = re.search(rb'"%b"\s*:\s*\{' % re.escape(key.encode()), data)
    return data.count(b"\n", 0, found.start()) + 1 if found else 1
