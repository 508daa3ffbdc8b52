"""A consistent copy of a journal's file, even while processes write to it."""

import contextlib
import os
import sqlite3
from pathlib import Path

from treadle.core.errors import JournalError
from treadle.journal.sqlite.failures import ERRORS, explain
from treadle.journal.sqlite.sqlite_layout import LOCK_SECONDS, sync_folders


def back_up(path: Path, target: Path) -> int:
    """Copy the journal at `path` to the new file `target`, which appears once it is complete and on the disk.

    The copy has everything that was stored when it began, and no leases. Return the number of its runs. Raises:
    `JournalError` if `target` exists or cannot be written.
    """
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        if target.exists():
            raise FileExistsError
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, path.stat().st_mode & 0o777))
        try:
            runs = _copy(path, part)
            _publish(part, target)
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
    except FileExistsError:
        raise JournalError(
            f"{str(target)!r} exists already, and a backup overwrites nothing; give a new path"
        ) from None
    except ERRORS as error:
        raise explain(error, target) from error
    except OSError as error:
        raise JournalError(f"cannot write the backup {str(target)!r}: {error.strerror}") from error
    sync_folders(target)
    return runs


def _copy(path: Path, part: Path) -> int:
    with (
        contextlib.closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as source,
        contextlib.closing(sqlite3.connect(part, isolation_level=None)) as copy,
    ):
        # In one piece: otherwise the copy begins again whenever another process writes.
        source.backup(copy, pages=-1)
        copy.execute("BEGIN IMMEDIATE")
        copy.execute("UPDATE runs SET owner=NULL WHERE owner IS NOT NULL")
        copy.execute("DELETE FROM owners")
        copy.execute("COMMIT")
        return int(copy.execute("SELECT count(*) FROM runs").fetchone()[0])


def _publish(part: Path, target: Path) -> None:
    """Sync a complete file and give it its name. Raises: `FileExistsError`."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # the file system has no links
        if target.exists():
            raise FileExistsError from None
        part.rename(target)
