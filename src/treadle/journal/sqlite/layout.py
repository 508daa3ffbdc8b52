"""The SQLite file's layout, its marks and its migrations; and what SQLite's errors mean."""

import sqlite3
import time
from pathlib import Path

from treadle.core.errors import ConfigError, JournalError

APPLICATION_ID = 0x5452444C
"""Marks a file as Treadle's, in SQLite's header."""

MIGRATIONS = (
    """
    CREATE TABLE owners(
        id INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT NOT NULL, pid INTEGER NOT NULL,
        started TEXT NOT NULL, beat_at REAL NOT NULL
    );
    CREATE TABLE runs(
        id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, stop_reason TEXT,
        created_at REAL NOT NULL, owner INTEGER, token INTEGER NOT NULL
    );
    CREATE TABLE frames(
        id INTEGER PRIMARY KEY, previous INTEGER NOT NULL, run INTEGER NOT NULL, seq INTEGER NOT NULL,
        count INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL
    );
    CREATE TABLE heads(run INTEGER PRIMARY KEY, frame INTEGER NOT NULL);
    CREATE TABLE blobs(digest TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE meta(takeovers INTEGER NOT NULL);
    INSERT INTO meta VALUES(0);
    """,
)
"""The n-th brings a file from version n to n + 1, counted from 0; `user_version` says how many were run.

A run's frames are a chain: `heads` has the newest, and each names the one before. An index over them would
have a page for every run or two, and every commit would write as many pages as runs are in flight.
"""

LEVELS = {"process": "NORMAL", "power": "FULL"}
"""A journal's level to SQLite's `synchronous`. In WAL mode NORMAL syncs at checkpoints alone."""

_LOCK_SECONDS = 30.0
"""How long another process may hold the file's lock."""


def connect(path: Path, level: str) -> sqlite3.Connection:
    """A connection to the journal at `path`, made and brought up to date if need be.

    Raises: `JournalError` for a file of another program, a newer Treadle, or what cannot be opened.
    """
    try:
        db = sqlite3.connect(
            path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
    except sqlite3.Error as error:
        raise explain(error, path) from error
    try:
        _refuse_foreign(db, path)
        _use_wal(db)
        db.execute(f"PRAGMA synchronous={LEVELS[level]}")
        # Pages that many commits touch are copied into the file once for all of them.
        db.execute("PRAGMA wal_autocheckpoint=4000")
        _migrate(db)
    except sqlite3.Error as error:
        db.close()
        raise explain(error, path) from error
    except BaseException:
        db.close()
        raise
    return db


def _refuse_foreign(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN")  # one look: another process may be making the journal
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    has_tables = db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None
    db.execute("COMMIT")
    if has_tables and application_id != APPLICATION_ID:
        raise JournalError(f"{str(path)!r} is a database of another program, not a Treadle journal")
    if version > len(MIGRATIONS):
        raise JournalError(
            f"{str(path)!r} was written by a newer Treadle (file version {version}, this one reads up to "
            f"{len(MIGRATIONS)}); upgrade treadle"
        )


def _use_wal(db: sqlite3.Connection) -> None:
    """SQLite does not wait by itself where two change the mode at once."""
    give_up_at = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
        time.sleep(0.005)


def _migrate(db: sqlite3.Connection) -> None:
    if db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        done = db.execute("PRAGMA user_version").fetchone()[0]
        for script in MIGRATIONS[done:]:
            for statement in script.split(";"):
                if statement.strip():
                    db.execute(statement)
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk ends it by itself
            db.execute("ROLLBACK")
        raise


def explain(error: sqlite3.Error, path: Path) -> JournalError:
    """A `JournalError` that says what failed and what to do."""
    name = str(path)
    text = str(error)
    if "not a database" in text or "malformed" in text:
        return JournalError(f"{name!r} is not a Treadle journal, or is damaged ({text}); give another file")
    if "readonly" in text:
        return JournalError(
            f"the journal {name!r} is read-only ({text}); check the file's and folder's rights"
        )
    if "full" in text or "disk I/O" in text:
        return JournalError(
            f"the journal {name!r} cannot be written ({text}): is the disk full? What was kept before is "
            "safe; free room and resume the run"
        )
    if "unable to open" in text:
        return JournalError(
            f"the journal {name!r} cannot be opened ({text}); check that its folder exists and is writable"
        )
    if "locked" in text:
        return JournalError(f"the journal {name!r} is locked by another process for over 30 s ({text})")
    return JournalError(f"the journal {name!r} failed: {text}")


def check_level(level: str) -> str:
    """`level`, if it is one of a file's. Raises: `ConfigError`."""
    if level not in LEVELS:
        raise ConfigError(
            f"unknown journal level {level!r}; a file has {' or '.join(map(repr, LEVELS))}, and "
            "open_journal('memory:') is a journal in memory"
        )
    return level
