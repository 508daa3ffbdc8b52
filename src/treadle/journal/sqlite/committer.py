"""The second half of the hot path: it commits the writes of many runs together, and wakes those who wait for them.

What is fast here, and why. At level `process` a commit only hands bytes to the operating system, so it is made at
the end of the event loop's turn, in the event loop's thread (`commit_now`): handing it to another thread and
waiting for that thread costs more than the commit. A thread does everything that could keep the event loop
waiting: commits at level `power` (they wait for the disk), commits while another process or thread holds the
file, large ones, checkpoints, and transactions of their own such as taking a lease (`put`, `submit`).

Invariant: writes of one run are committed in the order in which they were handed over. Therefore nothing is
committed on the event loop while anything is queued for the thread.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from treadle.core.errors import JournalError
from treadle.journal.follow import Changes
from treadle.journal.protocol import Clock
from treadle.journal.sqlite.commit import FileState, commit_writes
from treadle.journal.sqlite.failures import explain_closed
from treadle.journal.sqlite.lease import Lease
from treadle.journal.sqlite.pending import Pending
from treadle.journal.sqlite.transactions import BusyError, Transactions
from treadle.journal.sqlite.writer import Write

T = TypeVar("T")

_LOOP_BYTES = 512 * 1024
"""A commit of more bytes than this is left to the thread."""
_CHECKPOINT_BYTES = 16 * 1024 * 1024
"""When the log has about this many bytes, the thread copies it into the file. A page that many commits changed is
copied only once."""
_PAGE_BYTES = 4096
_LOOK_SECONDS = 0.05
"""How often the thread looks whether an event loop is blocked, while runs append something."""
_QUIET_LOOKS = 20
"""After so many looks that found nothing, the thread looks no more until something is appended."""


class _Writes(NamedTuple):
    """The writes that one event loop hands over together."""

    loop: asyncio.AbstractEventLoop
    writes: list[Write]


class _Task(NamedTuple):
    """A function to run in a transaction of its own."""

    function: Callable[[sqlite3.Connection], Any]
    future: "Future[Any]"


class _Order(Enum):
    """A command to the thread."""

    CHECKPOINT = "checkpoint"
    WATCH = "watch"
    STOP = "stop"


class Committer:
    """The one writing connection of an open journal, its heartbeat, and its thread."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        lease_seconds: float,
        clock: Clock,
        changes: Changes,
        pending: Pending,
    ) -> None:
        self._path = path
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._changes = changes
        self._transactions = Transactions(db, path, lease_seconds, clock)
        self._file = FileState()
        self.db_lock = threading.Lock()
        """Held by the thread that uses the connection."""
        self._queue: queue.SimpleQueue[_Writes | _Task | _Order] = queue.SimpleQueue()
        self._queue_lock = threading.Lock()
        """Held while something is queued, so that nothing is queued after the command to stop."""
        self._queued = 0
        """The number of items that were queued and are not done."""
        self._is_stopped = False
        self._pending = pending
        self.is_watching = False
        """True while the thread looks for event loops that are blocked."""
        self._log_bytes = 0
        self._thread = threading.Thread(target=self._run, name="treadle-journal", daemon=True)
        self._thread.start()

    @property
    def owner_id(self) -> int:
        """This journal's row in `owners`; 0 until it takes its first lease."""
        return self._transactions.owner_id

    def commit_now(self, writes: list[Write]) -> bool:
        """Commit and settle `writes` in this thread, which runs their event loop, and return True.

        Return False without committing if that could block the event loop; the caller then has to `put` them.
        """
        if self._transactions.is_patient or not self.db_lock.acquire(blocking=False):
            return False
        try:
            if self._queued or self._is_stopped:
                return False
            size = _size_of(writes)
            if size > _LOOP_BYTES:
                return False
            try:
                self._commit(writes, size, can_wait=False)
            except BusyError:
                return False
        finally:
            self.db_lock.release()
        _settle(writes)
        return True

    def put(self, loop: asyncio.AbstractEventLoop, writes: list[Write]) -> None:
        """Queue `writes` for the committer's thread, which commits them and then settles them in `loop`."""
        if not self._enqueue(_Writes(loop, writes)):
            self._fail(writes, explain_closed(self._path))
            _settle_in(loop, writes)

    def submit(self, function: Callable[[sqlite3.Connection], T]) -> "Future[T]":
        """Run `function` in a transaction of its own, after everything that was put before."""
        future: Future[T] = Future()
        if not self._enqueue(_Task(function, future)):
            future.set_exception(explain_closed(self._path))
        return future

    def give_back(self, lease: Lease) -> None:
        """Release a lease without a write, now or when the store works again."""
        self._transactions.orphans.append(lease)
        self.submit(lambda db: None)

    def stop(self) -> None:
        """Commit the queued writes, release the leases, and end the thread."""
        with self._queue_lock:
            self._is_stopped = True
            self._transactions.stop()
            self._queue.put(_Order.STOP)
        if threading.current_thread() is not self._thread:  # the thread itself may drop the journal last
            self._thread.join()

    def watch(self) -> None:
        """Make the thread look for event loops that are blocked, until nothing has been appended for a while."""
        self.is_watching = True
        self._queue.put(_Order.WATCH)

    def _enqueue(self, item: _Writes | _Task | _Order) -> bool:
        with self._queue_lock:
            if not self._is_stopped:
                self._queued += 1
                self._queue.put(item)
            return not self._is_stopped

    def disown(self) -> sqlite3.Connection:
        """Give up the connection in a forked child, which does not have the thread, and return it."""
        self._is_stopped, self.db_lock, self._queue_lock = True, threading.Lock(), threading.Lock()
        return self._transactions.disown()

    # The following methods run in the thread.

    def _run(self) -> None:
        quiet_looks, beat_at = 0, 0.0
        while True:
            try:
                item = self._queue.get(timeout=_LOOK_SECONDS if self.is_watching else self._lease_seconds / 4)
            except queue.Empty:
                quiet_looks = 0 if self._take_from_blocked() else quiet_looks + 1
                if quiet_looks > _QUIET_LOOKS:
                    self.is_watching = False
                    # Something may have been appended just before.
                    self.is_watching = bool(self._pending)
                now = self._clock.monotonic()
                if now - beat_at >= self._lease_seconds / 4:
                    beat_at = now
                    self._beat_when_due()
                continue
            # Take all that is queued, up to the first that is not a write.
            groups: list[_Writes] = []
            while isinstance(item, _Writes):
                groups.append(item)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if groups:
                self._commit_groups(groups)
            if item is _Order.STOP:
                self._leave()
                return
            if item is _Order.CHECKPOINT:
                self._checkpoint()
            elif isinstance(item, _Task):
                self._run_task(item)
            # These references would keep a journal alive that is not used any more.
            del item, groups

    def _take_from_blocked(self) -> bool:
        """Commit what blocked event loops have not handed over. Return whether anything waits in a loop."""
        if not self._pending:
            return False
        with self.db_lock:
            # The lock comes first, so that a loop cannot commit newer events of a run in between.
            groups = [_Writes(*taken) for taken in self._pending.take_stuck()]
            self._commit_and_settle(groups)
        return True

    def _commit_groups(self, groups: list[_Writes]) -> None:
        with self.db_lock:
            self._commit_and_settle(groups)
            self._count_done(len(groups))

    def _commit_and_settle(self, groups: list[_Writes]) -> None:
        writes = [write for _, group in groups for write in group]
        if writes:
            self._commit(writes, _size_of(writes), can_wait=True)
        by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
        for loop, group in groups:
            by_loop.setdefault(loop, []).extend(group)
        for loop, group in by_loop.items():
            _settle_in(loop, group)

    def _run_task(self, task: _Task) -> None:
        function, future = task
        with self.db_lock:
            if future.set_running_or_notify_cancel():
                try:
                    result = self._transactions.run(function)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # It may have changed values that otherwise only other connections change.
            self._file.forget()
            self._count_done(1)

    def _count_done(self, items: int) -> None:
        with self._queue_lock:
            self._queued -= items

    def _checkpoint(self) -> None:
        """Copy the log into the file, so that the next commit starts the log again."""
        with self.db_lock:
            # If it fails, the log grows until the next checkpoint.
            with contextlib.suppress(Exception):
                self._transactions.checkpoint()
            self._count_done(1)

    def _beat_when_due(self) -> None:
        if not self.owner_id:
            return
        # If it fails, the next write fails too and reports the error.
        with contextlib.suppress(Exception), self.db_lock:
            self._transactions.run(lambda db: None)

    def _leave(self) -> None:
        with self.db_lock:
            self._transactions.close()

    # The following methods run in any thread, while it holds `_db_lock`; `_fail` also runs without it.

    def _commit(self, writes: list[Write], size: int, *, can_wait: bool) -> None:
        """Commit `writes`. If that fails, store the error in each of them. Raises: `BusyError` if another
        process has the file's lock and `can_wait` is False."""
        new = [write.writer for write in writes if not write.writer.key]
        now = self._clock.time()
        try:
            self._transactions.run(
                lambda db: commit_writes(db, writes, self._file, self.owner_id, now), can_wait=can_wait
            )
        except BusyError:
            raise
        except BaseException as error:  # any error must reach those who wait
            self._file.forget()
            for writer in new:
                writer.key = 0
            self._fail(writes, self._explain(error))
            if not isinstance(error, Exception) and not can_wait:
                _settle(writes)
                raise
            return
        if self._file.level == "power" and not self._transactions.is_patient:
            self._transactions.strengthen()
        if self._changes.followers:
            self._changes.announce([write.writer.run_id for write in writes])
        self._log_bytes += size + _PAGE_BYTES * (4 + len(writes) // 8)
        if self._log_bytes > _CHECKPOINT_BYTES:
            self._log_bytes = 0
            self._enqueue(_Order.CHECKPOINT)

    def _fail(self, writes: list[Write], error: JournalError) -> None:
        for write in writes:
            writer = write.writer
            write.error = write.error or error
            # Set it now: the writer's next write may already be queued, and keeping it would leave a gap.
            writer.error = writer.error or write.error
            if write.is_release and writer.key:
                self._transactions.orphans.append(Lease(writer.key, writer.token))

    def _explain(self, error: BaseException) -> JournalError:
        if isinstance(error, JournalError):
            return error
        failure = JournalError(f"the journal {str(self._path)!r} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def _size_of(writes: list[Write]) -> int:
    """Encode `writes`, and return how many bytes they add to the file."""
    return sum([write.encode() for write in writes])


def _settle_in(loop: asyncio.AbstractEventLoop, writes: list[Write]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, writes)
    except RuntimeError:  # the loop was closed, so nothing waits for this
        for write in writes:
            write.waiters.clear()
        _settle(writes)


def _settle(writes: list[Write]) -> None:
    """Report the outcome of `writes` to those who wait for it."""
    for write in writes:
        write.is_done = True
        write.writer.forget(write)
        error = write.error
        for waiter in write.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
