"""The contents of a run that no other run needs, for the deletion of the run."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from treadle.core.errors import LeaseHeldError
from treadle.journal.deletion import digests_in, find_unused
from treadle.journal.tables.reader import TableReader

_PAGE = 200
"""How many rows are read at a time."""


class Unused(NamedTuple):
    """The contents that only one run needs, as of a position."""

    digests: set[str]
    position: Any
    """The position up to which the runs were searched."""


def find_contents(reader: TableReader, run_id: str) -> Unused:
    """Return the contents that only this run needs. All runs are read, unless the run has no contents.

    Raises: `RunNotFoundError`.
    """
    key, position = reader.key_of(run_id), reader.end_position()
    mine: set[str] = set()
    for body in reader.bodies(key, is_own=True):
        mine |= digests_in(body)
    if mine:
        others = chain(reader.bodies(key, is_own=False), reader.messages(key))
        mine = find_unused(mine, reader.read_stored, others, _contents(reader))
    return Unused(mine, position)


def still_unused(unused: Unused, newer: Iterable[bytes]) -> set[str]:
    """Return the contents that are also unused by the frames of other runs after the position."""
    digests = set(unused.digests)
    for body in newer:
        digests -= digests_in(body)
    return digests


def refuse_silent(run_id: str) -> LeaseHeldError:
    """Return the error for a run whose driver has to be watched before the run can be deleted."""
    return LeaseHeldError(
        f"run {run_id!r} may still be driven by a process that was busy for a while; try again later"
    )


def _contents(reader: TableReader) -> Iterator[tuple[str, bytes]]:
    last = ""
    while rows := reader.query(
        f"SELECT digest, content FROM blobs WHERE digest > ? ORDER BY digest LIMIT {_PAGE}", (last,)
    ):
        last = rows[-1][0]
        yield from [(digest, content) for digest, content in rows]
