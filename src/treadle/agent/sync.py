"""The blocking forms of coroutines and asynchronous iterators."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from treadle.core.errors import ConfigError
from treadle.http.background import run_blocking

T = TypeVar("T")


def block(
    start: Callable[[], Coroutine[Any, Any, T]], instead: str, loop: asyncio.AbstractEventLoop | None = None
) -> T:
    """Run the coroutine that `start` returns, and block until it has ended.

    It runs in `loop` if that is running in another thread, else in the background loop. Raises: `ConfigError`,
    which advises `instead`, if an event loop is running here, because it would be blocked. In a notebook, whose
    cells always run in a loop, blocking is allowed.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_blocking(start(), loop)
    if "ipykernel" in sys.modules:
        return run_blocking(start(), loop)
    raise ConfigError(f"this would block the event loop that is running here; write `{instead}` instead")


def iterate_blocking(
    items: AsyncIterator[T], instead: str, loop: asyncio.AbstractEventLoop | None = None
) -> Iterator[T]:
    """Yield the items one after another. Leaving the loop early closes the asynchronous iterator.

    Raises: `ConfigError` as `block` does.
    """

    async def step() -> T:
        return await items.__anext__()

    try:
        while True:
            try:
                yield block(step, instead, loop)
            except StopAsyncIteration:
                return
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            block(close, instead, loop)
