"""The way of a run's output to other processes that have the same database open: notifications.

A process that listens to runs names them in a notification every few seconds, and who drives one of them sends its
output in notifications. PostgreSQL stores neither.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from treadle.core.events import Delta
from treadle.journal.driven import DrivenRuns, encode_pieces
from treadle.journal.postgres.arrays import escape, unescape
from treadle.journal.postgres.link import LISTENERS_CHANNEL, NOTICE_BYTES, OUTPUT_CHANNEL, Db

ASK_SECONDS = 5.0
"""How often a process names the runs that it listens to."""
_WANTED_SECONDS = 3 * ASK_SECONDS
"""How long output is sent after it was asked for."""
_NUMBER_BYTES = 20
_MOST_PIECES = 1000
"""How many pieces of output wait for the connection; then the oldest is left out."""


class _Forward(Struct, eq=False):
    """A run whose output other processes want."""

    stop: Callable[[], None]
    until: float
    """The time until which it is wanted, by the monotonic clock."""


class PostgresRelay:
    """The relay of one open journal. All but `want` and what it passes to `DrivenRuns` is called by the thread."""

    def __init__(self, driven: DrivenRuns, wake: Callable[[], None], look: Callable[[], None]) -> None:
        """Make a relay. `wake` makes the thread call `send` soon, and starts it if necessary; `look` is called when
        a piece of output follows an event that was not looked for yet."""
        self._driven, self._wake, self._look = driven, wake, look
        self.wanted: dict[str, int] = {}
        """The runs that this process listens to, each with the seq of the newest event that has output."""
        self._asked_at = 0.0
        self._news: deque[str] = deque()
        """The runs that were not named yet."""
        self._forwards: dict[str, _Forward] = {}
        self._output: deque[str] = deque(maxlen=_MOST_PIECES)
        self._number = 0
        self._is_roused = False
        """True if the thread will call `send` after what is queued now."""

    def want(self, run_id: str, *, is_wanted: bool) -> None:
        if is_wanted:
            self.wanted[run_id] = 0
            self._news.append(escape(run_id))
            self._rouse()
        else:
            self.wanted.pop(run_id, None)

    def pause_seconds(self, longest: float) -> float:
        """Return how long the thread may wait for notifications."""
        return min(longest, ASK_SECONDS) if self.wanted or self._forwards else longest

    def send(self, db: Db) -> None:
        """Name the wanted runs when this is due, and send the output that waits."""
        self._is_roused = False
        now = time.monotonic()
        if self.wanted and now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            self._news.extend([escape(run_id) for run_id in list(self.wanted)])
        _notify(db, LISTENERS_CHANNEL, [self._news.popleft() for _ in range(len(self._news))])
        _notify(db, OUTPUT_CHANNEL, self._take_output())
        for run_id, forward in list(self._forwards.items()):
            if forward.until < now:
                self._forwards.pop(run_id).stop()

    def _take_output(self) -> list[str]:
        """Return what waits, many pieces in one notification, each with a number: equal ones would get lost."""
        found: list[str] = []
        size = NOTICE_BYTES
        while self._output:
            line = self._output.popleft()
            size += len(line.encode())
            if size > NOTICE_BYTES:
                self._number += 1
                found.append(f"{self._number}\n")
                size = len(found[-1]) + len(line.encode())
            found[-1] += line
        return found

    def hear(self, channel: str, notice: str) -> None:
        """Take in a notification of another process."""
        text = unescape(notice)
        if channel == OUTPUT_CHANNEL:
            for line in text.split("\n")[1:]:
                found = self._driven.receive(line.encode())
                if found is not None and self.wanted.get(found[0], found[1]) != found[1]:
                    self.wanted[found[0]] = found[1]
                    self._look()
            return
        until = time.monotonic() + _WANTED_SECONDS
        if (forward := self._forwards.get(text)) is not None:
            forward.until = until
        else:
            stop = self._driven.forward(text, partial(self._queue, text))
            self._forwards[text] = _Forward(stop, until)

    def _queue(self, run_id: str, seq: int, delta: Delta) -> None:
        """Queue a piece of output. The thread that drives the run calls this."""
        lines = encode_pieces(run_id, seq, delta, NOTICE_BYTES - _NUMBER_BYTES)
        self._output.extend([escape(line.decode()) for line in lines])
        self._rouse()

    def _rouse(self) -> None:
        if not self._is_roused:
            self._is_roused = True
            self._wake()


def _notify(db: Db, channel: str, notices: list[str]) -> None:
    if found := [notice for notice in notices if len(notice.encode()) <= NOTICE_BYTES]:
        db.execute("SELECT pg_notify(%s, notice) FROM unnest(%s::text[]) AS notice", (channel, found))
