"""The handover of groups to a consumer that takes them one by one, and to the sinks through a queue on disk.

A group enters the queue in the transaction that counts it, so that it is counted if and only if it is in the queue.
It leaves the queue when its sink has acknowledged it. The queue is in the database of the ledger, which only one
process opens for writing.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ExportError, JournalError, ProviderError
from treadle.export.groups import Group
from treadle.jobs.ledger import ItemStatus, Ledger, transaction
from treadle.journal.protocol import Journal
from treadle.rollout.held_out_scores import HeldOutScore
from treadle.rollout.rollout_config import RolloutConfig
from treadle.rollout.rollout_folder import rebuild
from treadle.rollout.rollout_progress import RolloutProgress
from treadle.rollout.sinks.protocol import QUEUE, Receipt, ScoreSink, Sink, SinkCheck, SinkMemory

if TYPE_CHECKING:
    import sqlite3


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
            self._connection.executescript(Path(__file__).with_name("deliveries.sql").read_text("utf-8"))
        except sqlite3.Error as error:
            raise JournalError(f"cannot open the queue in {str(path)!r}: {error}") from error
        self._notes = {sink.name: SinkMemory(self._connection, sink.name) for sink in sinks}
        for sink in sinks:
            sink.open(self._notes[sink.name])

    def encode(self, group: Group) -> list[Parcel]:
        """Return the group, encoded for each sink. A sink that cannot express it gets a parcel with the reason."""
        parcels = []
        for name, sink in self._sinks.items():
            try:
                parcels.append(Parcel(name, group.group_id, sink.encode(group)))
            except ExportError as error:
                parcels.append(Parcel(name, group.group_id, None, str(error)))
        return parcels

    def encode_score(self, key: str, score: HeldOutScore) -> list[Parcel]:
        """Return the score, encoded for the sinks that take scores."""
        takers = {name: sink for name, sink in self._sinks.items() if isinstance(sink, ScoreSink)}
        return [Parcel(name, key, sink.encode_score(score)) for name, sink in takers.items()]

    def put(self, connection: "sqlite3.Connection", parcels: Sequence[Parcel]) -> None:
        """Add a group or a score on the ledger's connection, in its transaction. Call `wake` after it."""
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
        """Return how many groups of each sink of this process have each status."""
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
            with transaction(self._connection, QUEUE):
                self._mark(sink.name, key, ParcelStatus.REFUSED, str(error))
            return True
        with transaction(self._connection, QUEUE):
            self._receive(sink.name, key, receipt)
        return True

    def _apply(self, sink: str, check: SinkCheck) -> None:
        if not (check.taken or check.lost or check.arrived or check.notes):
            return
        with transaction(self._connection, QUEUE):
            for key in check.taken:
                self._mark(sink, key, ParcelStatus.DONE)
            for key in check.lost:
                self._mark(sink, key, ParcelStatus.QUEUED)
            for key, note in check.arrived.items():
                self._mark(sink, key, ParcelStatus.SENT, note)
            self._notes[sink].write(check.notes)

    def _receive(self, sink: str, key: str, receipt: Receipt) -> None:
        status = ParcelStatus.DONE if receipt.is_final else ParcelStatus.SENT
        self._mark(sink, key, status, receipt.note)
        self._notes[sink].write(receipt.notes)

    def _mark(self, sink: str, key: str, status: ParcelStatus, note: str = "") -> None:
        """Change a group's status. Its data is kept as long as it may have to be delivered again."""
        is_over = status in (ParcelStatus.DONE, ParcelStatus.REFUSED)
        sent = _NEXT_SENT if status is ParcelStatus.SENT else "sent"
        self._connection.execute(
            f"UPDATE parcels SET status = ?, note = ?, sent = {sent}, "
            f"data = {'NULL' if is_over else 'data'} WHERE sink = ? AND key = ? AND status IN ('queued', 'sent')",
            (status.value, note, sink, key),
        )


MAX_REFUSED = 3
"""If a sink has refused so many groups and taken none, the work ends."""
_POLL_SECONDS = 0.5
_OPEN = "open_group"
"""The fact of the ledger with the number of the group that a consumer got and has not acknowledged."""
_STEP = "step_groups/"
"""The beginning of the facts of the ledger with the numbers of the groups that a trainer's step got."""


