"""The topics of a dataset: those of its rows, and those of its file of topics that have no rows."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from treadle.datagen.dataset.folder import Folder
from treadle.datagen.dataset.stats import Stats
from treadle.datagen.topics.graph import TopicGraph
from treadle.datagen.topics.store import load_topics


def read_topics(path: Path) -> TopicGraph | None:
    """Return the topics in the folder of a dataset; `None` if there are none.

    Raises: `ConfigError` if they cannot be read.
    """
    place = Folder(path).topics
    return load_topics(place) if path.is_dir() and place.exists() else None


def read_leaves(path: Path, stats: Stats) -> Mapping[tuple[str, ...], int]:
    """Return the number of rows of each leaf topic, those without rows included, by the path of the topic."""
    leaves: Counter[tuple[str, ...]] = Counter()
    for key, count in stats.topics.items():
        if names := stats.topic_paths.get(key):
            leaves[names] += count
    if (graph := read_topics(path)) is not None:
        for topic in graph.leaves():
            leaves.setdefault(topic.path, 0)
    return leaves
