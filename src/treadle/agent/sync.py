"""The sync API: the async one, run in an event loop of a background thread."""

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where it is installed, of asyncio otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. Ctrl-C cancels it and waits until it has put its journal in order.

    One loop serves all calls of the process, so that connections are kept; it works beside a running
    loop, as in a notebook.
    """
    done = threading.Event()

    async def watched() -> T:
        try:
            return await coroutine
        finally:
            done.set()

    future: Future[T] = asyncio.run_coroutine_threadsafe(watched(), _background_loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        done.wait()
        raise


def iterate_blocking(items: AsyncIterator[T]) -> Iterator[T]:
    """The items one after another; leaving the loop early closes the source."""
    try:
        while True:
            try:
                yield run_blocking(_next(items))
            except StopAsyncIteration:
                return
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run_blocking(close())


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = new_event_loop()
            threading.Thread(target=_loop.run_forever, name="treadle-loop", daemon=True).start()
            atexit.register(_loop.call_soon_threadsafe, _loop.stop)
        return _loop
