"""The committer of a file, and the statements of one commit.

What is fast here, and why. At level `process` a commit only hands bytes to the operating system, so it is made at
the end of the event loop's turn, in the event loop's thread (`commit_now`): handing it to another thread and
waiting for that thread costs more than the commit. The thread does everything that could keep the event loop
waiting: commits at level `power` (they wait for the disk), commits while another process or thread holds the
file, large ones, checkpoints, and transactions of their own (`put`, `submit`). A lease is taken in the event loop's
thread too, if nothing else happens (`transact_now`).

One commit is one transaction with the writes of many runs. A run costs one row in `frames` and one in `heads` per
commit, however much it appended. Rows of many runs go into one statement, because Python releases its lock once for
each statement. Values that other processes can change are read again only when SQLite reports that another
connection has written.

To keep the order of writes, nothing is committed on the event loop while anything is queued for the thread.

The first transaction registers the journal as an owner of leases. Each one sends a heartbeat when it is due and
releases the leases that could not be released before, so that no lease is kept once the store works again.
"""

import contextlib
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from itertools import chain, compress, repeat
from operator import is_not
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from treadle.core.errors import JournalError, LeaseHeldError
from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes
from treadle.journal.sqlite.failures import ERRORS, explain, has_code, write_waiting
from treadle.journal.sqlite.packing import Packer, Samples, find_packer, pack_frames, take_samples
from treadle.journal.sqlite.sqlite_layout import LOCK_SECONDS, read_meta, set_level
from treadle.journal.tables.committer import Committer
from treadle.journal.tables.leases import Leases
from treadle.journal.tables.table_rows import HEAD_COLUMNS, RUN_COLUMNS, Query
from treadle.journal.tables.writer import (
    JoinedWork,
    TableWriter,
    Write,
    lease_lost,
    run_exists,
    settle,
    settle_in_loops,
)

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
_UPDATE_RUN = f"UPDATE runs SET {', '.join(f'{name}=?' for name in RUN_COLUMNS)} WHERE id=?"
_RELEASE_RUN = _UPDATE_RUN.replace(" SET ", " SET owner=NULL, losses=0, ")

_TAKE_AGAIN = (
    "UPDATE runs SET owner=?, token=token+1 WHERE id=? AND owner IS NULL AND token=? "
    "AND NOT EXISTS(SELECT 1 FROM inbox WHERE run=runs.id AND number>?)"
)


class FileState:
    """Values from the file that every commit needs; read again only after another connection has written."""

    def __init__(self) -> None:
        self.takeovers = 0
        """How often a run was taken over from a process that died or hung."""
        self.level = ""
        """The level that the file keeps; empty before it was read."""
        self.frame_id = 0
        self.packer: Packer | None = None
        """The packer with the file's newest dictionary; `None` if it has none."""
        self.samples: Samples | None = None
        """What a dictionary will be made from; `None` if none will be made."""
        self.is_enough = False
        """True once there are enough samples."""
        self._version = -1

    def refresh(self, db: sqlite3.Connection) -> None:
        """Read the values again if they may have changed. Called within a transaction."""
        version = db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self.takeovers, self.level = read_meta(db)
            newest = db.execute("SELECT coalesce(max(id), 0) FROM frames").fetchone()[0]
            # The numbers of deleted frames are not used again: followers have passed them.
            self.frame_id = max(self.frame_id, newest)
            self.packer = find_packer(query_in(db), self.packer)
            self._version = version

    def forget(self) -> None:
        """Make the next `refresh` read the values, because this connection changed them in another way."""
        self._version = -1


