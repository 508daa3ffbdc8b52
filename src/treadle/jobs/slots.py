"""The window of a job: slots for runs. It does not know what the runs do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from treadle.jobs.progress import Average, JobProgress


class Slots:
    """The window of a job: slots for runs, which are given out in the order in which they were asked for.

    Runs that need slots are announced with `expect`, so that a job knows when all of them have begun.
    """

    def __init__(self, size: int, progress: JobProgress) -> None:
        """Make `size` slots, whose use is counted in `progress`."""
        self.size = size
        self._progress = progress
        self._expected = 0
        """How many runs wait for a slot."""
        self.seconds = Average()
        """How long the slots were held."""
        self._semaphore = asyncio.Semaphore(size)
        self._changed = asyncio.Event()

    def expect(self, count: int) -> "Expected":
        """Return the announcement of `count` runs, which ends with its `with` block."""
        expected = Expected(self)
        expected.add(count)
        return expected

    async def until_all_begun(self) -> None:
        """Wait until no run waits for a slot."""
        while self._expected:
            await self._change()

    async def until_free(self) -> None:
        """Wait until a slot is free that nobody waits for."""
        while self._expected or self._progress.in_flight >= self.size:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def __aenter__(self) -> None:
        await self._semaphore.acquire()
        self._progress.in_flight += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.in_flight -= 1
        self._semaphore.release()
        self._changed.set()

    def note(self, count: int) -> None:
        """Add to the number of runs that wait for a slot."""
        self._expected += count
        self._changed.set()


class Expected:
    """The announcement of the runs of one item."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._left = 0

    def add(self, count: int) -> None:
        """Announce further runs."""
        self._left += count
        self._slots.note(count)

    def expect(self, count: int) -> "Expected":
        """Return a further announcement for the same window."""
        return self._slots.expect(count)

    @asynccontextmanager
    async def slot(self, *, is_again: bool = False) -> AsyncIterator[None]:
        """Hold a slot for one of the announced runs, or for one that had a slot before if `is_again`."""
        async with self._slots:
            if not is_again:
                self.add(-1)
            begin = time.monotonic()
            yield
            self._slots.seconds.add(time.monotonic() - begin)

    def __enter__(self) -> "Expected":
        return self

    def __exit__(self, *_: object) -> None:
        self.add(-self._left)
