"""Pictures of topics: the report names every topic with its facts, and Mermaid diagrams escape all texts."""

import re

from hypothesis import given
from tests.datagen.topics.test_store import graphs, make
from tests.viewer.reports import blocks_of

from treadle.datagen.topics.topic_files import draw_mermaid
from treadle.datagen.topics.topic_graph import TopicGraph, topic_id
from treadle.datagen.topics.topic_report import make_topic_report
from treadle.viewer import encode_page


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
    counts = {leaves[1].topic_id: 5}
    report = make_topic_report(graph, counts)
    page = encode_page(report).decode()
    outline = blocks_of(page, "outline")[0]["items"]
    assert [item["notes"][0] for item in outline] == [" › ".join(item.path) for item in graph.walk()]
    assert [item.get("depth", 0) for item in outline] == [len(item.path) - 1 for item in graph.walk()]
    failed = next(item for item in outline if item.get("error"))
    assert failed["error"] == "the server failed"
    assert "failed: the server failed" in failed["notes"]
    assert "missing subtopics: 2" in outline[0]["notes"]
    assert outline[0]["value"] == 5
    linked = [topic for topic in graph.walk() if len(topic.parents) > 1]
    assert [item["links"] for item in outline if item["links"]] == [
        [graph.topics[key].text for key in topic.parents[1:]] for topic in linked
    ]
    figures = {item.label: item.value for item in report.figures}
    assert figures == {
        "topics": "10",
        "leaves": "5",
        "cross-links": f"{graph.count_links()}",
        "failed": "1",
        "rows": "5",
    }
    cells = blocks_of(page, "map")[0]
    assert cells["above"] == ["Office work"]
    assert {tuple(item["path"]): item["value"] for item in cells["items"]} == {
        topic.path[1:]: counts.get(topic.topic_id, 0) for topic in graph.walk() if not topic.children
    }


@given(graphs())
def test_any_text_is_drawn_as_text(graph: TopicGraph) -> None:
    page = encode_page(make_topic_report(graph)).decode()
    assert [item["text"] for item in blocks_of(page, "outline")[0]["items"]] == [
        topic.text for topic in graph.walk()
    ]
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
