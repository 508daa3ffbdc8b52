"""Texts for SQLite's errors, by their codes."""

import os
import shutil
import sqlite3
from pathlib import Path

from treadle.core.errors import JournalError

ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
"""The exceptions of Python's SQLite. The last two come from damaged texts and lengths."""

_NOT_A_JOURNAL = (
    "{name!r} is not a Treadle journal, or is damaged ({text}); give another file, or see with `treadle check` "
    "what can still be read"
)
_READ_ONLY = "the journal {name!r} is read-only ({text}); check the file's and folder's rights"
_FULL = (
    "the journal {name!r} cannot be written ({text}): is the disk full? What was stored before is "
    "safe; free disk space, then resume the run, or give the same command again"
)
_CANNOT_OPEN = "the journal {name!r} cannot be opened ({text}); check that its folder exists and is writable"
_LOCKED = (
    "the journal {name!r} has been locked by another process for over 30 s ({text}); "
    "if that process is stopped, continue or end it"
)
_PAGE_BYTES = 4096
_FAILED = "the journal {name!r} failed: {text}"

_MESSAGES = {
    sqlite3.SQLITE_NOTADB: _NOT_A_JOURNAL,
    sqlite3.SQLITE_CORRUPT: _NOT_A_JOURNAL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: _FULL,
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
}
"""The texts for users, by SQLite's primary result code."""


def explain(error: Exception, path: Path) -> JournalError:
    """Return a `JournalError` that says what failed and what to do."""
    message = _MESSAGES.get(_code_of(error), _FAILED)
    if message is _READ_ONLY and _is_full(path):  # it was opened for reading only
        message = _FULL
    return JournalError(message.format(name=str(path), text=error))


def _is_full(path: Path) -> bool:
    """Return True if the disk of `path` has no room for one more page of a file."""
    try:
        return shutil.disk_usage(path.absolute().parent).free < _PAGE_BYTES
    except OSError:
        return False


def write_waiting(path: Path, seconds: float) -> str:
    """Return a message about a process that keeps the file locked."""
    pids = ", ".join(map(str, _lock_owners(path)))
    return (
        f"the journal {str(path)!r} has been locked by {f'process {pids}' if pids else 'another process'} for over "
        f"{seconds:g} s; runs wait until it goes on (if it is stopped, continue or end it)"
    )


def _lock_owners(path: Path) -> list[int]:
    """Return the processes that hold the lock for writing, as far as the system tells. Source: Linux, /proc/locks.
    SQLite locks byte 120 of the file with the suffix `-shm`. The file is not opened here: closing it would release
    this process's own locks."""
    try:
        status = os.stat(f"{path}-shm")
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = [line.split() for line in lines if "->" not in line]
    return [
        int(pid)
        for _, _, _, kind, pid, where, first, last in locks
        if kind == "WRITE"
        and where == place
        and int(first) <= 120
        and (last == "EOF" or int(last) >= 120)
        and pid != "0"
    ]


def has_code(error: Exception, code: int) -> bool:
    """Return True if `error` has this primary result code, such as `sqlite3.SQLITE_BUSY`."""
    return _code_of(error) == code


def _code_of(error: Exception) -> int:
    """Return the primary result code: the low byte of the extended one. 0 if Python itself raised the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
