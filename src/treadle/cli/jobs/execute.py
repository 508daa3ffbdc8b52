"""The execution of a command's coroutines, with the handling of Ctrl-C.

The first Ctrl-C (or SIGTERM) cancels the work and waits until its journal is complete; a second one does not
wait. Some work can finish what it has begun: the first Ctrl-C asks it to stop, the second one cancels it, and
the third one ends the waiting. SIGTERM, after which nobody may send another signal, is followed by the second
step after a grace.
"""

import asyncio
import contextlib
import inspect
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from treadle.core.errors import ConfigError
from treadle.http.background import new_event_loop

T = TypeVar("T")
_GRACE, _GRACE_SECONDS = "TREADLE_STOP_SECONDS", 30.0
"""The environment variable with the seconds in which work may finish after SIGTERM, and their default."""


class CommandLoop:
    """An event loop that runs one coroutine after another. It is closed at the end of `with`."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=new_event_loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result. Raises: `KeyboardInterrupt` if it was interrupted."""

        async def guarded() -> T:
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()
            # Windows has no such signal handlers.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(signal.SIGTERM, task.cancel)
            return await coroutine

        try:
            self._runner.get_loop()  # makes the loop, which takes longest of what a Ctrl-C can meet before `run`
            return self._runner.run(guarded())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # else Python warns that nobody awaited it

    def __enter__(self) -> "CommandLoop":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()


def execute(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result. Raises: `KeyboardInterrupt` if it was interrupted."""
    with CommandLoop() as work:
        return work.run(coroutine)


def execute_until_stopped(
    start: Callable[[asyncio.Event], Coroutine[Any, Any, T]], on_stop: Callable[[], None]
) -> T:
    """Return the result of the coroutine that `start` returns, which ends early when the event is set.

    The first Ctrl-C or SIGTERM sets the event and calls `on_stop`; the second cancels the coroutine. After SIGTERM
    it is cancelled in any case when the grace is over.

    Raises: `KeyboardInterrupt` if it was cancelled; `ConfigError` if the grace is not a number.
    """
    grace, count, is_terminated = read_grace(), 0, False
    answers: list[Callable[[], object]] = []
    """What the first and the second signal do; empty while the coroutine does not run."""

    async def guarded() -> T:
        stop = asyncio.Event()
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def ask_to_stop() -> None:
            stop.set()
            on_stop()
            if is_terminated:
                loop.call_later(grace, task.cancel)

        answers.extend([partial(loop.call_soon_threadsafe, call) for call in (ask_to_stop, task.cancel)])
        for answer in answers[:count]:
            answer()
        try:
            return await start(stop)
        finally:
            answers.clear()

    def handle(number: int, _: object) -> None:
        nonlocal count, is_terminated
        count += 1
        is_terminated = is_terminated or number == signal.SIGTERM
        if count > 2:
            raise KeyboardInterrupt
        if answers:
            answers[count - 1]()

    # The handlers stay until the loop is closed: an exception from a handler would interrupt that.
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_grace() -> float:
    """Return how many seconds work may go on after SIGTERM. Raises: `ConfigError` if that is not a number."""
    given = os.environ.get(_GRACE) or _GRACE_SECONDS
    try:
        grace = float(given)
    except ValueError:
        grace = -1.0
    if not grace >= 0:
        raise ConfigError(f"{_GRACE} is {given!r}; give a number of seconds from 0")
    return grace


def call_at_end_of_stdin(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call `callback` in `loop` when standard input ends, for example because the parent process died.

    For anything else in this process and its children, standard input is empty from now on.
    """
    kept = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)

    def watch() -> None:
        # sys.stdin has a lock that a thread must not hold when Python exits.
        while os.read(kept, 4096):
            pass
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    threading.Thread(target=watch, daemon=True).start()
