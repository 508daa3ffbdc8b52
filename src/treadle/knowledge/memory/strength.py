"""How episodes fade, and how recalling them keeps them. Other memories do not fade."""

import math

FADING_SECONDS = 168 * 3600.0
"""In this time, one week, an episode of strength 1 fades to 1/e."""
FLOOR = 0.1
"""The lowest share to which an episode fades."""
MAX_STRENGTH = 10.0
_GAIN = 0.5
_WEIGHT = 0.2
"""How much of a score depends on decay. More would rank what is new before what fits."""


def decay(strength: float, age_seconds: float) -> float:
    """Return the share of an episode that remains `age_seconds` after its last use, from 1 down to `FLOOR`."""
    age = max(0.0, age_seconds)
    return max(FLOOR, math.exp(-age / (FADING_SECONDS * max(strength, 0.01))))


def strengthened(strength: float) -> float:
    """Return the strength of an episode after it was recalled or written once more."""
    return min(MAX_STRENGTH, strength + _GAIN)


def weigh(score: float, left: float) -> float:
    """Return the score of an episode after fading. `left` is the share of the episode that remains."""
    return score * (1 - _WEIGHT + _WEIGHT * left)
