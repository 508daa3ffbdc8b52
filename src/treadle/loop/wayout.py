"""Work that must be finished when a run is left, even if the caller is cancelled, any number of times."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from treadle.journal.protocol import RunWriter

_TRIES = 8
"""How often a step is started if its own task is cancelled, as an event loop does with every task at shutdown."""


async def see_through(*steps: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run all steps to their end, one after another, even if the caller is cancelled meanwhile.

    A step whose own task is cancelled is started again, so it must be safe to repeat. If a step fails, the next
    steps still run.

    Raises: the first error of a step; otherwise `CancelledError`, after the last step, if the caller was cancelled.
    """
    failure: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None
    try:
        for step in steps:
            error, was_cancelled = await _do(step)
            failure, cancelled = failure or error, was_cancelled or cancelled
        if failure is not None:
            raise failure
        if cancelled is not None:
            raise cancelled
    finally:
        # An error refers to this frame; a frame that refers to its error would keep the run alive.
        failure = cancelled = error = was_cancelled = None


async def _do(
    step: Callable[[], Coroutine[Any, Any, object]],
) -> tuple[BaseException | None, asyncio.CancelledError | None]:
    """Do one step to its end; return how it failed, and how the caller was cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    try:
        for _ in range(_TRIES):
            task = asyncio.ensure_future(step())
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
            if not task.cancelled():
                return task.exception(), cancelled
        return None, cancelled
    finally:
        cancelled = None


@contextlib.asynccontextmanager
async def released_on_error(writer: RunWriter) -> AsyncIterator[None]:
    """Release a run if the `async with` block raises, so that others can drive it."""
    try:
        yield
    except BaseException:
        await see_through(writer.release)
        raise
