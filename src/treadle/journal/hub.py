"""The events and the live output of a run, for any number of listeners in any process.

The listeners of a run in one event loop share a channel: it follows the journal once for all of them, so that an
event costs each of them an entry in a list and a wake-up. Events come from the journal, so that none is lost: a
listener that comes later or falls behind reads what it lacks from there. Pieces of output are passed on while they
come and are never stored: a listener that is slower than the run loses some of them. They come from this process
or from the one that drives the run; see `treadle.journal.driven`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct

from treadle.core.events import Delta, Ephemeral
from treadle.core.events.narrowing import Item
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter

KEPT_DELTAS = 1000
"""How many pieces of output wait for a listener that is slower than the run."""
_READ_AT_ONCE = 100
"""How many events a listener gets at once that reads them from the journal, at most."""
_FIRST_READ = 4
"""How many it gets the first time, when nobody knows how large they are."""
SENT_BYTES = 32 * 1024
"""How much is read for a client, or sent to it, at once, as far as that can be known. What a client does not take
stays in the server."""


class Heard(Struct):
    """An item that all listeners of a run share."""

    item: Item
    frames: dict[str | None, bytes] = {}
    """The item as it is sent to clients, once somebody has encoded it, by who sees it so."""


async def listen(journal: Journal, run_id: str, after_seq: int | None = 0) -> AsyncIterator[Item]:
    """Yield the stored events of a run, then new ones, and between them the pieces of output.

    `after_seq` is as for `Journal.follow`, and the iteration ends when that of `follow` ends. A model is only asked
    for pieces if somebody listens: the first listener, if it comes while the model answers, gets the output from
    the next answer on, and others get what was said of this answer. Raises: `RunNotFoundError`.
    """
    async with aclosing(listen_together(journal, run_id, after_seq)) as groups:
        async for group in groups:
            for heard in group:
                yield heard.item


async def listen_together(
    journal: Journal, run_id: str, after_seq: int | None = 0, *, has_output: bool = True
) -> AsyncGenerator[list[Heard], None]:
    """Yield the items of `listen`, those together that are there at the same time.

    Without `has_output`, no model is asked for pieces of output; those that others listen to are yielded.
    """
    loop = asyncio.get_running_loop()
    channels, key = journal.driven.channels, (loop, run_id)
    channel = channels.get(key)
    if channel is None:
        channel = channels[key] = _Channel(journal, run_id, loop)
    inlet = _Inlet()
    channel.inlets.add(inlet)
    if has_output and channel.stop_hearing is None:
        channel.stop_hearing = journal.driven.listen(run_id, channel.hear)
    try:
        await asyncio.shield(channel.opening)
        newest, at_once = channel.newest if after_seq is None else after_seq, _FIRST_READ
        while True:
            reached, inlet.heard, inlet.has_lost = channel.newest, channel.said.copy(), False
            while newest < reached:
                until = min(reached, newest + at_once)
                found = await asyncio.to_thread(journal.read, run_id, newest, until)
                newest, read_bytes = found[-1].seq, sum([len(event.raw or b"") for event in found])
                at_once = min(_READ_AT_ONCE, 2 * at_once, len(found) * SENT_BYTES // (read_bytes + 1) + 1)
                yield [Heard(event) for event in found]  # type: ignore[arg-type]
            while inlet.heard or not inlet.has_lost:
                if not inlet.heard:
                    if channel.is_over:
                        if channel.error is not None:
                            raise channel.error
                        return
                    inlet.news.clear()
                    await inlet.news.wait()
                    continue
                group, taken, inlet.heard = [], inlet.heard, []
                for heard in taken:
                    reached = heard.item.seq or reached
                    if reached > newest or (reached == newest and heard.item.seq is None):
                        newest = reached
                        group.append(heard)
                if group:
                    yield group
    finally:
        channel.inlets.discard(inlet)
        if not channel.inlets:
            channel.end()


class _Inlet:
    """What waits for a listener."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.has_lost = False
        """True if the listener was too slow, and must read events from the journal."""
        self.news = asyncio.Event()

    def put(self, heard: Heard) -> None:
        if len(self.heard) >= KEPT_DELTAS:
            self.has_lost |= heard.item.seq is not None
        elif not self.has_lost:
            self.heard.append(heard)
        self.news.set()


class _Channel:
    """What the listeners of a run share in one event loop."""

    def __init__(self, journal: Journal, run_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.inlets: set[_Inlet] = set()
        self.newest = 0
        """The number of the newest event that was passed on."""
        self.is_over = False
        """True if no further event comes."""
        self.error: Exception | None = None
        """What has ended the channel before the run was over."""
        self._journal = journal
        self._run_id = run_id
        self._loop = loop
        self._deltas: deque[tuple[int, Delta]] = deque(maxlen=KEPT_DELTAS)
        """The pieces of output that were not passed on, each with the number of the event before it."""
        self.said: list[Heard] = []
        """The pieces of output since the newest event, for those who come later."""
        self._is_called = False
        """True if `_pass_deltas` will be called soon."""
        self.stop_hearing: Callable[[], None] | None = None
        self.opening: asyncio.Future[None] = loop.create_future()
        """Done once `newest` is known."""
        self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        try:
            chosen = RunFilter(run_ids=[self._run_id])
            infos = await asyncio.to_thread(self._journal.runs, chosen)
            self.newest = infos[0].events if infos else 0
            events: Any = self._journal.follow(self._run_id, self.newest)
            self.opening.set_result(None)
            async with aclosing(events):
                async for event in events:
                    # What was said before this event was stored stands before it.
                    self._pass_deltas()
                    self._put(event)
                    self.newest = event.seq
                    self._pass_deltas()
        except Exception as error:
            self.error = error
        finally:
            self.end()
            if not self.opening.done():
                self.opening.set_result(None)
            for inlet in self.inlets:
                inlet.news.set()

    def hear(self, seq: int, delta: Delta) -> None:
        """Keep a piece of output that came after event `seq`. Any thread may call this."""
        self._deltas.append((seq, delta))
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._pass_deltas)

    def _pass_deltas(self) -> None:
        """Pass on the pieces of output after the newest event, and leave out those before an earlier one. Those
        that came after a later event stay."""
        self._is_called = False
        while self._deltas and self._deltas[0][0] <= self.newest:
            seq, delta = self._deltas.popleft()
            if seq == self.newest:
                self._put(Ephemeral(self._run_id, delta))

    def _put(self, item: Any) -> None:
        heard = Heard(item)
        if item.seq is not None:
            self.said.clear()
        elif len(self.said) < KEPT_DELTAS:
            self.said.append(heard)
        for inlet in self.inlets:
            inlet.put(heard)

    def end(self) -> None:
        """Stop following, because the last listener has left or the journal has no more."""
        if not self.is_over:
            self.is_over = True
            if self.stop_hearing is not None:
                self.stop_hearing()
            self._following.cancel()
            self._journal.driven.channels.pop((self._loop, self._run_id), None)
