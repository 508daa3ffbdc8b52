"""A tree of processes, as Linux tells of it: how many, and how much memory they take together."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct


class Tree(Struct, frozen=True):
    """What a tree of processes takes."""

    threads: int
    memory_bytes: int


def measure_tree(pid: int, max_memory_bytes: int) -> Tree:
    """The process and all that come from it; none where the system does not tell.

    Memory that several share counts once, if it would make the sum more than `max_memory_bytes`.
    """
    threads = 0
    pids = []
    for each, count in _descend(pid):
        threads += count
        pids.append(each)
    memory = sum(map(_resident_bytes, pids))
    if memory > max_memory_bytes:
        memory = sum(map(_share_bytes, pids))
    return Tree(threads, memory)


def descendants(pid: int) -> list[int]:
    """The process and all that come from it."""
    return [each for each, _ in _descend(pid)]


def _descend(pid: int) -> Iterator[tuple[int, int]]:
    """Each process, and how many threads it has."""
    pending = [pid]
    while pending:
        each = pending.pop()
        with suppress(OSError):
            threads = os.listdir(f"/proc/{each}/task")
            yield each, len(threads)
            for thread in threads:
                with suppress(OSError):
                    pending += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text().split())


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _share_bytes(pid: int) -> int:
    """Resident memory, where what n processes share counts an nth."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return _resident_bytes(pid)
    return 0


def find_marked(variable: str) -> list[int]:
    """The processes that were started with `variable`, as `NAME=value`, in their environment and run still."""
    wanted = variable.encode()
    found = []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError):
                # What has ended and was not collected yet has no environment any more.
                if name.isdigit() and wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found
