"""Many runs at the same time: a window over tasks, which yields each result when it is there.

This module does not depend on agents; the caller gives the function that works on one task.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.loop.wayout import see_through

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
_END: Any = object()


_MANY = 16
"""From so many runs in flight on, the garbage collector runs less often."""
_OBJECTS = 2
"""How many new objects for each run in flight make it run, ..."""
_LEAST_OBJECTS = 5000
"""... and how many at least. Few objects of a run are garbage that only the collector finds."""


@contextlib.contextmanager
def collecting_less(window: int) -> Iterator[None]:
    """Let Python's garbage collector run less often while `window` runs are in flight, if they are many.

    A run in flight has about 60 objects that the collector visits each time, which would cost more than the runs.
    """
    before = gc.get_threshold()
    ours = (max(_LEAST_OBJECTS, _OBJECTS * window), *before[1:])
    if window < _MANY or not 0 < before[0] < ours[0]:
        yield
        return
    gc.set_threshold(*ours)
    try:
        yield
    finally:
        if gc.get_threshold() == ours:
            gc.set_threshold(*before)


class _Failure(Struct):
    error: Exception


class BatchProgress(Struct):
    """The progress of a batch."""

    total: int | None
    """The number of tasks; `None` if they come from an iterator."""
    begun: int = 0
    """How many tasks were begun."""
    done: int = 0
    """How many results were yielded."""

    def __str__(self) -> str:
        return f"{self.done} of {self.begun if self.total is None else self.total} done"


class Batch(Generic[R_co]):
    """An asynchronous iterator that works on tasks, at most `window` at a time, and yields each result when it is
    there.

    A task is taken from the iterable only when there is room in the window, and a result waits there until it is
    read, so a batch of any length needs only the memory of a window. The first exception cancels all other work
    and is raised. `aclose`, a cancellation, and leaving `async for` early cancel all work; the first two wait
    until it has ended.
    """

    def __init__(
        self,
        work: Callable[[int, T], Awaitable[R_co]],
        tasks: Iterable[T] | AsyncIterable[T],
        window: int,
    ) -> None:
        """Make a batch. `work` gets the number of a task, counted from 1, and the task."""
        if not isinstance(window, int) or window < 1:
            raise ConfigError(f"window is {window!r}; give how many runs may be driven at once, at least 1")
        if isinstance(tasks, str) or not isinstance(tasks, Iterable | AsyncIterable):
            raise ConfigError(f"tasks is {tasks!r:.200}; give a list or an iterator of tasks")
        total = len(tasks) if isinstance(tasks, Sized) else None
        self.progress = BatchProgress(total)
        self._results: AsyncIterator[R_co] = _generate(work, tasks, window, self.progress)

    def __aiter__(self) -> AsyncIterator[R_co]:
        return self

    async def __anext__(self) -> R_co:
        return await self._results.__anext__()

    async def aclose(self) -> None:
        """Cancel all work, and wait until it has ended."""
        await self._results.aclose()  # type: ignore[attr-defined]


async def _generate(
    work: Callable[[int, T], Awaitable[Any]],
    tasks: Iterable[T] | AsyncIterable[T],
    window: int,
    progress: BatchProgress,
) -> AsyncIterator[Any]:
    source = _source(tasks)
    results: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    taking = asyncio.Lock()

    async def worker() -> None:
        while True:
            # One worker at a time asks for a task, as an asynchronous iterator needs.
            async with taking:
                task = await anext(source, _END)
                if task is _END:
                    return
                progress.begun += 1
                number = progress.begun
            await results.put(await work(number, task))

    async def feed() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(window):
                    group.create_task(worker())
        except ExceptionGroup as failed:
            await results.put(_Failure(failed.exceptions[0]))
        else:
            await results.put(_END)

    feeding = asyncio.ensure_future(feed())
    try:
        with collecting_less(window):
            while (item := await results.get()) is not _END:
                if isinstance(item, _Failure):
                    raise item.error
                progress.done += 1
                yield item
    finally:
        await see_through(lambda: _stop(feeding))


async def _stop(feeding: "asyncio.Future[None]") -> None:
    feeding.cancel()
    await asyncio.wait([feeding])


def _source(tasks: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(tasks, AsyncIterable):
        return aiter(tasks)
    return _wrap(iter(tasks))


async def _wrap(items: Iterator[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
