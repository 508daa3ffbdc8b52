"""The reading connection of a journal in a file."""

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.journal.follow import Page
from treadle.journal.sqlite.failures import ERRORS, explain
from treadle.journal.sqlite.frames import read_frames
from treadle.journal.sqlite.lease import HOLDERS, Watch
from treadle.journal.tables.checks import Head, check_frame, decode_frame, seed_of
from treadle.journal.tables.committer import explain_closed
from treadle.journal.tables.reader import LOST_RUN, TableReader

_PAGE_FRAMES = 500
"""How many frames of all runs are read at a time."""


class FileReader(TableReader):
    """The `TableReader` of a file."""

    newest_frame = "frames.id = heads.frame"

    def __init__(self, db: sqlite3.Connection, path: Path, watch: Watch) -> None:
        super().__init__(str(path))
        self._db = db
        self._path = path
        self._watch = watch
        self._is_closed = False

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """See `TableReader.query`."""
        try:
            with self.lock:
                self.check_open()
                try:
                    return self._db.execute(sql, values).fetchall()
                except sqlite3.OperationalError as error:
                    if "UTF-8" not in str(error):
                        raise
                    # A damaged text. Its row must not hide the others, so the text is compared with its checksum.
                    self._db.text_factory = _decode_text
                    try:
                        return self._db.execute(sql, values).fetchall()
                    finally:
                        self._db.text_factory = str
        except ERRORS as error:
            raise explain(error, self._path) from error

    def check_open(self) -> None:
        """Check that the journal is open. Raises: `JournalError`."""
        if self._is_closed:
            raise explain_closed(self._name)

    def close(self) -> None:
        """See `TableReader.close`."""
        with self.lock:
            self._is_closed = True
            self._db.close()

    def disown(self) -> sqlite3.Connection:
        """See `TableReader.disown`."""
        self._forget()
        self._is_closed = True
        return self._db

    def version(self) -> int | None:
        """Return a number that changes when any connection commits; `None` while another thread reads."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            self.check_open()
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])
        except ERRORS as error:
            raise explain(error, self._path) from error
        finally:
            self.lock.release()

    def read_frames(
        self, head: Head, after_seq: int, until_seq: int | None
    ) -> Iterator[tuple[int, list[bytes]]]:
        """See `TableReader.read_frames`."""
        return read_frames(self.query, head, after_seq, until_seq)

    def find_faults(self) -> Iterator[str]:
        """See `Journal.find_faults`."""
        for sql, problem in _FAULTS:
            try:
                for row in self.query(sql):
                    if row != ("ok",):
                        yield problem.format(*row)
            except JournalError as error:
                yield str(error)

    def lost_rows(self) -> list[int]:
        """See `TableReader.lost_rows`."""
        return [key for (key,) in self.query(_LOST)]

    def label_condition(self, name: str, value: str) -> tuple[str, tuple[object, ...]]:
        """See `TableReader.label_condition`."""
        return "EXISTS(SELECT 1 FROM json_each(runs.labels) WHERE key = ? AND value = ?)", (name, value)

    def ids_condition(self, run_ids: Collection[str]) -> tuple[str, tuple[object, ...]]:
        """See `TableReader.ids_condition`."""
        listed = msgspec.json.encode(list(run_ids)).decode()
        return "runs.run_id IN (SELECT value FROM json_each(?))", (listed,)

    def start_of_all(self) -> int:
        """See `TableReader.start_of_all`."""
        return 0

    def end_position(self) -> int:
        """See `TableReader.end_position`: a frame."""
        return int(self.query("SELECT coalesce(max(id), 0) FROM frames")[0][0])

    def next_page(self, after_seq: int, position: int) -> Page:
        """See `TableReader.next_page`."""
        frames = self.query(_NEXT_FRAMES, (position, _PAGE_FRAMES))
        found: list[e.Event] = []
        for key, name, first, count, body, checksum, before in frames:
            if name is None:
                raise JournalError(f"frame {key} of the journal {self._name!r} belongs to no run")
            raws = check_frame(
                name, body, count, first, checksum, seed_of(name) if before is None else before
            )
            found += decode_frame(name, first, raws, after_seq)
        return Page(found, frames[-1][0] if frames else position, is_last=False, has_more=bool(frames))

    def live_owners(self) -> set[int]:
        """See `TableReader.live_owners`."""
        holders = self._watch.holders_from(self.query(HOLDERS))
        return {holder.id for holder in holders if holder.is_alive(self._watch.clock)}

    def bodies(self, key: int, *, is_own: bool) -> Iterator[bytes]:
        """See `TableReader.bodies`."""
        sql = f"SELECT id, body FROM frames WHERE id > ? AND run {'=' if is_own else '!='} ? ORDER BY id LIMIT ?"
        last = 0
        while rows := self.query(sql, (last, key, _PAGE_FRAMES)):
            last = rows[-1][0]
            yield from [bytes(body) for _, body in rows]


_LOST = "SELECT run FROM heads WHERE run NOT IN (SELECT id FROM runs)"
_FAULTS = (
    ("PRAGMA integrity_check(20)", "SQLite reports: {}"),
    (_LOST, LOST_RUN),
    (
        "SELECT run, count(*) FROM frames WHERE run NOT IN (SELECT run FROM heads) GROUP BY run",
        "row {0} of the table `runs` has {1} frames, but no row in the table `heads`",
    ),
    (
        "SELECT run_id, newest, frame FROM (SELECT run, max(id) AS newest FROM frames GROUP BY run) "
        "JOIN heads USING(run) JOIN runs ON runs.id = heads.run WHERE newest != frame",
        "run {0!r} has frame {1}, which is newer than its end, frame {2}",
    ),
)
"""Queries for what is wrong with the file, and what their rows mean."""

_NEXT_FRAMES = (
    "SELECT frames.id, runs.run_id, frames.seq, frames.count, frames.body, frames.checksum, before.checksum "
    "FROM frames LEFT JOIN runs ON runs.id = frames.run LEFT JOIN frames AS before ON before.id = frames.previous "
    "WHERE frames.id > ? ORDER BY frames.id LIMIT ?"
)


def _decode_text(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
