"""The second half of the hot path: the writes of many runs are committed together, and those who wait are woken.

A thread has the one writing connection of an open journal. It commits what event loops hand over, runs the
transactions that take leases or delete runs, and sends heartbeats. A store says how each of that is done.

Invariant: writes of one run are committed in the order in which they were handed over.
"""

import asyncio
import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from itertools import chain
from typing import Any, Generic, TypeAlias, TypeVar

from treadle.core.errors import JournalError
from treadle.http.locks import new_lock
from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes
from treadle.journal.tables.leases import Lease, Leases
from treadle.journal.tables.reader import TableReader
from treadle.journal.tables.table_rows import explain_closed
from treadle.journal.tables.writer import (
    Joined,
    JoinedWork,
    Pending,
    Write,
    settle_in_loops,
    settle_joined,
)

T = TypeVar("T")
D = TypeVar("D")
"""The type of the connection that a transaction of the store gets."""

_LOOK_SECONDS = 0.05
"""How often the thread looks whether an event loop is blocked, while runs append something."""
_MAIL_SECONDS = 0.1
"""How often the thread looks for messages of other processes, while this process drives runs."""
_QUIET_LOOKS = 20
"""After so many looks that found nothing, the thread looks no more until something is appended."""


class ThreadCommand(Enum):
    """A command to the thread."""

    WATCH = "watch"
    STOP = "stop"


ThreadTask: TypeAlias = tuple[list[Write], Sequence[Joined]] | Callable[[], None] | ThreadCommand
"""A task of the thread: the writes that an event loop hands over together, with what has joined them, a function to
call, or a command."""


