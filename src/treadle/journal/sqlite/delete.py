"""The deletion of one run from the file."""

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from treadle.core.errors import LeaseHeldError
from treadle.journal.deletion import digests_in, find_unused
from treadle.journal.sqlite.lease import Silence, Watch, take_lease
from treadle.journal.sqlite.reader import Reader

_PAGE = 200
"""How many rows are read at a time."""


class Unused(NamedTuple):
    """The contents that only one run needs, as of a frame."""

    digests: set[str]
    frame: int
    """The newest frame that was searched."""


def find_contents(reader: Reader, run_id: str) -> Unused:
    """Return the contents that only this run needs. The whole file is read, unless the run has no contents.

    Raises: `RunNotFoundError`.
    """
    key = reader.key_of(run_id)
    newest = int(reader.query("SELECT coalesce(max(id), 0) FROM frames")[0][0])
    mine: set[str] = set()
    for (body,) in _pages(reader, "SELECT id, body FROM frames WHERE id > ? AND run = ? ORDER BY id", key):
        mine |= digests_in(bytes(body))
    if not mine:
        return Unused(mine, newest)
    others = _pages(reader, "SELECT id, body FROM frames WHERE id > ? AND run != ? ORDER BY id", key)
    stored = _pages(
        reader, "SELECT digest, digest, content FROM blobs WHERE digest > ? ORDER BY digest", first=""
    )
    return Unused(
        find_unused(
            mine,
            reader.read_stored,
            (body for (body,) in others),
            ((digest, content) for digest, content in stored),
        ),
        newest,
    )


def _pages(reader: Reader, sql: str, *values: object, first: object = 0) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query without their first column, by which they are ordered, few of them at a time."""
    last = first
    while rows := reader.query(f"{sql} LIMIT {_PAGE}", (last, *values)):
        last = rows[-1][0]
        yield from [row[1:] for row in rows]


def delete_run(db: sqlite3.Connection, run_id: str, owner_id: int, watch: Watch, unused: Unused) -> None:
    """Delete a run within a transaction. Deleted rows are overwritten with zeros.

    Raises: `RunNotFoundError`; `LeaseHeldError` if the run is being driven.
    """
    taken = take_lease(db, run_id, owner_id, watch, None)
    if isinstance(taken, Silence):
        raise LeaseHeldError(
            f"run {run_id!r} may still be driven by a process that was busy for a while; try again later"
        )
    digests = set(unused.digests)
    for (body,) in db.execute("SELECT body FROM frames WHERE id > ? AND run != ?", (unused.frame, taken.key)):
        digests -= digests_in(body)
    secure = db.execute("PRAGMA secure_delete").fetchone()[0]
    db.execute("PRAGMA secure_delete=ON")
    try:
        for table in ("frames", "heads", "trust"):
            db.execute(f"DELETE FROM {table} WHERE run=?", (taken.key,))
        db.execute("DELETE FROM runs WHERE id=?", (taken.key,))
        db.executemany("DELETE FROM blobs WHERE digest=?", [(digest,) for digest in digests])
    finally:
        db.execute(f"PRAGMA secure_delete={secure}")
