"""The thread that is notified by the server when any client has committed something."""

import os
import selectors
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import psycopg

from treadle.http.locks import new_lock
from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes
from treadle.journal.postgres.arrays import unescape
from treadle.journal.postgres.link import (
    CHANNEL,
    LISTENERS_CHANNEL,
    MAIL_CHANNEL,
    OUTPUT_CHANNEL,
    QUEUE_CHANNEL,
    Db,
    Link,
)
from treadle.journal.postgres.postgres_reader import run_query
from treadle.journal.postgres.postgres_relay import PostgresRelay

_PAUSE_SECONDS = 0.5
"""How long to wait before a lost connection is made again."""
_ASK_SECONDS = 30.0
"""After this time without a notification, the server is asked whether it is still there."""


class PostgresListener:
    """A connection that waits for notifications, and wakes the followers in this process."""

    def __init__(self, link: Link, writing: Link, changes: Changes, driven: DrivenRuns) -> None:
        self._link = link
        self.driven = driven
        """The runs that this process drives, which are told of messages."""
        self._relay = driven.relay = PostgresRelay(driven, self._rouse, changes.look)
        self._wanted: set[str] = set()
        """The channels that somebody wants to hear, besides those of messages and of output."""
        self._writing = writing
        """The connection whose commits this process knows anyway."""
        self._changes = changes
        self._lock = new_lock()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._wake = self._woken = -1
        self._notices: deque[Any] = deque()
        """The notifications that have not been passed on."""
        self.versions = {CHANNEL: 0, QUEUE_CHANNEL: 0}
        """Numbers that grow when something was committed, or a run may wait in a queue, and when that may have been
        missed."""

    def start(self, channel: str | None = None) -> None:
        """Start the thread, unless that was done before. From now on it also listens to `channel`."""
        if self._thread is not None and (channel is None or channel in self._wanted):
            return
        with self._lock:
            if channel is not None and channel not in self._wanted:
                self._wanted.add(channel)
                if self._thread is not None:
                    os.write(self._wake, b"x")
            if self._thread is None and not self._is_closed:
                self._woken, self._wake = os.pipe()
                self._thread = threading.Thread(
                    target=self._run, name="treadle-journal-listener", daemon=True
                )
                self._thread.start()

    def _rouse(self) -> None:
        """Make the thread look at what the relay has to send. Any thread may call this."""
        self.start()
        with self._lock:
            if self._thread is not None:
                os.write(self._wake, b"x")

    def count(self, channels: Iterable[str]) -> None:
        """Note that there is news on channels. Any thread may call this."""
        for channel in channels:
            self.versions[channel] += 1

    def close(self) -> None:
        """End the thread, and close the connection."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            os.write(self._wake, b"x")
            thread.join()
            os.close(self._wake)
            os.close(self._woken)

    def disown(self) -> None:
        """Give up the connection in a forked child, which does not have the thread."""
        self._is_closed, self._thread = True, None

    # The following methods run in the thread.

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._listen(self._link.connect())
            except psycopg.Error:
                self._link.close()
                with selectors.DefaultSelector() as waiting:
                    waiting.register(self._woken, selectors.EVENT_READ)
                    waiting.select(_PAUSE_SECONDS)
        self._link.close()

    def _listen(self, db: Db) -> None:
        """Tell of messages, and wake the followers at each commit, until the journal is closed."""
        # A statement reads the notifications that come with its answer.
        self._notices.clear()
        db.pgconn.notify_handler = self._notices.append
        db.execute(f"LISTEN {MAIL_CHANNEL}; LISTEN {LISTENERS_CHANNEL}".encode())
        self._find_mail(db)  # messages may have been stored while nobody listened
        heard: set[str] = set()
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._woken, selectors.EVENT_READ)
            waiting.register(db.fileno(), selectors.EVENT_READ)
            while not self._is_closed:
                wanted = self._wanted | {OUTPUT_CHANNEL} if self._relay.wanted else self._wanted
                for channel in wanted - heard:
                    db.execute(f"LISTEN {channel}".encode())
                    heard.add(channel)
                    self._tell({channel} & self.versions.keys())
                self._relay.send(db)
                self._tell(self._hear(db))
                found = waiting.select(self._relay.pause_seconds(_ASK_SECONDS))
                if not found:
                    db.execute("SELECT 1")  # this fails if the server has stopped answering
                for key, _ in found:
                    if key.fd == self._woken and not self._is_closed:
                        os.read(self._woken, 64)
                db.pgconn.consume_input()

    def _find_mail(self, db: Db) -> None:
        """Tell of all messages that were not taken in."""
        sql = "SELECT run_id, number, kind FROM inbox JOIN runs ON id = run WHERE body IS NOT NULL"
        self.driven.deliver([(run_id, number, kind) for run_id, number, kind in run_query(db, sql)])

    def _hear(self, db: Db) -> set[str]:
        """Return the channels on which other connections than the writing one of this journal have told something,
        and pass on what is told of messages."""
        own = self._writing.db
        own_pid = -1 if own is None or own.closed else own.pgconn.backend_pid
        heard: set[str] = set()
        while (notice := self._next_notice(db)) is not None:
            channel = notice.relname.decode()
            if channel == MAIL_CHANNEL and notice.extra:
                number, kind, run_id = notice.extra.decode().split(" ", 2)
                self.driven.deliver([(unescape(run_id), int(number), kind)])
            elif channel == MAIL_CHANNEL:
                self._find_mail(db)
            elif channel in (LISTENERS_CHANNEL, OUTPUT_CHANNEL):
                if notice.be_pid != db.pgconn.backend_pid:
                    self._relay.hear(channel, notice.extra.decode())
            elif notice.be_pid != own_pid:
                heard.add(channel)
        return heard

    def _next_notice(self, db: Db) -> Any:
        while (notice := db.pgconn.notifies()) is not None:
            self._notices.append(notice)
        return self._notices.popleft() if self._notices else None

    def _tell(self, channels: set[str]) -> None:
        """Wake those who wait for news, and look for the followers if something was committed, or may have been."""
        self.count(channels)
        if CHANNEL in channels:
            self._changes.look()
