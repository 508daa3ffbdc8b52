"""The owners of leases, and whether they are still alive.

The owner of a lease is the open journal of a process. The owner's row says how long its leases last, and the
owner sends heartbeats. Two things end the lease of an owner that did not give it back:

- Its process has ended. Only a process of the same PID namespace can know that, and it ends the lease at once.
- This journal has watched the owner and seen no new heartbeat for as long as the lease lasts. This time is
  measured on this process's monotonic clock, so that no wall clock, of whichever process, can end a lease.

The age of a heartbeat by the clocks only decides whether the owner has to be watched, and what a listing shows.
Every new lease of a run has a higher token, so that a process that was suspended notices that it lost the run.
"""

import contextlib
import logging
import math
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

from treadle.core.errors import LeaseHeldError, RunNotFoundError
from treadle.journal.protocol import Clock
from treadle.journal.tables.owner import Beat, Holder, Lease, Owner, Silence, abandoned

_LOOKS = 8
"""How often a watcher has to look at least during the time of a lease. Time in which nobody looked does not count:
the file may have been locked, so that the owner could not send a heartbeat either."""


_log = logging.getLogger("treadle.journal")

HOLDERS = "SELECT id, host, space, pid, started, beat_at, ticks, lease_seconds FROM owners"


class SqliteHolder(Holder, frozen=True):
    """A row of `owners` with the last heartbeat by the owner's clocks."""

    beat: Beat

    def is_overdue(self, clock: Clock) -> bool:
        """Return True if the next heartbeat is late, by the clocks of the two processes."""
        at, ticks = self.beat
        # All processes of a host have the same monotonic clock. A beat in the future is as bad as an old one.
        age = clock.monotonic() - ticks if self.owner.has_same_clock() else clock.time() - at
        return abs(age) > self.lease_seconds

    def is_alive(self, clock: Clock) -> bool:
        """Return True if the owner still seems to hold its leases. This is for listings and takes no time."""
        return not self.is_overdue(clock) and not self.owner.has_ended()


_KINDS = [str, str, int, str, float, float]
"""The types of a row of `owners`, without its key and `lease_seconds`."""


class OwnerWatch:
    """The knowledge of one open journal about the owners in a file, and the heartbeats that the journal has
    seen."""

    def __init__(self, path: Path, lease_seconds: float, clock: Clock) -> None:
        self.path = path
        self.lease_seconds = lease_seconds
        """How long the leases of this journal last, and those of owners that recorded no time."""
        self.clock = clock
        self._seen: dict[int, tuple[Beat, float, float]] = {}
        """For each owner its last heartbeat, the seconds of silence since, and the time of the last look."""
        self.look_at = -math.inf
        """The time from which `free_dead` looks again, by `clock.monotonic`."""

    def holders_from(self, rows: Iterable[tuple[Any, ...]]) -> list[SqliteHolder]:
        """Return the rows of a query that begins with `HOLDERS`, without those that are damaged.

        If the owner of a damaged row is still alive, its writes are refused.
        """
        return [
            SqliteHolder(
                key, Owner(host, space, pid, started), lease_seconds or self.lease_seconds, (at, ticks)
            )
            for key, host, space, pid, started, at, ticks, lease_seconds in rows
            if [type(value) for value in (host, space, pid, started, at, ticks)] == _KINDS
            and type(lease_seconds) in (float, NoneType)
        ]

    def refuse_alive(self, run_id: str, holder: SqliteHolder, last: Silence | None) -> Silence | None:
        """Return `None` if the lease of `holder` has ended, or a `Silence` if it must be watched for longer.

        `last` is the result of the previous call. Raises: `LeaseHeldError` if `holder` is alive.
        """
        if (self.path.resolve(), holder.id) in abandoned or holder.owner.has_ended():
            return None
        lease_seconds = holder.lease_seconds
        if not holder.is_overdue(self.clock) or (last is not None and last.beat != holder.beat):
            raise holder.refuse(run_id)
        if (silent := self._look(holder)) >= lease_seconds:
            return None
        if not silent:
            _log.warning(
                "process %d on %r drives run %r and has sent no heartbeat for a while; watching it for %g s",
                *(holder.owner.pid, holder.owner.host.split("/")[0], run_id, lease_seconds),
            )
        return Silence(holder.beat, min(1.0, lease_seconds / _LOOKS / 2))

    def _look(self, holder: SqliteHolder) -> float:
        """Return for how many seconds `holder` has been silent while this journal looked."""
        now = self.clock.monotonic()
        beat, silent, looked_at = self._seen.get(holder.id, (None, 0.0, now))
        silent = silent + min(now - looked_at, holder.lease_seconds / _LOOKS) if beat == holder.beat else 0.0
        self._seen[holder.id] = (holder.beat, silent, now)
        return silent


