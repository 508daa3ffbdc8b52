"""The committer of a file.

What is fast here, and why. At level `process` a commit only hands bytes to the operating system, so it is made at
the end of the event loop's turn, in the event loop's thread (`commit_now`): handing it to another thread and
waiting for that thread costs more than the commit. The thread does everything that could keep the event loop
waiting: commits at level `power` (they wait for the disk), commits while another process or thread holds the
file, large ones, checkpoints, and transactions of their own such as taking a lease (`put`, `submit`).

To keep the order of writes, nothing is committed on the event loop while anything is queued for the thread.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes
from treadle.journal.protocol import Clock
from treadle.journal.sqlite.commit import FileState, commit_writes, messages_after, newest_message
from treadle.journal.sqlite.transactions import BusyError, Transactions
from treadle.journal.tables.committer import CommitGroup, Committer, settle, settle_in
from treadle.journal.tables.pending import Pending
from treadle.journal.tables.writer import Write

T = TypeVar("T")

_LOOP_BYTES = 512 * 1024
"""A commit of more bytes than this is left to the thread."""
_CHECKPOINT_BYTES = 16 * 1024 * 1024
"""When the log has about this many bytes, the thread copies it into the file. A page that many commits changed is
copied only once."""
_PAGE_BYTES = 4096


class FileCommitter(Committer[sqlite3.Connection]):
    """The `Committer` of an SQLite file."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        lease_seconds: float,
        clock: Clock,
        changes: Changes,
        pending: Pending,
        driven: DrivenRuns,
    ) -> None:
        super().__init__(str(path), lease_seconds, clock, changes, pending, driven)
        self._transactions = Transactions(db, path, lease_seconds, clock, self.orphans)
        self._file = FileState()
        self._mail_version, self._mail_id = -1, newest_message(db)
        self._log_bytes = 0
        self.start()

    @property
    def owner_id(self) -> int:
        """See `Committer.owner_id`."""
        return self._transactions.owner_id

    def commit_now(self, writes: list[Write]) -> bool:
        """See `Committer.commit_now`."""
        if self._transactions.is_patient or not self.db_lock.acquire(blocking=False):
            return False
        try:
            if self._queued or self._is_stopped:
                return False
            size = _size_of(writes)
            if size > _LOOP_BYTES:
                return False
            try:
                self._keep(writes, size, can_wait=False)
            except BusyError:
                return False
        finally:
            self.db_lock.release()
        settle(writes)
        return True

    def disown(self) -> sqlite3.Connection:
        """See `Committer.disown`."""
        self._forget()
        return self._transactions.disown()

    def _give_up(self) -> None:
        self._transactions.stop()

    # The following methods run in the thread.

    def _commit_and_settle(self, groups: list[CommitGroup]) -> None:
        writes = [write for _, group in groups for write in group]
        if writes:
            self._keep(writes, _size_of(writes), can_wait=True)
        by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
        for loop, group in groups:
            by_loop.setdefault(loop, []).extend(group)
        for loop, group in by_loop.items():
            settle_in(loop, group)

    def _transact(self, function: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._transactions.run(function)
        finally:
            # It may have changed values that otherwise only other connections change.
            self._file.forget()

    def _look_for_mail(self) -> None:
        # If it fails, the next look finds the messages.
        with contextlib.suppress(Exception), self.db_lock:
            db = self._transactions.db
            if (version := db.execute("PRAGMA data_version").fetchone()[0]) == self._mail_version:
                return
            rows = messages_after(db, self._mail_id)
            self._mail_version = version
            if rows:
                self._mail_id = rows[-1][0]
                self.driven.deliver([(run_id, number, kind) for _, run_id, number, kind in rows])

    def _checkpoint(self) -> None:
        """Copy the log into the file, so that the next commit starts the log again."""
        # If it fails, the log grows until the next checkpoint.
        with contextlib.suppress(Exception):
            self._transactions.checkpoint()

    def _leave(self) -> None:
        self._transactions.close()

    # The following methods run in any thread, while it holds `db_lock`.

    def _keep(self, writes: list[Write], size: int, *, can_wait: bool) -> None:
        """Commit `writes`. If that fails, commit those of each run alone, and store the error in those that fail.

        Raises: `BusyError` if another process has the file's lock, or a commit fails, and `can_wait` is False.
        """
        writers = [write.writer for write in writes]
        before = [(writer.key, writer.token, writer.head, writer.checksum) for writer in writers]
        now = self._clock.time()
        try:
            self._transactions.run(
                lambda db: commit_writes(db, writes, self._file, self.owner_id, now), can_wait=can_wait
            )
        except BusyError:
            raise
        except BaseException as error:  # any error must reach those who wait
            self._file.forget()
            for writer, values in reversed([*zip(writers, before, strict=True)]):
                writer.key, writer.token, writer.head, writer.checksum = values
            if isinstance(error, Exception) and len(set(writers)) > 1:
                if not can_wait:
                    raise BusyError from error
                for one in dict.fromkeys(writers):
                    own = [write for write in writes if write.writer is one]
                    self._keep(own, _size_of(own), can_wait=True)
                return
            self._fail(writes, self._explain(error))
            if not isinstance(error, Exception) and not can_wait:
                settle(writes)
                raise
            return
        if self._file.level == "power" and not self._transactions.is_patient:
            self._transactions.strengthen()
        self._announce(writes)
        self._log_bytes += size + _PAGE_BYTES * (4 + len(writes) // 8)
        if self._log_bytes > _CHECKPOINT_BYTES:
            self._log_bytes = 0
            self._enqueue(self._checkpoint)


def _size_of(writes: list[Write]) -> int:
    """Encode `writes`, and return how many bytes they add to the file."""
    return sum([write.encode() for write in writes])
