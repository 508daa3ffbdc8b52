"""Reproducible random draws, and wordings whose fields are filled with what was drawn.

The same seed gives the same values on every machine and every version of Python: all draws use
`random.Random.random`, the only method whose sequence Python guarantees.
"""

import random
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


def fraction(*parts: object) -> float:
    """Return a number in [0, 1) that depends only on `parts`."""
    text = ":".join([str(part) for part in parts])
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def pick(options: Sequence[T], *parts: object) -> T:
    """Return one of `options`, chosen only by `parts`."""
    return options[int(fraction(*parts) * len(options))]


def pick_weighted(weights: Mapping[T, float], share: float) -> T:
    """Return the item at a share, from 0 to 1, of the sum of all weights, in their order."""
    place = share * sum(weights.values())
    for item, weight in weights.items():
        place -= weight
        if place < 0:
            return item
    return list(weights)[-1]  # rounding


def split(text: str) -> tuple[str, ...]:
    """Return the parts of a text that `|` separates, with single spaces. `-` is an empty part."""
    return tuple(["" if part.strip() == "-" else " ".join(part.split()) for part in text.split("|")])


class Draw:
    """A sequence of random draws from one seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def below(self, limit: int) -> int:
        """Return an integer from 0 to `limit - 1`."""
        return int(self._random() * limit)

    def between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all of `items` in random order."""
        result, random = list(items), self._random
        for index in range(len(result) - 1, 0, -1):
            other = int(random() * (index + 1))
            result[index], result[other] = result[other], result[index]
        return result

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` different items in random order."""
        return self.shuffled(items)[:count]

    def distinct(self, low: int, high: int, count: int) -> list[int]:
        """Return `count` different integers from `low` to `high`, in the order drawn.

        `count` should be much smaller than the range, because repeated values are drawn again.
        """
        found: dict[int, None] = {}
        while len(found) < count:
            found[self.between(low, high)] = None
        return list(found)


_FIELD = re.compile(r"\{(\w+)\}")


class Wording:
    """A text with fields in braces, such as `{folder}`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = frozenset(_FIELD.findall(text))
        self._pattern = re.compile(self._to_pattern(text), re.DOTALL)

    @staticmethod
    def _to_pattern(text: str) -> str:
        seen: set[str] = set()
        parts = []
        for index, part in enumerate(_FIELD.split(text)):
            if index % 2 == 0:
                parts.append(re.escape(part))
            elif part in seen:
                parts.append(f"(?P={part})")
            else:
                seen.add(part)
                parts.append(f"(?P<{part}>.+?)")
        return "".join(parts)

    def render(self, values: Mapping[str, str]) -> str:
        """Return the text with its fields filled."""
        return _FIELD.sub(lambda match: values[match[1]], self.text)

    def match(self, text: str) -> dict[str, str] | None:
        """Return the values that `text` was filled with, or `None` if `text` does not match the template."""
        found = self._pattern.fullmatch(text)
        return found.groupdict() if found else None
