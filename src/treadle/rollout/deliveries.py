"""The queue on disk between counted groups and the sinks.

A group enters the queue in the transaction that counts it, so that it is counted if and only if it is in the queue.
It leaves the queue when its sink has acknowledged it. The queue is in the database of the ledger, which only one
process opens for writing.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.core.errors import ExportError, JournalError, ProviderError
from treadle.export.groups import Group
from treadle.jobs.ledger import transaction
from treadle.rollout.sinks.protocol import Receipt, Sink, SinkCheck

if TYPE_CHECKING:
    import sqlite3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS parcels (
    sink TEXT NOT NULL, key TEXT NOT NULL, place INTEGER NOT NULL, sent INTEGER, status TEXT NOT NULL,
    note TEXT NOT NULL, data BLOB, UNIQUE (sink, key));
CREATE INDEX IF NOT EXISTS parcels_in_order ON parcels (sink, status, place);
CREATE INDEX IF NOT EXISTS parcels_by_place ON parcels (place);
CREATE INDEX IF NOT EXISTS parcels_by_sent ON parcels (sent);
CREATE TABLE IF NOT EXISTS sink_notes (
    sink TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (sink, name)) WITHOUT ROWID;
"""
_NEXT_PLACE = "(SELECT coalesce(max(place), 0) + 1 FROM parcels)"
_NEXT_SENT = "(SELECT coalesce(max(sent), 0) + 1 FROM parcels)"
_MIN_WAIT_SECONDS = 0.05
_MAX_WAIT_SECONDS = 5.0
CHECK_SECONDS = 0.5
"""How often a sink is asked about groups that were handed over, while nothing is to be delivered."""


class ParcelStatus(StrEnum):
    """The status of a group in the queue of one sink."""

    QUEUED = "queued"
    """The group waits to be delivered."""
    SENT = "sent"
    """The group was handed over. The receiver may still lose it, so the queue keeps it."""
    DONE = "done"
    """The receiver has the group for good."""
    REFUSED = "refused"
    """The sink's format cannot express the group, or the receiver refused it."""


class Parcel(Struct, frozen=True):
    """A group, encoded for one sink."""

    sink: str
    key: str
    data: bytes | None
    """The encoded group; `None` if the sink's format cannot express it."""
    reason: str = ""
    """Why the sink's format cannot express the group, or why the receiver refused it; empty otherwise."""


