"""Who holds leases, and whether they are still there.

A lease belongs to a process's open journal. It lasts as long as its owner's heartbeat is fresh; on the same
host a dead process is known at once.
"""

import os
import socket
from pathlib import Path

from msgspec import Struct


class Owner(Struct, frozen=True):
    """One process's open journal."""

    host: str
    """The host's name and, where there is one, its boot's id."""
    pid: int
    started: str
    """When the process started, so that a reused pid is told apart; empty where that is unknown."""


def this_owner() -> Owner:
    """The running process."""
    return Owner(_host(), os.getpid(), _started(os.getpid()))


def is_alive(owner: Owner, beat_at: float, now: float, lease_seconds: float) -> bool:
    """Whether `owner`, whose last heartbeat was at `beat_at`, still holds its leases."""
    if now - beat_at > lease_seconds:
        return False
    if owner.host != _host():
        return True
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return owner.started == _started(owner.pid)


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
    # A killed process that its parent has not reaped yet drives nothing.
    return "" if fields[0] in ("Z", "X") else fields[19]
