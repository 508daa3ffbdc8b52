"""Reading from the file: events, contents and listings. Everything here blocks and may be called in any thread."""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.core import events as e
from treadle.core.errors import JournalError, RunNotFoundError
from treadle.journal.follow import Page
from treadle.journal.protocol import EQUAL_FIELDS, RunFilter, RunInfo
from treadle.journal.sqlite.failures import explain, explain_closed
from treadle.journal.sqlite.lease import HOLDERS, Watch
from treadle.journal.sqlite.rows import CHAIN, COLUMNS, facts_from

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
                return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
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

    def read(self, run_id: str, after_seq: int = 0) -> list[e.Event]:
        """See `Journal.read`."""
        frames = self.query(CHAIN, (self.key_of(run_id), after_seq + 1))
        return [event for first, body in frames for event in _decode(run_id, first, body, after_seq)]

    def read_blob(self, digest: str) -> bytes:
        """See `Journal.read_blob`."""
        rows = self.query("SELECT content FROM blobs WHERE digest=?", (digest,))
        if not rows:
            raise JournalError(f"the content {digest!r} is not in the journal {str(self._path)!r}")
        return bytes(rows[0][0])

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
            f"SELECT runs.run_id, runs.owner, {COLUMNS} FROM runs JOIN heads ON heads.run = runs.id "
            f"WHERE {' AND '.join(conditions) or '1'} "
            f"ORDER BY runs.id {'DESC' if newest_first else 'ASC'} LIMIT ?",
            (*values, -1 if limit is None else limit),
        )
        return [facts_from(tuple(row)).info(run_id, is_driven=owner in live) for run_id, owner, *row in rows]

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
        return int(rows[0][0])

    def read_page(self, run_id: str | None, after_seq: int | None, position: int) -> Page:
        """See `Source.read_page`."""
        if run_id is not None:
            rows = self.query("SELECT status, owner FROM runs WHERE run_id=?", (run_id,))
            is_over = bool(rows) and rows[0][0] == "finished" and rows[0][1] not in self._live_owners()
            events = self.read(run_id, position)
            return Page(events, position + len(events), is_over)
        frames = self.query(
            "SELECT frames.id, runs.run_id, seq, body FROM frames JOIN runs ON runs.id = frames.run "
            "WHERE frames.id > ? ORDER BY frames.id LIMIT ?",
            (position, _PAGE_FRAMES),
        )
        found = [
            event for _, name, first, body in frames for event in _decode(name, first, body, after_seq or 0)
        ]
        return Page(found, frames[-1][0] if frames else position, is_last=False)

    def key_of(self, run_id: str) -> int:
        """Return the number of the run's row. Raises: `RunNotFoundError`."""
        rows = self.query("SELECT id FROM runs WHERE run_id=?", (run_id,))
        if not rows:
            raise RunNotFoundError(f"run {run_id!r} not found in the journal {str(self._path)!r}")
        return int(rows[0][0])

    def _live_owners(self) -> set[int]:
        holders = self._watch.holders_from(self.query(HOLDERS))
        return {holder.id for holder in holders if holder.is_alive(self._watch.clock)}


def _decode(run_id: str, first_seq: int, body: bytes, after_seq: int) -> list[e.Event]:
    """Return the events of a frame whose seq is greater than `after_seq`."""
    return [
        e.Event(run_id, seq, e.decode_body(raw), raw)
        for seq, raw in enumerate(body.splitlines(), first_seq)
        if seq > after_seq
    ]


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
