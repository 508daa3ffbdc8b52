"""Advantages are pure functions of a group's rewards."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import ConfigError
from treadle.scoring.advantages import AdvantageKind, compute_advantages, discount, has_variance

GROUP = (1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
REWARDS = st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=9)


def test_the_known_ways_give_what_their_papers_say() -> None:
    mean = sum(GROUP) / 8
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in GROUP) / 7)
    assert compute_advantages("group", GROUP) == pytest.approx(
        [(reward - mean) / deviation for reward in GROUP], rel=1e-4
    )
    assert compute_advantages("group_mean", GROUP) == tuple([reward - mean for reward in GROUP])
    others = [(3 - reward) / 7 for reward in GROUP]
    assert compute_advantages("leave_one_out", GROUP) == pytest.approx(
        [reward - other for reward, other in zip(GROUP, others, strict=True)]
    )
    assert compute_advantages("reward", GROUP) == GROUP


@given(REWARDS, st.sampled_from(list(AdvantageKind)))
def test_an_unknown_reward_has_no_advantage_and_changes_no_other(
    rewards: list[float | None], kind: AdvantageKind
) -> None:
    found = compute_advantages(kind, rewards)
    assert [value is None for value in found] == [reward is None for reward in rewards]
    known = [reward for reward in rewards if reward is not None]
    assert [value for value in found if value is not None] == list(compute_advantages(kind, known))


@given(st.floats(-10, 10), st.integers(1, 9), st.sampled_from(["group", "group_mean", "leave_one_out"]))
def test_a_group_without_variance_has_advantages_of_exactly_0(reward: float, size: int, kind: str) -> None:
    assert compute_advantages(kind, [reward] * size) == (0.0,) * size
    assert not has_variance([reward] * size)


def test_rewards_are_discounted_over_steps() -> None:
    assert discount([0.0, 0.0, 1.0], 0.5) == (0.25, 0.5, 1.0)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'group_mean'"):
        compute_advantages("group_men", GROUP)
    with pytest.raises(ConfigError, match="gamma is 2"):
        discount([1.0], 2)
