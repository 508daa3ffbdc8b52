"""Topics as values: a tree or an acyclic graph whose ids are hashes of the paths from the root."""

from collections.abc import Iterator
from hashlib import sha256

from msgspec import Struct


def topic_id(path: tuple[str, ...]) -> str:
    """Return the id of the topic at `path`, which begins with the root: 16 hexadecimal digits of a SHA-256."""
    return sha256("\x1f".join(path).encode()).hexdigest()[:16]


class Topic(Struct, kw_only=True):
    """One topic."""

    topic_id: str
    text: str
    path: tuple[str, ...]
    """The texts from the root to this topic, which come from the first parent."""
    parents: list[str] = []
    """The ids of the parents. The first one is the parent that the topic was made for; others are cross-links."""
    children: list[str] = []
    """The ids of the topics that were made for this one. Cross-links are not among them."""
    error: str | None = None
    """Why the topic could not be expanded; `None` if it was, or is a leaf."""


class TopicGraph(Struct, kw_only=True):
    """Topics by id. A cross-link adds a parent to a topic, and never makes another topic a branch."""

    root_id: str
    topics: dict[str, Topic]

    def leaves(self) -> Iterator[Topic]:
        """Yield each topic that has no children and did not fail, once, depth first in order of creation."""
        stack = [self.root_id]
        while stack:
            topic = self.topics[stack.pop()]
            if topic.children:
                stack.extend(reversed(topic.children))
            elif topic.error is None:
                yield topic
