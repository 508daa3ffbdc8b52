"""The reading connection of a journal in a file. Frames are checked while they are read."""

import contextlib
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treadle.core.errors import JournalError
from treadle.journal.sqlite.failures import ERRORS, explain
from treadle.journal.sqlite.packing import Unpacker
from treadle.journal.tables.leases import IS_QUEUED, Leases
from treadle.journal.tables.reader import LOST, TableReader
from treadle.journal.tables.table_rows import Head, Query, check_frame, damaged, seed_of

_BATCH = 256
"""How many frames are read at a time."""

_encode = msgspec.json.Encoder().encode


def _check(head: Head, row: tuple[Any, ...], before: int, expected: int, seed: int) -> list[bytes]:
    _, previous, run, seq, count, body, checksum = row
    if run != head.key:
        raise damaged(head.run_id, f"the frame of event {expected} belongs to another run")
    if (previous, seq) != (before, expected):
        raise damaged(head.run_id, f"the frame of event {expected} does not continue the one before it")
    return check_frame(head.run_id, body, count, expected, checksum, seed)


_CHAIN = (
    "WITH RECURSIVE chain(id, previous, seq, run) AS ("
    "SELECT id, previous, seq, run FROM frames WHERE id=? UNION ALL "
    "SELECT frames.id, frames.previous, frames.seq, frames.run FROM chain "
    "JOIN frames ON frames.id = chain.previous "
    "WHERE chain.previous > 0 AND chain.previous < chain.id AND chain.seq > ?"
    ") SELECT id, previous, coalesce(CAST(seq AS INTEGER), 0), run FROM chain ORDER BY id"
)
"""The frames of a run that hold the events from a seq on. It ends because a frame comes after its previous one."""

_OF_RUN = (
    "SELECT id, previous, CAST(seq AS INTEGER), run FROM frames "
    "WHERE run = ? AND seq + count - 1 > ? ORDER BY id"
)

_FRAMES = (
    "SELECT id, previous, run, seq, count, body, checksum FROM frames "
    "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
)

_CLAIMABLE = f"SELECT 1 FROM runs WHERE {IS_QUEUED} AND owner IS NULL LIMIT 1"


