"""Buckets that several processes share, in an SQLite file.

A process takes enough for the next moments at once, so that not every request needs a transaction. If the process
is killed, the unused rest is lost; it is less than the share of one second.
"""

import sqlite3
import time
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.models.wrappers.limit_rules import Bucket

_BUSY_SECONDS = 10.0
_BATCH_SECONDS = 0.25
_SCHEMA = """
CREATE TABLE IF NOT EXISTS treadle_limits (
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    level REAL NOT NULL,
    at REAL NOT NULL,
    not_before REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (name, kind)
)
"""


class Lease(Struct, frozen=True):
    """The requests and tokens that a process took for the next moments."""

    counts: dict[str, float]
    """The amounts that were taken, of `requests` and `tokens`."""
    wait: float
    """The seconds until the missing amount is available; 0 if nothing is missing."""
    not_before_seconds: float
    """The seconds until anything may be sent."""


class SharedBuckets:
    """The buckets of one limiter, `requests` and `tokens`. Its methods block; use them in a thread."""

    def __init__(self, path: str | Path, name: str, per_minute: dict[str, float]) -> None:
        self.path = Path(path)
        self._name = name
        self._per_minute = per_minute

    def lease(self, wanted: dict[str, float]) -> Lease:
        """Take `wanted`, and a little more if there is enough.

        Raises: `ConfigError` if the file cannot be used.
        """
        with self._transaction() as connection:
            # Read after the lock was taken, so that no process sees an earlier time than the one before it.
            now = time.time()
            rows = connection.execute(
                "SELECT kind, level, at, not_before FROM treadle_limits WHERE name = ?", (self._name,)
            ).fetchall()
            not_before = max([row[3] for row in rows], default=0.0)
            known = {row[0]: row for row in rows}
            buckets = {}
            for kind, count in self._per_minute.items():
                bucket = buckets[kind] = Bucket.per_minute(count, now)
                if kind in known:
                    # A clock that was set back must not stop the requests.
                    bucket.level, bucket.at = known[kind][1], min(known[kind][2], now)
                    bucket.fill(now)
            wait = max([bucket.wait(wanted[kind], now) for kind, bucket in buckets.items()], default=0.0)
            counts = dict.fromkeys(buckets, 0.0)
            if now >= not_before and wait == 0.0:
                for kind, bucket in buckets.items():
                    # More than the capacity is taken from a full bucket, and becomes a debt.
                    counts[kind] = max(wanted[kind], min(bucket.level, bucket.rate * _BATCH_SECONDS))
                    bucket.take(counts[kind])
            for kind, bucket in buckets.items():
                self._write(connection, kind, bucket, not_before)
        return Lease(counts, wait, max(0.0, not_before - now))

    def hold(self, seconds: float) -> None:
        """Stop all processes from sending for `seconds`. Raises: `ConfigError` if the file cannot be used."""
        until = time.time() + seconds
        with self._transaction() as connection:
            connection.execute(
                "UPDATE treadle_limits SET not_before = max(not_before, ?) WHERE name = ?",
                (until, self._name),
            )

    def settle(self, kind: str, count: float) -> None:
        """Take an additional `count`; a negative count puts back. Raises: `ConfigError`."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE treadle_limits SET level = level - ? WHERE name = ? AND kind = ?",
                (count, self._name, kind),
            )

    def _write(self, connection: sqlite3.Connection, kind: str, bucket: Bucket, not_before: float) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO treadle_limits (name, kind, level, at, not_before) VALUES (?, ?, ?, ?, ?)",
            (self._name, kind, bucket.level, bucket.at, not_before),
        )

    def _transaction(self) -> "_Transaction":
        return _Transaction(self.path)


class _Transaction:
    """A transaction on a separate connection, because threads and forks must not share one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise self._explain(error) from error
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        except sqlite3.Error as fault:
            if kind is None:
                raise self._explain(fault) from fault
        finally:
            self._connection.close()
        if isinstance(error, sqlite3.Error):
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error) -> ConfigError:
        return ConfigError(f"the limits cannot be shared through {str(self._path)!r}: {error}")