class Committer(ABC, Generic[D]):
    """The one writing connection of an open journal, its heartbeat, and its thread."""

    def __init__(self, name: str, leases: Leases, changes: Changes, driven: DrivenRuns) -> None:
        self.name = name
        self.leases = leases
        self._clock = leases.clock
        self.driven = driven
        """The runs that this process drives, which are told of messages from other processes."""
        self.changes = changes
        self.pending = Pending(self)
        self.db_lock = new_lock(is_awaited=True)
        """Held by the thread that uses the connection."""
        self.orphans: deque[Lease] = deque()
        """Leases that the next successful transaction releases. Any thread may append one."""
        self._queue: queue.SimpleQueue[ThreadTask] = queue.SimpleQueue()
        self._queue_lock = new_lock()
        """Held while something is queued, so that nothing is queued after the command to stop."""
        self._queued = 0
        """The number of items that were queued and are not done."""
        self._is_stopped = False
        self.is_watching = False
        """True while the thread looks for event loops that are blocked."""
        self._thread = threading.Thread(target=self._run, name="treadle-journal", daemon=True)

    can_renew = False
    """True if a write with a negative token takes the lease; see `RunWriter.renewal`."""

    @abstractmethod
    def _commit_and_settle(self, writes: list[Write], joined: list[JoinedWork]) -> None:
        """Store `writes`, in the thread, and settle them, now or later. A write that cannot be stored gets an
        error, and so does its writer. What is `joined` is handled as by `commit_now`."""

    @abstractmethod
    def _transact(self, function: Callable[[D], T]) -> T:
        """Run `function` in a transaction, in the thread, and return its result. Raises: `JournalError`."""

    @abstractmethod
    def _leave(self) -> None:
        """Release all leases and close the connection, in the thread."""

    @abstractmethod
    def _give_up(self) -> None:
        """Limit the waiting of transactions, because the journal is being closed. Any thread calls this."""

    @abstractmethod
    def disown(self) -> object:
        """Give up the connection in a forked child, which does not have the thread, and return it."""

    def start(self) -> None:
        self._thread.start()

    def commit_now(self, writes: list[Write], joined: list[JoinedWork]) -> bool:
        """Commit and settle `writes` in this thread, which runs their event loop, and return True.

        Return False without committing if that could block the event loop; the caller then has to `put` them. What
        is `joined` is done in the same transaction, all or nothing, and the list is empty then. A store that cannot
        do this leaves the list as it is.
        """
        return False

    def transact_now(self, function: Callable[[D], T]) -> T | None:
        """Run `function`, which changes few rows, in a transaction in this thread, and return its result.

        Return `None` without doing anything if that could block an event loop. Raises: `JournalError`.
        """
        return None

    def put(self, writes: list[Write], joined: Sequence[Joined] = ()) -> None:
        """Queue `writes` for the committer's thread, which commits them, together with what is `joined`, and then
        settles both in their loops."""
        if not self._enqueue((writes, joined)):
            self._fail(writes, explain_closed(self.name))
            settle_in_loops(writes)
            _settle_joined_in_loops(joined, is_done=False)

    def submit(self, function: Callable[[D], T]) -> "Future[T]":
        """Run `function` in a transaction of its own, after everything that was put before."""
        future: Future[T] = Future()
        if not self._enqueue(lambda: self._run_task(function, future)):
            future.set_exception(explain_closed(self.name))
        return future

    def give_back(self, lease: Lease) -> None:
        """Release a lease that nobody used, now or when the store works again. The losses of its run stay."""
        self.orphans.append(lease)
        self.submit(lambda db: None)

    def stop(self) -> None:
        """Commit the queued writes, release the leases, and end the thread."""
        with self._queue_lock:
            self._is_stopped = True
            self._give_up()
            self._queue.put(ThreadCommand.STOP)
        if threading.current_thread() is not self._thread:  # the thread itself may drop the journal last
            self._thread.join()

    def watch(self) -> None:
        """Make the thread look for event loops that are blocked, until nothing has been appended for a while."""
        self.is_watching = True
        self._queue.put(ThreadCommand.WATCH)

    def _enqueue(self, item: ThreadTask) -> bool:
        with self._queue_lock:
            if not self._is_stopped:
                self._queued += 1
                self._queue.put(item)
            return not self._is_stopped

    def _forget(self) -> None:
        """Forget the leases in a forked child, which does not have the thread."""
        self._is_stopped = True
        self.leases.owner_id = 0  # the leases belong to the parent
        self.orphans.clear()

    # The following methods run in the thread.

    def _next(self, timeout_seconds: float) -> ThreadTask:
        """Return the next item of the queue. Raises: `queue.Empty` if there is none in time."""
        return self._queue.get(timeout=timeout_seconds)

    def _look_for_mail(self) -> None:
        """Tell the runs that this process drives of the messages that other processes have stored."""

    def _run(self) -> None:
        quiet_looks, beat_at, mail_at = 0, self._clock.monotonic(), 0.0
        while True:
            if self.driven and (now := self._clock.monotonic()) - mail_at > _MAIL_SECONDS / 2:
                mail_at = now
                self._look_for_mail()
            try:
                item = self._next(self._pause_seconds())
            except queue.Empty:
                quiet_looks = 0 if self._take_from_blocked() else quiet_looks + 1
                if quiet_looks > _QUIET_LOOKS:
                    self.is_watching = False
                    # Something may have been appended just before.
                    self.is_watching = bool(self.pending)
                now = self._clock.monotonic()
                if now - beat_at >= self.leases.lease_seconds / 4:
                    beat_at = now
                    self._beat_when_due()
                continue
            # Take all that is queued, up to the first that is not a write.
            groups: list[tuple[list[Write], Sequence[Joined]]] = []
            while isinstance(item, tuple):
                groups.append(item)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if groups:
                with self.db_lock:
                    joined = [one for _, own in groups for one in own]
                    left = [function for function, _ in joined]
                    self._commit_and_settle([*chain.from_iterable([writes for writes, _ in groups])], left)
                    self._count_done(len(groups))
                _settle_joined_in_loops(joined, is_done=not left)
                del joined, left
            if item is ThreadCommand.STOP:
                with self.db_lock:
                    self._leave()
                return
            if not isinstance(item, tuple | ThreadCommand):
                with self.db_lock:
                    item()
                    self._count_done(1)
            # These references would keep a journal alive that is not used any more.
            del item, groups

    def _pause_seconds(self) -> float:
        """Return how long the thread waits for something to do."""
        if self.is_watching:
            return _LOOK_SECONDS
        return (
            min(_MAIL_SECONDS, self.leases.lease_seconds / 4)
            if self.driven
            else self.leases.lease_seconds / 4
        )

    def _take_from_blocked(self) -> bool:
        """Commit what blocked event loops have not handed over. Return whether anything waits in a loop."""
        if not self.pending:
            return False
        with self.db_lock:
            # The lock comes first, so that a loop cannot commit newer events of a run in between.
            self._commit_and_settle(self.pending.take_stuck(), [])
        return True

    def _run_task(self, function: Callable[[D], Any], future: "Future[Any]") -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = self._transact(function)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _count_done(self, items: int) -> None:
        with self._queue_lock:
            self._queued -= items

    def _beat_when_due(self) -> None:
        if not self.leases.owner_id:
            return
        # If it fails, the next write fails too and reports the error.
        with contextlib.suppress(Exception), self.db_lock:
            self._transact(lambda db: None)

    # The following methods run in any thread.

    def _announce(self, writes: list[Write]) -> None:
        """Wake the followers, if there are any."""
        if self.changes.feeds:
            self.changes.announce([write.writer.run_id for write in writes])

    def _fail(self, writes: list[Write], error: JournalError) -> None:
        for write in writes:
            writer = write.writer
            write.error = write.error or error
            # Set it now: the writer's next write may already be queued, and keeping it would leave a gap.
            writer.error = writer.error or write.error
            if write.is_release and writer.key:
                self.orphans.append(Lease(writer.key, writer.token))

    def _explain(self, error: BaseException) -> JournalError:
        if isinstance(error, JournalError):
            return error
        failure = JournalError(f"the journal {self.name!r} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def _settle_joined_in_loops(joined: Sequence[Joined], *, is_done: bool) -> None:
    """Report the outcome of what has `joined` a commit, in the threads of the event loops that wait for it."""
    for loop in dict.fromkeys([future.get_loop() for _, future in joined]):
        own = [one for one in joined if one[1].get_loop() is loop]
        with contextlib.suppress(RuntimeError):  # the loop was closed, so nothing waits for this
            loop.call_soon_threadsafe(settle_joined, own, is_done)


_TURN_SECONDS = 5.0
"""How long a closing journal waits for an event loop of another thread."""


def close_journal(committer: Committer[Any], reader: TableReader, parts: dict[Any, Any]) -> None:
    """Close all that belongs to a journal, after everything that was appended is committed."""
    for item in list(parts.values()):
        item.close()
    for loop in committer.pending.loops():
        if _runs_elsewhere(loop):
            _wait_for_turn(loop)
        elif writes := committer.pending.take(loop):
            committer.put(writes)
    committer.stop()
    committer.changes.close()
    reader.close()


def _runs_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return loop.is_running() and loop is not asyncio.get_running_loop()
    except RuntimeError:
        return True


def _wait_for_turn(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until `loop`, in its own thread, has handed over what was appended in it, unless it hangs."""
    is_over = threading.Event()
    with contextlib.suppress(RuntimeError):  # closed
        # What was appended is handed over two turns later.
        loop.call_soon_threadsafe(loop.call_soon, loop.call_soon, is_over.set)
        is_over.wait(_TURN_SECONDS)
