"""The committer of PostgreSQL.

What is fast here, and why. The event loop sends a commit at the end of its turn, which does not block
(`commit_now`): handing it to another thread first costs a change of threads. A thread waits for the answer, and
does everything that could keep the event loop waiting. Up to `_DEPTH` commits are on their way at a time: while
the server writes one, the next is encoded and sent. Writes that are handed over while so many are on their way
are committed together. The longer a commit takes, the fewer commits there are, and the more runs each of them
has.

To keep the order of a run's writes, a run is in at most one of the commits that are on their way.
"""

import contextlib
import math
import queue
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.pq.abc import PGresult

from treadle.core.errors import JournalError
from treadle.journal.follow import Changes
from treadle.journal.postgres.link import CHANNEL, NOTIFY_QUEUES, QUEUE_CHANNEL, Db, Link
from treadle.journal.postgres.pipe import Call, Pipe
from treadle.journal.postgres.postgres_commit import (
    Keys,
    calls_of,
    find,
    keys_in,
    missing_in,
    notify,
    plan,
    settle_entries,
    tell_of_mail,
)
from treadle.journal.postgres.postgres_listener import PostgresListener
from treadle.journal.postgres.postgres_reader import run_query
from treadle.journal.tables.committer import Committer, ThreadCommand, ThreadTask
from treadle.journal.tables.leases import Lease, Leases
from treadle.journal.tables.writer import JoinedWork, TableWriter, Write, settle_in_loops

T = TypeVar("T")

_DEPTH = 2
"""The most commits that are on their way at the same time."""
_LOOP_BYTES = 512 * 1024
"""A commit of more bytes than this is left to the thread."""
_COMMIT_BYTES = 32 * 1024 * 1024
"""A commit of more bytes than this is the only one that is on its way."""


class Transaction:
    """The object that is passed to the function of a transaction."""

    def __init__(self, db: Db) -> None:
        self.db = db

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for values, and return its rows."""
        return run_query(self.db, sql, values)


class CommitBatch:
    """The writes of one commit."""

    def __init__(self, given: list[Write], orphans: list[Lease]) -> None:
        self.given = given
        """All writes, those included that cannot be stored."""
        self.orphans = orphans
        self.entries = plan(given)
        self.calls: list[Call] = []
        self.notice = notify((), ())
        """The statement that tells others of the commit."""
        self.results: list[PGresult] | None = None
        """The answers of the server, if they were read before the commit is finished."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to store."""
        return not self.entries and not self.orphans

    @property
    def size(self) -> int:
        """The approximate number of bytes that are sent to the store."""
        return sum([entry.size for entry in self.entries])

    @property
    def writes(self) -> list[Write]:
        return [write for entry in self.entries for write in entry.writes]

    def split(self) -> "list[CommitBatch]":
        """Return one batch for each run, and one for the leases that are released without a write."""
        by_writer: dict[TableWriter, list[Write]] = {}
        for write in self.given:
            by_writer.setdefault(write.writer, []).append(write)
        return [CommitBatch([], self.orphans), *[CommitBatch(own, []) for own in by_writer.values()]]

    def send(self, pipe: Pipe, owner_id: int, now: float) -> None:
        """Send the statements. Raises: `psycopg.Error`."""
        self.calls = calls_of(self.entries, self.orphans, owner_id, now)
        self.notice = notify(self.entries, self.orphans)
        pipe.send(self.calls, self.notice)


