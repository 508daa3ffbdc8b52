"""A table in memory from keys of 40 bits to numbers of rows, with 9 bytes for each entry."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable

KEY_BITS = 40
NUMBER_BITS = 24
"""A table can have 16 million rows."""
_PART_BITS = 10
_SHIFT = KEY_BITS + NUMBER_BITS - _PART_BITS
_MASK = (1 << NUMBER_BITS) - 1


class BandTable:
    """Sorted entries, in parts that are small enough for insertions. An entry holds a key and a number."""

    def __init__(self, entries: Iterable[int] = ()) -> None:
        parts: list[array[int]] = [array("Q") for _ in range(1 << _PART_BITS)]
        for entry in entries:
            parts[entry >> _SHIFT].append(entry)
        self._parts = [array("Q", sorted(part)) for part in parts]

    def add(self, entries: Iterable[int]) -> None:
        """Add entries."""
        for entry in entries:
            part = self._parts[entry >> _SHIFT]
            part.insert(bisect_left(part, entry), entry)

    def find(self, key: int, limit: int) -> list[int]:
        """Return the numbers of the first `limit` rows with a key, in order."""
        least = key << NUMBER_BITS
        part = self._parts[least >> _SHIFT]
        place = bisect_left(part, least)
        found = []
        for entry in part[place : place + limit]:
            if entry >> NUMBER_BITS != key:
                break
            found.append(entry & _MASK)
        return found


def make_entry(key: int, number: int) -> int:
    """Return the entry of a row under a key."""
    return key << NUMBER_BITS | number