class FileReader(TableReader):
    """The `TableReader` of a file."""

    newest_frame = "frames.id = heads.frame"
    frame_key = ("id",)
    faults = (
        ("PRAGMA integrity_check(20)", "SQLite reports: {}"),
        (
            "SELECT run_id, newest, frame FROM (SELECT run, max(id) AS newest FROM frames GROUP BY run) "
            "JOIN heads USING(run) JOIN runs ON runs.id = heads.run WHERE newest != frame",
            "run {0!r} has frame {1}, which is newer than its end, frame {2}",
        ),
    )

    def __init__(self, db: sqlite3.Connection, path: Path, leases: Leases) -> None:
        super().__init__(str(path), leases)
        self._db = db
        self._path = path
        self._unpacker = Unpacker()

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            with self.lock:
                self.check_open()
                try:
                    return self._db.execute(sql, values).fetchall()
                except sqlite3.OperationalError as error:
                    if "UTF-8" not in str(error):
                        raise
                    # A damaged text. Its row must not hide the others, so the text is compared with its checksum.
                    self._db.text_factory = lambda text: text.decode(errors="backslashreplace")
                    try:
                        return self._db.execute(sql, values).fetchall()
                    finally:
                        self._db.text_factory = str
        except ERRORS as error:
            raise explain(error, self._path) from error

    def close(self) -> None:
        with self.lock:
            self._is_closed = True
            self._db.close()

    def disown(self) -> sqlite3.Connection:
        self._is_closed = True
        return self._db

    def version(self, queue: str | None = None) -> int | None:
        """Return a number that changes when any connection commits; `None` while another thread reads.

        With a `queue`, it is 0 while no run of the queue can be claimed.
        """
        if not self.lock.acquire(blocking=False):
            return None
        try:
            self.check_open()
            if queue is not None and self._db.execute(_CLAIMABLE, (queue,)).fetchone() is None:
                return 0
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])
        except ERRORS as error:
            raise explain(error, self._path) from error
        finally:
            self.lock.release()

    def read_frames(
        self, query: Query, head: Head, after_seq: int = 0, until_seq: int | None = None
    ) -> Iterator[tuple[int, list[bytes]]]:
        if until_seq is not None and until_seq <= after_seq:
            return
        run_id = head.run_id
        chain = query(_CHAIN, (head.frame, after_seq + 1))
        is_whole = bool(chain) and chain[0][2] <= after_seq + 1 and {run for *_, run in chain} == {head.key}
        if not is_whole:  # the chain leads elsewhere, but the frames before the damage can be found
            chain = query(_OF_RUN, (head.key, after_seq))
        if until_seq is not None:
            chain = [row for row in chain if row[2] <= until_seq]
        _, before, expected, _ = chain[0] if chain else (0, 0, after_seq + 2, 0)
        checksum = None
        if expected == 1:
            before = 0
        if expected > after_seq + 1:
            raise damaged(run_id, f"the frame of event {after_seq + 1} is missing or belongs to another run")
        if before:
            rows = query("SELECT checksum FROM frames WHERE id=?", (before,))
            checksum = rows[0][0] if rows else None
        ids = [row[0] for row in chain]
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            rows = query(_FRAMES, (_encode(batch).decode(),))
            for index, frame in enumerate(batch):
                row = rows[index] if index < len(rows) else (0,)
                if row[0] != frame:
                    raise damaged(run_id, f"the frame of event {expected} is missing")
                row = (*row[:5], self.unpacked(query, run_id, expected, row[5]), row[6])
                raws = _check(head, row, before, expected, seed_of(run_id) if checksum is None else checksum)
                yield expected, raws
                before, expected, checksum = frame, expected + len(raws), row[-1]
        if until_seq is None and head.events not in (None, expected - 1):
            raise damaged(run_id, f"it has {head.events} events, and {expected - 1} of them were found")
        if until_seq is None and not is_whole:
            raise damaged(run_id, "its row in the table `heads` leads to another run")

    def unpack(self, query: Query, body: Any) -> bytes:
        with contextlib.suppress(JournalError):
            body = self._unpacker.unpack(query, body)
        return body if isinstance(body, bytes) else str(body).encode()

    def unpacked(self, query: Query, run_id: str, first_seq: int, body: object) -> object:
        try:
            return self._unpacker.unpack(query, body)
        except JournalError as error:
            raise damaged(run_id, f"the frame of the events from {first_seq} on: {error}") from error

    def lost_rows(self) -> list[int]:
        return [key for (key,) in self.query(LOST)]

    def label_condition(self, name: str, value: str) -> tuple[str, tuple[object, ...]]:
        return "EXISTS(SELECT 1 FROM json_each(runs.labels) WHERE key = ? AND value = ?)", (name, value)

    def is_one_of(self, column: str, values: Collection[str]) -> tuple[str, tuple[object, ...]]:
        return f"{column} IN (SELECT value FROM json_each(?))", (_encode(list(values)).decode(),)

    def is_after(self, position: int) -> tuple[str, tuple[object, ...]]:
        return "id > ?", (position,)

    def start_of_all(self) -> int:
        return 0

    def end_position(self) -> int:
        """See `TableReader.end_position`: a frame."""
        return int(self.query("SELECT coalesce(max(id), 0) FROM frames")[0][0])

    def next_rows(self, position: int, limit: int) -> tuple[list[tuple[Any, ...]], int]:
        rows = self.query(_NEXT_FRAMES, (position, limit))
        return rows, rows[-1][-1] if rows else position


_NEXT_FRAMES = (
    "SELECT runs.run_id, frames.seq, frames.count, frames.body, frames.checksum, before.checksum, frames.id "
    "FROM frames LEFT JOIN runs ON runs.id = frames.run LEFT JOIN frames AS before ON before.id = frames.previous "
    "WHERE frames.id > ? ORDER BY frames.id LIMIT ?"
)
