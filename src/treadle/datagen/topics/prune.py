"""Topics found by id, text or path, and graphs with fewer topics."""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.datagen.topics.graph import Topic, TopicGraph

SEPARATOR = " > "
"""The text between the topics of a path."""


def find_topic(graph: TopicGraph, name: str) -> Topic:
    """Return the topic with an id, a text, or a path such as `root > topic > subtopic`.

    The beginning of a path may be left out. Case does not matter. Raises: `ConfigError` if there is none, or if
    there are several.
    """
    if name in graph.topics:
        return graph.topics[name]
    parts = tuple(part.strip().casefold() for part in name.split(SEPARATOR.strip()))
    whole = (name.strip().casefold(),)
    found = [topic for topic in graph.walk() if _ends_with(topic, parts) or _ends_with(topic, whole)]
    if len(found) == 1:
        return found[0]
    if not found:
        hint = did_you_mean(
            name, [topic.text for topic in graph.walk()], "`treadle topics show --json` has all"
        )
        raise ConfigError(f"there is no topic {name!r:.80}{hint}")
    ids = ", ".join(f"{topic.topic_id} ({SEPARATOR.join(topic.path)})" for topic in found[:5])
    raise ConfigError(f"{len(found)} topics are called {name!r:.80}; write more of the path, or an id: {ids}")


def _ends_with(topic: Topic, parts: tuple[str, ...]) -> bool:
    return tuple(text.casefold() for text in topic.path[-len(parts) :]) == parts


def prune(
    graph: TopicGraph,
    *,
    drop: Collection[str] = (),
    below: Collection[str] = (),
    keep: Collection[str] = (),
    max_depth: int | None = None,
    is_without_failed: bool = False,
) -> TopicGraph:
    """Return a graph with fewer topics. The arguments are ids.

    `drop` leaves out topics with all below them. `below` leaves out only what is below them, so that they become
    leaves; `max_depth` does that for all topics at this depth. With `keep`, only these topics and those above and
    below them stay. A branch that loses all its topics is left out too, and never becomes a leaf. Cross-links to
    what is left out disappear.

    Raises: `ConfigError` if no leaf is left.
    """
    gone = {item.topic_id for key in drop for item in graph.walk(key)}
    if is_without_failed:
        gone |= {topic.topic_id for topic in graph.failed()}
    if keep:
        stay = {item.topic_id for key in keep for item in (*graph.walk(key), *_lineage(graph, key))}
        gone |= graph.topics.keys() - stay
    cut = {topic.topic_id for topic in graph.walk() if len(topic.path) - 1 == max_depth} | set(below)
    gone |= {
        item.topic_id for key in cut for child in graph.topics[key].children for item in graph.walk(child)
    }
    # From the leaves up, so that a branch is looked at after all that is below it.
    for topic in reversed(list(graph.walk())):
        is_empty = topic.topic_id not in cut and topic.children and gone.issuperset(topic.children)
        if is_empty:
            gone.add(topic.topic_id)
    topics = {key: _without(topic, gone) for key, topic in graph.topics.items() if key not in gone}
    made = TopicGraph(root_id=graph.root_id, topics=topics, mode=graph.mode, origin=graph.origin)
    if graph.root_id in gone or next(made.leaves(), None) is None:
        raise ConfigError("no leaf would be left; leave out fewer topics")
    return made


def _lineage(graph: TopicGraph, key: str) -> Iterable[Topic]:
    """Yield the topic and those above it, without cross-links."""
    topic = graph.topics[key]
    yield topic
    while topic.parents:
        topic = graph.topics[topic.parents[0]]
        yield topic


def _without(topic: Topic, gone: Collection[str]) -> Topic:
    """Return a copy of a topic without the relations to those that are left out."""
    return replace(
        topic,
        parents=[key for key in topic.parents if key not in gone],
        children=[key for key in topic.children if key not in gone],
    )
