"""Reproducible draws: the same seed gives the same values on every machine and Python.

Everything is built on `random.Random.random`, the one method whose sequence Python promises to keep.
"""

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


def fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` alone."""
    text = ":".join([str(part) for part in parts])
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def pick(options: Sequence[T], *parts: object) -> T:
    """One of `options`, chosen by `parts` alone."""
    return options[int(fraction(*parts) * len(options))]


class Draw:
    """A stream of draws from one seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def below(self, limit: int) -> int:
        """An integer from 0 to `limit - 1`."""
        return int(self._random() * limit)

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return options[self.below(len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of `items` in a random order."""
        result = list(items)
        for index in range(len(result) - 1, 0, -1):
            other = self.below(index + 1)
            result[index], result[other] = result[other], result[index]
        return result

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different ones of `items`, in a random order."""
        return self.shuffled(items)[:count]

    def distinct(self, low: int, high: int, count: int) -> list[int]:
        """`count` different integers from `low` to `high`, in the order drawn; far fewer than there are."""
        found: dict[int, None] = {}
        while len(found) < count:
            found[self.between(low, high)] = None
        return list(found)
