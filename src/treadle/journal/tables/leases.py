"""The owners of leases, whether they are still alive, and how the leases of runs are taken.

The owner of a lease is the open journal of a process. The owner's row says how long its leases last, and the
owner sends heartbeats. Two things end the lease of an owner that did not give it back:

- Its process has ended. Only a process of the same PID namespace can know that, and it ends the lease at once.
- This journal has watched the owner and seen no new heartbeat for as long as the lease lasts. This time is
  measured on this process's monotonic clock, so that no wall clock, of a process or of a server, can end a lease.

The age of a heartbeat by the clocks only decides whether the owner has to be watched, and what a listing shows.
Every new lease of a run has a higher token, so that a process that was suspended notices that it lost the run.

`runs.losses` counts how often in a row a run's lease ended without being given back. The runs of a queue are
claimed in the order of their losses, then of their age, so that a run that ends its workers keeps no other waiting.
"""

import contextlib
import logging
import math
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, NamedTuple, TypeAlias

from msgspec import Struct

from treadle.core.errors import LeaseHeldError, RunNotFoundError
from treadle.journal.protocol import Clock
from treadle.journal.tables.table_rows import Query

_LOOKS = 8
"""How often a watcher has to look at least during the time of a lease. Time in which nobody looked does not count:
the store may have been locked or away, so that the owner could not send a heartbeat either."""

IS_QUEUED = "queue = ? AND is_turn_open = 1 AND waiting IS NULL"
"""The runs of a queue that a worker can drive, as a condition on `runs`. There is an index for it."""

_log = logging.getLogger("treadle.journal")

Beat: TypeAlias = tuple[float, float | None]
"""A heartbeat: the seconds since the epoch by the clock of its owner or of the server, and the owner's monotonic
clock, if the store has it."""


class Lease(NamedTuple):
    """The right to write one run."""

    key: int
    """The number of the run's row."""
    token: int
    """The fencing token."""


class Owner(Struct, frozen=True):
    """The process of an open journal."""

    host: str
    """The host's name and, where there is one, the id of its boot."""
    space: str
    """The namespaces in which the host counts processes and time; empty if unknown."""
    pid: int
    started: str
    """When the process started, which tells it from a later one with the same pid; empty if unknown."""

    def has_ended(self) -> bool:
        """Return True if the process has certainly ended. A process elsewhere is never certain to have ended."""
        if not self.space or (self.host, self.space) != (_host(), _space()):
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
        return bool(self.started) and _started(self.pid) not in (self.started, None)

    def has_same_clock(self) -> bool:
        """Return True if the monotonic clocks of that process and of this one show the same time."""
        return bool(self.space) and (self.host, self.space.split()[1:]) == (_host(), _space().split()[1:])


abandoned: set[tuple[Path | str, int]] = set()
"""The owners of this process that could not leave the store, by its file or address, and by row."""


class Silence(NamedTuple):
    """The answer to an attempt to take a lease whose owner has to be watched."""

    beat: Beat
    """The owner's last heartbeat."""
    pause_seconds: float
    """The time after which to try again."""


class Holder(Struct, frozen=True):
    """A row of `owners`: an open journal that may have leases."""

    id: int
    owner: Owner
    lease_seconds: float
    beat: Beat
    age_seconds: float | None
    """The age of the heartbeat by the clock of the server; `None` if the store has no clock of its own."""

    def is_overdue(self, clock: Clock) -> bool:
        """Return True if the next heartbeat is late, by the clocks."""
        at, ticks = self.beat
        age = self.age_seconds
        if age is None:
            # All processes of a host have the same monotonic clock.
            has_ticks = ticks is not None and self.owner.has_same_clock()
            age = clock.monotonic() - (ticks or 0.0) if has_ticks else clock.time() - at
        return abs(age) > self.lease_seconds  # a beat in the future is as bad as an old one

    def refuse(self, run_id: str) -> LeaseHeldError:
        """Return the error for somebody else who wants the lease of a run."""
        return LeaseHeldError(
            f"run {run_id!r} is being driven by process {self.owner.pid} on "
            f"{self.owner.host.split('/')[0]!r}; wait for it, or stop it (a process that hangs loses the run "
            f"after {self.lease_seconds:g} s)"
        )


