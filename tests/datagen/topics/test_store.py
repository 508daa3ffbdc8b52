"""Files of topics: each format read and written, damaged files, and what DeepFabric's files get wrong."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import ConfigError
from treadle.datagen.topics.topic_files import (
    TopicFormat,
    encode_topics,
    load_topics,
    parse_topics,
    read_topics,
    save_topics,
)
from treadle.datagen.topics.topic_graph import Origin, Topic, TopicGraph, clean_topic, topic_id
from treadle.tasks.draws import Draw

TEXTS = st.text(min_size=1, max_size=12).map(clean_topic).filter(bool)
ORIGIN = Origin(dataset="d", model="m", seed=1, degree=2, depth=2, similarity=0.85, merged=3)


def make(*paths: tuple[str, ...], mode: Any = "tree", links: int = 0, seed: str = "") -> TopicGraph:
    """Return a graph with topics at `paths`, the root first, and some cross-links."""
    topics: dict[str, Topic] = {}
    for path in dict.fromkeys(whole[:end] for whole in paths for end in range(1, len(whole) + 1)):
        parent = topics.get(topic_id(path[:-1]))
        parents = [parent.topic_id] if parent else []
        made = Topic(topic_id=topic_id(path), text=path[-1], path=path, parents=parents)
        topics[made.topic_id] = made
        if parent:
            parent.children.append(made.topic_id)
    graph = TopicGraph(root_id=next(iter(topics)), topics=topics, mode=mode)
    draw, ids = Draw(seed), list(topics)
    for _ in range(links):
        graph.link(draw.pick(ids), draw.pick(ids[1:] or ids))
    graph.root.parents.clear()
    return graph


@st.composite
def graphs(draw: Any) -> TopicGraph:
    root = draw(TEXTS)
    paths = draw(
        st.lists(st.lists(TEXTS, min_size=1, max_size=3).map(lambda rest: (root, *rest)), max_size=12)
    )
    graph = make((root,), *paths, mode="graph", links=draw(st.integers(0, 8)), seed=root)
    for leaf in list(graph.leaves())[::3]:
        leaf.error = draw(st.sampled_from(["failed", "out of\nmemory"]))
    return graph


def shape(graph: TopicGraph) -> Any:
    return [
        (item.path, item.parents, item.children, item.error, item.missing, item.metadata)
        for item in graph.walk()
    ]


@given(graphs())
def test_each_format_keeps_what_it_does_not_name_as_lost(graph: TopicGraph) -> None:
    data, losses = encode_topics(graph)
    assert losses == ()
    assert msgspec.json.encode(parse_topics(data, "x").graph) == msgspec.json.encode(graph)

    data, losses = encode_topics(graph, TopicFormat.DEEPFABRIC_GRAPH)
    read = parse_topics(data, "x")
    assert (losses, read.notes, read.format) == ((), (), TopicFormat.DEEPFABRIC_GRAPH)
    assert shape(read.graph) == shape(graph)

    data, losses = encode_topics(graph, TopicFormat.DEEPFABRIC_TREE)
    read = parse_topics(data, "x")
    links = graph.count_links()
    assert losses == ((f"cross-links ({links:,})",) if links else ())
    assert (read.notes, read.format) == ((), TopicFormat.DEEPFABRIC_TREE)
    assert [item.path for item in read.graph.leaves()] == [item.path for item in graph.leaves()]
    assert [(item.path, item.error) for item in read.graph.failed()] == [
        (item.path, item.error) for item in graph.failed()
    ]


def test_the_losses_are_named() -> None:
    graph = make(("r", "a"), ("r", "b"), mode="graph")
    graph.link(topic_id(("r", "a")), topic_id(("r", "b")))
    graph.root.missing, graph.root.metadata, graph.origin = 2, {"uuid": "u"}, ORIGIN
    assert encode_topics(graph, TopicFormat.DEEPFABRIC_TREE)[1] == (
        "cross-links (1)",
        "entries of metadata (1)",
        "numbers of missing subtopics (1)",
        "how the topics were built",
    )
    assert encode_topics(graph, TopicFormat.DEEPFABRIC_GRAPH)[1] == ("how the topics were built",)
    assert parse_topics(encode_topics(graph)[0], "x").graph == graph


def test_a_tree_of_deepfabric(tmp_path: Path) -> None:
    """DeepFabric 4.4 fills a tree with made-up topics when its model fails; they never become topics here."""
    lines = [
        {"path": ["Python", "Types", "Lists"]},
        {"path": ["Python", "Types", "Dicts "]},
        {"path": ["Python", "Types", "Lists"]},
        {"path": ["Python", "Files", "subtopic_1_for_Files"]},
        {"path": ["Python", "Files", "subtopic_2_for_Files"]},
        {"path": ["Python", "subtopic_3_for_Python", "subtopic_1_for_subtopic_3_for_Python"]},
        {"path": ["Python", "subtopic_3_for_Python", "subtopic_2_for_subtopic_3_for_Python"]},
        {"failed_generation": {"node_path": ["Python", "Web"], "error": "429", "timestamp": 1.5}},
    ]
    path = tmp_path / "tree.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    read = read_topics(path)
    assert [leaf.path[1:] for leaf in read.graph.leaves()] == [("Types", "Lists"), ("Types", "Dicts")]
    assert {topic.text: topic.error for topic in read.graph.failed()} == {
        "Files": "DeepFabric's model failed",
        "Web": "429",
    }
    assert read.graph.root.missing == 1
    assert read.notes == (
        f"paths from which control characters or blanks were removed: 1, first at {path}:3",
        f"left out, repeated paths: 1, first at {path}:5",
        f"left out, paths with topics that DeepFabric made up when its model failed: 4, first at {path}:7",
    )
    data, _ = encode_topics(read.graph, TopicFormat.DEEPFABRIC_TREE)
    assert json.loads(data.splitlines()[-1]) == lines[-1]


def test_a_graph_of_deepfabric() -> None:
    """DeepFabric's graphs have links to the topic itself, topics that lose their sample to a cross-link, topics
    that occur twice, and more paths than topics."""

    def node(number: int, topic: str, children: list[int], parents: list[int]) -> Any:
        metadata = {"uuid": f"u{number}", "topic_hash": "h"}
        return {"id": number, "topic": topic, "children": children, "parents": parents, "metadata": metadata}

    nodes = [
        node(0, "root", [1, 2, 6], []),
        node(1, "a", [3, 4], [0]),
        node(2, "b", [4, 5], [0]),  # a leaf but for its cross-links
        node(3, "a1", [3], [1, 3]),
        node(4, "a2", [5, 1], [1, 2]),
        node(5, "a3", [], [4, 2, 99]),
        node(6, "b", [], [0]),
        node(7, "far", [], []),
    ]
    document = {"nodes": {str(item["id"]): item for item in nodes}, "root_id": 0}
    read = parse_topics(json.dumps(document, indent=2).encode(), "g.json")
    graph = read.graph
    assert [leaf.path for leaf in graph.leaves()] == [
        ("root", "a", "a1"),
        ("root", "a", "a2", "a3"),
        ("root", "b"),
    ]
    assert graph.topics[topic_id(("root", "a"))].metadata == {"uuid": "u1", "topic_hash": "h"}
    assert graph.count_links() == 2
    assert read.notes == (
        "left out, edges from a node to itself: 1",
        "left out, edges to nodes that do not exist: 1",
        "merged, nodes with the same topic and parent: 1",
        "left out, edges that close a cycle: 1",
        "left out, nodes that the root does not lead to: 1",
    )
    again, losses = encode_topics(graph, TopicFormat.DEEPFABRIC_GRAPH)
    assert losses == ()
    assert shape(parse_topics(again, "x").graph) == shape(graph)


def own(**changes: Any) -> bytes:
    document = json.loads(encode_topics(make(("r", "a"), ("r", "b")))[0])
    key = topic_id(("r", "a"))
    document["topics"][key] |= changes.pop("topic", {})
    return json.dumps(document | changes, indent=1).encode()


A = topic_id(("r", "a"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f is empty"),
        (b"[1]", "f is not a file of topics"),
        (b'{"a": 1}', "f is not a file of topics"),
        (b'{\n"treadle_topics": 1,\n"topics": {,}}', "f:3 is not valid JSON"),
        (b"\xff\xfe", "f:1 is not valid JSON"),
        (b'{"path": ["r", "a"]}\n{"path": "a"}', "f:2: 'path' is 'a'; it must be a list of texts"),
        (b'{"path": ["r", "a"]}\n{"path": ["r", 1]}', "f:2: 'path' is"),
        (b'{"path": ["r", "a"]}\n\n{"path": ["r"', "f:3 is not valid JSON"),
        (b'{"path": ["r", "a"]}\n[]', r"f:2 is \[\]"),
        (b'{"path": ["r", "a"]}\n{"path": ["s", "a"]}', "f:2: the path begins with 's'"),
        (b'{"path": ["r", " "]}', "f:1: the path .* has an empty topic"),
        (b'{"failed_generation": {"node_path": 3}}', "f:1: 'failed_generation.node_path' is 3"),
        (b'{"nodes": {}}', "'nodes' is {}"),
        (
            b'{"nodes": {\n"0": {"topic": "r"},\n"1": {"topic": 5}}}',
            "f:3: node '1': Expected `str`, got `int`",
        ),
        (
            b'{"nodes": {\n"0": {"topic": "r", "children": "1"}}}',
            "f:2: node '0': Expected `array`, got `str`",
        ),
        (b'{"nodes": {\n"1": {"topic": "r"}}}', "'root_id' is None"),
        (own(treadle_topics=2), "f has version 2"),
        (own(topic={"missing": "many"}), rf"f:\d+: topic '{A}': Expected `int`"),
        (own(topic={"text": "c"}), f"topic '{A}' does not fit its path"),
        (own(topic={"parents": []}), f"topic '{A}' has no parent"),
        (own(topic={"parents": ["x"]}), f"topic '{A}' names 'x', which is missing"),
        (own(topic={"children": [topic_id(("r", "b"))]}), "was made for another topic"),
        (own(root_id="x"), "topic 'x' is the root, and is missing"),
        (own(mode="ring"), "f: Invalid enum value 'ring'"),
    ],
)
def test_damaged_files_are_errors_with_their_line(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_topics(data, "f")


def test_a_cycle_in_a_file_is_an_error() -> None:
    graph = make(("r", "a"), ("r", "b"))
    first, second = (graph.topics[key] for key in graph.root.children)
    first.parents.append(second.topic_id)
    second.parents.append(first.topic_id)
    with pytest.raises(ConfigError, match="closes a cycle"):
        parse_topics(encode_topics(graph)[0], "f")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    graph = make(("r", "a"))
    assert save_topics(graph, path) == ()
    assert load_topics(path) == graph
    assert [item.name for item in tmp_path.iterdir()] == ["topics.json"]
    with pytest.raises(ConfigError, match="cannot write"):
        save_topics(graph, tmp_path / "absent" / "topics.json")
    with pytest.raises(ConfigError, match="cannot read the topics of"):
        load_topics(tmp_path / "absent.json")
