"""The events and the live output of a run, for any number of listeners in the process that drives the run.

Events come from the journal, so that none is lost. Pieces of output are passed on while they come and are never
stored: a listener that is slower than the run loses the oldest of them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from treadle.core.events import Delta, Ephemeral, Event
from treadle.core.events.narrowing import Item
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter

KEPT_DELTAS = 1000
"""How many pieces of output wait for a listener that is slower than the run."""


async def listen(journal: Journal, run_id: str, after_seq: int | None = 0) -> AsyncIterator[Item]:
    """Yield the stored events of a run, then new ones, and between them the pieces of output of a run that this
    process drives.

    `after_seq` is as for `Journal.follow`, and the iteration ends when that of `follow` ends. A listener that comes
    while the model answers gets the output from the next answer on, because a model is only asked for pieces if
    somebody listens. Raises: `RunNotFoundError`.
    """
    if after_seq is None:
        infos = await asyncio.to_thread(journal.runs, RunFilter(run_ids=[run_id]))
        after_seq = infos[0].events if infos else None
    inlet = _Inlet()
    end = journal.driven.listen(run_id, inlet.hear)
    events = journal.follow(run_id, after_seq)
    coming = inlet.expect(events)
    newest = after_seq or 0
    try:
        while True:
            inlet.forget_news()
            for delta in inlet.take(newest):
                yield Ephemeral(run_id, delta)  # type: ignore[misc]
            if not coming.done():
                await inlet.wait()
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            # What was said before this event was stored stands before it.
            for delta in inlet.take(newest):
                yield Ephemeral(run_id, delta)  # type: ignore[misc]
            newest, coming = event.seq, inlet.expect(events)
            yield event  # type: ignore[misc]
    finally:
        end()
        coming.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
            await coming
        await events.aclose()  # type: ignore[attr-defined]


class _Inlet:
    """The pieces of output that wait for a listener."""

    def __init__(self) -> None:
        self._deltas: deque[tuple[int, Delta]] = deque(maxlen=KEPT_DELTAS)
        self._loop = asyncio.get_running_loop()
        self._has_news = asyncio.Event()

    def hear(self, seq: int, delta: Delta) -> None:
        """Keep a piece of output that came after event `seq`. Any thread may call this."""
        self._deltas.append((seq, delta))
        with suppress(RuntimeError):  # the listener's loop is closed
            self._loop.call_soon_threadsafe(self._has_news.set)

    def expect(self, events: AsyncIterator[Event]) -> "asyncio.Task[Event]":
        """Return the task that waits for the next event."""

        async def next_event() -> Event:
            return await anext(events)

        task = asyncio.ensure_future(next_event())
        task.add_done_callback(lambda _: self._has_news.set())
        return task

    def forget_news(self) -> None:
        """Make `wait` wait for what comes from now on."""
        self._has_news.clear()

    async def wait(self) -> None:
        """Wait for a piece of output or for the next event."""
        await self._has_news.wait()

    def take(self, newest: int) -> list[Delta]:
        """Return the pieces of output after event `newest`, which was the last one that the listener got.

        Those that came after a later event stay; those before an earlier one are left out.
        """
        found = []
        while self._deltas and self._deltas[0][0] <= newest:
            seq, delta = self._deltas.popleft()
            if seq == newest:
                found.append(delta)
        return found
