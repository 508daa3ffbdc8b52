"""The iteration over an asynchronous iterator in blocking code."""

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from treadle.http.background import run_blocking

T = TypeVar("T")


def iterate_blocking(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield the items one after another. Leaving the loop early closes the asynchronous iterator."""
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
