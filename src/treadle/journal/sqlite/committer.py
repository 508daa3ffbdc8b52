"""The writer thread of a SQLite journal: it commits together what many runs appended."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from treadle.core.errors import JournalError, LeaseLostError, RunExistsError
from treadle.core.events import DurableBody, encode_lines
from treadle.journal.sqlite.layout import explain
from treadle.journal.sqlite.lease import this_owner

if TYPE_CHECKING:
    from treadle.journal.sqlite.journal import SqliteWriter

T = TypeVar("T")

_CHUNKS = (64, 16, 4, 1)
_INSERT_FRAMES = {
    size: "INSERT INTO frames(id, previous, run, seq, count, at, body) VALUES"
    + ",".join(["(?,?,?,?,?,?,?)"] * size)
    for size in _CHUNKS
}
_MOVE_HEADS = {
    size: "INSERT OR REPLACE INTO heads(run, frame) VALUES" + ",".join(["(?,?)"] * size) for size in _CHUNKS
}
"""Many rows in one statement: Python gives up its lock once for each statement, not for each row."""


class Write:
    """What one run appended since it was last handed over."""

    __slots__ = (
        "blobs",
        "bodies",
        "error",
        "first_seq",
        "is_done",
        "is_release",
        "status",
        "stop_reason",
        "waiters",
        "writer",
    )

    def __init__(self, writer: "SqliteWriter", first_seq: int) -> None:
        self.writer = writer
        self.first_seq = first_seq
        self.bodies: list[DurableBody] = []
        self.blobs: dict[str, bytes] | None = None
        self.status: str | None = None
        """Set if a lifecycle event is among the bodies."""
        self.stop_reason: str | None = None
        self.is_release = False
        self.waiters: list[asyncio.Future[None]] = []
        """Touched by the event loop alone, as `is_done` is."""
        self.is_done = False
        self.error: JournalError | None = None


class Writes(NamedTuple):
    """What one event loop hands over at a time."""

    loop: asyncio.AbstractEventLoop
    writes: list[Write]


class Task(NamedTuple):
    """Something to run in a transaction of its own."""

    function: Callable[[sqlite3.Connection], Any]
    future: "Future[Any]"


class Committer:
    """Owns the writing connection. Everything but `put` and `submit` runs in its thread."""

    def __init__(self, db: sqlite3.Connection, path: Path, lease_seconds: float) -> None:
        self._db = db
        self._path = path
        self._lease_seconds = lease_seconds
        self._queue: queue.SimpleQueue[Writes | Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held while something is queued, so that nothing is queued behind the end."""
        self._is_stopped = False
        self._beat_at = 0.0
        """By the monotonic clock, so that setting the computer's clock keeps no heartbeat back."""
        self.owner_id = 0
        """The row of this process's leases; 0 until the first is taken."""
        self._thread = threading.Thread(target=self._run, name="treadle-journal", daemon=True)
        self._thread.start()

    def put(self, loop: asyncio.AbstractEventLoop, writes: list[Write]) -> None:
        """Have `writes` committed, and then settled in `loop`."""
        if not self._enqueue(Writes(loop, writes)):
            self._fail(writes, self._closed())
            _settle_in(loop, writes)

    def submit(self, function: Callable[[sqlite3.Connection], T]) -> "Future[T]":
        """Run `function` in a transaction of its own, after all that was put before."""
        future: Future[T] = Future()
        if not self._enqueue(Task(function, future)):
            future.set_exception(self._closed())
        return future

    def stop(self) -> None:
        """Commit what is queued, give the leases back, and end the thread."""
        with self._lock:
            self._is_stopped = True
            self._queue.put(None)
        if threading.current_thread() is not self._thread:  # it is, where it lets go of the journal last
            self._thread.join()

    def _enqueue(self, item: Writes | Task) -> bool:
        # In a process that was forked the thread is not there.
        if not self._thread.is_alive():
            return False
        with self._lock:
            if not self._is_stopped:
                self._queue.put(item)
            return not self._is_stopped

    def _closed(self) -> JournalError:
        return JournalError(
            f"the journal {str(self._path)!r} is closed, or was opened before a fork; open it again with "
            "open_journal"
        )

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._lease_seconds / 4)
            except queue.Empty:
                self._beat_when_due()
                continue
            # Take all that is queued, up to the first that is not a write.
            groups: list[Writes] = []
            while isinstance(item, Writes):
                groups.append(item)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if groups:
                self._commit_groups(groups)
            if item is None:
                self._leave()
                return
            if isinstance(item, Task):
                self._run_task(item)
            # They hold the journal, which nobody else may want any more.
            del item, groups

    def _commit_groups(self, groups: list[Writes]) -> None:
        writes = [write for _, group in groups for write in group]
        try:
            self._in_transaction(lambda db: self._commit(db, writes))
        except BaseException as error:  # whatever it is, somebody waits to be told
            self._fail(writes, self._explain(error))
        by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
        for loop, group in groups:
            by_loop.setdefault(loop, []).extend(group)
        for loop, group in by_loop.items():
            _settle_in(loop, group)

    def _fail(self, writes: list[Write], error: JournalError) -> None:
        for write in writes:
            write.error = write.error or error
            # At once: the writer's next write may be queued already, and would leave a gap.
            write.writer.error = write.writer.error or write.error

    def _explain(self, error: BaseException) -> JournalError:
        if isinstance(error, JournalError):
            return error
        failure = JournalError(f"the journal {str(self._path)!r} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure

    def _run_task(self, task: Task) -> None:
        function, future = task
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._in_transaction(function))
        except BaseException as error:
            future.set_exception(error)

    def _in_transaction(self, function: Callable[[sqlite3.Connection], T]) -> T:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            owner_before, beat_before = self.owner_id, self._beat_at
            try:
                now = time.monotonic()
                if not self.owner_id:
                    self._register(db)
                    self._beat_at = now
                elif now - self._beat_at > self._lease_seconds / 4:
                    db.execute("UPDATE owners SET beat_at=? WHERE id=?", (time.time(), self.owner_id))
                    self._beat_at = now
                result = function(db)
                db.execute("COMMIT")
                return result
            except BaseException:
                # A new owner's row is gone too, and another process may be given its id.
                self.owner_id, self._beat_at = owner_before, beat_before
                if db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise explain(error, self._path) from error

    def _register(self, db: sqlite3.Connection) -> None:
        owner = this_owner()
        row = db.execute(
            "INSERT INTO owners(host, pid, started, beat_at) VALUES(?,?,?,?)",
            (owner.host, owner.pid, owner.started, time.time()),
        )
        self.owner_id = row.lastrowid or 0

    def _beat_when_due(self) -> None:
        if not self.owner_id:
            return
        # Should it fail, the next write meets the same trouble, and has somebody to tell.
        with contextlib.suppress(Exception):
            self._in_transaction(lambda db: None)

    def _leave(self) -> None:
        if self.owner_id:
            # Should it fail, the leases lapse by themselves.
            with contextlib.suppress(Exception):
                self._in_transaction(self._give_all_back)
        self._db.close()

    def _give_all_back(self, db: sqlite3.Connection) -> None:
        db.execute("UPDATE runs SET owner=NULL WHERE owner=?", (self.owner_id,))
        db.execute("DELETE FROM owners WHERE id=?", (self.owner_id,))

    def _commit(self, db: sqlite3.Connection, writes: list[Write]) -> None:
        now = time.time()
        takeovers = db.execute("SELECT takeovers FROM meta").fetchone()[0]
        frame_id: int = db.execute("SELECT coalesce(max(id), 0) FROM frames").fetchone()[0]
        frames: list[object] = []
        heads: dict[int, int] = {}
        for write in writes:
            writer = write.writer
            if writer.key and writer.epoch != takeovers:
                self._check_lease(db, write)
                writer.epoch = takeovers
            if writer.error is not None:
                write.error = writer.error
                continue
            body = b""
            try:
                body = encode_lines(write.bodies)
            except Exception as error:
                write.error = JournalError(f"an event of run {writer.run_id!r} cannot be kept: {error}")
            if not writer.key and write.bodies and write.error is None:
                self._create(db, write, now)
                writer.epoch = takeovers
                if write.status == "running" and not write.is_release:
                    write.status = None  # as it was made
            if write.error is not None:
                writer.error = write.error
                continue
            if write.blobs:
                db.executemany("INSERT OR IGNORE INTO blobs VALUES(?,?)", list(write.blobs.items()))
            if write.bodies:
                frame_id += 1
                frames += (frame_id, writer.head, writer.key, write.first_seq, len(write.bodies), now, body)
                heads[writer.key] = writer.head = frame_id
            if write.status is not None:
                db.execute(
                    "UPDATE runs SET status=?, stop_reason=?, owner=? WHERE id=?",
                    (
                        write.status,
                        write.stop_reason,
                        None if write.is_release else self.owner_id,
                        writer.key,
                    ),
                )
            elif write.is_release:
                db.execute("UPDATE runs SET owner=NULL WHERE id=?", (writer.key,))
        _execute_many(db, _INSERT_FRAMES, frames, 7)
        _execute_many(db, _MOVE_HEADS, [value for item in heads.items() for value in item], 2)

    def _create(self, db: sqlite3.Connection, write: Write, now: float) -> None:
        run_id = write.writer.run_id
        try:
            row = db.execute(
                "INSERT INTO runs(run_id, status, created_at, owner, token) VALUES(?,'running',?,?,1)",
                (run_id, now, self.owner_id),
            )
        except sqlite3.IntegrityError:
            write.error = RunExistsError(
                f"run {run_id!r} exists already in this journal; resume it, or take another id"
            )
            return
        except ValueError as error:
            write.error = JournalError(f"the id {run_id!r} cannot be kept: {error}")
            return
        write.writer.key, write.writer.token = row.lastrowid or 0, 1

    def _check_lease(self, db: sqlite3.Connection, write: Write) -> None:
        writer = write.writer
        owner, token = db.execute("SELECT owner, token FROM runs WHERE id=?", (writer.key,)).fetchone()
        if (owner, token) != (self.owner_id, writer.token):
            writer.error = LeaseLostError(
                f"run {writer.run_id!r} was taken over by another process; this one stops driving it"
            )


def _execute_many(db: sqlite3.Connection, statements: dict[int, str], values: list[Any], width: int) -> None:
    """Rows of `width` values each, in as few statements as there are chunks in their number."""
    start = 0
    for size, statement in statements.items():
        while len(values) - start >= width * size:
            db.execute(statement, values[start : start + width * size])
            start += width * size


def _settle_in(loop: asyncio.AbstractEventLoop, writes: list[Write]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, writes)
    except RuntimeError:  # the loop was closed; nobody waits any more
        for write in writes:
            write.waiters.clear()
        _settle(writes)


def _settle(writes: list[Write]) -> None:
    """Tell whoever waits for `writes` how they went."""
    for write in writes:
        write.is_done = True
        write.writer.forget(write)
        error = write.error
        if error is not None and write.writer.error is None:
            write.writer.error = error
        for waiter in write.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
