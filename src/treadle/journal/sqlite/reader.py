"""Reading from the file: events, contents and listings. Everything here blocks and may be called in any thread."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treadle.core import events as e
from treadle.core.errors import JournalError, RunNotFoundError
from treadle.journal.follow import Page
from treadle.journal.protocol import DAMAGED, EQUAL_FIELDS, RunFilter, RunInfo
from treadle.journal.sqlite.checks import Head, check_frame, damaged, read_frames, seed_of
from treadle.journal.sqlite.failures import ERRORS, explain, explain_closed
from treadle.journal.sqlite.lease import HOLDERS, Watch
from treadle.journal.sqlite.rows import COLUMNS, info_from, read_head

_PAGE_FRAMES = 500
"""How many frames of all runs are read at a time."""


class Reader:
    """The reading connection of an open journal."""

    def __init__(self, db: sqlite3.Connection, path: Path, watch: Watch) -> None:
        self._db = db
        self._path = path
        self._watch = watch
        self.lock = threading.Lock()
        """Held by the thread that uses the connection."""
        self._is_closed = False

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT. Raises: `JournalError`."""
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
            raise explain_closed(self._path)

    def close(self) -> None:
        """Wait for the running query to end, and close the connection."""
        with self.lock:
            self._is_closed = True
            self._db.close()

    def disown(self) -> sqlite3.Connection:
        """Give up the connection in a forked child, and return it."""
        self._is_closed, self.lock = True, threading.Lock()
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

    def read(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> list[e.Event]:
        """See `Journal.read`."""
        return list(self.scan(run_id, after_seq, until_seq))

    def scan(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> Iterator[e.Event]:
        """See `Journal.scan`; `after_seq` and `until_seq` are those of `read`."""
        key = self.key_of(run_id)
        try:
            head = read_head(self.query, run_id, key)
        except JournalError:
            if until_seq is None:
                raise
            head = Head(run_id, key, 0, None)
        for first, raws in read_frames(self.query, head, after_seq, until_seq):
            yield from _decode(run_id, first, raws, after_seq, until_seq)

    def read_stored(self, digest: str) -> bytes:
        """See `Journal.read_stored`."""
        rows = self.query("SELECT content FROM blobs WHERE digest=?", (digest,))
        if not rows:
            raise JournalError(f"the content {digest!r} is not in the journal {str(self._path)!r}")
        content = rows[0][0]
        if not isinstance(content, bytes):
            raise JournalError(f"the content {digest!r} is damaged: it is not bytes")
        return content

    def find_faults(self) -> Iterator[str]:
        """See `Journal.find_faults`."""
        for sql, problem in _FAULTS:
            try:
                for row in self.query(sql):
                    if row != ("ok",):
                        yield problem.format(*row)
            except JournalError as error:
                yield str(error)

    def has_unknown_facts(self) -> bool:
        """Return True if the file has runs whose facts are unknown, because an older Treadle wrote them."""
        return bool(self.query("SELECT 1 FROM heads WHERE events IS NULL LIMIT 1"))

    def runs(
        self, filter_: RunFilter, after: str | None, limit: int | None, *, newest_first: bool
    ) -> list[RunInfo]:
        """See `Journal.runs`."""
        live = self._live_owners()
        conditions, values = _compile(filter_, live)
        if after is not None:
            conditions.append("runs.id < ?" if newest_first else "runs.id > ?")
            values.append(self.key_of(after))
        rows = self.query(
            f"SELECT runs.run_id, runs.owner, {COLUMNS} FROM runs LEFT JOIN heads ON heads.run = runs.id "
            f"WHERE {' AND '.join(conditions) or '1'} "
            f"ORDER BY runs.id {'DESC' if newest_first else 'ASC'} LIMIT ?",
            (*values, -1 if limit is None else limit),
        )
        # Rows that SQLite does not find can be missed only where all runs are asked for.
        lost = self.query(_LOST) if filter_ == RunFilter() and after is None else ()
        return [
            *[RunInfo(run_id=f"row {key}", status=DAMAGED, error=_LOST_RUN.format(key)) for (key,) in lost],
            *[info_from(str(run_id), tuple(row), is_driven=owner in live) for run_id, owner, *row in rows],
        ]

    def start_position(self, run_id: str | None, after_seq: int | None) -> int:
        """See `Source.start_position`: a seq for one run, a frame for all."""
        if run_id is None:
            rows = self.query("SELECT coalesce(max(id), 0) FROM frames")
            return int(rows[0][0]) if after_seq is None else 0
        key = self.key_of(run_id)
        if after_seq is not None:
            return after_seq
        rows = self.query(
            "SELECT seq + count - 1 FROM heads JOIN frames ON id = frame WHERE heads.run=?", (key,)
        )
        if not rows:
            raise damaged(run_id, "its newest frame is missing")
        return int(rows[0][0])

    def read_page(self, run_id: str | None, after_seq: int | None, position: int) -> Page:
        """See `Source.read_page`."""
        if run_id is not None:
            rows = self.query("SELECT status, owner FROM runs WHERE run_id=?", (run_id,))
            is_over = bool(rows) and rows[0][0] == "finished" and rows[0][1] not in self._live_owners()
            events = self.read(run_id, position)
            return Page(events, position + len(events), is_over)
        frames = self.query(_NEXT_FRAMES, (position, _PAGE_FRAMES))
        found: list[e.Event] = []
        for key, name, first, count, body, checksum, before in frames:
            if name is None:
                raise JournalError(f"frame {key} of the journal {str(self._path)!r} belongs to no run")
            raws = check_frame(
                name, body, count, first, checksum, seed_of(name) if before is None else before
            )
            found += _decode(name, first, raws, after_seq or 0)
        return Page(found, frames[-1][0] if frames else position, is_last=False)

    def key_of(self, run_id: str) -> int:
        """Return the number of the run's row. Raises: `RunNotFoundError`."""
        rows = self.query("SELECT id FROM runs WHERE run_id=?", (run_id,))
        if not rows:
            raise RunNotFoundError(f"run {run_id!r} not found in the journal {str(self._path)!r}")
        key = rows[0][0]
        if not isinstance(key, int):
            raise damaged(run_id, "its row in the table `runs` has no number")
        return key

    def _live_owners(self) -> set[int]:
        holders = self._watch.holders_from(self.query(HOLDERS))
        return {holder.id for holder in holders if holder.is_alive(self._watch.clock)}


_LOST = "SELECT run FROM heads WHERE run NOT IN (SELECT id FROM runs)"
_LOST_RUN = "a run is lost: row {} of the table `heads` has no row in `runs`; restore a backup of the journal"
_FAULTS = (
    ("PRAGMA integrity_check(20)", "SQLite reports: {}"),
    (_LOST, _LOST_RUN),
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


def _decode(
    run_id: str, first_seq: int, raws: list[bytes], after_seq: int, until_seq: int | None = None
) -> list[e.Event]:
    """Return the events of a frame whose seq is greater than `after_seq` and at most `until_seq`."""
    events: list[e.Event] = []
    for seq, raw in enumerate(raws, first_seq):
        if seq > after_seq and (until_seq is None or seq <= until_seq):
            try:
                events.append(e.Event(run_id, seq, e.decode_body(raw), raw))
            except JournalError as error:
                raise JournalError(f"event {seq} of run {run_id!r}: {error}") from error
    return events


def _decode_text(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _compile(filter_: RunFilter, live: set[int]) -> tuple[list[str], list[object]]:
    """Return a filter as SQL conditions on `runs`, and their values. `live` are the owners that are alive."""
    owners = ",".join(map(str, live)) or "NULL"
    columns = {
        "is_driven": f"coalesce(runs.owner IN ({owners}), 0)",
        "is_waiting": "runs.waiting IS NOT NULL",
    }
    found: list[tuple[str, tuple[object, ...]]] = [
        (f"{columns.get(name, f'runs.{name}')} = ?", (value,))
        for name in EQUAL_FIELDS
        if (value := getattr(filter_, name)) is not None
    ]
    if filter_.id_prefix:
        # A range, so that the index is used.
        found.append(("runs.run_id >= ? AND runs.run_id < ?", (filter_.id_prefix, filter_.id_prefix + _LAST)))
    if filter_.run_ids is not None:
        run_ids = msgspec.json.encode(list(filter_.run_ids)).decode()
        found.append(("runs.run_id IN (SELECT value FROM json_each(?))", (run_ids,)))
    if filter_.is_finished is not None:
        statuses = "'finished'" if filter_.is_finished else "'running', 'paused'"
        found.append((f"runs.status IN ({statuses})", ()))
    for item in filter_.labels.items():
        found.append(("EXISTS(SELECT 1 FROM json_each(runs.labels) WHERE key = ? AND value = ?)", item))
    if filter_.created_since is not None:
        found.append(("runs.created_at >= ?", (filter_.created_since,)))
    if filter_.created_before is not None:
        found.append(("runs.created_at < ?", (filter_.created_before,)))
    return [sql for sql, _ in found], [value for _, values in found for value in values]


_LAST = "\U0010ffff" * 8
"""A text that sorts after every continuation of an id."""
