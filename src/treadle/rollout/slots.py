"""The window over rollouts: how many of all groups are driven at the same time."""

import asyncio
from types import TracebackType


class Slots:
    """The slots for rollouts, which are given out in the order in which they were asked for.

    A group announces its rollouts with `expect`, so that `until_all_begun` waits until all of them have
    begun before another group is planned.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._expected = 0
        """How many rollouts wait for a slot."""
        self._semaphore = asyncio.Semaphore(size)
        self._changed = asyncio.Event()

    def expect(self, count: int) -> "Expected":
        """Return the announcement of `count` rollouts, which ends with its `with` block."""
        self._expected += count
        return Expected(self, count)

    async def until_all_begun(self) -> None:
        """Wait until no rollout waits for a slot. The next group is then prepared, before a slot is free for it."""
        while self._expected:
            self._changed.clear()
            await self._changed.wait()

    async def __aenter__(self) -> None:
        await self._semaphore.acquire()
        self.used += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.used -= 1
        self._semaphore.release()
        self._changed.set()

    def arrive(self, count: int = 1) -> None:
        """Record that announced rollouts have begun, or will not begin."""
        self._expected -= count
        self._changed.set()


class Expected:
    """The announcement of the rollouts of one group."""

    def __init__(self, slots: Slots, count: int) -> None:
        self._slots = slots
        self._left = count

    def arrive(self) -> None:
        """Record that one of the rollouts has a slot."""
        self._left -= 1
        self._slots.arrive()

    def __enter__(self) -> "Expected":
        return self

    def __exit__(self, *_: object) -> None:
        self._slots.arrive(self._left)
        self._left = 0
