"""Reading a journal in a place where nothing can be written, such as read-only media or another user's folder."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

from treadle.journal.sqlite.failures import has_code

_CODES = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def is_refused(error: Exception, path: Path) -> bool:
    """Return True if `error` says that a file cannot be written, and the file can still be read."""
    return any(has_code(error, code) for code in _CODES) and path.is_file() and os.access(path, os.R_OK)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a connection that only reads; writing to it fails as on any read-only file. Raises: `sqlite3.Error`."""
    for connect in (_beside_a_writer, _alone):
        with contextlib.suppress(sqlite3.Error):
            return connect(path)
    return _copied(path)


def _beside_a_writer(path: Path) -> sqlite3.Connection:
    """Open a connection that uses the files which a writing process keeps beside the journal."""
    return _open(path, "mode=ro")


def _alone(path: Path) -> sqlite3.Connection:
    """Open a connection without files beside the journal. Raises: `sqlite3.Error` if one of them has a part of
    it."""
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size:
        raise sqlite3.OperationalError("the newest events are in the file beside it")
    return _open(path, "immutable=1")


def _copied(path: Path) -> sqlite3.Connection:
    """Open a connection to a copy, because SQLite must write to read a journal whose process was killed."""
    # The open copy stays readable after the folder is removed.
    with tempfile.TemporaryDirectory(prefix="treadle-", ignore_cleanup_errors=True) as folder:
        for name in (path.name, f"{path.name}-wal"):
            shutil.copyfile(path.with_name(name), Path(folder, name))
        db = _open(Path(folder, path.name), "mode=rw")
        db.execute("PRAGMA query_only=1")
        return db


def _open(path: Path, option: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{option}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db
