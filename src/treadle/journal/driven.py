"""The runs that this process drives, as others in the process see them: who has sent them messages, and who
listens to their output while they work.

A driver compares one number per action, so that any number of runs can be in flight. Other processes are watched
once for each journal, and never for each run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from treadle.core.events import Delta
from treadle.core.inbox import Posted
from treadle.http.locks import new_lock

OnMail: TypeAlias = Callable[[str], None]
"""A function that is called with the tag of a message that has arrived. Any thread may call it."""
OnDelta: TypeAlias = Callable[[int, Delta], None]
"""A function that is called with the seq of the newest event of a run, and a piece of output after it."""


class DrivenRun:
    """A run that this process drives."""

    __slots__ = (
        "__weakref__",
        "_on_mail",
        "_read",
        "coming",
        "listeners",
        "loop",
        "newest",
        "on_listen",
        "run_id",
    )

    def __init__(
        self,
        run_id: str,
        read: Callable[[str, int], list[Posted]],
        newest: int = 0,
        listeners: tuple[OnDelta, ...] = (),
    ) -> None:
        self.run_id = run_id
        self._read = read
        self.newest = newest
        """The number of the newest message in the run's inbox, as far as this process knows."""
        self.coming: deque[Future[int]] = deque()
        """The messages that this process is storing; the driver waits for them."""
        self.listeners = listeners
        """The functions that get what the run says while it works. `DrivenRuns.listen` changes them."""
        self.on_listen: Callable[[], None] | None = None
        """The function that is called when `listeners` changes, in any thread."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the run is being driven on; `None` if nobody drives it on. To ask which loop runs
        takes a system call, which each step would make several times."""
        self._on_mail: OnMail | None = None

    def read(self, after: int) -> list[Posted]:
        """Return the messages that came after number `after`. Blocks. Raises: `JournalError`."""
        return self._read(self.run_id, after)

    def attend(self, on_mail: OnMail | None) -> None:
        """Call `on_mail` when a message arrives, from now on."""
        self._on_mail = on_mail

    def deliver(self, number: int, kind: str) -> None:
        """Note that a message has arrived. Any thread may call this, more than once for the same message."""
        with _lock:
            if number <= self.newest:
                return
            self.newest = number
        if (on_mail := self._on_mail) is not None:
            on_mail(kind)

    def forget(self, newest: int, taken: int) -> None:
        """Note that there is no message after number `taken`, unless one came after number `newest`."""
        with _lock:
            if self.newest == newest:
                self.newest = taken


_lock = new_lock()


class DrivenRuns:
    """The runs of one journal that this process drives, by id. A run is in it until its writer is released."""

    def __init__(self, read: Callable[[str, int], list[Posted]]) -> None:
        self._read = read
        self._runs: WeakValueDictionary[str, DrivenRun] = WeakValueDictionary()
        self._listeners: dict[str, tuple[OnDelta, ...]] = {}
        self.channels: dict[tuple[asyncio.AbstractEventLoop, str], Any] = {}
        """What the listeners of a run share in an event loop; see `treadle.journal.hub`."""

    def __bool__(self) -> bool:
        return bool(self._runs)

    def open(self, run_id: str, newest: int = 0) -> DrivenRun:
        """Return a run whose writer was made. `newest` is the number of the newest message in its inbox."""
        with _lock:
            run = self._runs[run_id] = DrivenRun(run_id, self._read, newest, self._listeners.get(run_id, ()))
        return run

    def find(self, run_id: str) -> DrivenRun | None:
        """Return the run with this id; `None` if this process does not drive it."""
        return self._runs.get(run_id)

    def listen(self, run_id: str, listener: OnDelta) -> Callable[[], None]:
        """Call `listener` with each piece of output of a run from now on, whenever this process drives it.

        Return the function that ends this. Any thread may call both.
        """
        self._set_listeners(run_id, listener, is_added=True)
        return lambda: self._set_listeners(run_id, listener, is_added=False)

    def _set_listeners(self, run_id: str, listener: OnDelta, *, is_added: bool) -> None:
        with _lock:
            found = [item for item in self._listeners.pop(run_id, ()) if item != listener]
            if is_added:
                found.append(listener)
            if found:
                self._listeners[run_id] = tuple(found)
            if (run := self._runs.get(run_id)) is not None:
                run.listeners = tuple(found)
        if run is not None and (on_listen := run.on_listen) is not None:
            on_listen()

    def expect(self, run_id: str, number: "Future[int]") -> None:
        """Make the driver of a run wait for a message that is being stored, if this process drives the run."""
        if (run := self._runs.get(run_id)) is not None:
            while run.coming and run.coming[0].done():
                run.coming.popleft()
            run.coming.append(number)

    def deliver(self, messages: Iterable[tuple[str, int, str]]) -> None:
        """Tell runs that messages have arrived: for each the run's id, its number and its tag."""
        for run_id, number, kind in messages:
            if (run := self._runs.get(run_id)) is not None:
                run.deliver(number, kind)
