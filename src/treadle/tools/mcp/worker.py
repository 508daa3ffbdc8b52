"""The background thread with the event loop that runs all sessions with servers.

A session's scopes must be left in the task that entered them, and one server may serve runs of several event loops.
So every call is passed to this thread.
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
"""Functions that end the open sessions."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the thread and return its result. It blocks. Ctrl-C cancels the coroutine."""
    future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, _running_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def hop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the thread and return its result. A cancellation is passed on without waiting for its
    end."""
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
        # The caller may be gone, and its event loop too.
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
    """Call `callback` on the thread, after everything that was passed to it before."""
    _running_loop().call_soon_threadsafe(callback)


def remember(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Register `close` to be called on the thread before the process ends, unless `forget` is called."""
    _closers.append(close)


def forget(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Remove `close`, because it was called already."""
    if close in _closers:
        _closers.remove(close)


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            # uvloop notices that a server has closed its output only when the server ends.
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(_loop,), name="treadle-mcp", daemon=True).start()
            atexit.register(_close_all)
        return _loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # A tool of a server in this process may raise an exception that would end the loop, which is shared.
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
    # The thread does not survive a fork. What it held belongs to the parent.
    global _loop, _lock
    _loop, _lock = None, threading.Lock()
    _closers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
