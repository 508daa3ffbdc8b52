"""Running coroutines from blocking code: one event loop in a background thread, for the whole process."""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_blocking(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Run the coroutine in the background loop, or in `loop` if that runs in another thread, and return its
    result.

    Ctrl-C cancels the coroutine and waits until it has ended, even if it comes again meanwhile. All calls of the
    process share one loop, so that connections are reused; the caller's thread may have a running loop of its own,
    as in a notebook.
    """
    if loop is None or not loop.is_running():
        loop = _background_loop()
    tasks: list[asyncio.Task[T]] = []
    done: Future[T] = Future()

    def start() -> None:
        tasks.append(loop.create_task(coroutine))
        tasks[0].add_done_callback(lambda task: _settle(done, task))

    def stop() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # the interrupt came before the loop was told to start
            coroutine.close()
            done.cancel()

    try:
        loop.call_soon_threadsafe(start)
        return done.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(stop)
        while not done.done():
            with contextlib.suppress(KeyboardInterrupt, Exception, CancelledError):
                done.result()
        raise


def _settle(done: "Future[T]", task: "asyncio.Task[T]") -> None:
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = new_event_loop()
            threading.Thread(target=_loop.run_forever, name="treadle-loop", daemon=True).start()
            atexit.register(_stop_loop, os.getpid(), _loop)
        return _loop


def _stop_loop(pid: int, loop: asyncio.AbstractEventLoop) -> None:
    if os.getpid() == pid:  # a forked child would wake the parent's loop
        loop.call_soon_threadsafe(loop.stop)


def _forget_loop() -> None:
    """Drop the loop in a forked child, which does not have its thread."""
    global _lock, _loop
    _lock = threading.Lock()
    _loop = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)
