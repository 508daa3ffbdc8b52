"""The committer of PostgreSQL.

What is fast here, and why. A commit waits for the server's disk, so a thread makes all of them, and the event loop
goes on meanwhile. What is handed over while a commit is under way is committed together in the next one, so that
there are fewer commits, each of more runs, the longer a commit takes.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any, TypeVar

from treadle.journal.follow import Changes
from treadle.journal.postgres.commit import Entry, keep, plan
from treadle.journal.postgres.lease import Tenant
from treadle.journal.postgres.link import NOTIFY, Db, Link
from treadle.journal.postgres.listener import Listener
from treadle.journal.postgres.reader import run_query
from treadle.journal.protocol import Clock
from treadle.journal.tables.committer import Committer
from treadle.journal.tables.owner import Lease
from treadle.journal.tables.pending import Pending
from treadle.journal.tables.writer import Write

T = TypeVar("T")

_COMMIT_BYTES = 32 * 1024 * 1024
"""How much a commit has at most, unless one run alone has more."""
_RELEASE = "UPDATE runs SET owner=NULL WHERE id=%s AND token=%s"


class Transaction:
    """What a transaction is given that may have to be repeated."""

    def __init__(self) -> None:
        self.db: Db
        self.taken: dict[int, int] = {}
        """The tokens that earlier tries have set, by the run's row."""
        self.deleted: set[str] = set()
        """The runs that earlier tries have deleted."""

    def query(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for values, and return its rows."""
        return run_query(self.db, sql, values)


class PostgresCommitter(Committer[Transaction]):
    """The `Committer` of a journal in PostgreSQL."""

    def __init__(
        self,
        link: Link,
        lease_seconds: float,
        clock: Clock,
        changes: Changes,
        pending: Pending,
        listener: Listener,
    ) -> None:
        super().__init__(link.address.name, lease_seconds, clock, changes, pending)
        self._link = link
        self._listener = listener
        self.tenant = Tenant(link.address.name, lease_seconds)
        self._beat_at = -math.inf
        """The time of the last heartbeat, by `clock.monotonic`."""
        self.start()

    @property
    def owner_id(self) -> int:
        """See `Committer.owner_id`."""
        return self.tenant.id

    def disown(self) -> object:
        """See `Committer.disown`."""
        self._forget()
        self.tenant.id = 0
        return self._link.db

    def _give_up(self) -> None:
        self._link.is_closing.set()

    # The following methods run in the thread.

    def _commit(self, writes: list[Write]) -> None:
        chunk: list[Entry] = []
        size = 0
        for entry in plan(writes):
            chunk.append(entry)
            size += entry.size
            if size > _COMMIT_BYTES:
                self._keep(chunk)
                chunk, size = [], 0
        self._keep(chunk)
        self._announce(writes)

    def _announce(self, writes: list[Write]) -> None:
        self._listener.version += 1
        super()._announce(writes)

    def _keep(self, entries: list[Entry]) -> None:
        if not entries and not self.orphans:
            return
        now = self._clock.time()
        orphans = list(self.orphans)

        def work(db: Db) -> None:
            self._beat_if_due(db)
            keep(db, entries, orphans, self.tenant.id, now)

        try:
            self._link.run(work)
        except BaseException as error:  # any error must reach those who wait
            self._fail([write for entry in entries for write in entry.writes], self._explain(error))
            return
        self._forget_orphans(orphans)

    def _transact(self, function: Callable[[Transaction], T]) -> T:
        transaction, orphans = Transaction(), list(self.orphans)

        def work(db: Db) -> T:
            self._beat_if_due(db)
            transaction.db = db
            with db.transaction():
                for lease in orphans:
                    db.execute(_RELEASE, lease)
                    db.execute(NOTIFY)
                return function(transaction)

        result = self._link.run(work)
        self._forget_orphans(orphans)
        return result

    def _forget_orphans(self, released: list[Lease]) -> None:
        for _ in released:
            self.orphans.popleft()

    def _beat_if_due(self, db: Db) -> None:
        now = self._clock.monotonic()
        if not self.tenant.id or now - self._beat_at > self._lease_seconds / 4:
            self.tenant.beat(db)
            self._beat_at = now

    def _leave(self) -> None:
        if self.tenant.id:
            try:
                self._transact(lambda transaction: self.tenant.leave(transaction.db))
            except Exception:  # other processes miss the heartbeat
                self.tenant.abandon()
        with contextlib.suppress(Exception):
            self._link.close()