class PostgresCommitter(Committer[Transaction]):
    """The `Committer` of a journal in PostgreSQL."""

    def __init__(
        self,
        link: Link,
        leases: Leases,
        changes: Changes,
        listener: PostgresListener,
    ) -> None:
        super().__init__(link.address.name, leases, changes, listener.driven)
        self._link = link
        self._listener = listener
        self._pipe: Pipe | None = None
        self._sent: deque[CommitBatch] = deque()
        """The commits that are on their way, oldest first."""
        self._held: list[Write] = []
        """The writes of runs that are in a commit on its way."""
        self._beat_at = -math.inf
        """The time of the last heartbeat, by `clock.monotonic`."""
        self._is_waiting = False
        """True while the thread waits for the server and not for the queue."""
        self._wake, self._woken = socket.socketpair()
        self.start()

    def disown(self) -> object:
        self._forget()
        return self._link.db

    def commit_now(self, writes: list[Write], joined: list[JoinedWork]) -> bool:
        """Send `writes` to the server, if that cannot block and keeps the order of the writes. The thread
        settles them. Nothing that is `joined` is done."""
        if not self.db_lock.acquire(blocking=False):
            return False
        try:
            if self._queued or self._is_stopped or len(self._sent) >= _DEPTH or not self._is_ready:
                return False
            busy = {entry.writer for batch in self._sent for entry in batch.entries}
            if self._held or not busy.isdisjoint([write.writer for write in writes]):
                return False
            if sum([write.encode() for write in writes]) > _LOOP_BYTES:
                return False
            batch = CommitBatch(writes, [])
            if not batch.entries:
                settle_in_loops(writes)
                return True
            if not self._send(batch):
                self._enqueue(self._recover)
        finally:
            self.db_lock.release()
        if not self._is_waiting:
            self._queue.put(ThreadCommand.WATCH)
        return True

    @property
    def _is_ready(self) -> bool:
        """True if commits can be sent without anything else before."""
        return self._pipe is not None and self._link.db is self._pipe.db and not self._is_beat_due

    def _send(self, batch: CommitBatch) -> bool:
        """Send a commit. Return False if that failed, so that `_recover` has to be called."""
        assert self._pipe is not None
        self._sent.append(batch)
        try:
            batch.send(self._pipe, self.leases.owner_id, self._clock.time())
        except Exception:  # the connection was lost, or a value has no place in the tables
            return False
        return True

    def _enqueue(self, item: ThreadTask) -> bool:
        is_queued = super()._enqueue(item)
        if self._is_waiting:
            with contextlib.suppress(OSError):  # the thread has ended
                self._wake.send(b"x")
        return is_queued

    def _give_up(self) -> None:
        self._link.is_closing.set()

    # The following methods run in the thread.

    def _next(self, timeout_seconds: float) -> ThreadTask:
        while True:
            self._is_waiting = True
            while self._sent:
                if len(self._sent) < _DEPTH:
                    with contextlib.suppress(queue.Empty):
                        return self._queue.get_nowait()
                self._wait_for_answer()
            self._is_waiting = False
            if not self._sent:  # the event loop may have sent something just before
                return super()._next(timeout_seconds)

    def _wait_for_answer(self) -> None:
        """Settle the oldest commit if the server has answered; else wait for the server or the queue."""
        try:
            with self.db_lock:
                pipe = self._pipe
                if pipe is None or pipe.advance():
                    self._finish_oldest()
                    return
            pipe.wait()
        except psycopg.Error:
            with self.db_lock:
                self._recover()

    def _commit_and_settle(self, writes: list[Write], joined: list[JoinedWork]) -> None:
        writes = [*self._held, *writes]
        busy = {entry.writer for batch in self._sent for entry in batch.entries}
        self._held = [write for write in writes if write.writer in busy]
        batch = CommitBatch(
            [write for write in writes if write.writer not in busy],
            [self.orphans.popleft() for _ in range(len(self.orphans))],
        )
        if batch.is_empty:
            settle_in_loops(batch.given)
            return
        if not self._is_ready or batch.size > _COMMIT_BYTES:
            self._drain()
            self._keep(batch)
            return
        if not self._send(batch):
            self._recover()

    def _finish_oldest(self) -> None:
        """Wait for the answer to the oldest commit, and settle it."""
        pipe, batch = self._pipe, self._sent[0]
        assert pipe is not None
        try:
            results = pipe.read() if batch.results is None else batch.results
            keys = keys_in(batch.calls, results, batch.entries)
            tell_of_mail(batch.calls, results, batch.entries)
            if missing := missing_in(keys, batch.entries):
                for other in list(self._sent)[1:]:
                    other.results = pipe.read()
                pipe.leave()
                keys |= find(pipe.db, missing)
        except psycopg.Error:
            self._recover()
            return
        self._sent.popleft()
        self._settle(batch, keys)

    def _recover(self) -> None:
        """Make the commits that are on their way again, one after another, on a new connection."""
        batches = [*self._sent]
        self._sent.clear()
        self._drop()
        self._keep_each(batches)

    def _keep_each(self, batches: Sequence[CommitBatch]) -> None:
        """Make commits one after another. Nothing is sent in between."""
        held, self._held = self._held, []
        for batch in batches:
            self._keep(batch)
        self._held = held
        if held:
            self._commit_and_settle([], [])

    def _drain(self) -> None:
        while self._sent:
            self._finish_oldest()

    def _keep(self, batch: CommitBatch) -> None:
        """Make a commit and wait for it. If the connection is lost, the commit is made again. If the server refuses
        what one of several runs appended, the others are stored."""

        if batch.is_empty:
            settle_in_loops(batch.given)
            return

        def work(db: Db) -> Keys:
            self._beat_if_due(db)
            pipe = self._pipe_of(db)
            batch.send(pipe, self.leases.owner_id, self._clock.time())
            results = pipe.read()
            keys = keys_in(batch.calls, results, batch.entries)
            tell_of_mail(batch.calls, results, batch.entries)
            if missing := missing_in(keys, batch.entries):
                pipe.leave()
                keys |= find(db, missing)
            return keys

        try:
            keys = self._link.run(work)
        except BaseException as error:  # any error must reach those who wait
            self._drop()
            is_away = isinstance(error, JournalError) and error.__cause__ is None
            if len(batch.entries) > 1 and isinstance(error, Exception) and not is_away:
                self._keep_each(batch.split())
                return
            self.orphans.extend(batch.orphans)
            self._fail(batch.writes, self._explain(error))
            settle_in_loops(batch.given)
        else:
            self._settle(batch, keys)

    def _settle(self, batch: CommitBatch, keys: Keys) -> None:
        settle_entries(batch.entries, keys)
        settle_in_loops(batch.given)
        self._listener.count([CHANNEL, QUEUE_CHANNEL] if batch.notice is not notify((), ()) else [CHANNEL])
        self._announce(batch.writes)
        if self._held:
            self._commit_and_settle([], [])

    def _transact(self, function: Callable[[Transaction], T]) -> T:
        self._drain()
        orphans = list(self.orphans)
        tries: list[tuple[int, T]] = []
        """The server's numbers of the transactions that were to be committed, each with the result."""

        def work(db: Db) -> T:
            self._beat_if_due(db)
            self._pipe_of(db).leave()
            if tries and self._is_committed(db, tries[-1][0]):
                return tries[-1][1]
            transaction = Transaction(db)
            with db.transaction():
                for lease in orphans:
                    transaction.query("UPDATE runs SET owner=NULL WHERE id=? AND token=?", lease)
                    db.execute(NOTIFY_QUEUES)
                result = function(transaction)
                number = transaction.query("SELECT txid_current_if_assigned()")[0][0]
                if number is not None:  # it has changed something
                    tries.append((number, result))
            return result

        result = self._link.run(work)
        for _ in orphans:
            self.orphans.popleft()
        return result

    def _is_committed(self, db: Db, number: int) -> bool:
        """Return whether the server has committed a transaction before the connection was lost.

        Raises: `psycopg.Error` if it has not yet ended it, such as while a standby does not confirm it. The link
        asks again, for as long as it waits for a server that is away.
        """
        try:
            status = run_query(db, "SELECT txid_status(?)", (number,))[0][0]
        except psycopg.errors.InvalidParameterValue:  # a standby that never got it is the server now
            return False
        if status == "in progress":
            raise psycopg.errors.CannotConnectNow("a transaction of the lost connection has not ended yet")
        return bool(status == "committed")

    def _pipe_of(self, db: Db) -> Pipe:
        if self._pipe is None or self._pipe.db is not db:
            if self._pipe is not None:
                self._pipe.close()
            self._pipe = Pipe(db, self._woken)
        return self._pipe

    def _drop(self) -> None:
        """Close the connection, because its state is not known. The next commit makes another one."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self._link.close()

    @property
    def _is_beat_due(self) -> bool:
        is_due = self._clock.monotonic() - self._beat_at > self.leases.lease_seconds / 4
        return is_due or not self.leases.owner_id

    def _beat_if_due(self, db: Db) -> None:
        if self._is_beat_due:
            self._pipe_of(db).leave()
            self.leases.beat(partial(run_query, db))
            self._beat_at = self._clock.monotonic()

    def _leave(self) -> None:
        self._drain()
        if self.leases.owner_id:
            try:
                self._transact(self._give_all_back)
            except Exception:  # other processes miss the heartbeat
                self.leases.abandon()
        with contextlib.suppress(Exception):
            self._drop()
        self._wake.close()
        self._woken.close()

    def _give_all_back(self, transaction: Transaction) -> None:
        self.leases.leave(transaction.query)
        transaction.db.execute(NOTIFY_QUEUES)
