"""The transactions of an open journal's writing connection.

The first one registers the journal as an owner of leases. Each one sends a heartbeat when it is due and releases
the leases that could not be released before, so that no lease is kept once the store works again.
"""

import contextlib
import logging
import math
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from treadle.core.errors import JournalError
from treadle.journal.protocol import Clock
from treadle.journal.sqlite.failures import ERRORS, explain, has_code, write_waiting
from treadle.journal.sqlite.sqlite_layout import LOCK_SECONDS, read_meta, set_level
from treadle.journal.sqlite.sqlite_lease import give_back
from treadle.journal.tables.owner import Lease, abandoned, this_owner

T = TypeVar("T")

_TELL_SECONDS = 5.0
"""After this time a warning says that another process holds the file's lock."""

_log = logging.getLogger("treadle.journal")


class BusyError(Exception):
    """The signal that another process holds the file's lock."""


class Transactions:
    """The transactions of one connection. Its user lets only one thread call it at a time, except `stop`."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        lease_seconds: float,
        clock: Clock,
        orphans: deque[Lease],
    ) -> None:
        self.db = db
        """The writing connection."""
        self._path = path
        self._lease_seconds = lease_seconds
        self._clock = clock
        # SQLite must neither wait for a lock (`_begin` does) nor make a checkpoint within a commit.
        db.execute("PRAGMA busy_timeout=0")
        db.execute("PRAGMA wal_autocheckpoint=0")
        self.is_patient = read_meta(db)[1] == "power"
        """True at level `power`, at which a commit waits for the disk."""
        self.owner_id = 0
        """This journal's row in `owners`; 0 until its first transaction."""
        self._orphans = orphans
        """Leases that the next successful transaction releases. Any thread may append one."""
        self._beat_at = 0.0
        """The time of the last heartbeat, by `clock.monotonic`, so that setting the wall clock does not delay the
        next one."""
        self._give_up_at = math.inf
        """The time after which the file's lock is not waited for, by `clock.monotonic`."""

    def run(self, function: Callable[[sqlite3.Connection], T], *, can_wait: bool = True) -> T:
        """Run `function` in a transaction, and return its result.

        Raises: `BusyError` if another process has the file's lock and `can_wait` is False; `JournalError`.
        """
        db = self.db
        try:
            self._begin(can_wait=can_wait)
            owner_before, beat_before, orphans = self.owner_id, self._beat_at, len(self._orphans)
            try:
                now = self._clock.monotonic()
                if not self.owner_id:
                    self._register(now)
                    self._beat_at = now
                elif now - self._beat_at > self._lease_seconds / 4:
                    values = (self._clock.time(), now, self.owner_id)
                    db.execute("UPDATE owners SET beat_at=?, ticks=? WHERE id=?", values)
                    self._beat_at = now
                for index in range(orphans):
                    give_back(db, self._orphans[index])
                result = function(db)
                db.execute("COMMIT")
            except BaseException:
                # The row of a new owner is rolled back too, and another process may get its id.
                self.owner_id, self._beat_at = owner_before, beat_before
                if db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise
        except ERRORS as error:
            raise explain(error, self._path) from error
        for _ in range(orphans):
            self._orphans.popleft()
        return result

    def checkpoint(self) -> None:
        """Copy the log into the file, so that the next commit starts the log again. Raises: `JournalError`."""
        self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        # The first commit after a restart of the log waits for the disk, so it is made now.
        self._commit_heartbeat()

    def strengthen(self) -> None:
        """Change to level `power`, because another process opened the file at it. Sync what was committed
        before."""
        set_level(self.db, "power")
        self.is_patient = True
        with contextlib.suppress(JournalError):  # the next commit fails too
            self._commit_heartbeat()

    def stop(self) -> None:
        """Limit the waiting for the file's lock to `LOCK_SECONDS` from now on."""
        self._give_up_at = self._clock.monotonic() + LOCK_SECONDS

    def close(self) -> None:
        """Release all leases, and close the connection."""
        if self.owner_id:
            try:
                self.run(self._give_all_back)
            except Exception:  # other processes miss the heartbeat
                abandoned.add((self._path.resolve(), self.owner_id))
        self.db.close()

    def disown(self) -> sqlite3.Connection:
        """Give up the leases and the connection in a forked child: they belong to the parent."""
        self.owner_id = 0
        return self.db

    def _commit_heartbeat(self) -> None:
        self._beat_at = -math.inf
        self.run(lambda db: None)

    def _begin(self, *, can_wait: bool) -> None:
        """Take the file's lock. Wait for another process that has it; after `stop`, only for a limited time."""
        tell_at = self._clock.monotonic() + _TELL_SECONDS
        pause_seconds = 0.001
        while True:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not has_code(error, sqlite3.SQLITE_BUSY):
                    raise
                if not can_wait:
                    raise BusyError from None
                if (now := self._clock.monotonic()) > self._give_up_at:
                    raise
            if now > tell_at:
                tell_at = math.inf
                _log.warning("%s", write_waiting(self._path, _TELL_SECONDS))
            time.sleep(pause_seconds)
            pause_seconds = min(0.05, pause_seconds * 2)

    def _register(self, now: float) -> None:
        owner = this_owner()
        row = self.db.execute(
            "INSERT INTO owners(host, space, pid, started, beat_at, ticks, lease_seconds) VALUES(?,?,?,?,?,?,?)",
            (
                *(owner.host, owner.space, owner.pid, owner.started),
                *(self._clock.time(), now, self._lease_seconds),
            ),
        )
        self.owner_id = row.lastrowid or 0

    def _give_all_back(self, db: sqlite3.Connection) -> None:
        db.execute("UPDATE runs SET owner=NULL WHERE owner=?", (self.owner_id,))
        db.execute("DELETE FROM owners WHERE id=?", (self.owner_id,))
