"""The generation of datasets: its window, its own work for each row, its memory, and how fast it is resumed."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from treadle.datagen.config.model import Config
from treadle.datagen.topics.graph import Topic, TopicGraph, topic_id
from treadle.datagen.topics.store import save_topics

SAMPLES, WINDOW = 1000, 64
LEAVES = (40, 25)
ROUNDS = 3


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a temporary folder, on a disk rather than in memory."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=".") as folder:
        yield Path(folder)


def _write_topics(path: Path) -> Path:
    """Write a tree of 1,000 topics, so that only samples are measured."""
    graph = TopicGraph(root_id=topic_id(("Office work",)), topics={})

    def add(path: tuple[str, ...], widths: Sequence[int]) -> str:
        made = Topic(topic_id=topic_id(path), text=path[-1], path=path, parents=[])
        if len(path) > 1:
            made.parents.append(topic_id(path[:-1]))
        graph.topics[made.topic_id] = made
        if widths:
            made.children = [add((*path, f"{path[-1]} {number}"), widths[1:]) for number in range(widths[0])]
        return made.topic_id

    add(("Office work",), LEAVES)
    save_topics(graph, path)
    return path


def _config(folder: Path, samples: int, model: object, **tools: object) -> Config:
    return Config.model_validate(
        {
            "name": "bench",
            "models": {"default": model},
            "topics": {"load": str(_write_topics(folder / "given.json"))},
            "generation": {"num_samples": samples, "window": WINDOW},
            "tools": tools or {"use": ["files"], "files": "tasks:files"},
            "output": {"path": str(folder / "dataset")},
        }
    )
