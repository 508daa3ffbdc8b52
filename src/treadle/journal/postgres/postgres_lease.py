"""Leases in PostgreSQL, by the clock of the server.

The owner of a lease is the open journal of a process. The owner's row says how long its leases last, and the
owner sends heartbeats. A lease ends when its owner sent no heartbeat for this time by the server's clock, or
when its process has certainly ended, which a process of the same machine and PID namespace knows. The time
before the server was started does not count, because nobody could send a heartbeat then.

Every new lease of a run has a higher token, which is also in `heads`. A commit changes only rows of `heads` with
the writer's token, and holds their locks until its end. Therefore a process that lost its run cannot append to it.
"""

import math
import secrets
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from treadle.core.errors import LeaseHeldError, RunNotFoundError
from treadle.journal.postgres.arrays import Ints, Texts
from treadle.journal.postgres.link import NOTIFY, Db
from treadle.journal.tables.owner import Holder, Lease, Owner, abandoned, this_owner

FIRST_TOKEN_BITS = 60
"""The size of the random first token of a run. Because the token is random, a writer recognises the run that it
made itself."""

HOLDERS = """
    SELECT id, host, space, pid, started, lease_seconds,
        extract(epoch FROM clock_timestamp() - greatest(beat_at, pg_postmaster_start_time()))::float8
    FROM owners
"""
_BEAT = """
    INSERT INTO owners(id, host, space, pid, started, beat_at, lease_seconds)
    VALUES(%s, %s, %s, %s, %s, clock_timestamp(), %s)
    ON CONFLICT(id) DO UPDATE SET beat_at = clock_timestamp()
"""
_IS_QUEUED = "queue = %s AND is_turn_open = 1 AND waiting IS NULL"
"""The runs of a queue that a worker can drive, as a condition on `runs`. There is an index for it."""


class PostgresHolder(Holder, frozen=True):
    """A row of `owners` with the time since the last heartbeat."""

    silent_seconds: float
    """How long there was no heartbeat."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> "PostgresHolder":
        """Return the holder in a row of a query that begins with `HOLDERS`."""
        key, host, space, pid, started, lease_seconds, silent_seconds = row
        return cls(key, Owner(host, space, pid, started), lease_seconds, silent_seconds)

    @property
    def is_alive(self) -> bool:
        """True if the owner holds its leases."""
        return self.silent_seconds <= self.lease_seconds and not self.owner.has_ended()


class Queued(NamedTuple):
    """A run that waits in a queue, whose lease was taken."""

    run_id: str
    lease: Lease


class Tenant:
    """This journal as an owner of leases. Its methods are called within a transaction."""

    def __init__(self, name: str, lease_seconds: float) -> None:
        self._name = name
        self._lease_seconds = lease_seconds
        self._owner = this_owner()
        self.id = 0
        """This journal's row in `owners`; 0 until the first heartbeat."""
        self._look_at = -math.inf
        """The time from which `claim` looks for dead owners again, by the monotonic clock."""

    def beat(self, db: Db) -> None:
        """Send a heartbeat; the first one registers this journal as an owner."""
        if not self.id:
            row = db.execute("SELECT nextval(pg_get_serial_sequence('owners', 'id'))").fetchone()
            assert row is not None
            self.id = int(row[0])
        owner = self._owner
        values = (self.id, owner.host, owner.space, owner.pid, owner.started, self._lease_seconds)
        db.execute(_BEAT, values, prepare=True)

    def take(self, db: Db, run_id: str, taken: dict[int, int]) -> Lease:
        """Take the lease of a run.

        `taken` has the tokens that earlier tries of the same transaction have set: the server may have committed
        such a try before the connection was lost. Raises: `RunNotFoundError`; `LeaseHeldError` if the run's owner
        is alive.
        """
        row = db.execute(
            "SELECT runs.id, runs.owner, runs.token FROM heads JOIN runs ON runs.id = heads.run WHERE run_id=%s "
            "FOR UPDATE OF heads FOR NO KEY UPDATE OF runs",
            (run_id,),
        ).fetchone()
        if row is None:
            raise RunNotFoundError(f"there is no run {run_id!r} in this journal")
        key, holder_id, token = row
        if holder_id == self.id and taken.get(key) == token:
            return Lease(key, token)
        if holder_id == self.id:
            raise LeaseHeldError(f"run {run_id!r} is being driven by this process already")
        if holder_id is not None and (self._name, holder_id) not in abandoned:
            for item in db.execute(f"{HOLDERS} WHERE id=%s", (holder_id,)):
                if (holder := PostgresHolder.of(item)).is_alive:
                    raise holder.refuse(run_id)
        return self._set(db, key, token + 1, taken)

    def claim(self, db: Db, queue: str, skip: Collection[str], taken: dict[int, int]) -> Queued | None:
        """Take the lease of the oldest run that waits in a queue; `None` if there is none. See `take`.

        Runs that another transaction takes at the moment, and those in `skip`, are left out.
        """
        for key, token in taken.items():
            mine = "SELECT run_id FROM runs WHERE id=%s AND owner=%s AND token=%s"
            if row := db.execute(mine, (key, self.id, token)).fetchone():
                return Queued(row[0], Lease(key, token))
        if (now := time.monotonic()) >= self._look_at:
            self._free_dead(db, queue)
            self._look_at = now + min(0.5, self._lease_seconds / 16)
        row = db.execute(
            f"SELECT id, run_id, runs.token FROM runs JOIN heads ON heads.run = runs.id WHERE {_IS_QUEUED} "
            "AND owner IS NULL AND run_id != ALL(%s) ORDER BY id LIMIT 1 FOR UPDATE OF heads, runs SKIP LOCKED",
            (queue, Texts(skip)),
        ).fetchone()
        return None if row is None else Queued(row[1], self._set(db, row[0], row[2] + 1, taken))

    def leave(self, db: Db) -> None:
        """Release all leases, and remove this journal from the owners."""
        db.execute("UPDATE runs SET owner=NULL WHERE owner=%s", (self.id,))
        db.execute("DELETE FROM owners WHERE id=%s", (self.id,))
        db.execute(NOTIFY)

    def abandon(self) -> None:
        """Note that the leases could not be released, although nobody uses them any more."""
        abandoned.add((self._name, self.id))

    def _set(self, db: Db, key: int, token: int, taken: dict[int, int]) -> Lease:
        db.execute("UPDATE heads SET token=%s WHERE run=%s", (token, key))
        db.execute("UPDATE runs SET owner=%s, token=%s WHERE id=%s", (self.id, token, key))
        taken[key] = token
        return Lease(key, token)

    def _free_dead(self, db: Db, queue: str) -> None:
        """Release the leases of dead owners on the runs of a queue."""
        holders = [PostgresHolder.of(row) for row in db.execute(HOLDERS)]
        dead = [item.id for item in holders if item.id != self.id and not item.is_alive]
        if not dead:
            return
        db.execute(
            "WITH freed AS (SELECT run FROM heads JOIN runs ON runs.id = heads.run "
            f"WHERE {_IS_QUEUED} AND owner = ANY(%s) FOR UPDATE OF heads SKIP LOCKED), "
            "fenced AS (UPDATE heads SET token = token + 1 FROM freed WHERE heads.run = freed.run) "
            "UPDATE runs SET owner = NULL, token = token + 1 FROM freed WHERE id = freed.run",
            (queue, Ints(dead)),
        )


def first_token() -> int:
    """Return the token of a new run."""
    return secrets.randbits(FIRST_TOKEN_BITS) + 1