def commit_writes(
    db: sqlite3.Connection, writes: Sequence[Write], file: FileState, owner_id: int, now: float
) -> None:
    """Store `writes` within a transaction. A write that cannot be stored gets an `error`; the others are stored."""
    file.refresh(db)
    takeovers, frame_id = file.takeovers, file.frame_id
    frames: list[object] = []
    heads: dict[int, tuple[object, ...]] = {}
    for write in writes:
        writer = write.writer
        if writer.token < 0:
            _take_again(db, writer, owner_id)
        elif writer.key and writer.epoch != takeovers:
            holder = db.execute("SELECT owner, token FROM runs WHERE id=?", (writer.key,)).fetchone()
            if holder != (owner_id, writer.token):
                writer.error = lease_lost(writer.run_id)
            writer.epoch = takeovers
        if writer.error is None and write.error is None:
            if write.row is not None or write.is_release or not writer.key:
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
            if file.packer is not None:
                frame = file.packer.pack(frame)
            elif file.samples is not None:
                file.is_enough |= file.samples.add(frame_id, len(frame))
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
            _execute_row(db, _RELEASE_RUN if write.is_release else _UPDATE_RUN, (*row, writer.key))
        elif write.is_release:
            db.execute("UPDATE runs SET owner=NULL, losses=0 WHERE id=?", (writer.key,))
        return
    if row is None or not write.bodies:
        return
    try:
        made = _execute_row(db, _INSERT_RUN, (writer.run_id, owner, writer.queue, *row))
    except sqlite3.IntegrityError:
        write.error = run_exists(writer.run_id)
    except ValueError as error:
        write.error = JournalError(f"the id {writer.run_id!r} cannot be stored: {error}")
    else:
        writer.key, writer.token = made.lastrowid or 0, 1
        if writer.seal is not None:
            db.execute("INSERT INTO trust VALUES(?,?)", (writer.key, writer.seal))


def _settle_inbox(db: sqlite3.Connection, write: Write) -> None:
    """Delete the messages that a write took in, and store the number after which the next message is numbered."""
    key, taken = write.writer.key, write.taken
    if taken:
        db.execute("DELETE FROM inbox WHERE run=? AND number<?", (key, taken))
        db.execute("UPDATE inbox SET body=NULL, checksum=NULL WHERE run=? AND number=?", (key, taken))
    if write.copied:
        db.execute("INSERT OR IGNORE INTO inbox(run, number, kind) VALUES(?,?,'')", (key, write.copied))


def _take_again(db: sqlite3.Connection, writer: TableWriter, owner_id: int) -> None:
    """Take the lease of a run that nobody has changed since this process released it; see `RunWriter.renewal`."""
    values = (owner_id, writer.key, -writer.token, writer.driven.newest)
    if db.execute(_TAKE_AGAIN, values).rowcount:
        writer.token = 1 - writer.token
    else:
        writer.error = LeaseHeldError(
            f"run {writer.run_id!r} has changed since it was released; acquire it again"
        )


