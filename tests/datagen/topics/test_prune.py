"""Graphs with fewer topics, and topics found by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datagen.topics.test_store import graphs, make

from treadle.core.errors import ConfigError
from treadle.datagen.topics.topic_files import encode_topics, parse_topics
from treadle.datagen.topics.topic_graph import Topic, TopicGraph, find_topic, prune, topic_id

PATHS = (("r", "a", "a1"), ("r", "a", "a2"), ("r", "b", "b1"), ("r", "b", "b2", "b3"), ("r", "C"))


def ids(*paths: str) -> list[str]:
    return [topic_id(tuple(path.split("/"))) for path in paths]


@pytest.mark.parametrize(
    ("options", "leaves"),
    [
        ({"drop": ids("r/a")}, ["b1", "b3", "C"]),
        ({"drop": ids("r/a/a1", "r/a/a2")}, ["b1", "b3", "C"]),
        ({"below": ids("r/a", "r/b/b2")}, ["a", "b1", "b2", "C"]),
        ({"keep": ids("r/b/b2", "r/C")}, ["b3", "C"]),
        ({"max_depth": 2}, ["a1", "a2", "b1", "b2", "C"]),
        ({"max_depth": 1, "drop": ids("r/b")}, ["a", "C"]),
        ({"is_without_failed": True}, ["a1", "a2", "b1", "b3"]),
    ],
)
def test_what_is_left(options: Any, leaves: list[str]) -> None:
    graph = make(*PATHS)
    if "is_without_failed" in options:
        graph.topics[ids("r/C")[0]].error = "failed"
    made = prune(graph, **options)
    assert [leaf.text for leaf in made.leaves()] == leaves
    assert len(graph.topics) == 9, "the given graph is unchanged"


def test_links_to_what_is_left_out_disappear() -> None:
    graph = make(*PATHS)
    a, b1 = ids("r/a", "r/b/b1")
    assert graph.link(a, b1)
    assert prune(graph, drop=[a]).topics[b1].parents == ids("r/b")
    assert prune(graph, drop=ids("r/C")).topics[b1].parents == [*ids("r/b"), a]


def _above(graph: TopicGraph, topic: Topic) -> set[str]:
    return {topic_id(topic.path[:end]) for end in range(1, len(topic.path) + 1)}


@given(graphs(), st.data())
def test_a_pruned_graph_is_a_graph_with_no_new_leaves(graph: TopicGraph, data: Any) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(graph.topics)), max_size=4))
    try:
        made = prune(graph, drop=chosen, is_without_failed=True)
    except ConfigError:
        assert all(leaf.error or any(key in chosen for key in _above(graph, leaf)) for leaf in graph.leaves())
        return
    assert {leaf.topic_id for leaf in made.leaves()} <= {leaf.topic_id for leaf in graph.leaves()}
    assert parse_topics(encode_topics(made)[0], "x").graph == made


def test_topics_are_found_by_id_text_and_path() -> None:
    graph = make(*PATHS, ("r", "b", "a1"))
    assert find_topic(graph, ids("r/b/b2")[0]).text == "b2"
    assert find_topic(graph, "c").text == "C"
    assert find_topic(graph, "R > B > A1").path == ("r", "b", "a1")
    assert find_topic(graph, "b>a1").path == ("r", "b", "a1")
    with pytest.raises(ConfigError, match="2 topics are called 'a1'; write more of the path, or an id: "):
        find_topic(graph, "a1")
    with pytest.raises(ConfigError, match="did you mean 'b1'"):
        find_topic(graph, "b11")
