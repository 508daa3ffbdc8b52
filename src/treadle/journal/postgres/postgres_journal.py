"""A journal in a PostgreSQL database, which programs on several machines can have open.

At both levels a commit is stored once the server has it on its disk; PostgreSQL has no commit that survives only
the death of the server's processes. At level `power` it also waits for the standby servers that are configured as
synchronous, so that an event survives the loss of the server's machine.
"""

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes, PolledNews
from treadle.journal.postgres.arrays import escape
from treadle.journal.postgres.link import (
    CHANNEL,
    LEVELS,
    MAIL_CHANNEL,
    NOTICE_BYTES,
    QUEUE_CHANNEL,
    WRITING,
    Address,
    Link,
)
from treadle.journal.postgres.postgres_committer import PostgresCommitter, Transaction
from treadle.journal.postgres.postgres_layout import PostgresLeases, prepare
from treadle.journal.postgres.postgres_listener import PostgresListener
from treadle.journal.postgres.postgres_reader import PostgresReader
from treadle.journal.protocol import Clock
from treadle.journal.tables.journal import TableJournal, check_level
from treadle.journal.tables.reader import Unused
from treadle.journal.tables.table_rows import INSERT_MESSAGE, Letter, Query
from treadle.journal.tables.watch import RunWatch
from treadle.journal.tables.writer import TableWriter

T = TypeVar("T")

_POLL_SECONDS = 2.0
"""How often the server is asked without a notification, in case one was lost."""


class PostgresJournal(TableJournal[Transaction]):
    """A journal in the schema `treadle` of a database."""

    def __init__(
        self,
        url: str,
        level: str = "process",
        lease_seconds: float = 10.0,
        clock: Clock = time,
        *,
        must_exist: bool = False,
    ) -> None:
        check_level(level, LEVELS, "PostgreSQL")
        self._address = Address(url)
        writing = Link(self._address, level, WRITING)
        try:
            prepare(writing, must_exist=must_exist)
        except BaseException:
            writing.close()
            raise
        self.level = writing.level
        """The level: the requested one, or that of the journal if it is stronger."""
        leases = PostgresLeases(self._address.name, lease_seconds, clock)
        reader = PostgresReader(self._make_link(), leases)
        changes = Changes(RunWatch(reader, leases).look, _POLL_SECONDS)
        self._listener = PostgresListener(self._make_link(), writing, changes, DrivenRuns(reader.inbox))
        committer = PostgresCommitter(writing, leases, changes, self._listener)
        super().__init__(reader, committer)

    def _make_link(self) -> Link:
        return Link(self._address, self.level, was_connected=True)

    def __repr__(self) -> str:
        return f"PostgresJournal({self._name!r}, level={self.level!r})"

    @property
    def address(self) -> str:
        """See `Journal.address`. It has the password, if the journal was opened with one."""
        return self._address.url

    def follow(self, run_id: str | None, after_seq: int | None = 0) -> AsyncIterator[e.Event]:
        """See `Journal.follow`. The server notifies of what other processes have committed."""
        self._listener.start(CHANNEL)
        return super().follow(run_id, after_seq)

    def news(self, queue: str | None = None) -> PolledNews:
        """See `Journal.news`. The news of queues tell which runs were left while they can be driven."""
        channel = CHANNEL if queue is None else QUEUE_CHANNEL
        self._listener.start(channel)
        return PolledNews(partial(self._version, channel))

    def _version(self, channel: str) -> int:
        self._check_open()
        return self._listener.versions[channel]

    def backup(self, path: str | Path) -> int:
        """See `Journal.backup`. Raises: `JournalError`, because the server has the tools for it."""
        raise JournalError(
            f"a journal in PostgreSQL is not copied to a file by Treadle; run `pg_dump --schema=treadle` on "
            f"{self._name!r}, or use the backups of the server"
        )

    def _parts(self) -> dict[Any, Any]:
        return {PostgresListener: self._listener}

    def create(self, run_id: str, *, is_imported: bool = False) -> TableWriter:
        self._listener.start()
        return super().create(run_id, is_imported=is_imported)

    async def _lease(self, take: Callable[[Transaction], T], run_id: str | None = None) -> T:
        self._check_open()
        self._listener.start()
        return await super()._lease(take, run_id)

    def _insert_message(self, query: Query, key: int, letter: Letter) -> int:
        """Insert a message. Numbers of one run become visible in order, because each waits for the one before."""
        rows: list[tuple[Any, ...]] = []
        while not rows:
            number = query("SELECT coalesce(max(number), 0) + 1 FROM inbox WHERE run=?", (key,))[0][0]
            insert = f"{INSERT_MESSAGE} ON CONFLICT(run, number) DO NOTHING RETURNING number"
            rows = query(insert, letter.row(key, number))
        number = int(rows[0][0])
        notice = f"{number} {letter.kind} {letter.run_id}"
        if len(escape(notice).encode()) > NOTICE_BYTES:
            notice = ""  # whoever listens looks at the inboxes of its runs
        query("SELECT pg_notify(?, ?)", (MAIL_CHANNEL, notice))
        return number

    def _query_in(self, db: Transaction) -> Query:
        return db.query

    def _unknown_facts(self) -> str:
        return f"{super()._unknown_facts()} FOR UPDATE OF heads"

    def _delete(self, run_id: str, unused: Unused, db: Transaction) -> None:
        # No run may begin to need a content in the meantime. Commits take the tables' locks in the same order.
        db.query("LOCK TABLE blobs, frames IN SHARE ROW EXCLUSIVE MODE")
        super()._delete(run_id, unused, db)