def _execute_row(db: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
    """Execute a statement. A NULL in it is faster than an argument, and half of a run's values are `None`."""
    found = [*compress(values, map(is_not, values, repeat(None)))]  # without a step of Python for each value
    return db.execute(_with_nulls(statement, tuple(map(type, values))), found)


@lru_cache(maxsize=128)
def _with_nulls(statement: str, kinds: tuple[type, ...]) -> str:
    """Return `statement` with NULL for each argument whose type is that of `None`."""
    first, *rest = statement.split("?")
    marks = ["NULL" if kind is type(None) else "?" for kind in kinds]
    return first + "".join([mark + text for mark, text in zip(marks, rest, strict=True)])


def _execute(db: sqlite3.Connection, statements: dict[int, str], values: list[object], width: int) -> None:
    """Insert rows of `width` values each, in as few statements as possible."""
    start = 0
    for size in statements if len(values) > width else (1,):  # most commits of a server are of one run
        while len(values) - start >= width * size:
            db.execute(statements[size], values[start : start + width * size])
            start += width * size


def query_in(db: sqlite3.Connection) -> Query:
    """Return the function that runs SQL in a transaction."""
    return lambda sql, values: db.execute(sql, values).fetchall()


T = TypeVar("T")

_LOOP_BYTES = 512 * 1024
"""A commit of more bytes than this is left to the thread."""
_CHECKPOINT_BYTES = 16 * 1024 * 1024
"""At this size the thread copies the log into the file, so that a page that often changed is copied once."""
_RETRY_BYTES = 1024 * 1024
"""After so many bytes the log is copied again, if it could not be copied whole or did not begin again."""
_PAGE_BYTES = 4096
_VACUUM_BYTES = 32 * 1024 * 1024
"""A file of more bytes than this is rewritten only by `slim`."""
_LOOK_SECONDS = 1.0
"""How often it is checked that the file is in its place. Who deletes it does so while it is written."""
_TELL_SECONDS = 5.0
"""After this time a warning says that another process holds the file's lock."""

_log = logging.getLogger("treadle.journal")


class BusyError(Exception):
    """The signal that another process holds the file's lock."""


class FileCommitter(Committer[sqlite3.Connection]):
    """The `Committer` of an SQLite file."""

    can_renew = True

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        leases: Leases,
        changes: Changes,
        driven: DrivenRuns,
        look_for_listeners: Callable[[], None],
        *,
        learns: bool,
    ) -> None:
        super().__init__(str(path), leases, changes, driven)
        self._db = db
        self._path = path
        self._look_for_listeners = look_for_listeners
        # SQLite must neither wait for a lock (`_begin` does) nor make a checkpoint within a commit.
        db.execute("PRAGMA busy_timeout=0")
        db.execute("PRAGMA wal_autocheckpoint=0")
        # A log that has grown because of a reader is cut when it begins again.
        db.execute(f"PRAGMA journal_size_limit={_CHECKPOINT_BYTES}")
        self._is_patient = read_meta(db)[1] == "power"
        """True at level `power`, at which a commit waits for the disk."""
        self._beat_at = 0.0
        """The time of the last heartbeat, by `clock.monotonic`, which setting the wall clock does not change."""
        self._give_up_at = math.inf
        """The time after which the file's lock is not waited for, by `clock.monotonic`."""
        self._file = FileState()
        self._file.samples = Samples() if learns else None
        try:
            self._mail_version = -1
            self._mail_id = int(db.execute("SELECT coalesce(max(id), 0) FROM inbox").fetchone()[0])
        except ERRORS as error:
            db.close()
            raise explain(error, path) from error
        self._log_bytes = 0
        self._identity = self._identify()
        self._looked_at = -math.inf
        """The time at which the file was last seen in its place, by `clock.monotonic`."""
        self.start()

    def commit_now(self, writes: list[Write], joined: list[JoinedWork]) -> bool:
        if not self._take_now():
            return False
        try:
            if (size := _size_of(writes)) > _LOOP_BYTES:
                return False
            self._keep(writes, size, joined, can_wait=False)
        except BusyError:
            return False
        finally:
            self.db_lock.release()
        settle(writes)
        return True

    def transact_now(self, function: Callable[[sqlite3.Connection], T]) -> T | None:
        if not self._take_now():
            return None
        changes = self._db.total_changes
        try:
            return self._run_in(function, can_wait=False)
        except BusyError:
            return None
        finally:
            # One row is a resource, or a lease that was given back; the lease of a dead process is more.
            if self._db.total_changes > changes + 1:
                self._file.forget()
            self.db_lock.release()

    def _take_now(self) -> bool:
        """Take `db_lock` if the event loop can use the connection without waiting. Return whether it can."""
        if self._is_patient or not self.db_lock.acquire(blocking=False):
            return False
        if self._queued or self._is_stopped:
            self.db_lock.release()
            return False
        return True

    def disown(self) -> sqlite3.Connection:
        self._forget()
        return self._db

    def _give_up(self) -> None:
        self._give_up_at = self._clock.monotonic() + LOCK_SECONDS

    # The following methods run in the thread.

    def _commit_and_settle(self, writes: list[Write], joined: list[JoinedWork]) -> None:
        if writes or joined:
            self._keep(writes, _size_of(writes), joined, can_wait=True)
        settle_in_loops(writes)

    def _transact(self, function: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._run_in(function)
        finally:
            # It may have changed values that otherwise only other connections change.
            self._file.forget()

    def _look_for_mail(self) -> None:
        # If it fails, the next look finds the messages.
        with contextlib.suppress(Exception), self.db_lock:
            self._find_mail()
        self._look_for_listeners()

    def _checkpoint(self) -> None:
        """Copy the log into the file, so that the next commit starts the log again.

        It cannot while somebody reads what was stored before. Then it is tried again soon.
        """
        with contextlib.suppress(Exception):
            _, pages, copied = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if copied < pages or pages * _PAGE_BYTES > 2 * _CHECKPOINT_BYTES:
                self._log_bytes = _CHECKPOINT_BYTES - _RETRY_BYTES
            # The first commit after a restart of the log waits for the disk, so it is made now.
            self._commit_heartbeat()

    def _pack(self) -> None:
        """Make a dictionary from the samples, unless the file has got one meanwhile, and give what they leave free
        back to the system, unless the file is so large that this would take long. Nothing is lost if that fails."""
        samples, self._file.samples = self._file.samples, None
        if samples is None or self._file.packer is not None:
            return
        with contextlib.suppress(Exception):
            self._transact(lambda db: samples.learn(query_in(db)))
            if self._db.execute("PRAGMA page_count").fetchone()[0] * _PAGE_BYTES <= _VACUUM_BYTES:
                self._db.execute("VACUUM")

    def slim(self) -> None:
        """Pack all frames, and give free space back to the system. Any thread but the committer's may call this."""

        def learn(db: sqlite3.Connection) -> None:
            if find_packer(query := query_in(db)) is None:
                take_samples(query).learn(query)

        def pack(db: sqlite3.Connection, last: int) -> int:
            packer = find_packer(query_in(db))
            return 0 if packer is None else pack_frames(query_in(db), packer, last)

        self.submit(learn).result()
        last = 0
        while last := self.submit(partial(pack, last=last)).result():
            pass
        done: Future[None] = Future()
        self._enqueue(lambda: self._vacuum(done))
        done.result()

    def _vacuum(self, done: "Future[None]") -> None:
        try:
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except ERRORS as error:
            done.set_exception(explain(error, self._path))
        else:
            done.set_result(None)

    def _leave(self) -> None:
        if self.leases.owner_id:
            self._pack()
            try:
                self._run_in(lambda db: self.leases.leave(query_in(db)))
            except Exception:  # other processes miss the heartbeat
                self.leases.abandon()
        self._db.close()

    # The following methods run in any thread, while it holds `db_lock`.

    def _find_mail(self) -> None:
        db = self._db
        if (version := db.execute("PRAGMA data_version").fetchone()[0]) == self._mail_version:
            return
        rows = db.execute(
            "SELECT inbox.id, run_id, number, kind FROM inbox JOIN runs ON runs.id = inbox.run "
            "WHERE inbox.id > ? ORDER BY inbox.id",
            (self._mail_id,),
        ).fetchall()
        self._mail_version = version
        if rows:
            self._mail_id = rows[-1][0]
            self.driven.deliver([(run_id, number, kind) for _, run_id, number, kind in rows])

    def _keep(self, writes: list[Write], size: int, joined: list[JoinedWork], *, can_wait: bool) -> None:
        """Commit `writes`, and what is `joined`. If that fails, commit the writes of each run alone, and store the
        error in those that fail. Raises: `BusyError` if another process has the file's lock, or a commit fails, and
        `can_wait` is False."""
        writers = [write.writer for write in writes]
        before = [(writer.key, writer.token, writer.head, writer.checksum) for writer in writers]
        now = self._clock.time()

        def work(db: sqlite3.Connection) -> bool:
            commit_writes(db, writes, self._file, self.leases.owner_id, now)
            return bool(joined) and _are_done(joined, db)

        try:
            if self._run_in(work, can_wait=can_wait):
                joined.clear()
        except BusyError:
            raise
        except BaseException as error:  # any error must reach those who wait
            self._file.forget()
            for writer, values in reversed([*zip(writers, before, strict=True)]):
                writer.key, writer.token, writer.head, writer.checksum = values
            if isinstance(error, Exception) and len(set(writers)) > 1:
                if not can_wait:
                    raise BusyError from error
                for one in dict.fromkeys(writers):
                    own = [write for write in writes if write.writer is one]
                    self._keep(own, _size_of(own), [], can_wait=True)
                return
            self._fail(writes, self._explain(error))
            if not isinstance(error, Exception) and not can_wait:
                settle(writes)
                raise
            return
        if self._file.level == "power" and not self._is_patient:
            self._strengthen()
        if any([write.is_release for write in writes]):
            # Messages that came before the release are known to the driver when its release is settled.
            with contextlib.suppress(Exception):
                self._find_mail()
        self._announce(writes)
        if self._file.is_enough:
            self._file.is_enough = False
            self._enqueue(self._pack)
        self._log_bytes += size + _PAGE_BYTES * (4 + len(writes) // 8)
        if self._log_bytes > _CHECKPOINT_BYTES:
            self._log_bytes = 0
            self._enqueue(self._checkpoint)

    def _run_in(self, function: Callable[[sqlite3.Connection], T], *, can_wait: bool = True) -> T:
        """Run `function` in a transaction, and return its result. Raises: `BusyError` if another process has the
        file's lock and `can_wait` is False; `JournalError`."""
        db, leases = self._db, self.leases
        try:
            self._begin(can_wait=can_wait)
            owner_before, beat_before, orphans = leases.owner_id, self._beat_at, len(self.orphans)
            try:
                now = self._clock.monotonic()
                if now - self._looked_at > _LOOK_SECONDS:
                    self._check_place()
                    self._looked_at = now
                if not leases.owner_id or now - self._beat_at > leases.lease_seconds / 4:
                    leases.beat(query_in(db))
                    self._beat_at = now
                for index in range(orphans):
                    db.execute("UPDATE runs SET owner=NULL WHERE id=? AND token=?", self.orphans[index])
                result = function(db)
                db.execute("COMMIT")
            except BaseException:
                # The row of a new owner is rolled back too, and another process may get its id.
                leases.owner_id, self._beat_at = owner_before, beat_before
                if db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise
        except ERRORS as error:
            raise explain(error, self._path) from error
        for _ in range(orphans):
            self.orphans.popleft()
        return result

    def _identify(self) -> tuple[int, int] | None:
        """Return what tells the file from others; `None` if there is none in its place."""
        with contextlib.suppress(FileNotFoundError):
            status = self._path.stat()
            return status.st_dev, status.st_ino
        return None

    def _check_place(self) -> None:
        """Check that what is stored can be found again. Raises: `JournalError`."""
        if self._identify() != self._identity:
            raise JournalError(
                f"the journal {str(self._path)!r} was deleted or replaced while it was open, so nothing can be "
                "stored; put the file back, or end what uses it and begin again"
            )

    def _strengthen(self) -> None:
        """Change to level `power`, at which another process opened the file. Sync what was committed before."""
        set_level(self._db, "power")
        self._is_patient = True
        with contextlib.suppress(JournalError):  # the next commit fails too
            self._commit_heartbeat()

    def _commit_heartbeat(self) -> None:
        self._beat_at = -math.inf
        self._run_in(lambda db: None)

    def _begin(self, *, can_wait: bool) -> None:
        """Take the file's lock. Wait for another process that has it; after `stop`, only for a limited time."""
        tell_at = self._clock.monotonic() + _TELL_SECONDS
        pause_seconds = 0.001
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not has_code(error, sqlite3.SQLITE_BUSY):
                    raise
                if not can_wait:
                    raise BusyError from None
                if (now := self._clock.monotonic()) > self._give_up_at:
                    raise
            if now > tell_at:
                tell_at = math.inf
                _log.warning("%s", write_waiting(self._path, _TELL_SECONDS))
            time.sleep(pause_seconds)
            pause_seconds = min(0.05, pause_seconds * 2)


def _are_done(joined: Sequence[JoinedWork], db: sqlite3.Connection) -> bool:
    """Do what has joined a transaction. Return False if that fails, so that nothing of it is stored."""
    db.execute("SAVEPOINT joined")
    try:
        for function in joined:
            function(db)
    except Exception:
        db.execute("ROLLBACK TO joined")  # raises if the error has ended the transaction
        return False
    finally:
        db.execute("RELEASE joined")
    return True


def _size_of(writes: list[Write]) -> int:
    """Encode `writes`, and return how many bytes they add to the file."""
    return sum([write.encode() for write in writes])
