"""The connection between a driver and those who listen to its run: its own listener, and others in this process."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from treadle.core import events as e
from treadle.core.events.narrowing import Item
from treadle.core.state import State
from treadle.journal.driven import DrivenRun

Emit: TypeAlias = Callable[[Item], Awaitable[None] | None]
"""A listener: a function, or coroutine function, that is called with each durable event and each delta."""


class Listener:
    """A queue in front of a listener, which gets one item after another, in order.

    If a listener returns an awaitable, it is awaited before the next item. If a listener raises an exception, its
    run stops, because `idle` raises the exception.
    """

    __slots__ = ("_emit", "_error", "_is_async", "_items", "_run_id", "_task")

    def __init__(self, run_id: str, emit: Emit) -> None:
        self._run_id = run_id
        self._emit: Emit | None = emit
        self._items: deque[Item] = deque()
        """The items that wait until an asynchronous listener has taken those before them."""
        self._task: asyncio.Task[None] | None = None
        """The task that awaits the listener; `None` if nothing waits for it."""
        self._is_async = False
        self._error: Exception | None = None

    def tell(self, item: e.Event | e.Ephemeral) -> None:
        """Pass the next item to the listener, or queue it while the listener is busy."""
        if self._task is not None:
            self._items.append(item)  # type: ignore[arg-type]
            return
        waiting = self._call(item)  # type: ignore[arg-type]
        if waiting is not None:
            self._is_async = True
            self._task = asyncio.ensure_future(self._go_on(waiting))

    def tell_delta(self, delta: e.Delta) -> None:
        """Pass a delta to the listener."""
        if self._emit is not None:
            self.tell(e.Ephemeral(self._run_id, delta))

    async def idle(self) -> None:
        """Wait until the listener has taken all items. Raises: what the listener raised."""
        if self._task is not None:
            # The listener is not cancelled together with the tool call or the step that waits for it here.
            await asyncio.wait([self._task])
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Stop waiting for an asynchronous listener, and ignore its failure.

        A run that is cancelled ends even if its listener does not return.
        """
        if self._is_async or self._error is not None:
            self.end()

    def end(self) -> None:
        """Pass no more items to the listener."""
        self._emit = self._error = None
        self._items.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _call(self, item: Item) -> Awaitable[None] | None:
        if self._emit is None:
            return None
        try:
            return self._emit(item)
        except Exception as error:
            self._fail(error)
            return None

    async def _go_on(self, waiting: Awaitable[None] | None) -> None:
        try:
            if waiting is not None:
                await waiting
            while self._items:
                waiting = self._call(self._items.popleft())
                if waiting is not None:
                    await waiting
        except Exception as error:
            self._fail(error)
        finally:
            self._task = None

    def _fail(self, error: Exception) -> None:
        self._error, self._emit = error, None
        self._items.clear()


class Publisher:
    """A function that passes deltas to the listener of a run, and to those who listen to it in this process."""

    __slots__ = ("_driven", "_listener", "_state")

    def __init__(self, state: State, driven: DrivenRun, listener: Listener | None) -> None:
        self._state = state
        self._driven = driven
        self._listener = listener

    def tell_delta(self, delta: e.Delta) -> None:
        """Pass a delta on."""
        if self._listener is not None:
            self._listener.tell_delta(delta)
        for listener in self._driven.listeners:
            listener(self._state.seq, delta)


class Progress:
    """A function that passes a tool's progress reports to a listener. Any thread may call it."""

    __slots__ = ("_listener", "_loop")

    def __init__(self, listener: Listener | Publisher, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop

    def __call__(self, call_id: str, text: str) -> None:
        with suppress(RuntimeError):  # a tool left a thread behind, and the event loop is closed
            self._loop.call_soon_threadsafe(self._listener.tell_delta, e.ToolProgress(call_id, text))
