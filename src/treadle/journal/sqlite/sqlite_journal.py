"""A journal in one SQLite file.

At level `process` a commit survives kill -9, because the operating system has the data. At `power` the data is on
the disk.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from treadle.core.errors import JournalError
from treadle.http.locks import new_lock
from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes, PolledNews
from treadle.journal.identity import is_marked
from treadle.journal.named_files import suggest_path
from treadle.journal.protocol import Attached, Clock, StoreOptions
from treadle.journal.sqlite.packing import forget_run
from treadle.journal.sqlite.sqlite_committer import FileCommitter, query_in
from treadle.journal.sqlite.sqlite_layout import LEVELS, back_up, connect, read_meta, sync_folders
from treadle.journal.sqlite.sqlite_reader import FileReader
from treadle.journal.sqlite.sqlite_relay import FileRelay
from treadle.journal.tables.journal import TableJournal, check_level
from treadle.journal.tables.leases import IS_QUEUED, Leases, this_owner
from treadle.journal.tables.reader import Unused
from treadle.journal.tables.table_rows import Query
from treadle.journal.tables.watch import RunWatch

A = TypeVar("A", bound=Attached)
T = TypeVar("T")


class SqliteLeases(Leases):
    """The `Leases` of a file."""

    HOLDERS = "SELECT id, host, space, pid, started, lease_seconds, beat_at, ticks, NULL FROM owners"
    FIND = "SELECT id, owner, token, losses FROM runs WHERE run_id=?"
    NEXT = (
        f"SELECT id, run_id, token, losses FROM runs WHERE {IS_QUEUED} AND owner IS NULL AND losses <= ? "
        "AND {condition} ORDER BY losses, id LIMIT 1"
    )
    FREE = f"UPDATE runs SET owner=NULL, losses=losses+1 WHERE {IS_QUEUED} AND owner=?"
    TAKEOVER = "UPDATE meta SET takeovers = takeovers + 1"

    def _set(self, query: Query, key: int, token: int, losses: int) -> None:
        query("UPDATE runs SET owner=?, token=?, losses=? WHERE id=?", (self.owner_id, token, losses, key))

    def beat(self, query: Query) -> None:
        times = (self.clock.time(), self.clock.monotonic())
        if self.owner_id:
            query("UPDATE owners SET beat_at=?, ticks=? WHERE id=?", (*times, self.owner_id))
            return
        owner = this_owner()
        values = (owner.host, owner.space, owner.pid, owner.started, *times, self.lease_seconds)
        self.owner_id = query(f"{_REGISTER} VALUES(?,?,?,?,?,?,?) RETURNING id", values)[0][0]


_REGISTER = "INSERT INTO owners(host, space, pid, started, beat_at, ticks, lease_seconds)"


class SqliteJournal(TableJournal[sqlite3.Connection]):
    """A journal in an SQLite file, which several processes may have open. Each run has one writer."""

    def __init__(
        self,
        path: str | Path,
        level: str = "process",
        lease_seconds: float = 10.0,
        clock: Clock = time,
        *,
        packs: bool = False,
    ) -> None:
        self.path = Path(path)
        check_level(level, LEVELS, "a file")
        writing = connect(self.path, level)
        leases = SqliteLeases(self.path.resolve(), lease_seconds, clock)
        self.level = read_meta(writing)[1]
        """The level: the requested one, or that of the file if it is stronger."""
        if self.level == "power":
            sync_folders(self.path)
        self._attached: dict[type[Attached], Attached] = {}
        self._attach_lock = new_lock()
        self._file_reader = reader = FileReader(connect(self.path, level), self.path, leases)
        changes = Changes(RunWatch(reader, leases).look)
        driven = DrivenRuns(reader.inbox)
        relay = FileRelay(self.path.resolve(), driven, changes.look)
        driven.relay = self._attached[FileRelay] = relay
        hooks = (leases, changes, driven, relay.look)
        committer = self._file_committer = FileCommitter(writing, self.path, *hooks, learns=packs)
        super().__init__(reader, committer)

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self.path)!r}, level={self.level!r})"

    @property
    def address(self) -> str:
        return str(self.path.absolute())

    def news(self, queue: str | None = None) -> PolledNews:
        return PolledNews(partial(self._file_reader.version, queue))

    def backup(self, path: str | Path) -> int:
        self._check_open()
        return back_up(self.path, Path(path))

    def slim(self) -> tuple[int, int]:
        """Compress all events, and give free space back to the system. Return the file's bytes before and after.

        Blocks. What other processes write meanwhile waits for each step of it. Raises: `JournalError`.
        """
        self._check_open()
        files = [self.path, self.path.with_name(f"{self.path.name}-wal")]
        before = sum([file.stat().st_size for file in files if file.exists()])
        self._file_committer.slim()
        return before, sum([file.stat().st_size for file in files if file.exists()])

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

    def _parts(self) -> dict[type[Attached], Attached]:
        return self._attached

    def _unknown_facts(self) -> str:
        # A damaged text must not hide the other runs.
        return super()._unknown_facts().replace(" run_id,", " CAST(run_id AS BLOB),")

    def _is_marked(self, origin: str) -> bool:
        return is_marked(self.path, origin)

    def _query_in(self, db: sqlite3.Connection) -> Query:
        return query_in(db)

    def _delete(self, run_id: str, unused: Unused, db: sqlite3.Connection) -> None:
        """See `TableJournal._delete`. Deleted rows are overwritten with zeros."""
        with _overwriting(db):
            key = db.execute("SELECT id FROM runs WHERE run_id=?", (run_id,)).fetchone()
            super()._delete(run_id, unused, db)
            forget_run(self._query_in(db), key[0])

    def _change_resources(self, work: Callable[[Query], T]) -> T:
        def change(db: sqlite3.Connection) -> T:
            with _overwriting(db):
                return work(self._query_in(db))

        self._check_open()
        return self._committer.submit(change).result()


@contextmanager
def _overwriting(db: sqlite3.Connection) -> Iterator[None]:
    """Overwrite with zeros what is deleted within the block."""
    secure = db.execute("PRAGMA secure_delete").fetchone()[0]
    db.execute("PRAGMA secure_delete=ON")
    try:
        yield
    finally:
        db.execute(f"PRAGMA secure_delete={secure}")


def open_store(address: str, options: StoreOptions) -> SqliteJournal:
    """Open the file at `address`. This is the opener of plain paths.

    Raises: `JournalError` if the file must exist and does not.
    """
    path = Path(address)
    if options.must_exist and not path.exists():
        hint = suggest_path(path, "give another path, or run something first")
        raise JournalError(f"there is no journal at {address!r}{hint}")
    if path.is_dir():
        raise JournalError(f"{address!r} is a folder; give the path of a file in it")
    return SqliteJournal(address, options.level, options.lease_seconds, options.clock, packs=options.packs)
