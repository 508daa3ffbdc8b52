"""Mermaid diagrams of topics."""

import re
import textwrap

from treadle.datagen.topics.graph import Topic, TopicGraph

MAX_EDGES = 500
"""How many edges Mermaid draws unless it is configured otherwise."""
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
