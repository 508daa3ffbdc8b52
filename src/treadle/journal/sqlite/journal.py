"""A journal in one SQLite file.

The events that a run appends between two turns of an event loop become one row: a frame of consecutive events,
one JSON object per line. The frames of all runs are committed together at the end of the turn. At level `process`
a commit survives kill -9, because the operating system has the data. At `power` the data is on the disk.

The hot path leads from `writer` (append, hand over) over `SqliteJournal._flush` (the end of the turn) and
`committer` (on the event loop or in a thread) to `commit` (the statements). The docstring of each module says
what is fast there.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError, RunNotFoundError
from treadle.core.patches import load
from treadle.journal.follow import POLL_SECONDS, Changes, PolledNews, follow
from treadle.journal.identity import VARIABLE, is_marked, is_sealed, make_seal
from treadle.journal.protocol import Attached, Clock, RunFilter, RunInfo, StoreOptions
from treadle.journal.sqlite.backup import back_up
from treadle.journal.sqlite.checks import Head, damaged
from treadle.journal.sqlite.committer import Committer
from treadle.journal.sqlite.delete import delete_run, find_contents
from treadle.journal.sqlite.failures import explain_closed
from treadle.journal.sqlite.layout import LEVELS, connect, read_meta, sync_folders
from treadle.journal.sqlite.lease import Lease, Silence, Watch, find_waiting, free_dead, take_lease
from treadle.journal.sqlite.pending import Pending
from treadle.journal.sqlite.reader import Reader
from treadle.journal.sqlite.rows import COLUMNS, facts_from, fill_facts, store_facts
from treadle.journal.sqlite.writer import SqliteWriter

A = TypeVar("A", bound=Attached)
A_co = TypeVar("A_co", covariant=True)
_log = logging.getLogger("treadle.journal")

_TURN_SECONDS = 5.0
"""How long a closing journal waits for an event loop of another thread."""


class SqliteJournal:
    """A journal in an SQLite file, which several processes may have open. Each run has one writer."""

    def __init__(
        self,
        path: str | Path,
        level: str = "process",
        lease_seconds: float = 10.0,
        clock: Clock = time,
    ) -> None:
        self.path = Path(path)
        self._watch = Watch(self.path, lease_seconds, clock)
        self._changes = Changes()
        writing = connect(self.path, _check_level(level))
        self.level = read_meta(writing)[1]
        """The level: the requested one, or that of the file if it is stronger."""
        if self.level == "power":
            sync_folders(self.path)
        self._reader = Reader(connect(self.path, level), self.path, self._watch)
        self._pending = Pending()
        self._committer = Committer(writing, self.path, lease_seconds, clock, self._changes, self._pending)
        self._attached: dict[type[Attached], Attached] = {}
        self._attach_lock = threading.Lock()
        self._close = weakref.finalize(
            self, _close, self._committer, self._reader, self._changes, self._pending, self._attached
        )
        _opened.add(self)

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self.path)!r}, level={self.level!r})"

    @property
    def address(self) -> str:
        """See `Journal.address`."""
        return str(self.path.absolute())

    def create(self, run_id: str, *, is_imported: bool = False) -> SqliteWriter:
        """See `Journal.create`."""
        writer = SqliteWriter(run_id, self._pending, self._mark_dirty, self._committer.give_back)
        if is_imported or not self._is_own:
            writer.seal = "" if is_imported else make_seal(self._origin[0], run_id)
        return writer

    def is_trusted(self, run_id: str) -> bool:
        """See `Journal.is_trusted`."""
        sql = "SELECT seal FROM trust WHERE run=?"
        rows = self._reader.query(sql, (self._reader.key_of(run_id),))
        if self._is_own:
            return not rows or bool(rows[0][0])
        return bool(rows) and is_sealed(rows[0][0], self._origin[0], run_id)

    def trust(self, run_id: str) -> None:
        """See `Journal.trust`."""
        key = self._reader.key_of(run_id)
        seal = make_seal(self._origin[0], run_id) or ("here" if self._is_own else "")
        if not seal:
            raise JournalError(
                f"cannot record that run {run_id!r} is trusted: there is no place for a secret; set {VARIABLE}"
            )
        put = "INSERT OR REPLACE INTO trust VALUES(?,?)"
        self._committer.submit(lambda db: db.execute(put, (key, seal)).rowcount).result()

    @cached_property
    def _origin(self) -> tuple[str, str]:
        """The file's id and the seal of the user who made it."""
        origin, seal = self._reader.query("SELECT id, seal FROM origin")[0]
        return origin, seal

    @cached_property
    def _is_own(self) -> bool:
        """True if this user made the file."""
        origin, seal = self._origin
        return is_sealed(seal, origin) or is_marked(self.path, origin)

    async def acquire(self, run_id: str) -> SqliteWriter:
        """See `Journal.acquire`."""
        last: Silence | None = None
        while True:
            answer = await self._lease(partial(self._take, run_id, last))
            if isinstance(answer, SqliteWriter):
                return answer
            last = answer
            await asyncio.sleep(last.pause_seconds)

    async def claim(self, queue: str, skip: Collection[str] = ()) -> SqliteWriter | None:
        """See `Journal.claim`."""
        return await self._lease(partial(self._claim, queue, skip))

    def news(self) -> PolledNews:
        """See `Journal.news`."""
        return PolledNews(self._reader.version)

    async def _lease(self, take: Callable[[sqlite3.Connection], A_co]) -> A_co:
        """Return what `take` returns in a transaction. If the caller is cancelled, a writer is released."""
        self._check_open()
        self._flush(asyncio.get_running_loop())
        taken = self._committer.submit(take)
        try:
            return await asyncio.wrap_future(taken)
        except asyncio.CancelledError:
            taken.add_done_callback(self._give_back)
            raise

    def read(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> list[e.Event]:
        """See `Journal.read`."""
        return self._reader.read(run_id, after_seq, until_seq)

    def scan(self, run_id: str) -> Iterator[e.Event]:
        """See `Journal.scan`."""
        return self._reader.scan(run_id)

    def find_faults(self) -> Iterator[str]:
        """See `Journal.find_faults`."""
        return self._reader.find_faults()

    def read_blob(self, digest: str) -> bytes:
        """See `Journal.read_blob`."""
        return load(self._reader.read_stored, digest)[1]

    def read_stored(self, digest: str) -> bytes:
        """See `Journal.read_stored`."""
        return self._reader.read_stored(digest)

    def runs(
        self,
        filter: RunFilter | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[RunInfo]:
        """See `Journal.runs`. The first listing of a file of an older Treadle reads its runs once."""
        while self._reader.has_unknown_facts() and self._committer.submit(fill_facts).result():
            pass
        return self._reader.runs(filter or RunFilter(), after, limit, newest_first=newest_first)

    def follow(self, run_id: str | None, after_seq: int | None = 0) -> AsyncIterator[e.Event]:
        """See `Journal.follow`. Events of other processes are seen within `POLL_SECONDS`."""
        return follow(self._reader, self._changes, run_id, after_seq, POLL_SECONDS)

    def delete(self, run_id: str) -> None:
        """See `Journal.delete`."""
        self._check_open()
        unused = find_contents(self._reader, run_id)
        try:
            self._committer.submit(
                lambda db: delete_run(db, run_id, self._committer.owner_id, self._watch, unused)
            ).result()
        except RunNotFoundError:
            raise RunNotFoundError(f"run {run_id!r} not found in the journal {str(self.path)!r}") from None
        self._changes.announce([run_id])

    def backup(self, path: str | Path) -> int:
        """See `Journal.backup`."""
        self._check_open()
        return back_up(self.path, Path(path))

    def attach(self, kind: type[A], make: Callable[[Path | None, str], A]) -> A:
        """Return the journal's object of a kind. The first call makes it, from the file's path and level.

        Raises: `JournalError` if the journal is closed; what `make` raises.
        """
        with self._attach_lock:
            self._check_open()
            if kind not in self._attached:
                self._attached[kind] = make(self.path, self.level)
            found: Any = self._attached[kind]
        return found  # type: ignore[no-any-return]

    def close(self) -> None:
        """See `Journal.close`."""
        self._close()

    def __enter__(self) -> "SqliteJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disown(self) -> None:
        """Leave the file to the parent, in a forked child.

        SQLite must not close a connection there: that could change the file, without the parent's locks. So
        neither `close` nor the end of the process does, and the connections are never freed.
        """
        import ctypes

        self._close.detach()
        self._pending.clear()
        for db in (self._committer.disown(), self._reader.disown()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
        for item in self._attached.values():
            item.disown()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))

    def _check_open(self) -> None:
        if not self._close.alive:
            raise explain_closed(self.path)

    def _take(self, run_id: str, last: Silence | None, db: sqlite3.Connection) -> SqliteWriter | Silence:
        """Take a run's lease, in the committer's thread. See `take_lease`."""
        try:
            lease = take_lease(db, run_id, self._committer.owner_id, self._watch, last)
        except RunNotFoundError:
            raise RunNotFoundError(f"run {run_id!r} not found in the journal {str(self.path)!r}") from None
        if isinstance(lease, Silence):
            return lease
        row = self._read_end(db, lease.key)
        if (
            row[0] is not None and row[1] is None
        ):  # an older Treadle wrote the facts, or they must be estimated
            store_facts(db, Head(run_id, lease.key, row[0], None))
            row = self._read_end(db, lease.key)
        frame, events, last_seq, checksum, *columns = row
        facts = facts_from(run_id, tuple(columns))
        if events != last_seq:
            raise damaged(run_id, f"its newest frame ends with event {last_seq} of {events}")
        return SqliteWriter(
            run_id,
            self._pending,
            self._mark_dirty,
            self._committer.give_back,
            lease,
            frame,
            checksum,
            facts,
        )

    def _claim(self, queue: str, skip: Collection[str], db: sqlite3.Connection) -> SqliteWriter | None:
        """Take the lease of a waiting run, in the committer's thread."""
        free_dead(db, queue, self._committer.owner_id, self._watch)
        for key, run_id in find_waiting(db, queue):
            if run_id in skip or not self.is_trusted(run_id):
                continue
            try:
                writer = self._take(run_id, None, db)
            except JournalError as error:
                _log.warning("run %r of the queue %r is left out: %s", run_id, queue, error)
                db.execute("UPDATE runs SET owner=NULL WHERE id=?", (key,))
                continue
            assert isinstance(writer, SqliteWriter)  # nobody has the lease
            return writer
        return None

    def _read_end(self, db: sqlite3.Connection, key: int) -> tuple[Any, ...]:
        """Return a run's newest frame, how many events it has, the frame's last seq and checksum, and its facts."""
        return db.execute(  # type: ignore[no-any-return]
            f"SELECT heads.frame, heads.events, seq + count - 1, frames.checksum, {COLUMNS} FROM runs "
            "LEFT JOIN heads ON heads.run = runs.id LEFT JOIN frames ON frames.id = heads.frame WHERE runs.id=?",
            (key,),
        ).fetchone()

    def _give_back(self, taken: "Future[Any]") -> None:
        """Release a lease that was taken for a caller who was cancelled meanwhile."""
        if taken.cancelled() or taken.exception() is not None:
            return
        if isinstance(writer := taken.result(), SqliteWriter):
            self._committer.give_back(Lease(writer.key, writer.token))

    def _mark_dirty(self, writer: SqliteWriter) -> None:
        """Hand over the open write of `writer`, with those of other runs, after the event loop's next turn."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._pending.add(loop, writer):
            # One turn later more runs have appended something, so that there are fewer commits, each of more runs.
            loop.call_soon(loop.call_soon, self._flush, loop)
            if not self._committer.is_watching:
                self._committer.watch()

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        writes = self._pending.take(loop)
        if writes and not self._committer.commit_now(writes):
            self._committer.put(loop, writes)


_opened: "weakref.WeakSet[SqliteJournal]" = weakref.WeakSet()
_held = threading.local()
_FORK_SECONDS = 1.0
"""How long a fork waits for a thread that uses SQLite, which may be waiting for the disk."""


def _hold() -> None:
    """Keep other threads out of SQLite while this thread forks: a lock that they hold would stay locked in the
    child."""
    journals = [journal for journal in _opened if journal._close.alive]
    locks = [
        lock for item in journals for lock in (item._committer.db_lock, item._pending.lock, item._reader.lock)
    ]
    _held.locks = [lock for lock in locks if lock.acquire(timeout=_FORK_SECONDS)]


def _let_go() -> None:
    for lock in _held.locks:
        lock.release()


def _disown_all() -> None:
    for journal in list(_opened):
        journal._disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_disown_all)


def open_store(address: str, options: StoreOptions) -> SqliteJournal:
    """Open the file at `address`. This is the opener of plain paths.

    Raises: `JournalError` if the file must exist and does not.
    """
    if options.must_exist and not Path(address).exists():
        raise JournalError(f"there is no journal at {address!r}; give another path, or run something first")
    if Path(address).is_dir():
        raise JournalError(f"{address!r} is a folder; give the path of a file in it")
    return SqliteJournal(address, options.level, options.lease_seconds, options.clock)


def _check_level(level: str) -> str:
    """Return `level` if a file can reach it. Raises: `ConfigError`."""
    if level not in LEVELS:
        raise ConfigError(
            f"unknown journal level {level!r}; a file has {' or '.join(map(repr, LEVELS))}, and "
            "open_journal('memory:') is a journal in memory"
        )
    return level


def _close(
    committer: Committer,
    reader: Reader,
    changes: Changes,
    pending: Pending,
    attached: dict[type[Attached], Attached],
) -> None:
    for item in attached.values():
        item.close()
    for loop in pending.loops():
        if _runs_elsewhere(loop):
            _wait_for_turn(loop)
        elif writes := pending.take(loop):
            committer.put(loop, writes)
    committer.stop()
    changes.close()
    reader.close()


def _runs_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return loop.is_running() and loop is not asyncio.get_running_loop()
    except RuntimeError:
        return True


def _wait_for_turn(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until `loop`, in its own thread, has handed over what was appended in it, unless it hangs."""
    is_over = threading.Event()
    with contextlib.suppress(RuntimeError):  # closed
        # What was appended is handed over two turns later.
        loop.call_soon_threadsafe(loop.call_soon, loop.call_soon, is_over.set)
        is_over.wait(_TURN_SECONDS)
