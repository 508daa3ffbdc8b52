"""The runs that this process drives, as others see them: who has sent them messages, and who listens to their
output while they work.

A driver compares one number per action, so that any number of runs can be in flight. Other processes are watched
once for each journal, and never for each run. Output gets to listeners in other processes by the store's `Relay`,
and is stored nowhere.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.inbox import Posted
from treadle.http.locks import new_lock

OnMail: TypeAlias = Callable[[str], None]
"""A function that is called with the tag of a message that has arrived. Any thread may call it."""
OnDelta: TypeAlias = Callable[[int, Delta], None]
"""A function that is called with the seq of the newest event of a run, and a piece of output after it."""


class DrivenRun:
    """A run that this process drives."""

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
        """The functions that get what the run says while it works. `DrivenRuns` changes them."""
        self.on_listen: Callable[[], None] | None = None
        """The function that is called when `listeners` changes, in any thread."""
        self.said: list[Delta] = []
        """The pieces of output since event `said_after`, for those who come in the middle of an answer."""
        self.said_after = 0
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

    def say(self, seq: int, delta: Delta) -> None:
        """Pass a piece of output after event `seq` to those who listen. The event loop of the run calls this."""
        if seq != self.said_after:
            self.said, self.said_after = [], seq
        if len(self.said) < _KEPT_PIECES:
            self.said.append(delta)
        for listener in self.listeners:
            listener(seq, delta)

    def admit(self, listeners: tuple[OnDelta, ...]) -> None:
        """Set the listeners, after telling the new ones what was said since the newest event that has output."""
        for listener in listeners:
            if listener not in self.listeners:
                for delta in self.said:
                    listener(self.said_after, delta)
        self.listeners = listeners
        if (on_listen := self.on_listen) is not None:
            on_listen()

    def forget(self, newest: int, taken: int) -> None:
        """Note that there is no message after number `taken`, unless one came after number `newest`."""
        with _lock:
            if self.newest == newest:
                self.newest = taken


class Relay(Protocol):
    """The way of pieces of output to listeners in other processes. It passes on those of the runs that others want
    with `DrivenRuns.forward`, and calls `DrivenRuns.receive` with those that come. It may lose some."""

    def want(self, run_id: str, *, is_wanted: bool) -> None:
        """Begin or end to ask other processes for the output of a run. Any thread may call this."""


_KEPT_PIECES = 20_000
"""How many pieces of output are kept for those who begin to listen later."""
_PIECE_CHARACTERS = 600
"""How much of a text is passed to other processes at once."""
_piece_decoder = msgspec.json.Decoder(tuple[str, int, Delta])


def encode_pieces(run_id: str, seq: int, delta: Delta, most_bytes: int) -> list[bytes]:
    """Return a piece of output after event `seq` as lines of JSON, in parts of at most `most_bytes`.

    What cannot be parted and is longer is left out: the next event has it.
    """
    name = "arguments" if isinstance(delta, ToolCallDelta) else "text"
    parts = [delta]
    if isinstance(delta, TextDelta | ReasoningDelta | ToolCallDelta):
        text: str = getattr(delta, name)
        starts = range(0, len(text), _PIECE_CHARACTERS)
        if len(starts) > 1:
            parts = [
                msgspec.structs.replace(delta, **{name: text[at : at + _PIECE_CHARACTERS]}) for at in starts
            ]
    lines = [msgspec.json.encode((run_id, seq, part)) + b"\n" for part in parts]
    return [line for line in lines if len(line) <= most_bytes]


_lock = new_lock()


class DrivenRuns:
    """The runs of one journal that this process drives, by id. A run is in it until its writer is released."""

    def __init__(self, read: Callable[[str, int], list[Posted]]) -> None:
        self._read = read
        self._runs: WeakValueDictionary[str, DrivenRun] = WeakValueDictionary()
        self._listeners: dict[str, tuple[OnDelta, ...]] = {}
        self._forwards: dict[str, tuple[OnDelta, ...]] = {}
        """The functions of the relay that pass output to other processes, by the run's id."""
        self.relay: Relay | None = None
        """The way to other processes; `None` if no other process can have the store open."""
        self.channels: dict[tuple[asyncio.AbstractEventLoop, str], Any] = {}
        """What the listeners of a run share in an event loop; see `treadle.journal.hub`."""

    def __bool__(self) -> bool:
        return bool(self._runs)

    def open(self, run_id: str, newest: int = 0) -> DrivenRun:
        """Return a run whose writer was made. `newest` is the number of the newest message in its inbox."""
        with _lock:
            run = self._runs[run_id] = DrivenRun(run_id, self._read, newest, self._hearers(run_id))
        return run

    def _hearers(self, run_id: str) -> tuple[OnDelta, ...]:
        return self._listeners.get(run_id, ()) + self._forwards.get(run_id, ())

    def find(self, run_id: str) -> DrivenRun | None:
        """Return the run with this id; `None` if this process does not drive it."""
        return self._runs.get(run_id)

    def listen(self, run_id: str, listener: OnDelta) -> Callable[[], None]:
        """Call `listener` with each piece of output of a run from now on, whichever process drives it.

        Return the function that ends this. Any thread may call both.
        """

        def stop() -> None:
            if (
                not self._set_hearers(self._listeners, run_id, listener, is_added=False)
                and self.relay is not None
            ):
                self.relay.want(run_id, is_wanted=False)

        if (
            self._set_hearers(self._listeners, run_id, listener, is_added=True) == 1
            and self.relay is not None
        ):
            self.relay.want(run_id, is_wanted=True)
        return stop

    def forward(self, run_id: str, listener: OnDelta) -> Callable[[], None]:
        """Call a relay's `listener` with each piece of output of a run while this process drives it.

        Return the function that ends this. Any thread may call both.
        """

        def stop() -> None:
            self._set_hearers(self._forwards, run_id, listener, is_added=False)

        self._set_hearers(self._forwards, run_id, listener, is_added=True)
        return stop

    def receive(self, line: bytes) -> tuple[str, int] | None:
        """Pass on a line of `encode_pieces` that came from another process. Any thread may call this.

        Return the run's id and the seq of its newest event; `None` if nobody here can use the line.
        """
        try:
            run_id, seq, delta = _piece_decoder.decode(line)
        except msgspec.DecodeError:  # a piece of a newer version, or of a process that died while it wrote
            return None
        listeners = self._listeners.get(run_id)
        if listeners is None or run_id in self._runs:
            return None
        for listener in listeners:
            listener(seq, delta)
        return run_id, seq

    def _set_hearers(
        self, table: dict[str, tuple[OnDelta, ...]], run_id: str, hearer: OnDelta, *, is_added: bool
    ) -> int:
        """Add a function to a table or remove it, and return how many of the run the table has."""
        with _lock:
            found = [item for item in table.pop(run_id, ()) if item != hearer]
            if is_added:
                found.append(hearer)
            if found:
                table[run_id] = tuple(found)
            run = self._runs.get(run_id)
        if run is not None:
            self._admit(run)
        return len(found)

    def _admit(self, run: DrivenRun) -> None:
        """Tell a run who listens, in the loop that drives it on, so that no piece comes before an older one."""
        own: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):  # this thread has no loop
            own = asyncio.get_running_loop()
        if run.loop is None or run.loop is own:
            run.admit(self._hearers(run.run_id))
            return
        with suppress(RuntimeError):  # the loop is closed
            run.loop.call_soon_threadsafe(lambda: run.admit(self._hearers(run.run_id)))

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
