"""Event loops in background threads: how blocking code runs coroutines, and how work keeps to one loop."""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from treadle.http.locks import new_lock, renew_in_child

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """An event loop in a thread of its own. Both start with the first call, and anew in a forked child."""

    def __init__(
        self, name: str, make_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    ) -> None:
        self._name = name
        self._make_loop = make_loop
        self._lock = new_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        renew_in_child(self, LoopThread.forget)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which is running."""
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = self._make_loop()
                threading.Thread(
                    target=_run_forever, args=(self._loop,), name=self._name, daemon=True
                ).start()
                atexit.register(_stop_loop, os.getpid(), self._loop)
            return self._loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop, block until it has ended, and return its result.

        Ctrl-C cancels the coroutine and waits until it has ended, even if it comes again meanwhile.
        """
        return _run_in(self.loop, coroutine)

    async def hop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop, and return its result. A cancellation is passed on and not awaited."""
        here, there = asyncio.get_running_loop(), self.loop
        if here is there:
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, there))

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the coroutine that `work` makes in the loop if that is running, and do not wait for it.

        This takes no lock, so that a finalizer may call it.
        """
        loop = self._loop
        if loop is not None and loop.is_running():
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(lambda: loop.create_task(work()))

    def forget(self) -> None:
        """Drop the loop in a forked child, which does not have its thread."""
        self._loop = None


_BLOCKING = LoopThread("treadle-loop")


def run_blocking(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Run the coroutine in the background loop, or in `loop` if that runs in another thread, and return its
    result.

    Ctrl-C cancels the coroutine and waits until it has ended, even if it comes again meanwhile. All calls of the
    process share one loop, so that connections are reused; the caller's thread may have a running loop of its own,
    as in a notebook.
    """
    return _run_in(_BLOCKING.loop if loop is None or not loop.is_running() else loop, coroutine)


async def see_out(work: "asyncio.Future[T]", on_cancel: Callable[[], object] = lambda: None) -> T:
    """Wait for the end of `work` even if cancelled, and return its result.

    Each cancellation calls `on_cancel`. It is raised after the end, whatever `work` came to.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        if not work.cancelled():
            work.exception()  # so that asyncio does not call it unseen
        raise cancelled
    return work.result()


def _run_in(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    done: Future[T] = Future()
    tasks: list[asyncio.Task[T]] = []
    is_told = False

    def start() -> None:
        tasks.append(loop.create_task(coroutine))
        tasks[0].add_done_callback(partial(_settle, done))

    try:
        loop.call_soon_threadsafe(start)
        is_told = True
        return done.result()
    except KeyboardInterrupt:
        if not is_told:  # the interrupt came before the loop was told to start
            coroutine.close()
            raise
        loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        while not done.done():
            with contextlib.suppress(KeyboardInterrupt, Exception, CancelledError):
                done.result()
        raise


def _settle(outcome: "Future[T]", ended: "asyncio.Task[T]") -> None:
    if ended.cancelled():
        outcome.cancel()
    elif (error := ended.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(ended.result())


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue  # something in the loop, such as a server in this process, raised it; others share the loop
        return


def _stop_loop(pid: int, loop: asyncio.AbstractEventLoop) -> None:
    if os.getpid() == pid:  # a forked child would wake the parent's loop
        loop.call_soon_threadsafe(loop.stop)
