"""The reading connection of a journal in PostgreSQL.

It reads the frames of one run, and those of all runs that became visible since a snapshot.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from treadle.journal.postgres.arrays import Ints, Texts
from treadle.journal.postgres.link import Db, Link
from treadle.journal.tables.leases import Leases
from treadle.journal.tables.reader import TableReader
from treadle.journal.tables.table_rows import Head, Query, check_frame, damaged, seed_of

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
        """Return an SQL condition that is true if the transaction whose number is in a column had been
        committed, and the values for the condition."""
        condition = f"({column} < ? OR ({column} < ? AND {column} != ALL(?)))"
        return condition, (self.xmin, self.xmax, Ints(self.open))

    def lacks(self, column: str) -> tuple[str, tuple[object, ...]]:
        """Return an SQL condition that is true if `has` is false, and the values for the condition."""
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
    """The last frame of `until` that has been read: its transaction, run and seq."""


START = Place(Snapshot(FIRST, FIRST, ()))
"""The position before all frames."""


_BEFORE = (
    "SELECT b.checksum FROM frames AS b WHERE b.run = frames.run AND b.seq < frames.seq "
    "ORDER BY b.seq DESC LIMIT 1"
)


_encode = msgspec.json.Encoder().encode


def run_query(db: Db, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run a statement with `?` for values, and return its rows."""
    cursor = db.cursor(binary=True)
    cursor.execute(sql.replace("?", "%s").encode(), values)
    return cursor.fetchall() if cursor.description is not None else []


def mark_of(name: str, value: str) -> str:
    """Return a label as an element of `runs.marks`."""
    return _encode((name, value)).decode()


class PostgresReader(TableReader):
    """The `TableReader` of PostgreSQL."""

    newest_frame = "frames.run = heads.run AND frames.seq = heads.frame"
    frame_key = ("run", "seq")
    unknown = "heads.is_unknown"
    faults = (
        (
            "SELECT run_id FROM runs WHERE NOT EXISTS(SELECT 1 FROM heads WHERE run = id)",
            "run {0!r} has no row in the table `heads`",
        ),
        (
            "SELECT run_id, newest, frame FROM (SELECT run, max(seq) AS newest FROM frames GROUP BY run) AS ends "
            "JOIN heads USING(run) JOIN runs ON runs.id = heads.run WHERE newest != frame",
            "run {0!r} has a frame of event {1}, and ends with the one of event {2}",
        ),
        (
            "SELECT run_id FROM runs JOIN heads ON run = id WHERE runs.token != heads.token",
            "run {0!r} has different tokens in the tables `runs` and `heads`",
        ),
    )

    def __init__(self, link: Link, leases: Leases) -> None:
        super().__init__(link.address.name, leases)
        self._link = link

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            self.check_open()
            try:
                return self._link.run(lambda db: run_query(db, sql, values))
            except UnicodeEncodeError:  # a text that nothing in the database can be equal to
                return []

    def close(self) -> None:
        self._link.is_closing.set()
        with self.lock:
            self._is_closed = True
            self._link.close()

    def disown(self) -> object:
        self._is_closed = True
        return self._link.db

    def label_condition(self, name: str, value: str) -> tuple[str, tuple[object, ...]]:
        return "runs.marks @> ARRAY[?]", (mark_of(name, value),)

    def is_one_of(self, column: str, values: Collection[str]) -> tuple[str, tuple[object, ...]]:
        return f"{column} = ANY(?)", (Texts(values),)

    def is_after(self, position: Place) -> tuple[str, tuple[object, ...]]:
        return position.seen.lacks("xact")

    def read_frames(
        self, query: Query, head: Head, after_seq: int = 0, until_seq: int | None = None
    ) -> Iterator[tuple[int, list[bytes]]]:
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

    def start_of_all(self) -> Place:
        return START

    def end_position(self) -> Place:
        return Place(Snapshot.of(self.query(NOW)[0][0]))

    def next_rows(self, position: Place, limit: int) -> tuple[list[tuple[Any, ...]], Place]:
        until = position.until or Snapshot.of(self.query(NOW)[0][0])
        lacks, before = position.seen.lacks("frames.xact")
        has, now = until.has("frames.xact")
        rows = self.query(
            f"SELECT runs.run_id, seq, count, body, frames.checksum, ({_BEFORE}), frames.xact, run "
            f"FROM frames LEFT JOIN runs ON runs.id = run WHERE {lacks} AND {has} "
            "AND frames.xact >= ? AND (frames.xact, run, seq) > (?, ?, ?) ORDER BY frames.xact, run, seq LIMIT ?",
            (*before, *now, position.last[0], *position.last, limit),
        )
        for name, first, *_, checksum, _, _ in rows:
            if name is not None and checksum is None and first != 1:
                raise damaged(name, f"the frame of event {first - 1} is missing")
        if len(rows) < limit:
            return rows, Place(until)
        _, seq, *_, xact, run = rows[-1]
        return rows, Place(position.seen, until, (xact, run, seq))
