"""A stream: a run's events as they are kept, and the deltas between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from treadle.agent.run import Run
from treadle.core.events import Ephemeral, Event
from treadle.loop.driver import Emit
from treadle.loop.wayout import see_through

Item = Event | Ephemeral


class RunStream:
    """An async iterator over the events of one run.

    Leaving it early cancels the run, which can be resumed: `aclose` waits until its journal is in order. A stream
    that nobody holds any more, as after a `break`, cancels without waiting.
    """

    def __init__(self, start: Callable[[Emit], Coroutine[Any, Any, Run]]) -> None:
        """`start` is called at the first event, and given the function that takes events."""
        self.run: Run | None = None
        """The run's outcome, once the last event was given."""
        self._start = start
        self._items: asyncio.Queue[Item | None] = asyncio.Queue()
        self._task: asyncio.Task[Run] | None = None

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._task is None:
            self._task = asyncio.ensure_future(self._start(self._items.put_nowait))
            self._task.add_done_callback(_Ended(self._items))
        try:
            item = await self._items.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if item is not None:
            return item
        self._items.put_nowait(None)  # Whoever asks again is told the same.
        self.run = await self._task
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the run if it is not over, and wait until its journal is in order."""
        task = self._task
        if task is None or task.done():
            return
        task.cancel()

        async def wait() -> None:
            await asyncio.wait([task])

        await see_through(wait)

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)


class _Ended:
    """Puts the end mark in a queue. It holds no stream, so that a stream ends with its last reference."""

    def __init__(self, items: "asyncio.Queue[Item | None]") -> None:
        self._items = items

    def __call__(self, _: object) -> None:
        self._items.put_nowait(None)