_KINDS = [str, str, int, str, float]
"""The types of the first values of an owner that are checked: the process, and the time of its heartbeat."""


class Claimed(NamedTuple):
    """A run that was taken, in a queue or by its id."""

    run_id: str
    lease: Lease
    losses: int
    """How often in a row a lease of the run ended without being given back."""


class Leases(ABC):
    """The leases of one open journal, and what it knows about the other owners in the store.

    Its methods are called within a transaction, with the function that runs the statements of that transaction.
    """

    HOLDERS: ClassVar[str]
    """The owners: id, host, space, pid, start, `lease_seconds`, both times of the beat, its age by the server."""
    FIND: ClassVar[str]
    """The row, owner, token and losses of the run with an id, locked."""
    NEXT: ClassVar[str]
    """The row, id, token and losses of the first run in a queue that meets the conditions, locked."""
    FREE: ClassVar[str]
    """The release of all leases of an owner on the waiting runs of a queue. It counts as a loss of each."""
    TAKEOVER: ClassVar[str] = ""
    """What makes the other open journals look again whether they still have their leases, if that is needed."""

    def __init__(self, store: Path | str, lease_seconds: float, clock: Clock) -> None:
        self._store = store
        self.lease_seconds = lease_seconds
        """How long the leases of this journal last, and those of owners that recorded no time."""
        self.clock = clock
        self.owner_id = 0
        """This journal's row in `owners`; 0 until it takes its first lease."""
        self._seen: dict[int, tuple[Beat, float, float]] = {}
        """For each owner its last heartbeat, the seconds of silence since, and the time of the last look."""
        self._look_at = -math.inf
        """The time from which `free_dead` looks again, by `clock.monotonic`."""

    @abstractmethod
    def _set(self, query: Query, key: int, token: int, losses: int) -> None:
        """Give the lease of the run with the row `key` to this journal."""

    @abstractmethod
    def beat(self, query: Query) -> None:
        """Send a heartbeat; the first one registers this journal as an owner."""

    def leave(self, query: Query) -> None:
        """Release all leases, and remove this journal from the owners."""
        query("UPDATE runs SET owner=NULL, losses=0 WHERE owner=?", (self.owner_id,))
        query("DELETE FROM owners WHERE id=?", (self.owner_id,))

    def abandon(self) -> None:
        """Note that the leases could not be released, although nobody uses them any more."""
        abandoned.add((self._store, self.owner_id))

    def live(self, query: Query) -> set[int]:
        """Return the owners that seem to be alive. This is for listings and takes no time."""
        return {
            holder.id
            for holder in self._holders(query(self.HOLDERS, ()))
            if not holder.is_overdue(self.clock) and not holder.owner.has_ended()
        }

    def take(self, query: Query, run_id: str, last: Silence | None) -> Claimed | Silence:
        """Take the lease of a run. `last` is the answer to the attempt before.

        Raises: `RunNotFoundError`; `LeaseHeldError` if the run's owner is alive.
        """
        rows = query(self.FIND, (run_id,))
        if not rows:
            raise RunNotFoundError(f"there is no run {run_id!r} in this journal")
        key, holder_id, token, losses = rows[0]
        if holder_id == self.owner_id:
            raise LeaseHeldError(f"run {run_id!r} is being driven by this process already")
        if holder_id is not None:
            for holder in self._holders(query(f"{self.HOLDERS} WHERE id=?", (holder_id,))):
                if silence := self._refuse_alive(run_id, holder, last):
                    return silence
            if self.TAKEOVER:
                query(self.TAKEOVER, ())
            losses += 1
        return self._give(query, run_id, key, token + 1, losses)

    def claim(
        self, query: Query, queue: str, condition: tuple[str, tuple[object, ...]], most_losses: int
    ) -> Claimed | None:
        """Take the lease of the first run that waits in a queue and meets `condition`; `None` if there is none.

        Runs that another transaction takes at the moment are left out.
        """
        rows = query(self.NEXT.format(condition=condition[0]), (queue, most_losses, *condition[1]))
        if not rows:
            return None
        key, run_id, token, losses = rows[0]
        return self._give(query, run_id, key, token + 1, losses)

    def free_dead(self, query: Query, queue: str) -> None:
        """Release the leases of dead owners on the runs of a queue, and count a loss for each of these runs.

        It looks at the owners a few times in the time of a lease, so that it can be called often.
        """
        now = self.clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + min(0.5, self.lease_seconds / _LOOKS / 2)
        held = f"SELECT run_id FROM runs WHERE {IS_QUEUED} AND owner = owners.id LIMIT 1"
        rows = query(self.HOLDERS.replace("SELECT id,", f"SELECT ({held}), id,"), (queue,))
        for run_id, *row in rows:
            if run_id is None or row[0] == self.owner_id:
                continue
            for holder in self._holders([tuple(row)]):
                with contextlib.suppress(LeaseHeldError):
                    if self._refuse_alive(run_id, holder, None) is None:
                        query(self.FREE, (queue, holder.id))
                        if self.TAKEOVER:
                            query(self.TAKEOVER, ())

    def _give(self, query: Query, run_id: str, key: int, token: int, losses: int) -> Claimed:
        self._set(query, key, token, losses)
        return Claimed(run_id, Lease(key, token), losses)

    def _holders(self, rows: Iterable[tuple[Any, ...]]) -> list[Holder]:
        """Return the undamaged rows of `HOLDERS`. The writes of a live owner with a damaged row are refused."""
        return [
            Holder(
                key, Owner(host, space, pid, started), seconds or self.lease_seconds, (at, ticks), age_seconds
            )
            for key, host, space, pid, started, seconds, at, ticks, age_seconds in rows
            if [type(value) for value in (host, space, pid, started, at)] == _KINDS
            and {type(value) for value in (seconds, ticks, age_seconds)} <= {float, NoneType}
        ]

    def _refuse_alive(self, run_id: str, holder: Holder, last: Silence | None) -> Silence | None:
        """Return `None` if the lease of `holder` has ended, or a `Silence` if it must be watched for longer. `last`
        is the result of the previous call. Raises: `LeaseHeldError` if `holder` is alive."""
        if (self._store, holder.id) in abandoned or holder.owner.has_ended():
            return None
        lease_seconds = holder.lease_seconds
        if not holder.is_overdue(self.clock) or (last is not None and last.beat != holder.beat):
            raise holder.refuse(run_id)
        if (silent := self._look(holder)) >= lease_seconds:
            return None
        if not silent:
            _log.warning(
                "process %d on %r drives run %r and has sent no heartbeat for a while; watching it for %g s",
                holder.owner.pid,
                holder.owner.host.split("/")[0],
                run_id,
                lease_seconds,
            )
        return Silence(holder.beat, min(1.0, lease_seconds / _LOOKS / 2))

    def _look(self, holder: Holder) -> float:
        """Return for how many seconds `holder` has been silent while this journal looked."""
        now = self.clock.monotonic()
        beat, silent, looked_at = self._seen.get(holder.id, (None, 0.0, now))
        silent = silent + min(now - looked_at, holder.lease_seconds / _LOOKS) if beat == holder.beat else 0.0
        self._seen[holder.id] = (holder.beat, silent, now)
        return silent


def this_owner() -> Owner:
    """Return the running process."""
    return Owner(_host(), _space(), os.getpid(), _started(os.getpid()) or "")


def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def _space() -> str:
    """Return the ids of this process's namespaces for pids and for time; empty if they are unknown."""
    if sys.platform != "linux":
        return f"{sys.platform} -"
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    try:
        return f"{pids} {os.readlink('/proc/self/ns/time')}"
    except OSError:  # Linux before 5.6 has none for time
        return f"{pids} -"


def _started(pid: int) -> str | None:
    """Return when a process started, an empty text if it has ended, or `None` if that cannot be known here."""
    try:
        # If /proc belongs to another namespace, it tells about another process.
        if os.readlink("/proc/self") != str(os.getpid()):
            return None
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "" if Path("/proc/self").exists() else None
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    # A killed process that its parent has not reaped yet no longer drives runs.
    return "" if fields[0] in ("Z", "X") else fields[19]
