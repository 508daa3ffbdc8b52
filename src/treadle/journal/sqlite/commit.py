"""The statements of one commit: the writes of many runs in one transaction.

What is fast here: a run costs one row in `frames` and one in `heads` per commit, whatever it appended; rows of
many runs go into one statement, because Python releases its lock once for each statement; and values that other
processes can change are read again only when SQLite reports that another connection has written.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from zlib import crc32

from treadle.core.errors import JournalError
from treadle.journal.sqlite.layout import read_meta
from treadle.journal.tables.fact_columns import HEAD_COLUMNS, RUN_COLUMNS
from treadle.journal.tables.writer import TableWriter, Write, lease_lost, run_exists

_FRAME_WIDTH = 8
_HEAD_WIDTH = 2 + len(HEAD_COLUMNS)


def _insert(into: str, width: int) -> dict[int, str]:
    row = f"({','.join('?' * width)})"
    return {size: f"{into} VALUES {','.join([row] * size)}" for size in (64, 16, 4, 1)}


_INSERT_FRAMES = _insert(
    "INSERT INTO frames(id, previous, run, seq, count, at, body, checksum)", _FRAME_WIDTH
)
_MOVE_HEADS = _insert(f"INSERT OR REPLACE INTO heads(run, frame, {', '.join(HEAD_COLUMNS)})", _HEAD_WIDTH)
_INSERT_RUN = (
    f"INSERT INTO runs(run_id, owner, queue, token, {', '.join(RUN_COLUMNS)}) "
    f"VALUES(?,?,?,1,{','.join('?' * len(RUN_COLUMNS))})"
)
_UPDATE_RUN = f"UPDATE runs SET owner=?, {', '.join(f'{name}=?' for name in RUN_COLUMNS)} WHERE id=?"


class FileState:
    """Values from the file that every commit needs; read again only after another connection has written."""

    def __init__(self) -> None:
        self.takeovers = 0
        """How often a run was taken over from a process that died or hung."""
        self.level = ""
        """The level that the file keeps; empty before it was read."""
        self.frame_id = 0
        """The newest frame."""
        self._version = -1

    def refresh(self, db: sqlite3.Connection) -> None:
        """Read the values again if they may have changed. Called within a transaction."""
        version = db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self.takeovers, self.level = read_meta(db)
            newest = db.execute("SELECT coalesce(max(id), 0) FROM frames").fetchone()[0]
            # The numbers of deleted frames are not used again: followers have passed them.
            self.frame_id = max(self.frame_id, newest)
            self._version = version

    def forget(self) -> None:
        """Make the next `refresh` read the values, because this connection changed them in another way."""
        self._version = -1


def commit_writes(
    db: sqlite3.Connection, writes: Sequence[Write], file: FileState, owner_id: int, now: float
) -> None:
    """Keep `writes` within a transaction. A write that cannot be kept gets an `error`; the others are kept."""
    file.refresh(db)
    takeovers, frame_id = file.takeovers, file.frame_id
    frames: list[object] = []
    heads: dict[int, tuple[object, ...]] = {}
    for write in writes:
        writer = write.writer
        if writer.key and writer.epoch != takeovers:
            _check_lease(db, writer, owner_id)
            writer.epoch = takeovers
        if writer.error is None and write.error is None:
            _keep_run(db, write, owner_id)
            writer.epoch = takeovers
        if writer.error is not None or write.error is not None:
            writer.error = write.error = writer.error or write.error
            continue
        if write.blobs:
            db.executemany("INSERT OR IGNORE INTO blobs VALUES(?,?)", list(write.blobs.items()))
        if count := len(write.bodies):
            frame_id += 1
            frame: bytes = write.frame  # type: ignore[assignment]
            writer.checksum = checksum = crc32(frame, writer.checksum)
            frames += (frame_id, writer.head, writer.key, write.first_seq, count, now, frame, checksum)
            heads[writer.key] = (writer.key, frame_id) + write.head  # noqa: RUF005 (this is the fastest)
            writer.head = frame_id
        if write.taken or write.copied:
            _settle_inbox(db, write)
    _execute(db, _INSERT_FRAMES, frames, _FRAME_WIDTH)
    _execute(db, _MOVE_HEADS, list(chain.from_iterable(heads.values())), _HEAD_WIDTH)
    file.frame_id = frame_id


def _keep_run(db: sqlite3.Connection, write: Write, owner_id: int) -> None:
    """Insert or update the run's row in `runs`, if it changes."""
    writer, row = write.writer, write.row
    owner = None if write.is_release else owner_id
    if writer.key:
        if row is not None:
            db.execute(_UPDATE_RUN, (owner, *row, writer.key))
        elif write.is_release:
            db.execute("UPDATE runs SET owner=NULL WHERE id=?", (writer.key,))
        return
    if row is None or not write.bodies:
        return
    try:
        made = db.execute(_INSERT_RUN, (writer.run_id, owner, writer.queue, *row))
    except sqlite3.IntegrityError:
        write.error = run_exists(writer.run_id)
    except ValueError as error:
        write.error = JournalError(f"the id {writer.run_id!r} cannot be kept: {error}")
    else:
        writer.key, writer.token = made.lastrowid or 0, 1
        if writer.seal is not None:
            db.execute("INSERT INTO trust VALUES(?,?)", (writer.key, writer.seal))


def _settle_inbox(db: sqlite3.Connection, write: Write) -> None:
    """Forget the messages that a write took in, or remember the number from which the run's are counted."""
    key, taken = write.writer.key, write.taken
    if taken:
        db.execute("DELETE FROM inbox WHERE run=? AND number<?", (key, taken))
        db.execute("UPDATE inbox SET body=NULL, checksum=NULL WHERE run=? AND number=?", (key, taken))
    if write.copied:
        db.execute("INSERT OR IGNORE INTO inbox(run, number, kind) VALUES(?,?,'')", (key, write.copied))


def _check_lease(db: sqlite3.Connection, writer: TableWriter, owner_id: int) -> None:
    holder = db.execute("SELECT owner, token FROM runs WHERE id=?", (writer.key,)).fetchone()
    if holder != (owner_id, writer.token):
        writer.error = lease_lost(writer.run_id)


def _execute(db: sqlite3.Connection, statements: dict[int, str], values: list[object], width: int) -> None:
    """Insert rows of `width` values each, in as few statements as possible."""
    start = 0
    for size, statement in statements.items():
        while len(values) - start >= width * size:
            db.execute(statement, values[start : start + width * size])
            start += width * size


def newest_message(db: sqlite3.Connection) -> int:
    """Return the row of the newest message of any run."""
    return int(db.execute("SELECT coalesce(max(id), 0) FROM inbox").fetchone()[0])


def messages_after(db: sqlite3.Connection, row: int) -> list[tuple[int, str, int, str]]:
    """Return the messages of all runs after a row: their rows, the runs' ids, their numbers and tags."""
    return db.execute(
        "SELECT inbox.id, run_id, number, kind FROM inbox JOIN runs ON runs.id = inbox.run "
        "WHERE inbox.id > ? ORDER BY inbox.id",
        (row,),
    ).fetchall()