class DeliveryQueue:
    """The queue of a rollout, and the tasks that empty it. Used as an asynchronous context manager."""

    def __init__(self, path: Path, sinks: Sequence[Sink], *, check_seconds: float = CHECK_SECONDS) -> None:
        """Open the queue in the ledger's database at `path`.

        Raises: `JournalError` if it cannot be opened; `ConfigError` or `ExportError` if a sink cannot work.
        """
        import sqlite3

        self._sinks = {sink.name: sink for sink in sinks}
        self._check_seconds = check_seconds
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._checked: set[str] = set()
        """The sinks that have said what became of the groups that they had handed over."""
        self.troubles: dict[str, str] = {}
        """Why a sink cannot deliver at the moment, by its name."""
        self.find_fault: Callable[[str], str | None] = lambda key: None
        """Returns why a group must no longer be delivered, given its key; `None` if it may be."""
        try:
            self._connection = sqlite3.connect(
                path, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise JournalError(f"cannot open the queue in {str(path)!r}: {error}") from error
        for sink in sinks:
            sink.open(_Notes(self._connection, sink.name))

    def encode(self, group: Group) -> list[Parcel]:
        """Return the group, encoded for each sink. A sink that cannot express it gets a parcel with the reason."""
        parcels = []
        for name, sink in self._sinks.items():
            try:
                parcels.append(Parcel(name, group.group_id, sink.encode(group)))
            except ExportError as error:
                parcels.append(Parcel(name, group.group_id, None, str(error)))
        return parcels

    def put(self, connection: "sqlite3.Connection", parcels: Sequence[Parcel]) -> None:
        """Add a group on the ledger's connection, in its transaction. Call `wake` after the transaction."""
        for item in parcels:
            status = ParcelStatus.REFUSED if item.data is None else ParcelStatus.QUEUED
            connection.execute(
                f"INSERT INTO parcels VALUES (?, ?, {_NEXT_PLACE}, NULL, ?, ?, ?)",
                (item.sink, item.key, status.value, item.reason, item.data),
            )

    def wake(self) -> None:
        """Tell the sinks that there are new groups."""
        self._changed.set()

    def counts(self) -> dict[str, dict[ParcelStatus, int]]:
        """Return how many groups of each sink have each status. Groups that wait for a sink which only an
        earlier process used are left out."""
        counts = {name: dict.fromkeys(ParcelStatus, 0) for name in self._sinks}
        for sink, status, number in self._connection.execute(
            "SELECT sink, status, count(*) FROM parcels GROUP BY sink, status"
        ):
            if sink in counts:
                counts[sink][ParcelStatus(status)] = number
        return counts

    def refusals(self) -> list[Parcel]:
        """Return the groups that were refused, with the reason."""
        found = self._connection.execute(
            "SELECT sink, key, note FROM parcels WHERE status = 'refused' ORDER BY place"
        )
        return [Parcel(sink, key, None, note) for sink, key, note in found]

    @property
    def backlog(self) -> int:
        """How many groups wait for the sink that has the most to deliver."""
        counts = self.counts()
        return max([counts[name][ParcelStatus.QUEUED] for name in self._sinks], default=0)

    async def drain(self, *, until_taken: bool = False) -> None:
        """Wait until all groups are handed over, or, with `until_taken`, until the receivers have them for good.

        A sink with groups that were handed over before is asked once what became of them. Raises: the error of a
        sink that cannot work.
        """
        while any(
            counts[ParcelStatus.QUEUED]
            or (counts[ParcelStatus.SENT] and (until_taken or name not in self._checked))
            for name, counts in self.counts().items()
            if name in self._sinks
        ):
            await self.wait()

    async def __aenter__(self) -> "DeliveryQueue":
        self._tasks = [asyncio.create_task(self._pump(sink)) for sink in self._sinks.values()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sink in self._sinks.values():
            with contextlib.suppress(ProviderError, OSError):
                await sink.close()
        self._connection.close()

    async def wait(self) -> None:
        """Wait for a moment. Raises: the error of a sink that cannot work."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        await asyncio.sleep(_MIN_WAIT_SECONDS)

    async def _pump(self, sink: Sink) -> None:
        """Deliver the groups of one sink, in order, until this task is cancelled."""
        wait = _MIN_WAIT_SECONDS
        while True:
            try:
                self._apply(sink.name, await sink.check())
                self._checked.add(sink.name)
                is_busy = await self._deliver_next(sink)
                self.troubles.pop(sink.name, None)
                wait = _MIN_WAIT_SECONDS
            except (ProviderError, OSError) as error:
                self.troubles[sink.name] = str(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, _MAX_WAIT_SECONDS)
                continue
            if not is_busy:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._check_seconds):
                        await self._changed.wait()

    async def _deliver_next(self, sink: Sink) -> bool:
        """Deliver the next group of a sink, and return whether there was one."""
        found = self._connection.execute(
            "SELECT key, data FROM parcels WHERE sink = ? AND status = 'queued' ORDER BY place LIMIT 1",
            (sink.name,),
        ).fetchone()
        if found is None:
            return False
        key, data = found
        try:
            if (fault := self.find_fault(key)) is not None:
                raise ExportError(fault)
            receipt = await sink.deliver(key, data)
        except ExportError as error:
            with _transaction(self._connection):
                self._mark(sink.name, key, ParcelStatus.REFUSED, str(error))
            return True
        with _transaction(self._connection):
            self._receive(sink.name, key, receipt)
        return True

    def _apply(self, sink: str, check: SinkCheck) -> None:
        if not (check.taken or check.lost or check.arrived or check.notes):
            return
        with _transaction(self._connection):
            for key in check.taken:
                self._mark(sink, key, ParcelStatus.DONE)
            for key in check.lost:
                self._mark(sink, key, ParcelStatus.QUEUED)
            for key, note in check.arrived.items():
                self._mark(sink, key, ParcelStatus.SENT, note)
            _write_notes(self._connection, sink, check.notes)

    def _receive(self, sink: str, key: str, receipt: Receipt) -> None:
        status = ParcelStatus.DONE if receipt.is_final else ParcelStatus.SENT
        self._mark(sink, key, status, receipt.note)
        _write_notes(self._connection, sink, receipt.notes)

    def _mark(self, sink: str, key: str, status: ParcelStatus, note: str = "") -> None:
        """Change a group's status. Its data is kept as long as it may have to be delivered again."""
        is_over = status in (ParcelStatus.DONE, ParcelStatus.REFUSED)
        sent = _NEXT_SENT if status is ParcelStatus.SENT else "sent"
        self._connection.execute(
            f"UPDATE parcels SET status = ?, note = ?, sent = {sent}, "
            f"data = {'NULL' if is_over else 'data'} WHERE sink = ? AND key = ? AND status IN ('queued', 'sent')",
            (status.value, note, sink, key),
        )


def _transaction(connection: "sqlite3.Connection") -> contextlib.AbstractContextManager[None]:
    return transaction(connection, "the queue of the sinks")


def _write_notes(connection: "sqlite3.Connection", sink: str, notes: Mapping[str, str | None]) -> None:
    for name, value in notes.items():
        if value is None:
            connection.execute("DELETE FROM sink_notes WHERE sink = ? AND name = ?", (sink, name))
        else:
            connection.execute("INSERT OR REPLACE INTO sink_notes VALUES (?, ?, ?)", (sink, name, value))


class _Notes:
    """The notes of one sink. See `treadle.rollout.sinks.protocol.Memory`."""

    def __init__(self, connection: "sqlite3.Connection", sink: str) -> None:
        self._connection = connection
        self._sink = sink

    def get(self, name: str) -> str | None:
        """See `Memory.get`."""
        found = self._connection.execute(
            "SELECT value FROM sink_notes WHERE sink = ? AND name = ?", (self._sink, name)
        ).fetchone()
        return None if found is None else str(found[0])

    def set(self, notes: dict[str, str | None]) -> None:
        """See `Memory.set`."""
        with _transaction(self._connection):
            _write_notes(self._connection, self._sink, notes)

    def sent(self) -> list[tuple[str, str]]:
        """See `Memory.sent`."""
        return self._connection.execute(
            "SELECT key, note FROM parcels WHERE sink = ? AND status = 'sent' ORDER BY sent", (self._sink,)
        ).fetchall()
