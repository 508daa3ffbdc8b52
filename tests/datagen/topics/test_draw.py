"""Pictures of topics: the report names every topic with its facts, and Mermaid diagrams escape all texts."""

import re

from hypothesis import given
from tests.datagen.topics.test_store import graphs, make

from treadle.datagen.topics.topic_files import draw_mermaid
from treadle.datagen.topics.topic_graph import TopicGraph, topic_id
from treadle.datagen.topics.topics_view import make_topics_view


def tree(*degrees: int) -> TopicGraph:
    paths: list[tuple[str, ...]] = [("Office work",)]
    for level, degree in enumerate(degrees):
        paths = [
            (*path, f"{level} {number} a topic with a name") for path in paths for number in range(degree)
        ]
    return make(*paths, mode="graph", links=30)


def test_every_topic_is_named_with_its_facts() -> None:
    graph = tree(3, 2)
    leaves = list(graph.leaves())
    leaves[0].error = "the server failed"
    graph.root.missing = 2
    view = make_topics_view(graph, {leaves[1].topic_id: 5})
    assert (view.title, view.is_counted) == ("Office work: topics", True)
    topics = list(graph.walk())
    for topic, line in zip(topics, view.lines, strict=True):
        assert (line.text, line.depth) == (topic.text, len(topic.path) - 1)
        assert line.children == len(topic.children)
        assert line.links == [graph.topics[key].text for key in topic.parents[1:]]
    assert [line.error for line in view.lines if line.error] == ["the server failed"]
    assert view.lines[0].missing == 2
    assert [line.text for line in view.lines if line.rows] == [leaves[1].text]
    assert not make_topics_view(graph).is_counted


@given(graphs())
def test_any_text_is_drawn_as_text(graph: TopicGraph) -> None:
    assert [line.text for line in make_topics_view(graph).lines] == [topic.text for topic in graph.walk()]
    diagram = draw_mermaid(graph)
    node = re.compile(r'    t\d+\["[\w ,.\-+/?!…–—]*(?:(?:#\d+;|<br/>)[\w ,.\-+/?!…–—]*)*"\](:::failed)?')
    edge = re.compile(r"    t\d+ -\.?->? t\d+|    t\d+ --> t\d+|    classDef .*")
    for line in diagram.splitlines()[1:]:
        assert node.fullmatch(line) or edge.fullmatch(line), line


def test_hostile_texts() -> None:
    """A topic with quotes or brackets breaks the reference's diagrams."""
    text = 'a "b" <script>alert(1)</script> [c] {d} |e| & `f`; end'
    diagram = draw_mermaid(make(("r", text)))
    label = diagram.split('t1["')[1].split('"]')[0]
    assert not set(label.replace("<br/>", "")) & set('"<>[]{}|&`')
    decoded = re.sub(r"#(\d+);", lambda found: chr(int(found[1])), label.replace("<br/>", " "))
    assert decoded == text


def test_links_of_mermaid_are_dotted() -> None:
    graph = make(("r", "a"), ("r", "b"))
    graph.link(topic_id(("r", "a")), topic_id(("r", "b")))
    assert draw_mermaid(graph).splitlines()[-3:] == ["    t0 --> t1", "    t0 --> t2", "    t1 -.-> t2"]
