"""The thread that is notified by the server when any client has committed something."""

import os
import selectors
import threading

import psycopg

from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes
from treadle.journal.postgres.arrays import unescape
from treadle.journal.postgres.link import CHANNEL, MAIL_CHANNEL, Db, Link
from treadle.journal.postgres.postgres_reader import run_query

_PAUSE_SECONDS = 0.5
"""How long to wait before a lost connection is made again."""


class PostgresListener:
    """A connection that waits for notifications, and wakes the followers in this process."""

    def __init__(self, link: Link, writing: Link, changes: Changes, driven: DrivenRuns) -> None:
        self._link = link
        self.driven = driven
        """The runs that this process drives, which are told of messages."""
        self._hears_commits = False
        """True once somebody wants to hear of commits, and not only of messages."""
        self._writing = writing
        """The connection whose commits this process knows anyway."""
        self._changes = changes
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._wake = self._woken = -1
        self.version = 0
        """A number that grows when something was committed, and when that may have been missed."""

    def start(self, *, hears_commits: bool) -> None:
        """Start the thread, unless that was done before. With `hears_commits`, it also hears of commits."""
        if self._thread is not None and self._hears_commits >= hears_commits:
            return
        with self._lock:
            if hears_commits and not self._hears_commits:
                self._hears_commits = True
                if self._thread is not None:
                    os.write(self._wake, b"x")
            if self._thread is None and not self._is_closed:
                self._woken, self._wake = os.pipe()
                self._thread = threading.Thread(
                    target=self._run, name="treadle-journal-listener", daemon=True
                )
                self._thread.start()

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
        self._lock, self._is_closed, self._thread = threading.Lock(), True, None

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
        db.execute(f"LISTEN {MAIL_CHANNEL}".encode())
        self._find_mail(db)  # messages may have been stored while nobody listened
        hears_commits = False
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._woken, selectors.EVENT_READ)
            waiting.register(db.fileno(), selectors.EVENT_READ)
            while not self._is_closed:
                if self._hears_commits and not hears_commits:
                    db.execute(f"LISTEN {CHANNEL}".encode())
                    hears_commits = True
                    self._tell()
                for key, _ in waiting.select():
                    if key.fd == self._woken and not self._is_closed:
                        os.read(self._woken, 64)
                db.pgconn.consume_input()
                if self._has_heard(db):
                    self._tell()

    def _find_mail(self, db: Db) -> None:
        """Tell of all messages that were not taken in."""
        sql = "SELECT run_id, number, kind FROM inbox JOIN runs ON id = run WHERE body IS NOT NULL"
        self.driven.deliver([(run_id, number, kind) for run_id, number, kind in run_query(db, sql)])

    def _has_heard(self, db: Db) -> bool:
        """Return whether another connection than the writing one of this journal has committed something."""
        own = self._writing.db
        own_pid = -1 if own is None or own.closed else own.pgconn.backend_pid
        has_heard = has_long = False
        while (heard := db.pgconn.notifies()) is not None:
            if heard.relname != MAIL_CHANNEL.encode():
                has_heard |= heard.be_pid != own_pid
            elif not heard.extra:
                has_long = True
            else:
                number, kind, run_id = heard.extra.decode().split(" ", 2)
                self.driven.deliver([(unescape(run_id), int(number), kind)])
        if has_long:
            self._find_mail(db)
        return has_heard

    def _tell(self) -> None:
        """Wake all followers, because something was committed, or may have been."""
        self.version += 1
        self._changes.announce_all()
