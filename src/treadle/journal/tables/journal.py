"""A journal in the tables of a database.

The events that a run appends between two turns of an event loop become one row: a frame of consecutive events,
one JSON object per line. The frames of all runs are committed together at the end of the turn, or while the
commit before is under way.

The hot path begins in `writer` (append, and hand over at the end of the turn) and ends in the store's committer.
The docstring of each module says what is fast there.
"""

import asyncio
import contextlib
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future
from functools import cached_property, partial
from itertools import chain
from typing import Any, Generic, Self, TypeVar

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError, LeaseHeldError, RunNotFoundError
from treadle.core.inbox import InboxMessage, encode_message, kind_of
from treadle.core.texts.patches import load
from treadle.http.locks import renew_in_child
from treadle.journal.follow import PolledNews, follow
from treadle.journal.identity import VARIABLE, is_sealed, make_seal
from treadle.journal.resources import ResourceTable
from treadle.journal.run_info import RunFilter, RunInfo, RunOrder
from treadle.journal.tables.committer import Committer, close_journal
from treadle.journal.tables.leases import IS_QUEUED, Claimed, Lease, Silence
from treadle.journal.tables.reader import TableReader, Unused, find_contents, still_unused
from treadle.journal.tables.table_rows import (
    COLUMNS,
    INSERT_MESSAGE,
    UNKNOWN,
    Head,
    Letter,
    Query,
    damaged,
    explain_closed,
    facts_from,
    fill_facts,
    store_facts,
)
from treadle.journal.tables.writer import TableWriter

T = TypeVar("T")
D = TypeVar("D")
"""The type of the connection that a transaction of the store gets."""

_REFUSED_SECONDS = 30.0
"""After this time, runs of a queue that could not be claimed are looked at again: somebody may trust them now."""
_ANY_LOSSES = 2**31
_log = logging.getLogger("treadle.journal")


