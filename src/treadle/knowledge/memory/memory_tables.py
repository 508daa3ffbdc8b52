"""The tables of memories in SQLite, and the values that their rows stand for."""

import ctypes
import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from treadle.core.errors import ConfigError, JournalError
from treadle.http.locks import new_reentrant_lock
from treadle.journal.sqlite.failures import ERRORS, explain, has_code
from treadle.journal.sqlite.sqlite_layout import connect, read_meta, set_level, transaction
from treadle.journal.tables.table_rows import explain_closed
from treadle.knowledge.memory.protocol import (
    MAX_CHARS,
    AuditRecord,
    Draft,
    MemoryEntry,
    Store,
)

VERSION = 1
SPACE_BITS = 32

CONTENT = "text, author, written_at, epistemic, metadata, reason, confidence"
"""The columns that belong to a version."""

OF_SOURCE = f"store = '{Store.DOCUMENTS}' AND json_extract(metadata, '$.source')"
"""A condition about the document that a piece belongs to."""
_BY_SOURCE = (
    "CREATE INDEX memory_entries_by_source ON memory_entries(json_extract(metadata, '$.source')) "
    f"WHERE store = '{Store.DOCUMENTS}'"
)


class Database:
    """The connections to the tables of memories: one that writes and one that reads.

    A journal in memory has one connection for both. If nothing can be written where the file is, and it has no
    memories yet, both see empty tables.
    """

    def __init__(self, path: Path | None, level: str) -> None:
        self._path = path
        self._name = Path("memory:") if path is None else path
        self._is_closed = False
        self._write_lock = self._read_lock = new_reentrant_lock(is_awaited=True)
        self._writing = self._reading = self._open(level)
        if path is not None and not self._is_substitute:
            self._read_lock = new_reentrant_lock(is_awaited=True)
            self._reading = connect(path, level)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the writing connection in a transaction that is committed at the end of the block, or rolled back.

        Raises: `JournalError`.
        """
        with self._write_lock, self._explained(), transaction(self._writing):
            yield self._writing

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hold the reading connection in a transaction, so that all queries of the block see the same entries.

        Raises: `JournalError`.
        """
        with self._read_lock, self._explained():
            db = self._reading
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("ROLLBACK")

    def owners(self) -> list[tuple[str, str]]:
        """See `MemoryStore.owners`."""
        with self.reading() as db:
            return db.execute(
                "SELECT persona, user FROM memory_spaces AS space WHERE EXISTS (SELECT 1 FROM memory_entries "
                "WHERE id BETWEEN space.id << ? AND (space.id + 1 << ?) - 1) ORDER BY id",
                (SPACE_BITS, SPACE_BITS),
            ).fetchall()

    def purge(self) -> None:
        """Overwrite what was deleted: in the full-text index, and in the file's log once nobody reads it."""
        with self._write_lock, self._explained():
            self._writing.execute("INSERT INTO memory_text(memory_text) VALUES('optimize')")
            if self._path is not None:
                self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """See `Attached.close`."""
        with self._write_lock, self._read_lock:
            self._is_closed = True
            self._reading.close()
            self._writing.close()

    def disown(self) -> None:
        """See `Attached.disown`."""
        self._is_closed = True
        for db in (self._writing, self._reading):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        if self._is_closed:
            raise explain_closed(str(self._name))
        try:
            yield
        except ERRORS as error:
            raise explain(error, self._name) from error

    def _open(self, level: str) -> sqlite3.Connection:
        """Return a connection to a database that has the tables. Raises: `JournalError`."""
        self._is_substitute = False
        if self._path is None:
            db = _in_memory()
            _make_tables(db)
            db.execute(_BY_SOURCE)  # connections to files trust no functions in an index
            return db
        db = connect(self._path, level)
        try:
            set_level(db, read_meta(db)[1])
            db.execute("PRAGMA secure_delete=ON")
            version = _version_of(db)
            if version is None:
                _make_tables(db)
        except ERRORS as error:
            db.close()
            if not has_code(error, sqlite3.SQLITE_READONLY):
                raise explain(error, self._path) from error
            self._is_substitute = True
            db = _in_memory()
            _make_tables(db)
            db.execute("PRAGMA query_only=ON")
            return db
        if version is not None and version > VERSION:
            db.close()
            raise JournalError(
                f"the memories in {str(self._path)!r} were written by a newer Treadle (version {version}, this one "
                f"reads up to {VERSION}); upgrade treadle"
            )
        return db


