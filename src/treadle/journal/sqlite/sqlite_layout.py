"""The SQLite file's layout, its marks and its migrations, and the connections to it.

| table | one row for | columns |
| --- | --- | --- |
| `runs` | each run | its id, its lease, its queue, and the facts that change with a turn at most |
| `heads` | each run | its newest frame, and the facts that change with every step |
| `frames` | what one run appended in one turn of an event loop | the events as JSON lines, or packed; a checksum |
| `dictionaries` | each dictionary for packed frames | its content, and the runs that it was made from |
| `blobs` | each content | the bytes, by SHA-256 |
| `owners` | each open journal that took a lease | the process, its heartbeat, and how long its leases last |
| `meta` | one row | how often a run was taken over from a process that died or hung; the file's level |
| `origin` | one row | a random id of the file, and the seal of the user who made it |
| `trust` | each run that is not simply the user's own | the seal of the user who trusts it; empty if nobody does |
| `inbox` | each message that was not taken in, and the newest of each run | its number in the run, its content |

Tables of memories and of resources are made when they are first needed; see `knowledge/memory` and `resources`.

A run's frames are a chain: `heads` has the newest, and each names the one before. An index over them would have a
page for every run or two, and every commit would write as many pages as runs are in flight.

The checksums are explained in `checks`. Rows that version 3 or an older one wrote have no checksum.

If nothing can be written in the file's place, such as a full disk, read-only media or another user's folder, the
connection only reads.
"""

import contextlib
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from treadle.core.errors import JournalError
from treadle.journal.identity import make_seal, mark_place
from treadle.journal.protocol import APPLICATION_ID
from treadle.journal.sqlite.failures import ERRORS, explain, has_code
from treadle.journal.tables.table_rows import read_migrations

_CODES = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def is_refused(error: Exception, path: Path) -> bool:
    """Return True if `error` says that a file cannot be written, and the file has something that can be read."""
    is_readable = path.is_file() and path.stat().st_size > 0 and os.access(path, os.R_OK)
    return is_readable and any(has_code(error, code) for code in _CODES)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a connection that only reads; writing to it fails as on any read-only file. Raises: `sqlite3.Error`."""
    # The first uses the files that a writing process keeps beside the journal.
    for connect in (partial(_open, option="mode=ro"), _alone):
        with contextlib.suppress(sqlite3.Error):
            return connect(path)
    return _copied(path)


def _alone(path: Path) -> sqlite3.Connection:
    """Open a connection to the journal's file alone. Raises: `sqlite3.Error` if the file beside it has events."""
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


MIGRATIONS = read_migrations(__file__)
"""The migrations in `migrations.sql`: number n, from 0, changes a file of version n to version n + 1. SQLite's
`user_version` is the version of a file.

`heads.events` is NULL in rows that version 1 wrote, because their facts are unknown; `fill_facts` computes them.
"""

LEVELS = {"process": "NORMAL", "power": "FULL"}
"""The values of SQLite's `synchronous`, by the journal's level. In WAL mode, NORMAL syncs only at checkpoints."""

LOCK_SECONDS = 30.0
"""How long to wait for a process that holds the file's lock, when opening or closing a journal."""


_MIN_PAGE_BYTES = 512


def _speed_up_parameters() -> None:
    """Tell the module `sqlite3` that bytes and `None` are stored as they are. Without an adapter it looks for a
    method of the value each time, which before Python 3.12 makes and drops an exception: as much work as the rest
    of binding ten values. An adapter that a program has registered stays."""
    known = [kind for kind, _ in sqlite3.adapters]
    if bytes not in known:
        sqlite3.register_adapter(bytes, bytes)
    if type(None) not in known:
        stored: dict[None, None] = {}
        sqlite3.register_adapter(type(None), stored.get)  # a call of it enters no Python code