class TableJournal(ABC, Generic[D]):
    """A journal in tables, which several processes may have open. Each run has one writer."""

    def __init__(self, reader: TableReader, committer: Committer[D]) -> None:
        self._name, self._leases = committer.name, committer.leases
        self._pending, self._changes = committer.pending, committer.changes
        self._reader = reader
        self.read = reader.read
        self.scan = reader.scan
        self.inbox = reader.inbox
        self.find_runs = reader.find_runs
        self.read_stored, self.find_faults = reader.read_stored, reader.find_faults
        self._committer = committer
        self._refused: dict[str, set[str]] = {}
        """The waiting runs of each queue that cannot be claimed here: they are not trusted, or damaged."""
        self._refused_until = 0.0
        """The time until which `_refused` counts, by the clock of the leases."""
        self.driven = committer.driven
        """See `Journal.driven`."""
        self._close = weakref.finalize(self, close_journal, committer, reader, self._parts())
        renew_in_child(self, TableJournal._disown)

    @abstractmethod
    def news(self, queue: str | None = None) -> PolledNews:
        """See `Journal.news`."""

    @cached_property
    def resources(self) -> ResourceTable:
        join = self._pending.join
        return ResourceTable(
            self._reader.query, self._change_resources, lambda work: join(lambda db: work(self._query_in(db)))
        )

    def _change_resources(self, work: Callable[[Query], T]) -> T:
        self._check_open()
        return self._committer.submit(lambda db: work(self._query_in(db))).result()

    @abstractmethod
    def _query_in(self, db: D) -> Query:
        """Return the function that runs SQL with `?` for values in a transaction."""

    def _unknown_facts(self) -> str:
        """Return the query for the runs whose facts are unknown."""
        return UNKNOWN.format(unknown=self._reader.unknown)

    def _is_marked(self, origin: str) -> bool:
        """Return whether something other than the seal proves that this user made the store."""
        return False

    def _parts(self) -> dict[Any, Any]:
        """Return what is closed together with the journal: values with the methods of `Attached`."""
        return {}

    def create(self, run_id: str, *, is_imported: bool = False) -> TableWriter:
        hooks = (self, self._pending, self._committer.give_back)
        writer = TableWriter(run_id, *hooks, self.driven.open(run_id))
        if is_imported or not self._is_own:
            writer.seal = "" if is_imported else make_seal(self._origin[0], run_id)
        return writer

    def is_trusted(self, run_id: str) -> bool:
        return self._has_trust(run_id, self._reader.key_of(run_id), self._reader.query)

    def _has_trust(self, run_id: str, key: int, query: Query) -> bool:
        rows = query("SELECT seal FROM trust WHERE run=?", (key,))
        return self._accepts(run_id, rows[0][0] if rows else None)

    def _accepts(self, run_id: str, seal: str | None) -> bool:
        """Return whether a run is trusted, given its seal in the table `trust`; `None` if it has none."""
        if self._is_own:
            return seal != ""
        return seal is not None and is_sealed(seal, self._origin[0], run_id)

    def trust(self, run_id: str) -> None:
        key = self._reader.key_of(run_id)
        seal = make_seal(self._origin[0], run_id) or ("here" if self._is_own else "")
        if not seal:
            raise JournalError(
                f"cannot record that run {run_id!r} is trusted: a file with a secret cannot be made; set {VARIABLE}"
            )
        put = "INSERT INTO trust(run, seal) VALUES(?,?) ON CONFLICT(run) DO UPDATE SET seal=excluded.seal"
        self._committer.submit(lambda db: self._query_in(db)(put, (key, seal))).result()
        self._refused_until = 0.0

    @cached_property
    def _origin(self) -> tuple[str, str]:
        origin, seal = self._reader.query("SELECT id, seal FROM origin")[0]
        return origin, seal

    @cached_property
    def _is_own(self) -> bool:
        origin, seal = self._origin
        return is_sealed(seal, origin) or self._is_marked(origin)

    async def acquire(self, run_id: str) -> TableWriter:
        last: Silence | None = None
        while True:
            answer = await self._lease(partial(self._take, run_id, last), run_id)
            if isinstance(answer, TableWriter):
                return answer
            last = answer
            await asyncio.sleep(last.pause_seconds)

    async def claim(
        self, queue: str, skip: Collection[str] = (), *, max_losses: int | None = None
    ) -> TableWriter | None:
        most = _ANY_LOSSES if max_losses is None else max_losses
        return await self._lease(partial(self._claim, queue, skip, most))

    def post(self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None) -> int:
        return self.posting(run_id, message, blobs).result()

    def posting(
        self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None
    ) -> "Future[int]":
        self._check_open()
        with contextlib.suppress(RuntimeError):  # no event loop runs in this thread
            self._pending.flush(asyncio.get_running_loop())
        letter = Letter(run_id, kind_of(message), encode_message(message), blobs or {})
        future = self._committer.submit(partial(self._post, letter))
        self.driven.expect(run_id, future)

        def deliver(done: "Future[int]") -> None:
            if not done.cancelled() and done.exception() is None:
                self.driven.deliver([(run_id, done.result(), letter.kind)])

        future.add_done_callback(deliver)
        return future

    def read_blob(self, digest: str) -> bytes:
        return load(self._reader.read_stored, digest)[1]

    def runs(
        self,
        filter: RunFilter | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        order: RunOrder | None = None,
    ) -> list[RunInfo]:
        """See `Journal.runs`. Facts that are unknown are computed from the events first."""
        while self._reader.has_unknown_facts() and self._committer.submit(self._fill).result():
            pass
        return self._reader.runs(filter or RunFilter(), after, limit, order, newest_first)

    def follow(self, run_id: str | None, after_seq: int | None = 0) -> AsyncIterator[e.Event]:
        """See `Journal.follow`. Events of other processes are seen within `POLL_SECONDS`."""
        return follow(self._reader, self._changes, run_id, after_seq)

    def delete(self, run_id: str) -> None:
        self._check_open()
        unused = find_contents(self._reader, run_id)
        try:
            self._committer.submit(partial(self._delete, run_id, unused)).result()
        except RunNotFoundError:
            raise self._not_found(run_id) from None
        self._changes.announce([run_id])

    def close(self) -> None:
        self._pending.is_closed = True
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._pending.is_closed:
            raise explain_closed(self._name)

    def _not_found(self, run_id: str) -> RunNotFoundError:
        return RunNotFoundError(f"run {run_id!r} not found in the journal {self._name!r}")

    def _post(self, letter: Letter, db: D) -> int:
        """Store a message in a transaction, and return its number."""
        query = self._query_in(db)
        rows = query("SELECT id FROM runs WHERE run_id=?", (letter.run_id,))
        if not rows:
            raise self._not_found(letter.run_id)
        for item in sorted(letter.blobs.items()):
            query("INSERT INTO blobs(digest, content) VALUES(?,?) ON CONFLICT(digest) DO NOTHING", item)
        return self._insert_message(query, rows[0][0], letter)

    def _insert_message(self, query: Query, key: int, letter: Letter) -> int:
        number: int = query("SELECT coalesce(max(number), 0) + 1 FROM inbox WHERE run=?", (key,))[0][0]
        query(INSERT_MESSAGE, letter.row(key, number))
        return number

    def _delete(self, run_id: str, unused: Unused, db: D) -> None:
        """Delete a run in a transaction. Raises: `RunNotFoundError`; `LeaseHeldError` if it is being driven."""
        query = self._query_in(db)
        found = self._leases.take(query, run_id, None)
        if isinstance(found, Silence):
            raise LeaseHeldError(
                f"run {run_id!r} may still be driven by a process that was busy for a while; try again later"
            )
        key = found.lease.key
        condition, values = self._reader.is_after(unused.position)
        rows = query(f"SELECT body FROM frames WHERE {condition} AND run != ?", (*values, key))
        newer = (self._reader.unpack(query, body) for (body,) in rows)
        sent = query("SELECT body FROM inbox WHERE run != ? AND body IS NOT NULL", (key,))
        digests = still_unused(unused, chain(newer, (body for (body,) in sent)))
        for table in ("frames", "heads", "trust", "inbox"):
            query(f"DELETE FROM {table} WHERE run=?", (key,))
        query("DELETE FROM runs WHERE id=?", (key,))
        condition, values = self._reader.is_one_of("digest", sorted(digests))
        query(f"DELETE FROM blobs WHERE {condition}", values)

    def _fill(self, db: D) -> int:
        return fill_facts(self._query_in(db), self._reader.read_frames, self._unknown_facts())

    async def _lease(self, take: Callable[[D], T], run_id: str | None = None) -> T:
        """Return what `take` returns in a transaction, which is short if it takes the lease of `run_id`. If the
        caller is cancelled, a writer is released."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if run_id is None or self._pending.has_open(loop, run_id):
            self._pending.flush(loop)
        if run_id is not None and (now := self._committer.transact_now(take)) is not None:
            return now
        taken = self._committer.submit(take)
        try:
            return await asyncio.wrap_future(taken)
        except asyncio.CancelledError:
            taken.add_done_callback(self._give_back)
            raise

    def _take(self, run_id: str, last: Silence | None, db: D) -> TableWriter | Silence:
        """Take a run's lease, in the committer's thread."""
        try:
            found = self._leases.take(self._query_in(db), run_id, last)
        except RunNotFoundError:
            raise self._not_found(run_id) from None
        return found if isinstance(found, Silence) else self._writer_of(found, db)

    def _claim(self, queue: str, skip: Collection[str], most_losses: int, db: D) -> TableWriter | None:
        """Take the lease of a waiting run, in the committer's thread."""
        query = self._query_in(db)
        self._leases.free_dead(query, queue)
        if (now := self._leases.clock.monotonic()) > self._refused_until:
            self._refused, self._refused_until = {}, now + _REFUSED_SECONDS
        refused = self._refused.setdefault(queue, set())
        while True:
            condition, values = self._reader.is_one_of("run_id", refused.union(skip))
            found = self._leases.claim(query, queue, (f"NOT {condition}", values), most_losses)
            if found is None:
                return None
            try:
                if self._has_trust(found.run_id, found.lease.key, query):
                    return self._writer_of(found, db)
                # There may be very many of them, so they are found together.
                refused.update(self._find_untrusted(query, queue))
            except JournalError as error:
                _log.warning("run %r of the queue %r is left out: %s", found.run_id, queue, error)
            refused.add(found.run_id)
            query("UPDATE runs SET owner=NULL WHERE id=?", (found.lease.key,))

    def _find_untrusted(self, query: Query, queue: str) -> set[str]:
        """Return the runs that wait in a queue and are not trusted."""
        rows = query(
            "SELECT runs.run_id, trust.seal FROM runs LEFT JOIN trust ON trust.run = runs.id "
            f"WHERE {IS_QUEUED} AND owner IS NULL",
            (queue,),
        )
        return {run_id for run_id, seal in rows if not self._accepts(run_id, seal)}

    def _writer_of(self, found: Claimed, db: D) -> TableWriter:
        """Return the writer of a run whose lease was taken. Raises: `JournalError` if the run is damaged."""
        query, (run_id, lease, losses) = self._query_in(db), found
        row = self._read_end(query, lease.key)
        if row[0] is not None and row[1] is None:
            store_facts(query, self._reader.read_frames, Head(run_id, lease.key, row[0], None))
            row = self._read_end(query, lease.key)
        frame, events, last_seq, checksum, *columns = row
        facts = facts_from(run_id, tuple(columns))
        if events != last_seq:
            raise damaged(run_id, f"its newest frame ends with event {last_seq} of {events}")
        hooks = (self, self._pending, self._committer.give_back)
        newest = query("SELECT coalesce(max(number), 0) FROM inbox WHERE run=?", (lease.key,))[0][0]
        driven = self.driven.open(run_id, newest)
        writer = TableWriter(run_id, *hooks, driven, lease, frame, checksum, facts)
        writer.losses = losses
        return writer

    def _read_end(self, query: Query, key: int) -> tuple[Any, ...]:
        """Return a run's newest frame, how many events it has, the frame's last seq and checksum, and its facts."""
        return query(
            f"SELECT heads.frame, heads.events, seq + count - 1, frames.checksum, {COLUMNS} FROM runs "
            f"LEFT JOIN heads ON heads.run = runs.id LEFT JOIN frames ON {self._reader.newest_frame} "
            "WHERE runs.id=?",
            (key,),
        )[0]

    def _give_back(self, taken: "Future[Any]") -> None:
        """Release a lease that was taken for a caller who was cancelled meanwhile."""
        if taken.cancelled() or taken.exception() is not None:
            return
        if isinstance(writer := taken.result(), TableWriter):
            self._committer.give_back(Lease(writer.key, writer.token))

    def _disown(self) -> None:
        """Leave the database to the parent, in a forked child. A connection that is closed there would be closed
        for the parent too, or change a file without the parent's locks. So neither `close` nor the end of the
        process does, and the connections are never freed."""
        import ctypes

        self._close.detach()
        self._pending.clear()
        for db in (self._committer.disown(), self._reader.disown()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
        for item in self._parts().values():
            item.disown()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


def check_level(level: str, levels: Collection[str], place: str) -> None:
    """Check that a store of a kind (`place`) can reach a level. Raises: `ConfigError`."""
    if level not in levels:
        raise ConfigError(
            f"unknown journal level {level!r}; {place} has {' or '.join(map(repr, levels))}, and "
            "open_journal('memory:') is a journal in memory"
        )
