"""Pictures of topics: valid, complete, escaped, and without labels that cover each other."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datagen.topics.test_store import graphs, make

from treadle.datagen.topics.draw import draw_svg
from treadle.datagen.topics.palette import fit, width
from treadle.datagen.topics.topic_files import draw_mermaid
from treadle.datagen.topics.topic_graph import TopicGraph, topic_id

SVG = "{http://www.w3.org/2000/svg}"


def tree(*degrees: int) -> TopicGraph:
    paths: list[tuple[str, ...]] = [("Office work",)]
    for level, degree in enumerate(degrees):
        paths = [
            (*path, f"{level} {number} a topic with a name") for path in paths for number in range(degree)
        ]
    return make(*paths, mode="graph", links=30)


def labels(svg: str) -> list[tuple[float, float, float]]:
    """Return where each label of the outline begins and ends, and its line."""
    found = []
    for column in ET.fromstring(svg).iter(f"{SVG}svg"):
        if column.get("y") is None:
            continue
        left, top = float(column.get("x", 0)), float(column.get("y", 0))
        for text in column.iter(f"{SVG}text"):
            x, wide = left + float(text.get("x", 0)), 12 * width("".join(text.itertext()))
            begin = x - wide if text.get("text-anchor") == "end" else x
            found.append((top + float(text.get("y", 0)), begin, begin + wide))
            assert begin + wide <= left + float(column.get("width", 0)), "text leaves its column"
    return sorted(found)


@pytest.mark.parametrize("degrees", [(3, 3), (9, 10), (10, 10, 9)])
def test_no_label_covers_another(degrees: tuple[int, ...]) -> None:
    graph = tree(*degrees)
    counts = {leaf.topic_id: number % 7 for number, leaf in enumerate(graph.leaves())}
    for svg in (draw_svg(graph), draw_svg(graph, counts)):
        found = labels(svg)
        assert len(found) >= len(graph.topics)
        for (line, _, end), (next_line, begin, _) in pairwise(found):
            assert next_line - line >= 12 or (line == next_line and end <= begin)


@pytest.mark.parametrize("is_counted", [True, False])
def test_the_title_does_not_reach_into_the_outline(is_counted: bool) -> None:
    graph = tree(3, 3)
    svg = ET.fromstring(
        draw_svg(graph, {leaf.topic_id: 1 for leaf in graph.leaves()} if is_counted else None)
    )
    outline = min(float(column.get("y", 0)) for column in svg.findall(f"{SVG}svg"))
    assert max(float(text.get("y", 0)) for text in svg.findall(f"{SVG}text")) < outline


def test_every_topic_is_named_with_its_facts() -> None:
    graph = tree(3, 2)
    leaves = list(graph.leaves())
    leaves[0].error = "the server failed"
    graph.root.missing = 2
    svg = draw_svg(graph, {leaves[1].topic_id: 5})
    titles = [title.text or "" for title in ET.fromstring(svg).iter(f"{SVG}title")]
    assert {title.split("\n")[0] for title in titles} == {
        " › ".join(item.path) for item in graph.topics.values()
    }
    assert "rows: 5" in "\n".join(titles)
    assert "failed: the server failed" in "\n".join(titles)
    assert "missing subtopics: 2" in "\n".join(titles)
    assert "5 rows" in svg
    assert "1 failed" in svg


@given(graphs(), st.integers(0, 9))
def test_any_text_is_drawn_as_text(graph: TopicGraph, rows: int) -> None:
    counts = {leaf.topic_id: rows for leaf in graph.leaves()}
    for svg in (draw_svg(graph), draw_svg(graph, counts)):
        names = {item.tag.removeprefix(SVG) for item in ET.fromstring(svg).iter()}
        assert names <= {"svg", "rect", "g", "title", "circle", "path", "text", "tspan"}
    diagram = draw_mermaid(graph)
    node = re.compile(r'    t\d+\["[\w ,.\-+/?!…–—]*(?:(?:#\d+;|<br/>)[\w ,.\-+/?!…–—]*)*"\](:::failed)?')
    edge = re.compile(r"    t\d+ -\.?->? t\d+|    t\d+ --> t\d+|    classDef .*")
    for line in diagram.splitlines()[1:]:
        assert node.fullmatch(line) or edge.fullmatch(line), line


def test_hostile_texts() -> None:
    """A topic with quotes or brackets breaks the reference's diagrams."""
    text = 'a "b" <script>alert(1)</script> [c] {d} |e| & `f`; end'
    graph = make(("r", text))
    svg, diagram = draw_svg(graph), draw_mermaid(graph)
    assert "<script" not in svg
    assert text in "".join(item.text or "" for item in ET.fromstring(svg).iter(f"{SVG}title"))
    label = diagram.split('t1["')[1].split('"]')[0]
    assert not set(label.replace("<br/>", "")) & set('"<>[]{}|&`')
    decoded = re.sub(r"#(\d+);", lambda found: chr(int(found[1])), label.replace("<br/>", " "))
    assert decoded == text


def test_nothing_is_fetched() -> None:
    """The reference sends graphs to a service to have them drawn."""
    svg = draw_svg(tree(5, 6))
    assert re.findall(r"(?:href|src|url\(|@import|<script|<image)", svg) == []
    assert set(re.findall(r"https?://[^\"]+", svg)) == {"http://www.w3.org/2000/svg"}


def test_links_of_mermaid_are_dotted() -> None:
    graph = make(("r", "a"), ("r", "b"))
    graph.link(topic_id(("r", "a")), topic_id(("r", "b")))
    assert draw_mermaid(graph).splitlines()[-3:] == ["    t0 --> t1", "    t0 --> t2", "    t1 -.-> t2"]


@given(st.text(max_size=40), st.floats(2, 30))
def test_a_shortened_text_has_room(text: str, room: float) -> None:
    short = fit(text, room)
    assert short == text or (width(short) <= room + 0.2 and short.endswith("…"))
