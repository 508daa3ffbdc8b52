"""The tables in PostgreSQL, their migrations, and the statements for leases. They are in the schema `treadle`.

They are those of a file (see `sqlite_layout`) without `dictionaries`. Here `heads` also has the lease's token,
`frames` the transaction that wrote a row, and `meta` the version of the layout and the journal's level.

A frame's number is that of its first event. `heads` is updated with every commit, so it has no index over a column
that changes, and half of each page is free for new versions of its rows. `frames.xact` is the transaction that
wrote a frame: transactions get their numbers in another order than they are committed in, and together with a
snapshot it tells which frames are new.

A run's token is also in `heads`. A commit changes only rows of `heads` with the writer's token, and holds their
locks until its end. Therefore a process that lost its run cannot append to it.
"""

import secrets

from treadle.core.errors import JournalError
from treadle.journal.identity import make_seal
from treadle.journal.postgres.link import LEVELS, Db, Link, refuse_pooler
from treadle.journal.protocol import APPLICATION_ID
from treadle.journal.tables.leases import IS_QUEUED, Leases, this_owner
from treadle.journal.tables.table_rows import Query, read_migrations

MIGRATIONS = read_migrations(__file__)
"""The migrations in `migrations.sql`: number n, from 0, changes a journal of version n to version n + 1."""


def prepare(link: Link, *, must_exist: bool) -> None:
    """Make the tables, or migrate them to the current version, if necessary, and set the level of `link`.

    The journal keeps the strongest level that it was ever opened with. Raises: `JournalError`.
    """
    link.run(lambda db: refuse_pooler(link))
    version = link.run(_version)
    if version is None and must_exist:
        raise JournalError(
            f"there is no journal in {link.address.name!r}; give another database, or run something first"
        )
    if version is not None and version > len(MIGRATIONS):
        raise JournalError(
            f"{link.address.name!r} was written by a newer Treadle (version {version}, this one reads up to "
            f"{len(MIGRATIONS)}); upgrade treadle"
        )
    if version != len(MIGRATIONS):
        link.run(lambda db: _migrate(db, link.address.name))
    link.run(_adopt)
    level = link.run(lambda db: _choose_level(db, link.level))
    if level == "power":
        link.run(lambda db: _refuse_unsafe(db, link.address.name))
    if level != link.level:
        link.level = level
        link.close()


def _version(db: Db) -> int | None:
    if db.execute("SELECT to_regclass('treadle.meta')").fetchone() == (None,):
        return None
    row = db.execute("SELECT version FROM meta").fetchone()
    return int(row[0]) if row is not None else None


def _migrate(db: Db, name: str) -> None:
    with db.transaction():
        # Others that open the journal at the same time wait here.
        db.execute("SELECT pg_advisory_xact_lock(%s)", (APPLICATION_ID,))
        encoding = db.execute("SHOW server_encoding").fetchone()
        if encoding != ("UTF8",):
            raise JournalError(
                f"the database {name!r} has the encoding {encoding and encoding[0]!r}; make one with UTF8"
            )
        db.execute("CREATE SCHEMA IF NOT EXISTS treadle")
        done = _version(db) or 0
        for script in MIGRATIONS[done:]:
            db.execute(script.encode())
        db.execute("UPDATE meta SET version=%s", (len(MIGRATIONS),))
        if not db.execute("SELECT 1 FROM origin").fetchone():
            origin = secrets.token_hex(16)
            db.execute("INSERT INTO origin VALUES(%s,%s)", (origin, make_seal(origin)))


def _adopt(db: Db) -> None:
    """Adapt the numbers of transactions to this server, if the tables were copied from another one. A transaction
    there may have a number that this server has not reached. All are moved below zero, in order."""
    is_foreign = (
        "SELECT max(xact) >= pg_snapshot_xmax(pg_current_snapshot())::text::int8, max(xact) FROM frames"
    )
    if not (row := db.execute(is_foreign).fetchone()) or not row[0]:
        return
    with db.transaction():
        db.execute("LOCK TABLE frames IN SHARE ROW EXCLUSIVE MODE")
        row = db.execute(is_foreign).fetchone()
        if row and row[0]:
            db.execute("UPDATE frames SET xact = xact - %s - 1", (row[1],))


def _choose_level(db: Db, level: str) -> str:
    if level == "power":
        db.execute("UPDATE meta SET level='power' WHERE level<>'power'")
    row = db.execute("SELECT level FROM meta").fetchone()
    return "power" if row is None or row[0] not in LEVELS else str(row[0])


def _refuse_unsafe(db: Db, name: str) -> None:
    """Raise an error for a server that reports commits before they are on its disk."""
    if db.execute("SHOW fsync").fetchone() != ("on",):
        raise JournalError(
            f"the server of {name!r} has fsync = off, so nothing there survives a power loss; switch it on, or "
            "open the journal at level 'process'"
        )


_BEAT = (
    "INSERT INTO owners(id, host, space, pid, started, beat_at, lease_seconds) "
    "VALUES(?, ?, ?, ?, ?, clock_timestamp(), ?) ON CONFLICT(id) DO UPDATE SET beat_at = clock_timestamp()"
)


class PostgresLeases(Leases):
    """The `Leases` of a journal in PostgreSQL. Heartbeats have the time of the server."""

    HOLDERS = (
        "SELECT id, host, space, pid, started, lease_seconds, extract(epoch FROM beat_at)::float8, NULL::float8, "
        "extract(epoch FROM clock_timestamp() - beat_at)::float8 FROM owners"
    )
    FIND = (
        "SELECT runs.id, runs.owner, runs.token, losses FROM heads JOIN runs ON runs.id = heads.run "
        "WHERE run_id=? FOR UPDATE OF heads FOR NO KEY UPDATE OF runs"
    )
    NEXT = (
        f"SELECT id, run_id, runs.token, losses FROM runs JOIN heads ON heads.run = runs.id WHERE {IS_QUEUED} "
        "AND owner IS NULL AND losses <= ? AND {condition} ORDER BY losses, id LIMIT 1 "
        "FOR UPDATE OF heads, runs SKIP LOCKED"
    )
    FREE = (
        "WITH freed AS (SELECT run FROM heads JOIN runs ON runs.id = heads.run "
        f"WHERE {IS_QUEUED} AND owner = ? FOR UPDATE OF heads SKIP LOCKED), "
        "fenced AS (UPDATE heads SET token = token + 1 FROM freed WHERE heads.run = freed.run) "
        "UPDATE runs SET owner = NULL, token = token + 1, losses = losses + 1 FROM freed WHERE id = freed.run"
    )

    def _set(self, query: Query, key: int, token: int, losses: int) -> None:
        query("UPDATE heads SET token=? WHERE run=?", (token, key))
        values = (self.owner_id, token, losses, key)
        query("UPDATE runs SET owner=?, token=?, losses=? WHERE id=?", values)

    def beat(self, query: Query) -> None:
        if not self.owner_id:
            self.owner_id = query("SELECT nextval(pg_get_serial_sequence('owners', 'id'))", ())[0][0]
        owner = this_owner()
        values = (self.owner_id, owner.host, owner.space, owner.pid, owner.started, self.lease_seconds)
        query(_BEAT, values)
