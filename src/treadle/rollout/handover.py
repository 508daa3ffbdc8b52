"""The handover of complete groups to their receivers: the sinks, and a consumer that takes them one by one."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError
from treadle.export.groups import Group
from treadle.jobs.ledger import ItemStatus, Ledger
from treadle.journal.protocol import Journal
from treadle.rollout.deliveries import DeliveryQueue, Parcel, ParcelStatus
from treadle.rollout.rollout_config import RolloutConfig
from treadle.rollout.rollout_folder import rebuild
from treadle.rollout.rollout_progress import RolloutProgress

if TYPE_CHECKING:
    import sqlite3

MAX_REFUSED = 3
"""If a sink has refused so many groups and taken none, the work ends."""
_POLL_SECONDS = 0.5
_OPEN = "open_group"
"""The fact of the ledger with the number of the group that a consumer got and has not acknowledged."""


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
        """Wait until the queue of the sinks has room for a group, and reserve it.

        If the work is to stop and a sink cannot deliver, the groups in flight enter the queue on disk at once.
        """
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
        if self.is_consumed:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_OPEN, str(number)))

    def finish(self, group: Group | None) -> None:
        """Wake the receivers after a group was counted; `group` is the group for the consumer, if the group was
        kept."""
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
