"""The processes that hold leases, and whether they still run."""

import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from treadle.core.errors import LeaseHeldError

Beat: TypeAlias = tuple[float, float]
"""A heartbeat by its owner's clocks: the seconds since the epoch, and the monotonic clock."""


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
    """The time at which the process started, to distinguish it from a later process with the same pid; empty if
    unknown."""

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


class Holder(Struct, frozen=True):
    """A row of `owners`: an open journal that may have leases. A store adds how it knows the last heartbeat."""

    id: int
    owner: Owner
    lease_seconds: float

    def refuse(self, run_id: str) -> LeaseHeldError:
        """Return the error for somebody else who wants the lease of a run."""
        return LeaseHeldError(
            f"run {run_id!r} is being driven by process {self.owner.pid} on "
            f"{self.owner.host.split('/')[0]!r}; wait for it, or stop it (a process that hangs loses the run "
            f"after {self.lease_seconds:g} s)"
        )


abandoned: set[tuple[Path | str, int]] = set()
"""The owners of this process that were closed while the store could not be reached or failed, by the file or the
server's address, and by row."""


class Silence(NamedTuple):
    """The answer to an attempt to take a lease whose owner has to be watched."""

    beat: Beat
    """The owner's last heartbeat."""
    pause_seconds: float
    """The time after which to try again."""


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