def take_lease(
    db: sqlite3.Connection, run_id: str, owner_id: int, watch: OwnerWatch, last: Silence | None
) -> Lease | Silence:
    """Take the lease of a run for `owner_id`, within a transaction.

    `last` is the answer to the previous attempt. Raises: `RunNotFoundError`, or `LeaseHeldError` if its owner
    is alive.
    """
    row = db.execute("SELECT id, owner, token FROM runs WHERE run_id=?", (run_id,)).fetchone()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id!r} in this journal")
    key, holder_id, token = row
    if holder_id == owner_id:
        raise LeaseHeldError(f"run {run_id!r} is being driven by this process already")
    if holder_id is not None:
        rows = db.execute(f"{HOLDERS} WHERE id=?", (holder_id,)).fetchall()
        for holder in watch.holders_from(rows):
            if silence := watch.refuse_alive(run_id, holder, last):
                return silence
        db.execute("UPDATE meta SET takeovers = takeovers + 1")
    db.execute("UPDATE runs SET owner=?, token=? WHERE id=?", (owner_id, token + 1, key))
    return Lease(key, token + 1)


_IS_QUEUED = "queue=? AND owner IS ? AND is_turn_open=1 AND waiting IS NULL"
"""The runs of a queue whose lease an owner has, as a condition on `runs`. `sqlite_layout` has an index for it."""


def find_waiting(db: sqlite3.Connection, queue: str) -> Iterator[tuple[int, str]]:
    """Yield row and id of the runs that wait in a queue for a worker, the oldest first.

    They are read a page at a time, so that their rows may be changed meanwhile.
    """
    last, size = 0, 1  # most callers need only the first
    while True:
        rows: list[tuple[int, str]] = db.execute(
            f"SELECT id, run_id FROM runs WHERE {_IS_QUEUED} AND id>? ORDER BY id LIMIT ?",
            (queue, None, last, size),
        ).fetchall()
        yield from rows
        if len(rows) < size:
            return
        last, size = rows[-1][0], 200


def free_dead(db: sqlite3.Connection, queue: str, owner_id: int, watch: OwnerWatch) -> None:
    """Release the leases of dead owners on runs of a queue, within a transaction.

    It looks at the owners a few times in the time of a lease, so that it can be called often.
    """
    now = watch.clock.monotonic()
    if now < watch.look_at:
        return
    watch.look_at = now + min(0.5, watch.lease_seconds / _LOOKS / 2)
    freed = 0
    for holder in watch.holders_from(db.execute(HOLDERS).fetchall()):
        values = (queue, holder.id)
        row = db.execute(f"SELECT run_id FROM runs WHERE {_IS_QUEUED} LIMIT 1", values).fetchone()
        if row is None or holder.id == owner_id:
            continue
        with contextlib.suppress(LeaseHeldError):
            if watch.refuse_alive(row[0], holder, None) is None:
                freed += db.execute(f"UPDATE runs SET owner=NULL WHERE {_IS_QUEUED}", values).rowcount
    if freed:
        db.execute("UPDATE meta SET takeovers = takeovers + 1")


def give_back(db: sqlite3.Connection, lease: Lease) -> None:
    """Release a lease within a transaction, unless another owner has taken the run over."""
    db.execute("UPDATE runs SET owner=NULL WHERE id=? AND token=?", lease)
