"""The plan of a dataset depends on its seed, and not on the order in which samples are finished."""

from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.samples import SamplePlan
from treadle.datagen.scenarios.scenario import Kind
from treadle.datagen.topics.topic_graph import Topic, topic_id
from treadle.jobs.ledger import JobCounts, PlannedItem

LEAVES = [Topic(topic_id=topic_id(("root", name)), text=name, path=("root", name)) for name in "abcde"]


def make(num_samples: int, rejected_after: dict[int, int], items: int, seed: int = 3) -> list[PlannedItem]:
    """Return the items of a plan. After an item (key) is planned, another one (value) is rejected."""
    config = GenerationConfig.model_validate(
        {"topics": {"prompt": "root"}, "seed": seed, "generation": {"num_samples": num_samples}}
    )
    plan = SamplePlan(config, LEAVES, {Kind.SINGLE: 1.0, Kind.CHAINED: 1.0})
    counts = JobCounts(shares={}, labels={})
    made: list[PlannedItem] = []
    for number in range(1, items + 1):
        item = plan.make_item(number, counts)
        made.append(item)
        counts.shares[item.share] = counts.shares.get(item.share, 0) + 1
        if number in rejected_after:
            share = made[rejected_after[number] - 1].share
            counts.shares[share] -= 1
            plan.give_back(share, counts)
    return made


def test_the_same_seed_gives_the_same_plan_whenever_samples_are_rejected() -> None:
    """DeepFabric drew topics without a seed. A sample's topic also depended on when others were rejected."""
    whole = make(20, {}, 20)
    assert make(20, {6: 2, 9: 1, 10: 6}, 20) == whole
    assert make(20, {19: 2, 20: 1}, 20) == whole
    assert [item.spec["topic"] for item in make(20, {}, 20, seed=4)] != [item.spec["topic"] for item in whole]


def test_what_replaces_rejected_samples_has_the_topics_that_lost_them() -> None:
    found = make(10, {4: 2, 10: 7}, 12)
    assert {item.share for item in found[10:]} == {found[1].share, found[6].share}
    for leaf in LEAVES:
        kept = [
            item
            for number, item in enumerate(found, 1)
            if number not in (2, 7) and item.share == leaf.topic_id
        ]
        assert len(kept) == 2