class Handover:
    """The way of complete groups from the work to their receivers."""

    def __init__(
        self,
        config: RolloutConfig,
        ledger: Ledger,
        queue: DeliveryQueue | None,
        progress: RolloutProgress,
        stop: asyncio.Event,
        *,
        is_consumed: bool,
    ) -> None:
        """Make the handover. `queue` is that of the sinks; `is_consumed` says whether there is a consumer."""
        self._config = config
        self._ledger = ledger
        self._queue = queue
        self.progress = progress
        self._stop = stop
        self.is_consumed = is_consumed
        ahead = math.ceil(config.window / config.group_size) if config.ahead is None else config.ahead
        self._ahead = max(1, ahead)
        self._parcels: dict[int, list[Parcel]] = {}
        """The groups that are to be counted, encoded for the sinks."""
        self._admitted = 0
        """How many groups have room in the queue of the sinks and are not counted yet."""
        self._demand = asyncio.Semaphore(0)
        """How many groups the consumer asks for."""
        self._ready: asyncio.Queue[Group] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._step: tuple[int, list[int]] | None = None
        """The consumer's step and the numbers of its groups; `None` if it takes groups one by one."""

    async def prepare(self, number: int, make_group: Callable[[], Group]) -> None:
        """Wait until the receivers want the group of an item, and encode it for the sinks.

        Raises: `ConfigError` if a sink has refused every group so far.
        """
        self.progress.waiting += 1
        try:
            if self._queue is not None:
                await self._find_room(self._queue)
            if self.is_consumed:
                await self._demand.acquire()
        finally:
            self.progress.waiting -= 1
            self._changed.set()
        if self._queue is not None:
            parcels = await asyncio.to_thread(self._queue.encode, make_group())
            _check_refusals(self._queue, parcels)
            self._parcels[number] = parcels

    async def _find_room(self, queue: DeliveryQueue) -> None:
        """Wait until the queue of the sinks has room for a group, and reserve it. If the work is to stop and a sink
        cannot deliver, the groups in flight enter the queue on disk at once."""
        while self._admitted + queue.backlog >= self._ahead:
            if self._stop.is_set() and queue.troubles:
                break
            await queue.wait()
        self._admitted += 1

    async def until_few_wait(self) -> None:
        """Wait until not too many complete groups wait for their receivers."""
        while self.progress.waiting >= self._ahead:
            self._changed.clear()
            await self._changed.wait()

    def settle(self, connection: "sqlite3.Connection", number: int, status: ItemStatus) -> None:
        """Hand a group over in the transaction that counts its item."""
        parcels = self._parcels.pop(number, None)
        self._admitted -= parcels is not None
        if status is not ItemStatus.KEPT:
            return
        if self._queue is not None and parcels is not None:
            self._queue.put(connection, parcels)
        if not self.is_consumed:
            return
        fact = _OPEN, str(number)
        if self._step is not None:
            step, numbers = self._step
            numbers.append(number)
            fact = f"{_STEP}{step}", msgspec.json.encode(numbers).decode()
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", fact)

    def put_score(self, connection: "sqlite3.Connection", score: HeldOutScore) -> None:
        """Hand a score over in the transaction that counts its item."""
        if self._queue is not None:
            key = f"{self._config.name}-held-{score.number}"
            self._queue.put(connection, self._queue.encode_score(key, score))

    def finish(self, group: Group | None) -> None:
        """Wake the receivers after a group was counted; `group` is one that was kept for the consumer."""
        if group is not None:
            self._ready.put_nowait(group)
        if self._queue is not None:
            self._queue.wake()

    def ask_again(self) -> None:
        """Let another group take the place of one that the consumer asked for and that was dropped."""
        self._demand.release()

    async def next_group(self, working: "asyncio.Future[Any]") -> Group | None:
        """Return the next group for the consumer; `None` if `working` has ended."""
        self._demand.release()
        getting = asyncio.ensure_future(self._ready.get())
        try:
            waiting: list[asyncio.Future[Any]] = [getting, working]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()

    async def take_batch(
        self, step: int, size: int, working: "asyncio.Future[Any]", journal: Journal
    ) -> tuple[Group, ...]:
        """Return the groups of a trainer's step: those that it got before, and new ones until there are `size`.

        They are fewer if `working` has ended.
        """
        numbers: list[int] = msgspec.json.decode(self._ledger.get(f"{_STEP}{step}") or "[]")
        entries = {item.number: item for item in self._ledger.entries(ItemStatus.KEPT)} if numbers else {}
        groups = [
            await asyncio.to_thread(rebuild, self._config, journal, entries[number]) for number in numbers
        ]
        self._step = step, numbers
        while len(groups) < size and (group := await self.next_group(working)) is not None:
            groups.append(group)
        return tuple(groups)

    def acknowledge(self) -> None:
        """Record that the consumer is done with the group that it got."""
        self._ledger.set(_OPEN, "")

    async def find_open_group(self, journal: Journal) -> Group | None:
        """Return the group that a consumer got before a crash and did not acknowledge; `None` if there is none."""
        number = self._ledger.get(_OPEN)
        if not number:
            return None
        entry = next(item for item in self._ledger.entries(ItemStatus.KEPT) if item.number == int(number))
        return await asyncio.to_thread(rebuild, self._config, journal, entry)

    async def drain(self) -> None:
        """Wait until the sinks have delivered all groups. If the work is to stop, do not wait for a sink that
        cannot deliver: the groups stay in the queue on disk."""
        if self._queue is None:
            return
        draining = asyncio.ensure_future(self._queue.drain())
        try:
            while not draining.done() and not (self._stop.is_set() and self._queue.troubles):
                await asyncio.wait([draining], timeout=_POLL_SECONDS)
            if draining.done():
                await draining
        finally:
            draining.cancel()

    def refresh(self) -> None:
        """Refresh the counts of groups that sinks do not have."""
        if self._queue is not None:
            counts, progress = self._queue.counts().values(), self.progress
            progress.undelivered = max([item[ParcelStatus.QUEUED] for item in counts], default=0)
            progress.refused = max([item[ParcelStatus.REFUSED] for item in counts], default=0)
            progress.troubles = dict(self._queue.troubles)

    def refusals(self) -> tuple[Parcel, ...]:
        """Return the groups that a sink or its receiver has refused."""
        return () if self._queue is None else tuple(self._queue.refusals())


def _check_refusals(queue: DeliveryQueue, parcels: Sequence[Parcel]) -> None:
    """Raise a `ConfigError` if a sink has refused every group so far, because it will refuse the others too."""
    counts = queue.counts()
    for parcel in parcels:
        seen = counts[parcel.sink]
        if parcel.data is None and MAX_REFUSED <= seen[ParcelStatus.REFUSED] == sum(seen.values()):
            raise ConfigError(
                f"the sink {parcel.sink!r} has refused all {seen[ParcelStatus.REFUSED]} groups so far, the last "
                f"one because {parcel.reason}. Give another sink, or a model that it can take"
            )
