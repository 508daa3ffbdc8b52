"""The way out of a run: work that must be done to its end, whoever cancels and however often."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_TRIES = 8
"""How often a step may be cancelled itself, as an event loop that shuts down does with every task."""


async def see_through(*steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do all steps to their end, one after another, although the caller may be cancelled meanwhile.

    A step is started again if its own task is cancelled, so it must be safe to repeat. A step that fails does not
    keep the next ones from being done.

    Raises: the first step's error; `CancelledError` at the end, if the caller was cancelled and no step failed.
    """
    failure: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None
    for step in steps:
        for _ in range(_TRIES):
            task = asyncio.ensure_future(step())
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
            if not task.cancelled():
                failure = failure or task.exception()
                break
    if failure is not None:
        raise failure
    if cancelled is not None:
        raise cancelled
