"""The deletion of one run from the file."""

import sqlite3
from itertools import chain

from treadle.journal.sqlite.lease import Watch, take_lease
from treadle.journal.tables.delete import Unused, refuse_silent, still_unused
from treadle.journal.tables.owner import Silence


def delete_run(db: sqlite3.Connection, run_id: str, owner_id: int, watch: Watch, unused: Unused) -> None:
    """Delete a run within a transaction. Deleted rows are overwritten with zeros.

    Raises: `RunNotFoundError`; `LeaseHeldError` if the run is being driven.
    """
    taken = take_lease(db, run_id, owner_id, watch, None)
    if isinstance(taken, Silence):
        raise refuse_silent(run_id)
    newer = db.execute("SELECT body FROM frames WHERE id > ? AND run != ?", (unused.position, taken.key))
    sent = db.execute("SELECT body FROM inbox WHERE run != ? AND body IS NOT NULL", (taken.key,))
    digests = still_unused(unused, (body for (body,) in chain(newer, sent)))
    secure = db.execute("PRAGMA secure_delete").fetchone()[0]
    db.execute("PRAGMA secure_delete=ON")
    try:
        for table in ("frames", "heads", "trust", "inbox"):
            db.execute(f"DELETE FROM {table} WHERE run=?", (taken.key,))
        db.execute("DELETE FROM runs WHERE id=?", (taken.key,))
        db.executemany("DELETE FROM blobs WHERE digest=?", [(digest,) for digest in digests])
    finally:
        db.execute(f"PRAGMA secure_delete={secure}")
