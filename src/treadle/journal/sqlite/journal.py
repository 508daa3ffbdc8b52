"""A journal in one SQLite file, with one writer thread for all the runs of a process.

What several runs append while a commit is under way is committed together. What one run appends between two
turns of the event loop is one row, a frame of consecutive events, one JSON object a line. At `process` a
commit survives kill -9: it is in the operating system's hands. At `power` it is on the disk.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import msgspec

from treadle.core import events as e
from treadle.core.errors import JournalError, LeaseHeldError, RunNotFoundError
from treadle.journal.protocol import RunInfo
from treadle.journal.sqlite.committer import Committer, Write
from treadle.journal.sqlite.layout import check_level, connect, explain
from treadle.journal.sqlite.lease import Owner, is_alive
from treadle.journal.status import LIFECYCLE, status_of

_TURN_SECONDS = 5.0
"""How long a closing journal waits for an event loop of another thread."""


class SqliteJournal:
    """See `Journal`. Two processes may have the same file open; a run has one writer."""

    def __init__(self, path: str | Path, level: str = "process", lease_seconds: float = 10.0) -> None:
        self.path = Path(path)
        self.level = check_level(level)
        self._lease_seconds = lease_seconds
        self._reader = connect(self.path, level)
        self._committer = Committer(connect(self.path, level), self.path, lease_seconds)
        self._reader_lock = threading.Lock()
        self._dirty: dict[asyncio.AbstractEventLoop, list[SqliteWriter]] = {}
        self._close = weakref.finalize(
            self, _close, self._committer, self._reader, self._reader_lock, self._dirty
        )

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self.path)!r}, level={self.level!r})"

    def create(self, run_id: str) -> "SqliteWriter":
        """See `Journal.create`."""
        return SqliteWriter(self, run_id)

    async def acquire(self, run_id: str) -> "SqliteWriter":
        """See `Journal.acquire`."""
        self._check_open()
        self._flush(asyncio.get_running_loop())
        taken = self._committer.submit(lambda db: self._take_lease(db, run_id))
        try:
            return await asyncio.wrap_future(taken)
        except asyncio.CancelledError:
            taken.add_done_callback(self._give_back)
            raise

    def read(self, run_id: str, after_seq: int = 0) -> list[e.Event]:
        """See `Journal.read`."""
        row = self._query("SELECT id FROM runs WHERE run_id=?", (run_id,))
        if not row:
            raise RunNotFoundError(f"run {run_id!r} not found in the journal {str(self.path)!r}")
        frames = self._query(
            "WITH RECURSIVE chain(id) AS ("
            "SELECT frame FROM heads WHERE run=? UNION ALL "
            "SELECT previous FROM frames JOIN chain USING(id) WHERE previous > 0 AND seq > ?"
            ") SELECT seq, body FROM chain JOIN frames USING(id) ORDER BY id",
            (row[0][0], after_seq + 1),
        )
        found = []
        for first, body in frames:
            for seq, raw in enumerate(body.splitlines(), first):
                if seq > after_seq:
                    found.append(e.Event(run_id, seq, e.decode_body(raw), raw))
        return found

    def read_blob(self, digest: str) -> bytes:
        """See `Journal.read_blob`."""
        rows = self._query("SELECT content FROM blobs WHERE digest=?", (digest,))
        if not rows:
            raise JournalError(f"the content {digest!r} is not in the journal {str(self.path)!r}")
        return bytes(rows[0][0])

    def runs(self) -> list[RunInfo]:
        """See `Journal.runs`."""
        now = time.time()
        live = {
            key
            for key, host, pid, started, beat_at in self._query("SELECT * FROM owners")
            if is_alive(Owner(host, pid, started), beat_at, now, self._lease_seconds)
        }
        rows = self._query(
            "SELECT run_id, status, stop_reason, last.seq + last.count - 1, created_at, last.at, owner "
            "FROM runs JOIN heads ON heads.run = runs.id JOIN frames last ON last.id = heads.frame "
            "ORDER BY runs.id"
        )
        return [
            RunInfo(run_id, status, stop_reason, events, created_at, updated_at, owner in live)
            for run_id, status, stop_reason, events, created_at, updated_at, owner in rows
        ]

    def close(self) -> None:
        """See `Journal.close`."""
        self._close()

    def __enter__(self) -> "SqliteJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._close.alive:
            raise JournalError(f"the journal {str(self.path)!r} is closed; open it again with open_journal")

    def _query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        self._check_open()
        try:
            with self._reader_lock:
                return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def _take_lease(self, db: sqlite3.Connection, run_id: str) -> "SqliteWriter":
        row = db.execute("SELECT id, owner, token FROM runs WHERE run_id=?", (run_id,)).fetchone()
        if row is None:
            raise RunNotFoundError(f"run {run_id!r} not found in the journal {str(self.path)!r}")
        key, owner_id, token = row
        if owner_id == self._committer.owner_id:
            raise LeaseHeldError(f"run {run_id!r} is being driven by this process already")
        if owner_id is not None:
            self._refuse_live(db, run_id, owner_id)
            db.execute("UPDATE meta SET takeovers = takeovers + 1")
        db.execute("UPDATE runs SET owner=?, token=? WHERE id=?", (self._committer.owner_id, token + 1, key))
        head, last_seq = db.execute(
            "SELECT id, seq + count - 1 FROM heads JOIN frames ON id = frame WHERE heads.run=?", (key,)
        ).fetchone() or (0, 0)
        return SqliteWriter(self, run_id, key, token + 1, head, last_seq)

    def _give_back(self, taken: "Future[SqliteWriter]") -> None:
        """Release a lease that was taken for somebody who went away meanwhile."""
        if taken.cancelled() or taken.exception() is not None:
            return
        values = taken.result().key, taken.result().token
        self._committer.submit(
            lambda db: db.execute("UPDATE runs SET owner=NULL WHERE id=? AND token=?", values)
        )

    def _refuse_live(self, db: sqlite3.Connection, run_id: str, owner_id: int) -> None:
        row = db.execute("SELECT host, pid, started, beat_at FROM owners WHERE id=?", (owner_id,)).fetchone()
        if row is None:
            return
        owner = Owner(*row[:3])
        if is_alive(owner, row[3], time.time(), self._lease_seconds):
            raise LeaseHeldError(
                f"run {run_id!r} is being driven by process {owner.pid} on {owner.host.split('/')[0]!r}; "
                f"wait for it, or stop it (a process that hangs loses the run after {self._lease_seconds:g} s)"
            )

    def _mark_dirty(self, writer: "SqliteWriter") -> None:
        """Hand over what `writer` has at the end of this turn of the event loop, with all the others."""
        loop = asyncio.get_running_loop()
        dirty = self._dirty.get(loop)
        if dirty is None:
            self._check_open()
            self._dirty[loop] = [writer]
            loop.call_soon(self._flush, loop)
        else:
            dirty.append(writer)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        dirty = self._dirty.pop(loop, None)
        if dirty:
            self._committer.put(loop, [writer.hand_over() for writer in dirty])


class SqliteWriter:
    """See `RunWriter`."""

    __slots__ = (
        "_is_released",
        "_journal",
        "_next_seq",
        "_sent",
        "_write",
        "epoch",
        "error",
        "head",
        "key",
        "run_id",
        "token",
    )

    def __init__(
        self,
        journal: SqliteJournal,
        run_id: str,
        key: int = 0,
        token: int = 0,
        head: int = 0,
        last_seq: int = 0,
    ) -> None:
        self.run_id = run_id
        self.key = key
        """The run's row; 0 until it is made."""
        self.token = token
        """The fencing token: every new lease of the run has a higher one."""
        self.head = head
        """The run's newest frame; 0 if it has none."""
        self.epoch = -1
        """The count of takeovers in the file at which the lease was last checked."""
        self.error: JournalError | None = None
        self._is_released = False
        self._journal = journal
        self._next_seq = last_seq + 1
        self._write: Write | None = None
        self._sent: Write | None = None

    def append(self, bodies: Sequence[e.DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        """See `RunWriter.append`."""
        write = self._write or self._open_write()
        for body in bodies:
            write.bodies.append(body)
            if type(body) in LIFECYCLE:
                write.status, write.stop_reason = status_of([body])
        if blobs:
            write.blobs = {**(write.blobs or {}), **blobs}

    def append_events(self, events: Sequence[e.Event], blobs: Mapping[str, bytes] | None = None) -> None:
        """See `RunWriter.append_events`."""
        self.append([event.body for event in events], blobs)
        assert self._write is not None
        bodies = cast("list[Any]", self._write.bodies)
        for position, event in enumerate(events, len(bodies) - len(events)):
            if event.raw is not None:
                bodies[position] = msgspec.Raw(event.raw)

    async def sync(self) -> None:
        """See `RunWriter.sync`."""
        if self.error is not None:
            raise self.error
        write = self._write or self._sent
        if write is None or write.is_done:
            return
        waiter = asyncio.get_running_loop().create_future()
        write.waiters.append(waiter)
        await waiter

    async def release(self) -> None:
        """See `RunWriter.release`."""
        if self.error is None and not self._is_released and (self.key or self._write is not None):
            (self._write or self._open_write()).is_release = True
            self._is_released = True

    def hand_over(self) -> Write:
        """What was appended since the last time, for the committer."""
        write = self._write
        assert write is not None
        self._sent, self._write = write, None
        self._next_seq += len(write.bodies)
        return write

    def forget(self, write: Write) -> None:
        """Let go of what is settled, so that the two do not hold each other."""
        if self._sent is write:
            self._sent = None

    def _open_write(self) -> Write:
        if self.error is not None:
            raise self.error
        if self._is_released:  # somebody else may drive the run by now
            raise JournalError(f"run {self.run_id!r} was released by this writer; acquire it again")
        self._journal._mark_dirty(self)
        write = self._write = Write(self, self._next_seq)
        return write


def _close(
    committer: Committer,
    reader: sqlite3.Connection,
    reader_lock: threading.Lock,
    dirty: dict[asyncio.AbstractEventLoop, list[SqliteWriter]],
) -> None:
    for loop in list(dirty):
        if _runs_elsewhere(loop):
            _wait_for_turn(loop)
        elif writers := dirty.pop(loop, None):
            committer.put(loop, [writer.hand_over() for writer in writers])
    committer.stop()
    with reader_lock:
        reader.close()


def _runs_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return loop.is_running() and loop is not asyncio.get_running_loop()
    except RuntimeError:
        return True


def _wait_for_turn(loop: asyncio.AbstractEventLoop) -> None:
    """Until `loop`, in its own thread, has handed over what was appended in it, unless it hangs."""
    is_over = threading.Event()
    with contextlib.suppress(RuntimeError):  # closed
        loop.call_soon_threadsafe(is_over.set)
        is_over.wait(_TURN_SECONDS)
