"""The exchange of commits with the server: all statements of a commit at once, and several commits on their way.

psycopg has a pipeline of its own, which cannot do this: its `sync` waits for the answers to everything that was
sent, so that neither can the event loop send a commit without waiting, nor can a second commit be on its way. It
also waits several times for each commit. Each wait gives up Python's lock, and while the event loop is busy it
takes milliseconds to get the lock back.
"""

import selectors
from collections import deque
from collections.abc import Sequence
from itertools import count
from socket import socket
from typing import NamedTuple

import psycopg
from psycopg import errors
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult

from treadle.journal.postgres.link import PATIENCE_SECONDS, Db

_numbers = count(1)


class Statement:
    """A statement that a connection prepares when it is used first. It has `%b` for values."""

    def __init__(self, sql: str) -> None:
        self.name = f"treadle_{next(_numbers)}".encode()
        first, *rest = sql.split("%b")
        self.sql = "".join([first, *[f"${number}{part}" for number, part in enumerate(rest, 1)]]).encode()


class Call(NamedTuple):
    """A statement with its values in binary form."""

    statement: Statement
    values: Sequence[bytes]


class Pipe:
    """A connection in libpq's pipeline mode."""

    def __init__(self, db: Db, woken: socket) -> None:
        self.db = db
        self._woken = woken
        self._connection = db.pgconn
        self._prepared: set[bytes] = set()
        self._expected: deque[bool] = deque()
        """For each transaction whose answers have not arrived, whether they are of interest."""
        self._arrived: deque[list[PGresult] | psycopg.Error] = deque()
        """The answers that have not been read."""
        self._found: list[PGresult] = []
        self._failure: psycopg.Error | None = None
        """The answers that have arrived of the first of `_expected`."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._connection.socket, selectors.EVENT_READ)
        self._selector.register(woken, selectors.EVENT_READ)
        self._events = selectors.EVENT_READ
        self._is_flushed = True

    def send(self, calls: Sequence[Call], after: Call) -> None:
        """Send `calls` as one transaction, and `after` as another, whose answer is ignored. This does not block;
        what the system does not take is sent by `advance`.

        Raises: `psycopg.Error`.
        """
        connection = self._connection
        if not connection.pipeline_status:
            connection.enter_pipeline_mode()
        for is_wanted, group in ((True, calls), (False, [after])):
            for call in group:
                self._send(call)
            connection.pipeline_sync()
            self._expected.append(is_wanted)
        self._is_flushed = connection.flush() == 0

    def advance(self) -> bool:
        """Take the answers that have arrived, without waiting. Return whether there are some to `read`."""
        connection = self._connection
        self._is_flushed = self._is_flushed or connection.flush() == 0
        connection.consume_input()
        while self._expected and not connection.is_busy():
            result = connection.get_result()
            if result is None:  # the end of a statement
                if connection.status != ConnStatus.OK:
                    raise self._failure or psycopg.OperationalError("the connection was lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                if self._expected.popleft():
                    self._arrived.append(self._failure or self._found)
                self._found, self._failure = [], None
            elif result.status == ExecStatus.FATAL_ERROR:
                self._failure = self._failure or errors.error_from_result(result)
            elif result.status == ExecStatus.TUPLES_OK or result.command_status:
                self._found.append(result)
        return bool(self._arrived)

    def read(self) -> list[PGresult]:
        """Wait for the answers to the oldest calls that were not read. Raises: `psycopg.Error`."""
        while not self._arrived and not self.advance():
            self.wait()
        answer = self._arrived.popleft()
        if isinstance(answer, psycopg.Error):
            raise answer
        return answer

    def wait(self) -> None:
        """Wait until `advance` can do something, or `woken` is readable.

        Raises: `psycopg.OperationalError` if nothing happens for `PATIENCE_SECONDS`.
        """
        events = selectors.EVENT_READ if self._is_flushed else selectors.EVENT_READ | selectors.EVENT_WRITE
        if events != self._events:
            self._selector.modify(self._connection.socket, events)
            self._events = events
        ready = [key.fileobj for key, _ in self._selector.select(PATIENCE_SECONDS)]
        if self._woken in ready:
            self._woken.recv(4096)
        if not ready:
            raise psycopg.OperationalError(f"the server has not answered for {PATIENCE_SECONDS:g} s")

    def leave(self) -> None:
        """Wait for everything, and leave the pipeline mode, so that the connection can be used in other ways."""
        while self._expected:
            self.wait()
            self.advance()
        if self._connection.pipeline_status:
            self._connection.exit_pipeline_mode()

    def close(self) -> None:
        """Release the resources of the operating system. The connection stays open."""
        self._selector.close()

    def _send(self, call: Call) -> None:
        connection, statement = self._connection, call.statement
        if statement.name not in self._prepared:
            connection.send_prepare(statement.name, statement.sql)
            self._prepared.add(statement.name)
        formats = [Format.BINARY] * len(call.values)
        connection.send_query_prepared(statement.name, call.values, formats, Format.BINARY)
