"""Which split each group of rows belongs to, such that the sizes of the splits come near to their shares.

A group stays in one split. Where it belongs follows from its key, so that it does not change when others are added.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import product

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.tasks.draws import pick_weighted


class Unions:
    """Sets of keys that are joined; each set is a group whose rows stay together."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def join(self, first: str, second: str) -> None:
        """Put two keys, and all that they were joined with before, into one group."""
        one, two = sorted((self.find(first), self.find(second)))
        # The smallest key stands for the group, whatever the order of the calls.
        self._parents[two] = one

    def find(self, key: str) -> str:
        """Return the key that represents the group of `key`."""
        while (parent := self._parents.get(key, key)) != key:
            # The next search for this key skips a step.
            self._parents[key] = self._parents.get(parent, parent)
            key = parent
        return key


def apportion(rows: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return how many of `rows` each split should have, by the method of the largest remainder.

    Raises: `ConfigError` if a share is not a positive number.
    """
    if not shares or not all(0 < share < math.inf for share in shares.values()):
        raise ConfigError(
            f"the shares of the splits are {dict(shares)!r}; each must be more than 0, and finite"
        )
    whole = sum(shares.values())
    exact = {name: rows * share / whole for name, share in shares.items()}
    found = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: exact[name] - found[name], reverse=True)
    for name in by_rest[: rows - sum(found.values())]:
        found[name] += 1
    return found


def assign(
    sizes: Mapping[str, int], shares: Mapping[str, float], seed: int, fixed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the split of each group, given the number of rows of each.

    The groups in `fixed` keep the splits given there. The split of every other group follows from a hash of `seed`
    and its key; then groups are moved and exchanged as long as this brings the sizes of the splits nearer to the
    shares.
    """
    fixed = fixed or {}
    positions = {key: _position(seed, key) for key in sizes}
    found = {key: fixed.get(key) or pick_weighted(shares, positions[key]) for key in sizes}
    wanted = apportion(sum(sizes.values()), shares)
    over = dict.fromkeys(shares, 0)
    free: dict[str, dict[int, list[str]]] = {name: defaultdict(list) for name in shares}
    for key in sorted(sizes, key=positions.__getitem__, reverse=True):
        over[found[key]] += sizes[key]
        if key not in fixed:
            free[found[key]][sizes[key]].append(key)
    over = {name: count - wanted[name] for name, count in over.items()}
    while (best := min(_exchanges(free, over), default=None)) is not None:
        moves = ((best.out, best.source, best.target), (best.back, best.target, best.source))
        taken = [(free[source][size].pop(), source, target) for size, source, target in moves if size]
        for key, source, target in taken:
            found[key] = target
            over[source] -= sizes[key]
            over[target] += sizes[key]
            free[target][sizes[key]].insert(0, key)
    return found


class _Exchange(Struct, frozen=True, order=True):
    """A move of a group to another split, and maybe of a smaller one in return. The best sorts first."""

    gain: int
    """How much nearer to the shares the sizes come, as a negative number."""
    back: int
    """The size of the group that is moved in return; 0 if there is none."""
    out: int
    source: str
    target: str


def _exchanges(free: Mapping[str, Mapping[int, list[str]]], over: Mapping[str, int]) -> Iterator[_Exchange]:
    """Yield the exchanges that bring the sizes of two splits nearer to their shares."""
    pairs = [(source, target) for source in over for target in over if over[source] > 0 > over[target]]
    for source, target in pairs:
        more, less = over[source], over[target]
        sizes = (*free[target].items(), (0, ["nothing"]))
        for (out, leaving), (back, returning) in product(free[source].items(), sizes):
            change = out - back
            gain = abs(more - change) + abs(less + change) - abs(more) - abs(less)
            if leaving and returning and gain < 0:
                yield _Exchange(gain, back, out, source, target)


def _position(seed: int, key: str) -> float:
    """Return the position of a group between 0 and 1, which depends on nothing but the seed and the key."""
    digest = blake2b(f"{seed}\x1f{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
