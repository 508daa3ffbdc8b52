"""What the viewer shows of topics: a line for each topic, from which the page draws a map and an outline."""

from collections.abc import Mapping

from msgspec import Struct

from treadle.datagen.topics.topic_graph import TopicGraph


class TopicLine(Struct, frozen=True, omit_defaults=True):
    text: str
    depth: int
    """0 for the root. The lines below a topic follow it."""
    children: int = 0
    rows: int = 0
    """How many rows the topic itself has."""
    links: list[str] = []
    """The texts of its other parents."""
    missing: int = 0
    """How many subtopics could not be made."""
    error: str = ""


class TopicsView(Struct, frozen=True):
    """Topics as a page shows them."""

    name: str
    is_counted: bool
    """Whether the number of rows of each topic is known."""
    lines: list[TopicLine]

    @property
    def title(self) -> str:
        return f"{self.name}: topics"


def make_topics_view(graph: TopicGraph, counts: Mapping[str, int] | None = None) -> TopicsView:
    """Return topics for a page. `counts` has the number of rows by topic id, if it is known."""
    found = counts or {}
    lines = [
        TopicLine(
            topic.text,
            len(topic.path) - len(graph.root.path),
            len(topic.children),
            found.get(topic.topic_id, 0),
            [graph.topics[key].text for key in topic.parents[1:]],
            topic.missing,
            (topic.error or "")[:300],
        )
        for topic in graph.walk()
    ]
    return TopicsView(graph.root.text, counts is not None, lines)
