"""The construction of topics: one window over all topics to expand, without a barrier between levels.

The same answers of the model give the same graph, whatever the order in which they come. To make this possible, a
request depends only on the topics above its topic and on its siblings. A request for subtopics in place of merged
ones also depends on levels that are settled. Duplicates are settled in a fixed order: level by level, and within a
level by the position of the parent and of the topic.

A topic is expanded before its level is settled, so that it does not wait for other branches, unless it looks like a
duplicate already. If it is merged later, its subtopics are left out.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing

from treadle.core.errors import ConfigError, ProviderError, TreadleError
from treadle.datagen.config.generation_config import Topics
from treadle.datagen.generation_progress import TopicExpanded
from treadle.datagen.topics.topic_graph import (
    Origin,
    SimilarIndex,
    Topic,
    TopicGraph,
    clean_topic,
    similarity,
    topic_id,
    words_of,
)
from treadle.datagen.topics.topic_writer import MAX_CHARS, TopicAnswer, TopicRequest, TopicWriter
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model
from treadle.runs.ensure import Batch

MAX_EXISTING = 120
"""How many existing topics a request lists."""
MIN_FAILURES = 8
"""How many topics in a row, at least, must fail through the server before the build is given up."""


class BuildStoppedError(TreadleError):
    """Raised if a build was stopped before its graph was complete. The same call continues it."""


async def build_topics(
    config: Topics,
    *,
    model: Model,
    journal: Journal,
    seed: int,
    dataset: str,
    on_notice: Callable[[TopicExpanded], None] | None = None,
    stop: asyncio.Event | None = None,
) -> TopicGraph:
    """Build topics as `config` describes them, and return the graph. The same call continues an interrupted build.

    When `stop` is set, topics that are being expanded are finished, unless their server fails, and no others are
    begun. A topic that cannot be expanded is in the graph with its error, and is not a leaf.

    Raises: `ConfigError` if the journal has the topics with other settings; `ProviderError` if the model's server
    does not answer, or refuses all requests; `BuildStoppedError`.
    """
    writer = TopicWriter(config, model, journal, seed, dataset)
    builder = _Builder(config, writer, on_notice or (lambda notice: None), stop or asyncio.Event())
    await builder.run()
    return builder.assemble(dataset, seed)


class _Node:
    """A topic while it is built."""

    def __init__(self, topic: Topic, parent: "_Node | None", order: tuple[int, ...]) -> None:
        self.topic = topic
        self.parent = parent
        self.order = order
        """The positions of its ancestors and its own among the candidates of their parents."""
        self.words = words_of(topic.text)
        self.connections: tuple[str, ...] = ()
        self.siblings: tuple[_Node, ...] = ()
        """The candidates of the parent, up to the answer that this topic comes from."""
        self.candidates: list[_Node] = []
        """The topics that the model gave for this one, merged ones included."""
        self.judged = 0
        """How many candidates have been kept or merged."""
        self.kept: list[_Node] = []
        self.merges: list[tuple[_Node, _Node]] = []
        """Topics of the model's answers that were merged, each with the one that was kept."""
        self.cut = 0
        """How many topics the model gave beyond the number that was asked for."""
        self.unusable = 0
        """How many texts of the answers are not topics."""
        self.attempts = 0
        self.error: str | None = None
        self.is_down = False
        self.is_queued = False
        self.is_done = False
        self.is_merged = False

    @property
    def depth(self) -> int:
        return len(self.order)

    def lineage(self) -> "Iterator[_Node]":
        """Yield this topic and those above it."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent


class _Builder:
    def __init__(
        self,
        config: Topics,
        writer: TopicWriter,
        on_notice: Callable[[TopicExpanded], None],
        stop: asyncio.Event,
    ) -> None:
        root = clean_topic(config.prompt)
        if not root:
            raise ConfigError(f"the prompt of the topics is {config.prompt!r}; give the root topic")
        self._config = config
        self._writer = writer
        self._on_notice = on_notice
        self._stop = stop
        self._root = _Node(Topic(topic_id=topic_id((root,)), text=root, path=(root,)), None, ())
        self._level = [self._root]
        """The topics whose subtopics are being settled, in order."""
        self._open = {self._root}
        """Those of them that are still being expanded."""
        self._all = [self._root]
        """All settled topics, in order."""
        self._is_over = False
        self._settled: SimilarIndex[_Node] = SimilarIndex(config.similarity)
        self._settled.add(self._root.words, self._root)
        self._seen: SimilarIndex[_Node] = SimilarIndex(config.similarity)
        """The topics that were expanded or are to be, in the order of their arrival."""
        self._waiting: list[tuple[int, tuple[int, ...], _Node]] = []
        self._wake = asyncio.Event()
        self._failures = 0
        """How many topics in a row failed through the server."""
        self._done = 0
        self._expected = 0
        self._sizes = [1] * config.depth
        """How many topics have to be expanded from one at each depth, itself included."""
        for depth in reversed(range(config.depth - 1)):
            self._sizes[depth] += config.degree * self._sizes[depth + 1]

    async def run(self) -> None:
        """Expand topics until the graph is settled. Raises: as `build_topics` does."""
        self._queue(self._root)
        async with aclosing(Batch(self._expand, self._work(), self._config.window)) as results:
            async for node in results:
                self._take_result(node)
        if not self._is_over:
            raise BuildStoppedError(
                f"stopped after {self._done} of about {self._expected} topics; the same command continues"
            )

    async def _work(self) -> AsyncIterator[_Node]:
        """Yield the topics to expand, the highest ones first, until the graph is settled."""
        while not (self._is_over or self._stop.is_set()):
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            node = heapq.heappop(self._waiting)[2]
            if any(item.is_merged for item in node.lineage()):
                self._expected -= self._sizes[node.depth]
            else:
                yield node

    def _queue(self, node: _Node) -> None:
        self._expected += 1 if node.attempts else self._sizes[node.depth]
        node.is_queued, node.is_done = True, False
        heapq.heappush(self._waiting, (node.depth, node.order, node))
        self._wake.set()

    async def _expand(self, number: int, node: _Node) -> _Node:
        """Ask for subtopics until there are enough, or `max_attempts` is reached."""
        while node.attempts < self._config.max_attempts:
            missing = self._config.degree - len(node.kept) - len(node.candidates) + node.judged
            if missing <= 0:
                break
            answer = await self._writer.ask(
                TopicRequest(
                    topic=node.topic,
                    attempt=node.attempts + 1,
                    count=missing,
                    siblings=[item.topic for item in node.siblings if item is not node],
                    existing=[item.topic for item in self._find_existing(node)],
                )
            )
            node.attempts += 1
            node.error, node.is_down = answer.error, answer.is_down
            if node.is_down and self._stop.is_set():
                break
            self._check_failures(node)
            if node.is_down:
                break
            self._take_answer(node, answer, missing)
        return node

    def _check_failures(self, node: _Node) -> None:
        """Raise an error if the server seems to be down. Raises: `ProviderError`."""
        self._failures = self._failures + 1 if node.is_down else 0
        if node.is_down and (node is self._root or self._failures >= max(MIN_FAILURES, self._config.window)):
            topics = "the root topic" if node is self._root else f"{self._failures} topics in a row"
            raise ProviderError(
                f"the model {self._writer.model.name!r} failed for {topics}: {node.error}; run the same "
                "command again when it answers"
            )

    def _find_existing(self, node: _Node) -> list[_Node]:
        """Return topics that exist, the nearest first. They are the topic's own subtopics, those that others of
        them were merged with and their siblings, and then the siblings of the topic, of its parent and so on."""
        ancestors = set(node.lineage())
        twins = [twin for _, twin in node.merges]
        groups: list[Iterable[_Node]] = [node.candidates, twins]
        groups += [twin.parent.kept for twin in twins if twin.parent is not None]
        groups += [item.siblings for item in node.lineage()]
        found = dict.fromkeys(item for group in groups for item in group if item not in ancestors)
        return list(found)[:MAX_EXISTING]

    def _take_answer(self, node: _Node, answer: TopicAnswer, missing: int) -> None:
        """Add the subtopics of an answer to the candidates of `node`, at most `missing`."""
        made: list[_Node] = []
        for text, connections in answer.subtopics:
            if not text or len(text) > MAX_CHARS:
                node.unusable += 1
                continue
            path = (*node.topic.path, text)
            topic = Topic(topic_id=topic_id(path), text=text, path=path, parents=[node.topic.topic_id])
            child = _Node(topic, node, (*node.order, len(node.candidates) + len(made)))
            near = [*node.lineage(), *node.candidates, *made]
            least = self._config.similarity
            twin = next((item for item in near if similarity(child.words, item.words) >= least), None)
            if twin is not None:
                node.merges.append((child, twin))
            elif len(made) == missing:
                node.cut += 1
            else:
                child.connections = connections
                made.append(child)
        node.candidates += made
        siblings = tuple(node.candidates)
        for child in made:
            child.siblings = siblings

    def _take_result(self, node: _Node) -> None:
        """Process the result of an expansion: expand the new topics, and settle the level if it is complete."""
        if node.is_down and self._stop.is_set():
            self._wake.set()  # it stays open, and the next build expands it
            return
        node.is_done = True
        self._done += 1
        if not any(item.is_merged for item in node.lineage()):
            for child in node.candidates[node.judged :] if node.depth + 1 < self._config.depth else ():
                # A topic that looks like a duplicate waits until the level is settled.
                if self._seen.find(child.words) is None:
                    self._seen.add(child.words, child)
                    self._queue(child)
        if node.judged == 0:
            self._expected += 1 - self._sizes[node.depth]
        self._open.discard(node)
        self._settle()
        self._wake.set()
        self._on_notice(
            TopicExpanded(
                path=node.topic.path,
                count=len(node.candidates),
                done=self._done,
                expected=self._expected,
                error=None if node.candidates else node.error,
            )
        )

    def _settle(self) -> None:
        """Settle each level whose topics have all been expanded."""
        while not (self._open or self._is_over):
            for node in self._level:
                self._judge(node)
            short = [node for node in self._level if self._can_ask_again(node)]
            for node in short:
                self._queue(node)
            self._open = set(short)
            if short:
                return
            self._level = [child for node in self._level for child in node.kept]
            self._all += self._level
            if not self._level or self._level[0].depth == self._config.depth:
                self._is_over = True
                return
            for child in self._level:
                if not child.is_queued:
                    self._queue(child)
            self._open = {child for child in self._level if not child.is_done}

    def _can_ask_again(self, node: _Node) -> bool:
        is_short = len(node.kept) < self._config.degree
        return is_short and not node.is_down and node.attempts < self._config.max_attempts

    def _judge(self, node: _Node) -> None:
        """Keep or merge the new candidates of a topic."""
        for child in node.candidates[node.judged :]:
            twin = self._settled.find(child.words)
            if twin is None:
                self._settled.add(child.words, child)
                node.kept.append(child)
            else:
                child.is_merged = True
                node.merges.append((child, twin))
        node.judged = len(node.candidates)

    def assemble(self, dataset: str, seed: int) -> TopicGraph:
        """Return the graph of all settled topics. Raises: `ProviderError` if it has no leaf."""
        for node in self._all:
            topic = node.topic
            topic.children = [child.topic.topic_id for child in node.kept]
            if node.depth < self._config.depth:
                topic.missing = self._config.degree - len(node.kept)
                if not node.kept:
                    topic.error = node.error or "the model gave only topics that exist already, or none"
        graph = TopicGraph(
            root_id=self._root.topic.topic_id,
            topics={node.topic.topic_id: node.topic for node in self._all},
            mode=self._config.mode,
        )
        failed = next(graph.failed(), None)
        if next(graph.leaves(), None) is None:
            raise ProviderError(
                f"no topic could be built: {failed.error if failed else 'there are no leaves'}; run the same "
                "command again"
            )
        graph.origin = Origin(
            dataset=dataset,
            model=self._writer.model.name,
            seed=seed,
            degree=self._config.degree,
            depth=self._config.depth,
            similarity=self._config.similarity,
            instructions=self._config.instructions,
            merged=sum(len(node.merges) for node in self._all),
            cut=sum(node.cut for node in self._all),
            unusable=sum(node.unusable for node in self._all),
            dropped_links=self._link(graph) if self._config.mode == "graph" else 0,
        )
        return graph

    def _link(self, graph: TopicGraph) -> int:
        """Add the cross-links, and return how many links that the model asked for were left out."""
        merges = [(node, merged, twin) for node in self._all for merged, twin in node.merges]
        # A text that the model gave again has the id of the first one.
        kept_as = {
            merged.topic.topic_id: twin.topic.topic_id
            for _, merged, twin in merges
            if merged.topic.topic_id != twin.topic.topic_id
        }
        for node, merged, _ in merges:
            target = self._resolve(merged.topic.topic_id, graph, kept_as)
            if target is not None:
                graph.link(node.topic.topic_id, target)
        dropped = 0
        for node in self._all:
            above = {item.topic.topic_id for item in node.lineage()}
            for name in dict.fromkeys(node.connections):
                target = self._resolve(name, graph, kept_as)
                if target is None or target in above or not graph.link(target, node.topic.topic_id):
                    dropped += 1
        return dropped

    def _resolve(self, name: str, graph: TopicGraph, kept_as: dict[str, str]) -> str | None:
        """Return the id of the topic in `graph` that has the id `name`, or that such a topic was merged with."""
        while name not in graph.topics:
            if name not in kept_as:
                return None
            name = kept_as[name]
        return name
