"""What the pictures of topics share: colours, escaped and shortened texts, and the width of a text."""

import re
import unicodedata
from collections.abc import Mapping
from xml.sax.saxutils import escape

from treadle.datagen.topics.topic_graph import TopicGraph

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LOW, _HIGH = (222, 235, 247), (8, 64, 129)
"""The colours of the smallest and the largest count."""
_NONE = "#fdeeee"
NOTHING = "#d95f5f"
"""The outline of a topic without rows, or of one that failed."""


class Palette:
    """The colour of each topic: by the rows below it if counts are given, else by its branch."""

    def __init__(self, graph: TopicGraph, counts: Mapping[str, int] | None) -> None:
        self.totals: dict[str, int] | None = None
        """The rows of each topic and of all below it; `None` without counts."""
        self._branch = {
            topic.topic_id: index
            for index, key in enumerate(graph.root.children)
            for topic in graph.walk(key)
        }
        self._failed = {topic.topic_id for topic in graph.failed()}
        self._depth = {key: len(topic.path) - 1 for key, topic in graph.topics.items()}
        if counts is not None:
            totals = {key: counts.get(key, 0) for key in graph.topics}
            for topic in reversed(list(graph.walk())):
                totals[topic.topic_id] += sum(totals[key] for key in topic.children)
            self.totals = totals
        self.most = (
            max([self.totals[leaf.topic_id] for leaf in graph.leaves()], default=0) if self.totals else 0
        )
        """The most rows of a leaf."""
        self._leaves = dict.fromkeys(graph.topics, 0)
        for topic in reversed(list(graph.walk())):
            below = sum(self._leaves[key] for key in topic.children)
            self._leaves[topic.topic_id] = below or (not topic.children and topic.error is None)

    def leaves_below(self, key: str) -> int:
        """Return the number of leaves at and below a topic."""
        return self._leaves[key]

    def fill(self, key: str) -> str:
        """Return the colour of a topic."""
        if key in self._failed:
            return _NONE
        if self.totals is not None:
            return self.shade(self.totals[key] / max(1, self._leaves[key]))
        if key not in self._branch:
            return "#555"
        hue = (self._branch[key] * 137.508 + 210) % 360
        return f"hsl({hue:.0f},52%,{min(40 + 9 * self._depth[key], 76)}%)"

    def shade(self, rows: float) -> str:
        """Return the colour of a number of rows for each leaf."""
        if not rows:
            return _NONE
        part = min(1.0, rows / max(1, self.most))
        red, green, blue = (round(low + (high - low) * part) for low, high in zip(_LOW, _HIGH, strict=True))
        return f"#{red:02x}{green:02x}{blue:02x}"

    def stroke(self, key: str) -> str:
        """Return the colour of the outline of a topic."""
        has_none = self.totals is not None and not self.totals[key]
        return NOTHING if has_none or key in self._failed else "none"

    def describe(self, graph: TopicGraph, key: str) -> str:
        """Return the text that is shown for a topic under the pointer."""
        topic = graph.topics[key]
        lines = [" › ".join(topic.path)]
        if self.totals is not None:
            lines.append(f"rows: {self.totals[key]:,}")
        if topic.children:
            lines.append(f"leaves: {self._leaves[key]:,}")
        if len(topic.parents) > 1:
            lines.append(f"also below: {', '.join(graph.topics[item].text for item in topic.parents[1:])}")
        if topic.missing and topic.error is None:
            lines.append(f"missing subtopics: {topic.missing}")
        if topic.error is not None:
            lines.append(f"failed: {topic.error[:300]}")
        return xml("\n".join(lines))


def xml(text: str) -> str:
    """Return a text escaped for XML, without the characters that XML cannot hold."""
    return escape(_NO_XML.sub("�", text), {'"': "&quot;", "'": "&#39;"})


def width(text: str) -> float:
    """Return an estimate of the width of a text in units of the font size. It is rather too large than too
    small."""
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> float:
    if unicodedata.combining(char):
        return 0.0
    if unicodedata.east_asian_width(char) in "WF" or ord(char) > 0x1F000:
        return 1.05
    if char in "iIjlt.,:;'|!()[] ":
        return 0.34
    return 0.92 if char in "mwMW@%" else 0.74 if char.isupper() else 0.6


def fit(text: str, room: float) -> str:
    """Return a text that is at most `room` wide, with an ellipsis if it was cut."""
    if width(text) <= room:
        return text
    used, end = 0.8, 0
    while end < len(text) and used + _char_width(text[end]) <= room:
        used += _char_width(text[end])
        end += 1
    return text[:end].rstrip() + "…"
