"""The statements for leases in PostgreSQL.

A run's token is also in `heads`. A commit changes only rows of `heads` with the writer's token, and holds their
locks until its end. Therefore a process that lost its run cannot append to it.
"""

from treadle.journal.tables.leases import IS_QUEUED, Leases, this_owner
from treadle.journal.tables.table_rows import Query

_BEAT = (
    "INSERT INTO owners(id, host, space, pid, started, beat_at, lease_seconds) "
    "VALUES(?, ?, ?, ?, ?, clock_timestamp(), ?) ON CONFLICT(id) DO UPDATE SET beat_at = clock_timestamp()"
)
RELEASE = "UPDATE runs SET owner=NULL, losses=0 WHERE"


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
        """Send a heartbeat; the first one registers this journal as an owner."""
        if not self.owner_id:
            self.owner_id = query("SELECT nextval(pg_get_serial_sequence('owners', 'id'))", ())[0][0]
        owner = this_owner()
        values = (self.owner_id, owner.host, owner.space, owner.pid, owner.started, self.lease_seconds)
        query(_BEAT, values)

    def leave(self, query: Query) -> None:
        """Release all leases, and remove this journal from the owners."""
        query(f"{RELEASE} owner=?", (self.owner_id,))
        query("DELETE FROM owners WHERE id=?", (self.owner_id,))
