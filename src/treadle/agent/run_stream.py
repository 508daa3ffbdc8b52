"""The class `RunStream`: an async iterator over a run's events and deltas."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, NoReturn

from treadle.core.events.narrowing import Item
from treadle.loop.listener import Emit
from treadle.loop.wayout import see_through
from treadle.runs.options import check_text
from treadle.runs.run import Run, T_co


class RunStream(Generic[T_co]):
    """An async iterator that runs a task and yields each event once it is durable, with the deltas in between.

    `aclose` cancels the run, which can be resumed, and waits until the pause is recorded. A stream that is
    dropped without `aclose`, as after a `break`, cancels the run without waiting.
    """

    def __init__(
        self, start: Callable[[Emit], Coroutine[Any, Any, Run[T_co]]], steer: Callable[[str], None]
    ) -> None:
        """Make a stream. The first `__anext__` calls `start` with the function that receives the events."""
        self.run: Run[T_co] | None = None
        """The run's outcome; `None` until the iteration has ended."""
        self._start = start
        self._steer = steer
        self._items: asyncio.Queue[Item | None] = asyncio.Queue()
        self._task: asyncio.Task[Run[T_co]] | None = None
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    def __iter__(self) -> NoReturn:
        raise TypeError("a RunStream is asynchronous: write `async for`, or use `stream_sync`")

    async def __anext__(self) -> Item:
        if self._is_closed:
            raise StopAsyncIteration
        if self._task is None:
            items = self._items
            self._task = asyncio.ensure_future(self._start(items.put_nowait))
            # The callback holds no reference to the stream, which can then be freed.
            self._task.add_done_callback(lambda _: items.put_nowait(None))
        try:
            item = await self._items.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if item is not None:
            return item
        self._items.put_nowait(None)  # so that the next `__anext__` ends too
        if self._is_closed:
            raise StopAsyncIteration
        self.run = await self._task
        raise StopAsyncIteration

    def steer(self, text: str) -> None:
        """Send a message that the model sees at its next step. It is journalled at once.

        A session answers it in the next turn if this one ends before; a run that is not a session ends without
        it. Raises: `ConfigError` if the run has not begun, or is over.
        """
        self._steer(check_text(text))

    async def aclose(self) -> None:
        """Cancel the run if it is not over, and wait until the pause is recorded. This ends the stream."""
        self._is_closed = True
        task = self._task
        if task is None or task.done():
            return
        task.cancel()
        await see_through(lambda: asyncio.wait([task]))

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)