def connect(path: Path, level: str) -> sqlite3.Connection:
    """Open a connection to the journal at `path`. Create the file, or migrate it to the current version, if
    necessary.

    The file keeps the strongest level that it was ever opened with, and every connection has that level. If
    nothing can be written there, an existing journal is opened for reading, and writing to it fails.

    Raises: `JournalError` for a file of another program, a newer Treadle, or a file that cannot be opened.
    """
    with contextlib.suppress(OSError):
        if 0 < path.stat().st_size < _MIN_PAGE_BYTES:  # SQLite would treat it as an empty file
            raise JournalError(f"{str(path)!r} is not a Treadle journal, or was cut off; restore a backup")
    _speed_up_parameters()
    try:
        db = sqlite3.connect(
            path.absolute(),  # some builds of SQLite take a name that begins with "file:" for a URI
            timeout=LOCK_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
    except ERRORS as error:
        raise explain(error, path) from error
    try:
        _refuse_foreign(db, path)
        _use_wal(db)
        db.execute("PRAGMA trusted_schema=OFF")  # the file may come from anybody
        _migrate(db, path)
        if level == "power":
            db.execute("UPDATE meta SET level='power' WHERE level<>'power'")
        set_level(db, read_meta(db)[1])
    except ERRORS as error:
        db.close()
        if is_refused(error, path):
            return _connect_to_read(path, error)
        raise explain(error, path) from error
    except BaseException:
        db.close()
        raise
    return db


def _connect_to_read(path: Path, refusal: Exception) -> sqlite3.Connection:
    """Connect to a store that cannot be written because of `refusal`. Raises: `JournalError`."""
    try:
        db = connect_to_read(path)
        _refuse_foreign(db, path)
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except (*ERRORS, OSError) as error:
        raise explain(error, path) from error
    if version < len(MIGRATIONS):
        db.close()
        if not version:  # it is new
            raise explain(refusal, path) from refusal
        raise JournalError(
            f"{str(path)!r} was written by an older Treadle, and nothing can be written there to bring it up to "
            "date; open a copy of it"
        )
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what the `with` block writes, or nothing of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk ends it by itself
            db.execute("ROLLBACK")
        raise


def read_meta(db: sqlite3.Connection) -> tuple[int, str]:
    """Return the count of takeovers in the file, and the level that it keeps.

    If they are damaged, they are replaced: leases are checked again, and the level is the strongest.
    """
    row = db.execute("SELECT takeovers, level FROM meta").fetchone()
    if row is None or not isinstance(row[0], int) or row[1] not in LEVELS:
        row = (secrets.randbits(40), "power")
        with contextlib.suppress(sqlite3.Error):  # the file may be open for reading only
            db.execute("DELETE FROM meta")
            db.execute("INSERT INTO meta(takeovers, level) VALUES(?,?)", row)
    return row[0], row[1]


def set_level(db: sqlite3.Connection, level: str) -> None:
    """Set the level of the commits and checkpoints of a connection."""
    db.execute(f"PRAGMA synchronous={LEVELS[level]}")
    if level == "power":
        # On macOS, fsync leaves the data in the disk's cache. Elsewhere these settings have no effect.
        db.execute("PRAGMA fullfsync=1")
        db.execute("PRAGMA checkpoint_fullfsync=1")


def sync_folders(path: Path) -> None:
    """Sync the folders of `path` on the same disk, so that a power loss keeps the file's name."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = path.resolve().parent
    device = folder.stat().st_dev
    for place in (folder, *folder.parents):
        try:
            if place.stat().st_dev != device:
                return
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # a folder that this user may not read is not one that Treadle made
            return
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(fd)
        os.close(fd)


def _refuse_foreign(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN")  # one snapshot: another process may be making the journal
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
    """Switch to WAL mode. SQLite does not wait by itself if two connections change the mode at the same time."""
    give_up_at = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if not has_code(error, sqlite3.SQLITE_BUSY) or time.monotonic() > give_up_at:
                raise
        time.sleep(0.005)


def _sign(db: sqlite3.Connection, path: Path, *, is_new: bool) -> None:
    """Give the file its origin. Only a new file gets this user's seal: nobody knows who wrote an older one."""
    origin = secrets.token_hex(16)
    db.execute("INSERT INTO origin VALUES(?,?)", (origin, make_seal(origin) if is_new else ""))
    if is_new:
        mark_place(path, origin)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    if db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS):
        return
    with transaction(db):
        done = db.execute("PRAGMA user_version").fetchone()[0]
        for script in MIGRATIONS[done:]:
            for statement in script.split(";"):
                if statement.strip():
                    db.execute(statement)
        if not db.execute("SELECT 1 FROM origin").fetchone():
            _sign(db, path, is_new=not done)
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def back_up(path: Path, target: Path) -> int:
    """Copy the journal at `path` to the new file `target`, which appears once it is complete and on the disk.

    The copy has everything that was stored when it began, and no leases. Return the number of its runs. Raises:
    `JournalError` if `target` exists or cannot be written.
    """
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        if target.exists():
            raise FileExistsError
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, path.stat().st_mode & 0o777 | 0o600))
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
        contextlib.closing(connect(path, "process")) as source,
        contextlib.closing(sqlite3.connect(part, isolation_level=None)) as copy,
    ):
        # In one piece: otherwise the copy begins again whenever another process writes.
        source.backup(copy, pages=-1)
        with transaction(copy):
            copy.execute("UPDATE runs SET owner=NULL WHERE owner IS NOT NULL")
            copy.execute("DELETE FROM owners")
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