def _in_memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)
    db.execute("PRAGMA secure_delete=ON")
    return db


def _version_of(db: sqlite3.Connection) -> int | None:
    """Return the version of the tables; `None` if there are none."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name='memory_meta'").fetchone():
        return None
    return int(db.execute("SELECT version FROM memory_meta").fetchone()[0])


def _make_tables(db: sqlite3.Connection) -> None:
    with transaction(db):
        if _version_of(db) is None:  # another process may have made them meanwhile
            for statement in Path(__file__).with_name("memory.sql").read_text("utf-8").split(";"):
                db.execute(statement)
            db.execute("INSERT INTO memory_meta VALUES(?)", (VERSION,))


ENTRY = f"id, store, version, created_at, strength, used_at, merged, {CONTENT}"
"""The columns of an entry with its newest version."""
NEWEST_FIRST = f"CASE WHEN store = '{Store.EPISODIC}' THEN written_at ELSE used_at END DESC, id DESC"
"""The order by `MemoryEntry.said_at`."""
AUDIT = "id, at, action, store, author, entry, version, key, run_id, turn, reason"
"""The columns of the audit trail, in the order of the fields of `AuditRecord`."""
PLACES = ",".join("?" * len(CONTENT.split(",")))


def write_content(draft: Draft, at: float) -> tuple[object, ...]:
    """Return the values of the columns `CONTENT`."""
    metadata = msgspec.json.encode(draft.metadata).decode() if draft.metadata else None
    return (draft.text, draft.author, at, draft.epistemic, metadata, draft.reason, draft.confidence)


def read_entry(row: tuple[Any, ...]) -> MemoryEntry:
    """Return the entry of a row with the columns `ENTRY`."""
    found = dict(zip(ENTRY.split(", "), row, strict=True))
    return _to_entry(found | {"entry_id": write_id(found["store"], found["id"])})


def read_version(newest: MemoryEntry, version: int, content: Sequence[Any]) -> MemoryEntry:
    """Return an older version of an entry."""
    older = dict(zip(CONTENT.split(", "), content, strict=True))
    return _to_entry(msgspec.to_builtins(newest) | older | {"version": version})


def _to_entry(found: dict[str, Any]) -> MemoryEntry:
    metadata = {} if found["metadata"] is None else msgspec.json.decode(found["metadata"])
    return msgspec.convert(found | {"metadata": metadata}, MemoryEntry)


def read_audit(row: tuple[Any, ...]) -> AuditRecord:
    """Return the audit record of a row with the columns `AUDIT`."""
    found = dict(zip(AuditRecord.__struct_fields__, row, strict=True))
    if found["entry_id"] is not None:
        found["entry_id"] = write_id(found["store"], found["entry_id"])
    return msgspec.convert(found, AuditRecord)


def digest_of(text: str) -> bytes:
    """Return the hash under which the embedding of a text is kept."""
    return hashlib.sha256(text.encode()).digest()


def check_text(text: str) -> str:
    """Return the text of a memory in the form in which it is stored. Raises: `ConfigError`."""
    plain = text.encode(errors="replace").decode().replace("\0", "").strip()
    if not plain:
        raise ConfigError("the text of a memory is empty; give what is to be remembered")
    if len(plain) > MAX_CHARS:
        raise ConfigError(
            f"the text of a memory has {len(plain):,} characters, and at most {MAX_CHARS:,} fit; shorten it, "
            "or give the text as a document"
        )
    return plain


def write_id(store: str, row: int) -> str:
    """Return the id of the entry in a row."""
    return f"{store}-{row & ((1 << SPACE_BITS) - 1)}"


def read_id(entry_id: str, low: int) -> int:
    """Return the row of an entry, in the namespace whose rows begin with `low`. Raises: `ConfigError`."""
    store, _, number = entry_id.rpartition("-")
    if store not in set(Store) or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise ConfigError(
            f"{entry_id!r} is not the id of a memory; ids look like 'episodic-17' (`treadle memory list`)"
        )
    return low + int(number)
