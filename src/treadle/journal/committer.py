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
from treadle.journal.lease import this_owner
from treadle.journal.schema import explain

if TYPE_CHECKING:
    from treadle.journal.sqlite import SqliteWriter

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

    loop: asyncio.AbstractEventLoop | None
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
        self._beat_at = 0.0
        self.owner_id = 0
        """The row of this process's leases; 0 until the first is taken."""
        self._thread = threading.Thread(target=self._run, name="treadle-journal", daemon=True)
        self._thread.start()

    def put(self, loop: asyncio.AbstractEventLoop | None, writes: list[Write]) -> None:
        """Have `writes` committed, and then settled in `loop`, or here if there is none."""
        self._queue.put(Writes(loop, writes))

    def submit(self, function: Callable[[sqlite3.Connection], T]) -> "Future[T]":
        """Run `function` in a transaction of its own, after all that was put before."""
        future: Future[T] = Future()
        self._queue.put(Task(function, future))
        return future

    def stop(self) -> None:
        """Commit what is queued, give the leases back, and end the thread."""
        self._queue.put(None)
        self._thread.join()

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

    def _commit_groups(self, groups: list[Writes]) -> None:
        writes = [write for _, group in groups for write in group]
        try:
            self._in_transaction(lambda db: self._commit(db, writes))
        except JournalError as error:
            for write in writes:
                write.error = write.error or error
        by_loop: dict[asyncio.AbstractEventLoop | None, list[Write]] = {}
        for loop, group in groups:
            by_loop.setdefault(loop, []).extend(group)
        for loop, group in by_loop.items():
            if loop is None:
                settle(group)
                continue
            try:
                loop.call_soon_threadsafe(settle, group)
            except RuntimeError:  # the loop was closed; nobody waits any more
                settle(group)

    def _run_task(self, task: Task) -> None:
        function, future = task
        try:
            future.set_result(self._in_transaction(function))
        except BaseException as error:
            future.set_exception(error)

    def _in_transaction(self, function: Callable[[sqlite3.Connection], T]) -> T:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            was_registered = bool(self.owner_id)
            try:
                now = time.time()
                if not self.owner_id:
                    self._register(db, now)
                elif now - self._beat_at > self._lease_seconds / 4:
                    db.execute("UPDATE owners SET beat_at=? WHERE id=?", (now, self.owner_id))
                    self._beat_at = now
                result = function(db)
                db.execute("COMMIT")
                return result
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if not was_registered:
                    self.owner_id = 0  # the row is gone too, and another process may be given its id
                raise
        except sqlite3.Error as error:
            raise explain(error, self._path) from error

    def _register(self, db: sqlite3.Connection, now: float) -> None:
        owner = this_owner()
        row = db.execute(
            "INSERT INTO owners(host, pid, started, beat_at) VALUES(?,?,?,?)",
            (owner.host, owner.pid, owner.started, now),
        )
        self.owner_id, self._beat_at = row.lastrowid or 0, now

    def _beat_when_due(self) -> None:
        if not self.owner_id:
            return
        try:
            self._in_transaction(lambda db: None)
        except JournalError:
            # The next write meets the same trouble, and has somebody to tell.
            return

    def _leave(self) -> None:
        if self.owner_id:
            # Should it fail, the leases lapse by themselves.
            with contextlib.suppress(JournalError):
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
            if not writer.key:
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
                body = encode_lines(write.bodies)
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


def settle(writes: list[Write]) -> None:
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
