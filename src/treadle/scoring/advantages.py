"""Advantages: how much better a rollout is than the others of its group. All are pure functions of rewards.

A reward that is not known (`None`) takes no part in the group's statistics, and has no advantage.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeAlias

from treadle.core.errors import ConfigError
from treadle.core.registry import name_known

Rewards: TypeAlias = Sequence[float | None]
Advantages: TypeAlias = tuple[float | None, ...]

_EPSILON = 1e-6
"""What is added to the deviation, as in the usual implementations of GRPO."""


class AdvantageKind(StrEnum):
    """The ways to compute advantages within a group."""

    GROUP = "group"
    """The reward minus the group's mean, divided by its standard deviation (GRPO, arXiv 2402.03300)."""
    GROUP_MEAN = "group_mean"
    """The reward minus the group's mean (Dr. GRPO, arXiv 2503.20783)."""
    LEAVE_ONE_OUT = "leave_one_out"
    """The reward minus the mean of the other rewards (RLOO, arXiv 2402.14740)."""
    REWARD = "reward"
    """The reward itself (REINFORCE)."""


def compute_advantages(kind: AdvantageKind | str, rewards_G: Rewards) -> Advantages:
    """Return the advantages of a group, aligned with `rewards_G`. Raises: `ConfigError` for an unknown kind."""
    try:
        return _KINDS[AdvantageKind(kind)](rewards_G)
    except ValueError:
        hint = name_known(str(kind), [item.value for item in AdvantageKind], "there are")
        raise ConfigError(f"there is no advantage {str(kind)!r}{hint}") from None


def group_relative(rewards_G: Rewards) -> Advantages:
    """Return the rewards minus their mean, divided by their standard deviation, with the divisor n - 1.

    All are 0 if the rewards are equal.
    """
    centred = group_mean(rewards_G)
    known = [value for value in centred if value is not None]
    if len(known) < 2:
        return centred
    deviation = (sum(value * value for value in known) / (len(known) - 1)) ** 0.5
    return tuple([None if value is None else value / (deviation + _EPSILON) for value in centred])


def group_mean(rewards_G: Rewards) -> Advantages:
    """Return the rewards minus their mean."""
    known = [reward for reward in rewards_G if reward is not None]
    mean = sum(known) / len(known) if known else 0.0
    if not has_variance(rewards_G):
        # The mean of equal numbers can differ from them in the last bit.
        return tuple([None if reward is None else 0.0 for reward in rewards_G])
    return tuple([None if reward is None else reward - mean for reward in rewards_G])


def leave_one_out(rewards_G: Rewards) -> Advantages:
    """Return each reward minus the mean of the others; 0 if there are no others."""
    known = [reward for reward in rewards_G if reward is not None]
    if len(known) < 2 or not has_variance(rewards_G):
        return tuple([None if reward is None else 0.0 for reward in rewards_G])
    total, others = sum(known), len(known) - 1
    return tuple([None if reward is None else reward - (total - reward) / others for reward in rewards_G])


def has_variance(rewards_G: Rewards) -> bool:
    """Return whether the known rewards of a group are not all equal."""
    return len({reward for reward in rewards_G if reward is not None}) > 1


def discount(rewards_S: Sequence[float], gamma: float) -> tuple[float, ...]:
    """Return the discounted sum of the rewards of each step and of those after it, aligned with `rewards_S`.

    Raises: `ConfigError` if `gamma` is not between 0 and 1.
    """
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma is {gamma!r}; give a number from 0 to 1")
    found: list[float] = []
    later = 0.0
    for reward in reversed(rewards_S):
        later = reward + gamma * later
        found.append(later)
    return tuple(reversed(found))


_KINDS: dict[AdvantageKind, Callable[[Rewards], Advantages]] = {
    AdvantageKind.GROUP: group_relative,
    AdvantageKind.GROUP_MEAN: group_mean,
    AdvantageKind.LEAVE_ONE_OUT: leave_one_out,
    AdvantageKind.REWARD: tuple,
}
