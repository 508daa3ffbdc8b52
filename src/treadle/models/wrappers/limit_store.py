"""Buckets that several processes share, in an SQLite file.

A process takes what it will need in the next moments at once, so that not every request is a transaction. What a
killed process had taken and not used is lost, which is less than a second's worth.
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
    """What was taken for the next moments."""

    counts: dict[str, float]
    """Of each kind."""
    wait: float
    """Seconds until what is missing can be there; 0 if nothing is."""
    not_before_seconds: float
    """Seconds until anything may be sent."""


class SharedBuckets:
    """The buckets of one limiter, `requests` and `tokens`. Blocking: to be used in a thread."""

    def __init__(self, path: str | Path, name: str, per_minute: dict[str, float]) -> None:
        self.path = Path(path)
        self._name = name
        self._per_minute = per_minute

    def lease(self, wanted: dict[str, float]) -> Lease:
        """Take `wanted`, and a little more where there is enough.

        Raises: `ConfigError` if the file cannot be used.
        """
        with self._transaction() as connection:
            # Not before the lock is had: time that has passed for another process must not come back.
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
                    # A clock that was set back must not stop anything.
                    bucket.level, bucket.at = known[kind][1], min(known[kind][2], now)
                    bucket.fill(now)
            wait = max([bucket.wait(wanted[kind], now) for kind, bucket in buckets.items()], default=0.0)
            counts = dict.fromkeys(buckets, 0.0)
            if now >= not_before and wait == 0.0:
                for kind, bucket in buckets.items():
                    # What is more than a bucket holds is taken when it is full, and paid back after.
                    counts[kind] = max(wanted[kind], min(bucket.level, bucket.rate * _BATCH_SECONDS))
                    bucket.take(counts[kind])
            for kind, bucket in buckets.items():
                self._write(connection, kind, bucket, not_before)
        return Lease(counts, wait, max(0.0, not_before - now))

    def hold(self, seconds: float) -> None:
        """Let no process send anything for so long. Raises: `ConfigError` if the file cannot be used."""
        until = time.time() + seconds
        with self._transaction() as connection:
            connection.execute(
                "UPDATE treadle_limits SET not_before = max(not_before, ?) WHERE name = ?",
                (until, self._name),
            )

    def settle(self, kind: str, count: float) -> None:
        """Take `count` more than was thought, or give it back. Raises: `ConfigError`."""
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
    """One transaction on a connection of its own: threads and forks cannot get at each other's."""

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
        return ConfigError(f"limits cannot be shared by {self._path}: {error}")
