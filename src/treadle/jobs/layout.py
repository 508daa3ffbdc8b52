"""The database of a ledger: its tables, and how it is opened and locked."""

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.core.errors import ConfigError, JournalError

if TYPE_CHECKING:
    import sqlite3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    number INTEGER PRIMARY KEY, status TEXT NOT NULL, label TEXT NOT NULL, share TEXT NOT NULL,
    spec BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS open_items ON items (number) WHERE status = 'open';
CREATE TABLE IF NOT EXISTS attempts (
    number INTEGER NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL, label TEXT NOT NULL,
    reason TEXT NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cost_usd REAL,
    file TEXT, end INTEGER, at REAL NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (number, attempt)) WITHOUT ROWID;
"""
_VERSION = "1"


def lock(path: Path) -> "sqlite3.Connection":
    """Return a connection that holds the right to write the ledger; it ends with the process."""
    import sqlite3

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = sqlite3.connect(path.with_suffix(".lock"), timeout=0, isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
    except OSError as error:
        raise ConfigError(f"cannot make the folder {str(path.parent)!r}: {error.strerror}") from error
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise ConfigError(
                f"another process works on {str(path.parent)!r}; wait until it has ended, or use another folder"
            ) from error
        raise JournalError(f"cannot write in {str(path.parent)!r}: {error}") from error
    return held


def connect(path: Path, *, is_readonly: bool) -> "sqlite3.Connection":
    """Return a connection to the database of the ledger at `path`, which is created if it does not exist."""
    import sqlite3

    try:
        if is_readonly:
            return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", (_VERSION,))
        found = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()[0]
    except sqlite3.Error as error:
        raise JournalError(f"cannot open the ledger {str(path)!r}: {error}") from error
    if found != _VERSION:
        raise JournalError(
            f"the ledger {str(path)!r} has the layout {found!r}; use the Treadle that wrote it"
        )
    return connection
