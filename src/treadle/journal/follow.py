"""The implementation of `Journal.follow` for the built-in stores: it yields events when they have been stored.

A store calls `Changes.announce` after it has stored events, which wakes the followers of these runs in the process.
If other processes can write to the store, one thread looks every `POLL_SECONDS` which of the followed runs have
changed. Each follower reads for itself; `treadle.journal.hub` follows once for any number of listeners.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from treadle.core.errors import JournalError
from treadle.core.events import Event
from treadle.http.locks import new_lock

POLL_SECONDS = 0.2
"""How often the store is asked for events of other processes."""


class Page(NamedTuple):
    """The events that a follower reads at once."""

    events: list[Event]
    position: Any
    """The position at which the next page begins, in the store's own form."""
    is_last: bool
    """True if the run was over before the page was read, so that no further page can come."""
    has_more: bool
    """True if the next page may have events already."""


class Source(Protocol):
    """A store that can be read starting at a position. Its methods block and are called in threads."""

    def start_position(self, run_id: str | None, after_seq: int | None) -> Any:
        """Return the position after `after_seq`, or the position of the end if `after_seq` is `None`."""

    def read_page(self, run_id: str | None, after_seq: int | None, position: Any) -> Page:
        """Return the next events after `position`; the page is empty if there are none yet."""


Look: TypeAlias = Callable[[Collection[str | None]], Collection[str | None]]
"""A function that returns which of the followed runs other processes may have changed since the last call. `None`
stands for all runs. It blocks, and is called in one thread."""


class RunFeed:
    """What wakes the followers of a run in one event loop."""

    def __init__(self) -> None:
        self.followers = 0
        self.is_closed = False
        """True once the journal is closed."""
        self.news = asyncio.Event()
        """Set at the next change; each change has its own."""
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Wake the followers. Safe to call from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so it has no followers
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class Changes:
    """The followers of a store in this process."""

    def __init__(self, look: Look | None = None, poll_seconds: float = POLL_SECONDS) -> None:
        """Make an empty collection. `look` is needed if other processes can write to the store."""
        self.feeds: dict[str | None, dict[asyncio.AbstractEventLoop, RunFeed]] = {}
        """The feeds of each run. Stores call `announce` only if there are some, which is seldom."""
        self._lock = new_lock()
        self._look = look
        self._poll_seconds = poll_seconds
        self._must_look = threading.Event()
        self._poller: threading.Thread | None = None

    @contextlib.contextmanager
    def follow(self, run_id: str | None) -> Iterator[RunFeed]:
        """Return a feed that `announce` wakes until the context ends."""
        loop = asyncio.get_running_loop()
        with self._lock:
            feeds = self.feeds.setdefault(run_id, {})
            feed = feeds[loop] = feeds.get(loop) or RunFeed()
            feed.followers += 1
            if self._look is not None and self._poller is None:
                work = (self._look,)
                self._poller = threading.Thread(
                    target=self._poll, args=work, name="treadle-followers", daemon=True
                )
                self._poller.start()
        try:
            yield feed
        finally:
            with self._lock:
                feed.followers -= 1
                if not feed.followers:
                    del feeds[loop]
                    if not feeds:
                        del self.feeds[run_id]

    def announce(self, run_ids: Iterable[str | None]) -> None:
        """Wake the followers of `run_ids` and of all runs. Safe to call from any thread."""
        with self._lock:
            found = [feed for run_id in {None, *run_ids} for feed in self.feeds.get(run_id, {}).values()]
        for feed in found:
            feed.wake()

    def look(self) -> None:
        """Look now for what other processes have changed. Safe to call from any thread."""
        self._must_look.set()

    def _poll(self, look: Look) -> None:
        while True:
            self._must_look.wait(self._poll_seconds)
            self._must_look.clear()
            with self._lock:
                run_ids = list(self.feeds)
                if not run_ids:
                    self._poller = None
                    return
            try:
                changed = look(run_ids)
            except JournalError:  # the followers meet it too, and report it
                changed = run_ids
            if changed:
                self.announce(changed)

    def close(self) -> None:
        """End all followers, because the journal is closed."""
        with self._lock:
            found = [feed for feeds in self.feeds.values() for feed in feeds.values()]
        for feed in found:
            feed.is_closed = True
            feed.wake()


async def follow(
    source: Source, changes: Changes, run_id: str | None, after_seq: int | None
) -> AsyncIterator[Event]:
    """Yield events as `Journal.follow` describes."""
    position = await asyncio.to_thread(source.start_position, run_id, after_seq)
    with changes.follow(run_id) as feed:
        try:
            while True:
                news = feed.news
                page = await asyncio.to_thread(source.read_page, run_id, after_seq, position)
                for event in page.events:
                    yield event
                if page.is_last or feed.is_closed:
                    return
                position = page.position
                if not (page.events or page.has_more):
                    await news.wait()
        except JournalError:
            if not feed.is_closed:
                raise


class PolledNews:
    """The `News` of a store that has a number which changes at every commit.

    It looks often after a change, because changes come in groups, and every `POLL_SECONDS` when nothing happens.
    """

    def __init__(self, read_version: Callable[[], int | None]) -> None:
        """Make news. `read_version` does not block, and returns `None` if the number cannot be read now."""
        self._read_version = read_version
        self._version = read_version()

    async def wait(self, seconds: float) -> bool:
        pause, left = _FIRST_PAUSE_SECONDS, seconds
        while (version := self._read_version()) in (self._version, None):
            if left <= 0:
                return False
            await asyncio.sleep(min(pause, left))
            left -= pause
            pause = min(pause * 1.5, POLL_SECONDS)
        self._version = version
        return True


_FIRST_PAUSE_SECONDS = 0.001
