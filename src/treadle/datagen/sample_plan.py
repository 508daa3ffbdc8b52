"""The plan of a dataset: which sample has which topic, kind, difficulty, persona and seed.

All of it depends only on the configuration and the number of the sample, with two exceptions: the kind, and the
topic of a sample that replaces a rejected one.
"""

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from treadle.core.errors import ConfigError
from treadle.datagen.config.estimate import wanted_rows
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.scenarios.cast import draw_persona
from treadle.datagen.scenarios.kinds import plan_difficulty, plan_kind
from treadle.datagen.scenarios.scenario import Kind, SampleSpec
from treadle.datagen.topics.topic_graph import Topic
from treadle.jobs.ledger import JobCounts, PlannedItem
from treadle.tasks.draws import Draw


class SamplePlan:
    """The plan of one dataset over its leaf topics."""

    def __init__(
        self, config: GenerationConfig, leaves: Sequence[Topic], kinds: Mapping[Kind, float]
    ) -> None:
        """Make a plan. `kinds` are the weights of the kinds that are possible."""
        if not leaves:
            raise ConfigError("there is no topic to write about; build the topics again, or give other ones")
        self.wanted = wanted_rows(config, len(leaves))
        self._config = config
        self._kinds = kinds
        order = Draw(f"{config.seed}/topics").shuffled(leaves)
        self._order = order
        self._topics = {topic.topic_id: (index, topic) for index, topic in enumerate(order)}
        self._queue: list[tuple[int, int, str]] = [
            (0, index, topic.topic_id) for index, topic in enumerate(order)
        ]

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        """Return the sample with this number. The topics take turns; a sample that replaces a rejected one is for
        the topic that has the fewest."""
        topic = (
            self._next_topic(counts) if number > self.wanted else self._order[(number - 1) % len(self._order)]
        )
        spec = self._make_spec(number, topic, counts)
        kind = "" if spec.kind is None else spec.kind.value
        return PlannedItem(number, kind, topic.topic_id, msgspec.to_builtins(spec))

    def _next_topic(self, counts: JobCounts) -> Topic:
        """Return the topic with the fewest samples. Rejected samples are not counted."""
        while True:
            seen, index, topic_id = self._queue[0]
            now = counts.shares.get(topic_id, 0)
            if seen != now:
                heapq.heapreplace(self._queue, (now, index, topic_id))
                continue
            heapq.heapreplace(self._queue, (now + 1, index, topic_id))
            return self._topics[topic_id][1]

    def give_back(self, topic_id: str, counts: JobCounts) -> None:
        """Note that a sample of a topic was rejected, so that the topic comes earlier again."""
        if topic_id in self._topics:
            heapq.heappush(self._queue, (counts.shares.get(topic_id, 0), self._topics[topic_id][0], topic_id))

    def _make_spec(self, number: int, topic: Topic, counts: JobCounts) -> SampleSpec:
        config, generation = self._config, self._config.generation
        draw = Draw(f"{config.seed}/{number}")
        conversation = generation.conversation
        # Samples that replace rejected ones have the kinds that are still missing.
        kept = {kind: counts.labels.get(kind, 0) for kind in self._kinds} if number > self.wanted else None
        return SampleSpec(
            number=number,
            topic_id=topic.topic_id,
            topic=topic.path,
            kind=plan_kind(number, self._kinds, seed=config.seed, kept=kept),
            difficulty=plan_difficulty(number, generation.difficulties, seed=config.seed),
            persona=draw_persona(config.seed, number, generation.personas),
            turns=draw.between(conversation.min_turns, conversation.max_turns),
            seed=draw.below(2**31),
        )
