"""The report of topics, as blocks that the viewer shows: a map and an outline, with the rows of each topic."""

from collections.abc import Iterator, Mapping

from treadle.datagen.topics.topic_graph import Topic, TopicGraph
from treadle.export import report_blocks as b


def make_topic_report(graph: TopicGraph, counts: Mapping[str, int] | None = None) -> b.Report:
    """Return the report of topics. `counts` has the number of rows by topic id, if it is known."""
    rows = {key: (counts or {}).get(key, 0) for key in graph.topics}
    leaves = dict.fromkeys(graph.topics, 0)
    for topic in reversed(list(graph.walk())):
        rows[topic.topic_id] += sum(rows[key] for key in topic.children)
        below = sum(leaves[key] for key in topic.children)
        leaves[topic.topic_id] = below or (not topic.children and topic.error is None)
    named: tuple[tuple[int, str, str], ...] = (
        (len(graph.topics), "topics", ""),
        (leaves[graph.root_id], "leaves", ""),
        (graph.count_links(), "cross-links", ""),
        (len(list(graph.failed())), "failed", "bad"),
    )
    figures = [b.Figure(f"{count:,}", label, kind if count else "") for count, label, kind in named]
    unit = "leaves" if counts is None else "rows"
    if counts is not None:
        figures.append(b.Figure(f"{rows[graph.root_id]:,}", "rows"))
    above = graph.root.path
    cells = [
        b.Leaf(
            topic.path[len(above) :],
            leaves[topic.topic_id] if counts is None else rows[topic.topic_id],
            notes=list(_notes(graph, topic)),
        )
        for topic in graph.walk()
        if not topic.children and topic.parents
    ]
    branches = {
        topic.topic_id: number for number, key in enumerate(graph.root.children) for topic in graph.walk(key)
    }
    lines = [
        b.TreeItem(
            topic.text,
            len(topic.path) - len(above),
            branches.get(topic.topic_id, -1),
            len(topic.children),
            rows[topic.topic_id],
            list(_notes(graph, topic)),
            [graph.topics[key].text for key in topic.parents[1:]],
            topic.error[:300] if topic.error is not None else "",
        )
        for topic in graph.walk()
    ]
    about = (
        "The colour is the number of rows; topics without rows have a red edge." if counts is not None else ""
    )
    map_of = b.TreemapBlock(items=cells, unit=unit, above=above, about=about)
    outline = b.TreeBlock(items=lines, is_counted=counts is not None)
    return b.Report(
        title=f"{graph.root.text}: topics",
        name=graph.root.text,
        lead="A map of the leaf topics, and an outline of all topics.",
        figures=figures,
        sections=(
            b.ReportSection(
                "map", "Map", "A rectangle for each leaf topic.", (map_of,) if len(cells) > 1 else ()
            ),
            b.ReportSection("outline", "Outline", "A line for each topic.", (outline,)),
        ),
        footer="This file contains everything that it shows.",
    )


def _notes(graph: TopicGraph, topic: Topic) -> Iterator[str]:
    """Yield what the page says about the topic under the pointer."""
    yield " › ".join(topic.path)
    if len(topic.parents) > 1:
        yield f"also below: {', '.join(graph.topics[item].text for item in topic.parents[1:])}"
    if topic.missing and topic.error is None:
        yield f"missing subtopics: {topic.missing}"
    if topic.error is not None:
        yield f"failed: {topic.error[:300]}"
