"""The frames in PostgreSQL: those of a run, and those of all runs that became visible since a snapshot."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from treadle.journal.postgres.arrays import Ints
from treadle.journal.tables.checks import Head, Query, check_frame, damaged, seed_of

_BATCH = 256
"""How many frames are read at a time."""
FIRST = -(2**63)
_LAST = 2**63 - 1


class Snapshot(NamedTuple):
    """A state of the database: which transactions had been committed."""

    xmin: int
    """All transactions before this one had ended."""
    xmax: int
    """No transaction from this one on had ended."""
    open: tuple[int, ...]
    """The transactions in between that had not ended."""

    @classmethod
    def of(cls, text: str) -> "Snapshot":
        """Read what `pg_current_snapshot` returns."""
        xmin, xmax, xacts = text.split(":")
        return cls(int(xmin), int(xmax), tuple(map(int, xacts.split(","))) if xacts else ())

    def has(self, column: str) -> tuple[str, tuple[object, ...]]:
        """Return the condition that the transaction in a column had been committed, and its values."""
        condition = f"({column} < ? OR ({column} < ? AND {column} != ALL(?)))"
        return condition, (self.xmin, self.xmax, Ints(self.open))

    def lacks(self, column: str) -> tuple[str, tuple[object, ...]]:
        """Return the opposite of `has`."""
        condition = f"({column} >= ? AND ({column} >= ? OR {column} = ANY(?)))"
        return condition, (self.xmin, self.xmax, Ints(self.open))


NOW = "SELECT pg_current_snapshot()::text"


class Place(NamedTuple):
    """A position in the frames of all runs."""

    seen: Snapshot
    """The frames that were visible in this snapshot have been read."""
    until: Snapshot | None = None
    """The frames that were visible in this snapshot are being read; `None` if nothing is being read."""
    last: tuple[int, int, int] = (FIRST, 0, 0)
    """The last frame of `until` that was passed: its transaction, run and seq."""


START = Place(Snapshot(FIRST, FIRST, ()))
"""The position before all frames."""


def read_frames(
    query: Query, head: Head, after_seq: int = 0, until_seq: int | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the frames that hold the events after `after_seq`. See `TableReader.read_frames`."""
    if until_seq is not None and until_seq <= after_seq:
        return
    run_id, key = head.run_id, head.key
    # Frames after the head are those that were committed since it was read.
    last = min(head.frame or _LAST, _LAST if until_seq is None else until_seq)
    rows = query(
        "SELECT seq, checksum FROM frames WHERE run=? AND seq<=? ORDER BY seq DESC LIMIT 2",
        (key, min(after_seq + 1, last)),
    )
    expected = rows[0][0] if rows else after_seq + 1
    checksum = rows[1][1] if len(rows) > 1 else seed_of(run_id)
    if len(rows) < 2 and expected != 1:
        raise damaged(run_id, f"the frame of event {min(expected - 1, after_seq + 1)} is missing")
    while batch := query(
        "SELECT seq, count, body, checksum FROM frames WHERE run=? AND seq>=? AND seq<=? ORDER BY seq LIMIT ?",
        (key, expected, last, _BATCH),
    ):
        for seq, count, body, own in batch:
            if seq != expected:
                raise damaged(run_id, f"the frame of event {expected} is missing")
            yield seq, check_frame(run_id, body, count, seq, own, checksum)
            expected, checksum = seq + count, own
        if len(batch) < _BATCH:
            break
    if until_seq is None and head.events not in (None, expected - 1):
        raise damaged(run_id, f"it has {head.events} events, and {expected - 1} of them were found")


def next_rows(query: Query, place: Place, limit: int) -> tuple[list[tuple[Any, ...]], Place]:
    """Return the next frames of all runs, and the position after them.

    A row has the run's id, the seq of the first event, the number of events, the body, the checksum, and the
    checksum of the run's frame before.
    """
    until = place.until or Snapshot.of(query(NOW, ())[0][0])
    lacks, before = place.seen.lacks("frames.xact")
    has, now = until.has("frames.xact")
    rows = query(
        f"SELECT runs.run_id, seq, count, body, frames.checksum, ({_BEFORE}), frames.xact, run "
        f"FROM frames LEFT JOIN runs ON runs.id = run WHERE {lacks} AND {has} "
        "AND frames.xact >= ? AND (frames.xact, run, seq) > (?, ?, ?) ORDER BY frames.xact, run, seq LIMIT ?",
        (*before, *now, place.last[0], *place.last, limit),
    )
    if len(rows) < limit:
        return rows, Place(until)
    *_, xact, run = rows[-1]
    return rows, Place(place.seen, until, (xact, run, rows[-1][1]))


_BEFORE = (
    "SELECT b.checksum FROM frames AS b WHERE b.run = frames.run AND b.seq < frames.seq "
    "ORDER BY b.seq DESC LIMIT 1"
)
