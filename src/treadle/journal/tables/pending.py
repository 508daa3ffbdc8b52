"""The writes that event loops have not handed over to the committer yet.

An event loop hands over what its runs appended once a turn. While a tool blocks the loop, the committer's
thread takes the waiting writes, so that an answer which was received is not lost if the process is killed
meanwhile.
"""

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.journal.tables.writer import TableWriter, Write


class Pending:
    """The writers with an open write, by event loop."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while something is appended or handed over."""
        self._writers: dict[asyncio.AbstractEventLoop, list[TableWriter]] = {}
        self._seen: dict[asyncio.AbstractEventLoop, list[TableWriter]] = {}
        """What `take_stuck` found the last time."""

    def __bool__(self) -> bool:
        return bool(self._writers or self._seen)

    def add(self, loop: asyncio.AbstractEventLoop, writer: "TableWriter") -> bool:
        """Add a writer that opened a write. Return whether it is the loop's first. The caller holds the lock."""
        writers = self._writers.get(loop)
        if writers is not None:
            writers.append(writer)
            return False
        self._writers[loop] = [writer]
        return True

    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """Return the event loops that have something to hand over."""
        return list(self._writers)

    def take(self, loop: asyncio.AbstractEventLoop) -> "list[Write]":
        """Return the open writes of `loop`, and count them as handed over."""
        with self.lock:
            return [writer.hand_over() for writer in self._writers.pop(loop, ())]

    def take_stuck(self) -> "list[tuple[asyncio.AbstractEventLoop, list[Write]]]":
        """Return the open writes of the loops that have handed over nothing since the last call."""
        with self.lock:
            stuck = [loop for loop, writers in self._writers.items() if self._seen.get(loop) is writers]
            taken = [(loop, self.take(loop)) for loop in stuck]
            self._seen = self._writers.copy()
            return taken

    def clear(self) -> None:
        """Forget everything, in a forked child."""
        self.lock = threading.RLock()
        self._writers, self._seen = {}, {}
