"""Near-duplicates of topics: texts with almost the same words, whatever their order, case and number."""

import math
import re
import unicodedata
from typing import Generic, TypeVar

T = TypeVar("T")

_TOKEN = re.compile(r"[^\W_]+[+#]*")
"""A word. The signs at its end distinguish C, C++ and C#."""
_FILLERS = frozenset(
    ["a", "an", "and", "are", "at", "by", "for", "in", "is", "of", "on", "or", "the", "to", "with"]
)
_EAST_ASIAN = 0x2E80
"""The first character of the scripts that are written without spaces."""


def words_of(text: str) -> frozenset[str]:
    """Return the words that a topic is compared by: in lower case and singular, without fillers such as `the`.

    For scripts without spaces, each pair of adjacent characters is a word.
    """
    tokens = _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())
    words = {word for token in tokens if token not in _FILLERS for word in _split(token)}
    return frozenset(words or tokens or [text])


def similarity(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the share of words that two topics have in common, from 0 to 1 (the Jaccard index)."""
    common = len(words & others)
    return common / (len(words) + len(others) - common)


class SimilarIndex(Generic[T]):
    """Values that are found by the words of their topics."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._entries: list[tuple[frozenset[str], T]] = []
        self._by_word: dict[str, list[int]] = {}

    def add(self, words: frozenset[str], value: T) -> None:
        """Add a value."""
        for word in words:
            self._by_word.setdefault(word, []).append(len(self._entries))
        self._entries.append((words, value))

    def find(self, words: frozenset[str]) -> T | None:
        """Return the most similar value, the first one of several; `None` if none is similar enough.

        Topics without a common word are never similar.
        """
        # A similar topic has at least `needed` of the words, so it has one of the rarest `len(words) - needed + 1`.
        needed = math.ceil(self._threshold * len(words) - 1e-9)
        rarest = sorted(words, key=lambda word: (len(self._by_word.get(word, ())), word))
        near = {
            number
            for word in rarest[: len(words) - max(needed, 1) + 1]
            for number in self._by_word.get(word, ())
        }
        scores = ((similarity(words, self._entries[number][0]), -number) for number in near)
        best = max(scores, default=(-1.0, 0))
        return self._entries[-best[1]][1] if best[0] >= self._threshold else None


def _split(token: str) -> list[str]:
    if ord(token[0]) >= _EAST_ASIAN:
        return [token[index : index + 2] for index in range(max(1, len(token) - 1))]
    if len(token) > 4 and token.endswith("ies"):
        return [token[:-3] + "y"]
    if len(token) > 3 and token.endswith("s") and not token.endswith(("ss", "us", "is")):
        return [token[:-1]]
    return [token]
