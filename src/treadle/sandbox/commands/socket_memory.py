"""The memory that sockets of a command hold in the kernel, which is part of no process.

A socket is opened a second time here, which the kernel allows for one's own processes, and asked what it holds. If
that is not allowed, it is charged as much as it may hold at most. Sockets are few in most commands, and looking for
them takes little time; the time that it takes decides how often it is done.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_PIDFD_GETFD = 438
"""The number of the system call, on all architectures. Source: Linux 5.6."""
_SO_MEMINFO = 55
"""What a socket holds: nine numbers. Source: Linux 4.12, linux/sock_diag.h."""
_HELD = (0, 2, 4)
"""The bytes received, those sent and not yet received, and those set aside for more."""


def measure_sockets(pids: Iterable[int], max_bytes: int) -> int:
    """Return how many bytes the sockets of processes hold, up to the first number above `max_bytes`."""
    total, seen = 0, set()
    for pid, fd, name in _find_sockets(pids):
        if name not in seen:
            seen.add(name)
            total += _held_bytes(pid, fd)
            if total > max_bytes:
                break
    return total


def _find_sockets(pids: Iterable[int]) -> Iterator[tuple[int, int, str]]:
    """Yield the thread, the descriptor and the name of each open socket. Threads may have their own descriptors."""
    for pid in pids:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError), os.scandir(f"/proc/{pid}/task/{thread}/fd") as entries:
                    for entry in entries:
                        with suppress(OSError):
                            name = os.readlink(entry.path)
                            if name.startswith("socket:"):
                                yield int(thread), int(entry.name), name


def _held_bytes(pid: int, fd: int) -> int:
    try:
        handle = os.pidfd_open(pid)
        try:
            copy = _libc().syscall(_PIDFD_GETFD, handle, fd, 0)
        finally:
            os.close(handle)
        if copy < 0:
            return _most_bytes()
        with socket.socket(fileno=copy) as opened:
            numbers = struct.unpack("=9I", opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
            return sum(numbers[at] for at in _HELD)
    except OSError:
        # A thread that is not the first of its process has no handle in older kernels.
        return _most_bytes()


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _most_bytes() -> int:
    """Return how many bytes a socket can hold, unless root opened it: twice what the system allows to ask for."""
    most = 0
    for name in ("wmem_max", "rmem_max"):
        with suppress(OSError, ValueError):
            most += 2 * int(Path(f"/proc/sys/net/core/{name}").read_text())
    return most or 1 << 20
