"""Trees of processes in `/proc`: how many threads they have and how much memory they use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct


class Tree(Struct, frozen=True):
    """The resources that a tree of processes uses."""

    threads: int
    memory_bytes: int


def measure_tree(pid: int, max_memory_bytes: int) -> Tree:
    """Measure a process and its descendants. The result is zero on systems without `/proc`.

    Shared memory is counted once per process, unless that gives more than `max_memory_bytes`: then each process is
    charged its share of it.
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
    """Return the process and its descendants."""
    return [each for each, _ in _descend(pid)]


def _descend(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the ids of the process and its descendants, each with its number of threads."""
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
    """Return resident memory, with memory that n processes share divided by n."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return _resident_bytes(pid)
    return 0


def find_marked(variable: str) -> list[int]:
    """Return the running processes that have `variable`, as `NAME=value`, in their initial environment."""
    wanted = variable.encode()
    found = []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError):
                # A process that has ended but was not collected yet has no environment.
                if name.isdigit() and wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found
