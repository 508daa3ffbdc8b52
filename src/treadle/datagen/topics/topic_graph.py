"""Topics as values: a tree or an acyclic graph whose ids are hashes of the paths from the root.

Near-duplicates are texts with almost the same words, whatever their order, case and number.
"""

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from typing import Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.types import Json

_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")
"""White space, and characters that a terminal, XML or JSON cannot hold."""


def topic_id(path: tuple[str, ...]) -> str:
    """Return the id of the topic at `path`, which begins with the root: 16 hexadecimal digits of a SHA-256."""
    return sha256("\x1f".join(path).encode()).hexdigest()[:16]


def clean_topic(text: str) -> str:
    """Return the text of a topic as one line without control characters."""
    return _BLANKS.sub(" ", text).strip()


class Topic(Struct, kw_only=True, omit_defaults=True):
    topic_id: str
    text: str
    path: tuple[str, ...]
    """The texts from the root to this topic, which come from the first parent."""
    parents: list[str] = []
    """The ids of the parents. The first one is the parent that the topic was made for; others are cross-links."""
    children: list[str] = []
    """The ids of the topics that were made for this one. Cross-links are not among them."""
    error: str | None = None
    """Why the topic could not be expanded; `None` if it was expanded or is a leaf."""
    missing: int = 0
    """How many subtopics the model did not give, although it was asked for them several times."""
    metadata: dict[str, Json] = {}
    """Data that came with the topic from another program's file."""


class Origin(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The origin of a graph: how its topics were built."""

    dataset: str
    """The name of the dataset, which the runs in the journal have as a label."""
    model: str
    """The name of the model that wrote the topics."""
    seed: int
    degree: int
    depth: int
    similarity: float
    instructions: str = ""
    merged: int = 0
    """How many topics of the model's answers were near-duplicates of others and were merged with them."""
    cut: int = 0
    """How many topics the model gave beyond the number that was asked for."""
    unusable: int = 0
    """How many texts of the model's answers were empty or too long for a topic."""
    dropped_links: int = 0
    """How many cross-links were left out: to unknown ids, to the topic itself, or to close a cycle."""


class TopicGraph(Struct, kw_only=True, omit_defaults=True):
    """Topics by id. A cross-link adds a parent to a topic; that parent stays a leaf if it has no children."""

    root_id: str
    topics: dict[str, Topic]
    mode: Literal["tree", "graph"] = "tree"
    origin: Origin | None = None
    """How the graph was built; `None` if it comes from another program's file."""

    @property
    def root(self) -> Topic:
        return self.topics[self.root_id]

    def walk(self, start: str | None = None) -> Iterator[Topic]:
        """Yield the topics below `start`, itself included, each once, depth first in order of creation.

        Cross-links are not followed. The default of `start` is the root.
        """
        stack = [start or self.root_id]
        while stack:
            topic = self.topics[stack.pop()]
            stack.extend(reversed(topic.children))
            yield topic

    def leaves(self) -> Iterator[Topic]:
        """Yield each topic that has no children and did not fail, once, depth first in order of creation."""
        return (topic for topic in self.walk() if not topic.children and topic.error is None)

    def failed(self) -> Iterator[Topic]:
        """Yield each topic that could not be expanded."""
        return (topic for topic in self.walk() if topic.error is not None)

    def count_links(self) -> int:
        """Return the number of cross-links."""
        return sum(len(topic.parents) - 1 for topic in self.topics.values() if topic.parents)

    def ancestors(self, topic_id: str) -> set[str]:
        """Return the ids of all topics from which `topic_id` is reached, over cross-links too."""
        found: set[str] = set()
        stack = list(self.topics[topic_id].parents)
        while stack:
            parent = stack.pop()
            if parent not in found:
                found.add(parent)
                stack.extend(self.topics[parent].parents)
        return found

    def link(self, parent_id: str, topic_id: str) -> bool:
        """Add a cross-link from `parent_id` to `topic_id`, and return whether it was added.

        A link that exists, that leads to the topic itself or that would close a cycle is not added.
        """
        topic = self.topics[topic_id]
        if parent_id == topic_id or parent_id in topic.parents or topic_id in self.ancestors(parent_id):
            return False
        topic.parents.append(parent_id)
        return True


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
        if topic.topic_id not in cut and topic.children and gone.issuperset(topic.children):
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


T = TypeVar("T")

_TOKEN = re.compile(r"[^\W_]+[+#]*")
"""A word. The signs at its end distinguish C, C++ and C#."""
_FILLERS = frozenset(
    ["a", "an", "and", "are", "at", "by", "for", "in", "is", "of", "on", "or", "the", "to", "with"]
)
_EAST_ASIAN = 0x2E80
"""The first character of the scripts that are written without spaces."""


def words_of(text: str) -> frozenset[str]:
    """Return the words that a topic is compared by: in lower case and singular, without fillers such as `the`.

    For scripts without spaces, each pair of adjacent characters is a word.
    """
    tokens = _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())
    words = {word for token in tokens if token not in _FILLERS for word in _split(token)}
    return frozenset(words or tokens or [text])


def similarity(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the share of words that two topics have in common, from 0 to 1 (the Jaccard index)."""
    common = len(words & others)
    return common / (len(words) + len(others) - common)


class SimilarIndex(Generic[T]):
    """Values that are found by the words of their topics."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._entries: list[tuple[frozenset[str], T]] = []
        self._by_word: dict[str, list[int]] = {}

    def add(self, words: frozenset[str], value: T) -> None:
        for word in words:
            self._by_word.setdefault(word, []).append(len(self._entries))
        self._entries.append((words, value))

    def find(self, words: frozenset[str]) -> T | None:
        """Return the most similar value, the first one of several; `None` if none is similar enough.

        Topics without a common word are never similar.
        """
        # A similar topic has at least `needed` of the words, so it has one of the rarest `len(words) - needed + 1`.
        needed = math.ceil(self._threshold * len(words) - 1e-9)
        rarest = sorted(words, key=lambda word: (len(self._by_word.get(word, ())), word))
        near = {
            number
            for word in rarest[: len(words) - max(needed, 1) + 1]
            for number in self._by_word.get(word, ())
        }
        scores = ((similarity(words, self._entries[number][0]), -number) for number in near)
        best = max(scores, default=(-1.0, 0))
        return self._entries[-best[1]][1] if best[0] >= self._threshold else None


def _split(token: str) -> list[str]:
    if ord(token[0]) >= _EAST_ASIAN:
        return [token[index : index + 2] for index in range(max(1, len(token) - 1))]
    if len(token) > 4 and token.endswith("ies"):
        return [token[:-3] + "y"]
    if len(token) > 3 and token.endswith("s") and not token.endswith(("ss", "us", "is")):
        return [token[:-1]]
    return [token]
