"""Who holds leases, and whether they are still alive.

A lease belongs to a process's open journal. It is valid as long as its owner's heartbeat is recent; on the same
host the lease of a dead process ends at once. Every new lease of a run has a higher token, so that a process that
was suspended notices that it lost the run.
"""

import os
import socket
import sqlite3
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from treadle.core.errors import LeaseHeldError, RunNotFoundError


class Owner(Struct, frozen=True):
    """One process's open journal."""

    host: str
    """The host's name and, where there is one, the id of its boot."""
    pid: int
    started: str
    """The time at which the process started, to distinguish it from a later process with the same pid; empty if
    unknown."""


class Lease(NamedTuple):
    """The right to write one run."""

    key: int
    """The run's row."""
    token: int
    """The fencing token."""


def this_owner() -> Owner:
    """Return the running process."""
    return Owner(_host(), os.getpid(), _started(os.getpid()))


def is_alive(owner: Owner, beat_at: float, now: float, lease_seconds: float) -> bool:
    """Return True if `owner`, whose last heartbeat was at `beat_at`, still holds its leases."""
    if not isinstance(beat_at, float) or not isinstance(owner.pid, int):
        return False  # The row is damaged. If the owner is alive after all, its writes are refused.
    if now - beat_at > lease_seconds:
        return False
    if owner.host != _host():
        return True
    try:
        os.kill(owner.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return owner.started == _started(owner.pid)


def take_lease(db: sqlite3.Connection, run_id: str, owner_id: int, now: float, lease_seconds: float) -> Lease:
    """Take the lease of a run for `owner_id`, within a transaction.

    Raises: `RunNotFoundError`, or `LeaseHeldError` if its owner is alive.
    """
    row = db.execute("SELECT id, owner, token FROM runs WHERE run_id=?", (run_id,)).fetchone()
    if row is None:
        raise RunNotFoundError(f"run {run_id!r} is not there")
    key, holder, token = row
    if holder == owner_id:
        raise LeaseHeldError(f"run {run_id!r} is being driven by this process already")
    if holder is not None:
        _refuse_alive(db, run_id, holder, now, lease_seconds)
        db.execute("UPDATE meta SET takeovers = takeovers + 1")
    db.execute("UPDATE runs SET owner=?, token=? WHERE id=?", (owner_id, token + 1, key))
    return Lease(key, token + 1)


def give_back(db: sqlite3.Connection, lease: Lease) -> None:
    """Release a lease within a transaction, unless another owner has taken the run over."""
    db.execute("UPDATE runs SET owner=NULL WHERE id=? AND token=?", lease)


def _refuse_alive(
    db: sqlite3.Connection, run_id: str, owner_id: int, now: float, lease_seconds: float
) -> None:
    row = db.execute("SELECT host, pid, started, beat_at FROM owners WHERE id=?", (owner_id,)).fetchone()
    if row is None:
        return
    owner = Owner(*row[:3])
    if is_alive(owner, row[3], now, lease_seconds):
        raise LeaseHeldError(
            f"run {run_id!r} is being driven by process {owner.pid} on {owner.host.split('/')[0]!r}; "
            f"wait for it, or stop it (a process that hangs loses the run after {lease_seconds:g} s)"
        )


def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def _started(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    # A killed process that its parent has not reaped yet no longer drives runs.
    return "" if fields[0] in ("Z", "X") else fields[19]
