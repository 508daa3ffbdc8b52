"""The exchange of one commit with the server: all statements at once, and one wait for all answers.

What is fast here: psycopg's own pipeline waits several times for each commit. Each wait gives up Python's lock, and
while the event loop is busy it takes milliseconds to get it back.
"""

import select
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import psycopg
from psycopg import errors
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from treadle.journal.postgres.link import Db

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

    def __init__(self, db: Db) -> None:
        self.db = db
        self._connection: PGconn = db.pgconn
        self._prepared: set[bytes] = set()
        self._open = 0
        """The number of transactions whose answers were not read."""
        self._poll = select.poll()

    def run(self, calls: Sequence[Call], after: Call) -> list[PGresult]:
        """Run `calls` in one transaction, and return their results. Raises: `psycopg.Error`.

        `after` is run in a transaction of its own afterwards, whose end is not waited for.
        """
        connection = self._connection
        if connection.pipeline_status == 0:
            connection.enter_pipeline_mode()
        for call in calls:
            self._send(call)
        connection.pipeline_sync()
        self._send(after)
        connection.pipeline_sync()
        self._open += 2
        self._flush()
        while self._open > 2:
            self._read()
        return self._read()

    def leave(self) -> None:
        """Read what is left, and leave the pipeline mode, so that the connection can be used in other ways."""
        while self._open:
            self._read()
        if self._connection.pipeline_status and self._connection.status == ConnStatus.OK:
            self._connection.exit_pipeline_mode()

    def _send(self, call: Call) -> None:
        connection, statement = self._connection, call.statement
        if statement.name not in self._prepared:
            connection.send_prepare(statement.name, statement.sql)
            self._prepared.add(statement.name)
        formats = [Format.BINARY] * len(call.values)
        connection.send_query_prepared(statement.name, call.values, formats, Format.BINARY)

    def _flush(self) -> None:
        """Send all, and take what the server answers meanwhile, so that neither waits for the other for ever."""
        while self._connection.flush():
            if self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN:
                self._connection.consume_input()

    def _wait(self, events: int) -> int:
        self._poll.register(self._connection.socket, events)
        return sum([found for _, found in self._poll.poll()])

    def _read(self) -> list[PGresult]:
        """Return the results of the next transaction, without those of preparing. Raises: `psycopg.Error`."""
        connection, failure = self._connection, None
        found: list[PGresult] = []
        while True:
            while connection.is_busy():
                self._wait(select.POLLIN)
                connection.consume_input()
            result = connection.get_result()
            if result is None:  # the end of a statement
                if connection.status != ConnStatus.OK:
                    raise failure or psycopg.OperationalError("the connection was lost")
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                self._open -= 1
                if failure is not None:
                    self._prepared.clear()
                    raise failure
                return found
            if result.status == ExecStatus.FATAL_ERROR:
                failure = failure or errors.error_from_result(result)
            elif result.nfields or result.command_status not in (None, b""):
                found.append(result)
