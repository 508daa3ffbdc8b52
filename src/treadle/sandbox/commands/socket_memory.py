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
    pids = list(pids)
    total, seen = _measure_unowned(pids), set()
    for pid, fd, name in _find_sockets(pids):
        if name not in seen:
            seen.add(name)
            total += _held_bytes(pid, fd)
            if total > max_bytes:
                break
    return total


def _measure_unowned(pids: Iterable[int]) -> int:
    """Return how many bytes wait in connections that no descriptor refers to, because nobody has accepted them, or
    because they were closed before all was sent. They can be told apart only in a network of the command's own."""
    ours = os.readlink("/proc/self/ns/net") if os.path.lexists("/proc/self/ns/net") else ""
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            if os.readlink(f"/proc/{pid}/ns/net") != ours:
                return sum(_waiting_bytes(Path(f"/proc/{pid}/net"), end) for end in ("", "6"))
    return 0


def _waiting_bytes(folder: Path, end: str) -> int:
    counts = (folder / f"sockstat{end}").read_text()
    if f"TCP{end}: inuse 0" in counts:
        return 0  # the table of connections, which is slow to read, is empty
    lines = [line.split() for line in (folder / f"tcp{end}").read_text().splitlines()[1:]]
    queues = [line[4].split(":") for line in lines if line[9] == "0"]
    return sum(int(sent, 16) + int(received, 16) for sent, received in queues)


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
