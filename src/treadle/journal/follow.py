"""The implementation of `Journal.follow` for the built-in stores: it yields events when they have been stored.

A store calls `Changes.announce` after it has stored events, which wakes the followers of these runs in this
process. If other processes can write to the store, followers also read it every `POLL_SECONDS`.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from treadle.core.errors import JournalError
from treadle.core.events import Event

POLL_SECONDS = 0.2
"""How often a follower looks for events of other processes."""


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
        ...

    def read_page(self, run_id: str | None, after_seq: int | None, position: Any) -> Page:
        """Return the next events after `position`; the page is empty if there are none yet."""
        ...


class Follower:
    """A running `follow`. Its methods are called in its event loop unless they say otherwise."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.is_closed = False
        """True once the journal is closed."""
        self._loop = asyncio.get_running_loop()
        self._has_news = asyncio.Event()

    def wake(self) -> None:
        """Make `wait` return. Safe to call from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so it has no followers
            self._loop.call_soon_threadsafe(self._has_news.set)

    def forget_news(self) -> None:
        """Ignore earlier calls of `wake`, so that `wait` waits for the next one."""
        self._has_news.clear()

    async def wait(self, seconds: float | None) -> None:
        """Wait until `wake` was called since `forget_news`, or until `seconds` have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_news.wait()


class Changes:
    """The followers of a store in this process."""

    def __init__(self) -> None:
        self.followers: tuple[Follower, ...] = ()
        """Empty most of the time. Stores check that before they call `announce`, which costs almost nothing."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def follow(self, run_id: str | None) -> Iterator[Follower]:
        """Return a follower that `announce` wakes until the context ends."""
        follower = Follower(run_id)
        with self._lock:
            self.followers += (follower,)
        try:
            yield follower
        finally:
            with self._lock:
                self.followers = tuple([item for item in self.followers if item is not follower])

    def announce(self, run_ids: Iterable[str]) -> None:
        """Wake the followers of `run_ids` and of all runs. Safe to call from any thread."""
        known = set(run_ids)
        for follower in self.followers:
            if follower.run_id is None or follower.run_id in known:
                follower.wake()

    def announce_all(self) -> None:
        """Wake all followers. Safe to call from any thread."""
        for follower in self.followers:
            follower.wake()

    def close(self) -> None:
        """End all followers, because the journal is closed."""
        for follower in self.followers:
            follower.is_closed = True
            follower.wake()


async def follow(
    source: Source, changes: Changes, run_id: str | None, after_seq: int | None, poll_seconds: float | None
) -> AsyncIterator[Event]:
    """Yield events as `Journal.follow` describes."""
    with changes.follow(run_id) as follower:
        position: Any = None
        while True:
            follower.forget_news()
            try:
                if position is None:
                    position = await asyncio.to_thread(source.start_position, run_id, after_seq)
                page = await asyncio.to_thread(source.read_page, run_id, after_seq, position)
            except JournalError:
                if follower.is_closed:
                    return
                raise
            for event in page.events:
                yield event
            if page.is_last or follower.is_closed:
                return
            if not page.has_more:
                await follower.wait(poll_seconds)
            position = page.position


class PolledNews:
    """The `News` of a store that has a number which changes at every commit.

    It looks often after a change, because changes come in groups, and every `POLL_SECONDS` when nothing happens.
    """

    def __init__(self, read_version: Callable[[], int | None]) -> None:
        """Make news. `read_version` does not block, and returns `None` if the number cannot be read now."""
        self._read_version = read_version
        self._version = read_version()

    async def wait(self, seconds: float) -> bool:
        """See `News.wait`."""
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
