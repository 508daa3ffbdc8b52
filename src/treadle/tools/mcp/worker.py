"""The one background thread on whose event loop all sessions with servers live.

A session's scopes must be left in the task that entered them, and one server serves runs of any event loop; so
callers hop over here for each call.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
"""What ends the sessions that are open."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs there; blocks. Ctrl-C cancels it."""
    future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, _running_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def hop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs there. Being cancelled cancels it, and waits for nothing."""
    here, there = asyncio.get_running_loop(), _running_loop()
    if here is there:
        return await coroutine
    outcome: asyncio.Future[T] = here.create_future()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        task = there.create_task(coroutine)
        tasks.append(task)
        task.add_done_callback(end)

    def end(task: "asyncio.Task[T]") -> None:
        # Whoever waits may be gone, and its loop too.
        with contextlib.suppress(RuntimeError):
            here.call_soon_threadsafe(settle, task)

    def settle(task: "asyncio.Task[T]") -> None:
        error = None if task.cancelled() else task.exception()
        if outcome.done():
            return
        if task.cancelled():
            outcome.cancel()
        elif error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())

    there.call_soon_threadsafe(start)
    try:
        return await outcome
    except asyncio.CancelledError:
        there.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        raise


def soon(callback: Callable[[], None]) -> None:
    """Call `callback` there, after what was sent there before."""
    _running_loop().call_soon_threadsafe(callback)


def remember(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Call `close` there before the process ends, unless it is forgotten."""
    _closers.append(close)


def forget(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """It was closed already."""
    if close in _closers:
        _closers.remove(close)


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            # Not uvloop: it learns that a server has closed its output only when that ends.
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(_loop,), name="treadle-mcp", daemon=True).start()
            atexit.register(_close_all)
        return _loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # A tool of a server in this process may raise what ends a loop; others live here too.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def _close_all() -> None:
    if _loop is None:
        return

    async def close() -> None:
        await asyncio.gather(*[item() for item in list(_closers)], return_exceptions=True)

    try:
        asyncio.run_coroutine_threadsafe(close(), _loop).result(timeout=10)
    except (TimeoutError, RuntimeError):
        return


def _start_anew() -> None:
    # The thread does not survive a fork; what it held belongs to the parent.
    global _loop, _lock
    _loop, _lock = None, threading.Lock()
    _closers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
