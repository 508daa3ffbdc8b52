"""The engine: works through a plan with a sliding window until enough items are kept, and counts each outcome.

The engine does not know what the work is. `make_item` plans items as long as more are needed. An item that is
rejected is attempted again or replaced by a new one, and a ledger records each outcome. A new engine over the same
ledger continues where the last one was interrupted.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, Ledger, PlannedItem
from treadle.jobs.meter import JobMeter
from treadle.runs.batch import Batch

R = TypeVar("R")


class JobWork(Protocol[R]):
    """The work on items: attempts, and their outcomes."""

    async def attempt(self, item: PlannedItem, attempt: int) -> R:
        """Work on an item, and return the result. An exception ends the whole plan."""
        ...

    def settle(
        self, item: PlannedItem, attempt: int, result: R, connection: sqlite3.Connection
    ) -> ItemOutcome:
        """Return the outcome. This is called within the transaction that counts it, and must not block."""
        ...


class JobSettings(Struct, frozen=True, kw_only=True):
    """The settings of an engine."""

    wanted: int
    """How many items are wanted."""
    window: int
    """How many items are worked on at the same time."""
    max_items: int
    """How many items the plan may have."""
    max_failures: int = 20
    """The work ends when this many attempts in a row have failed because of the infrastructure."""


class End(Struct, frozen=True):
    """Why the work ended."""

    reason: str
    """`done`, `stopped`, `max_items`, `failures`, or the name of a limit."""
    error: str | None = None
    """The newest failure, if the reason is `failures`."""


class Job(Generic[R]):
    """One process's work on a plan."""

    def __init__(
        self,
        ledger: Ledger,
        work: JobWork[R],
        make_item: Callable[[int, JobCounts], PlannedItem],
        settings: JobSettings,
        meter: JobMeter,
        *,
        on_begin: Callable[[PlannedItem, int], None] = lambda item, attempt: None,
        on_outcome: Callable[[PlannedItem, ItemOutcome], None] = lambda item, outcome: None,
        until_free: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Make an engine. `make_item` returns the item with a number, given the counts so far. `until_free` waits
        until there is room for another item within the window."""
        self.ledger = ledger
        self.counts = ledger.counts()
        self.in_flight = 0
        self._work = work
        self._make_item = make_item
        self._settings = settings
        self._meter = meter
        self._on_begin = on_begin
        self._on_outcome = on_outcome
        self._until_free = until_free
        self._again: list[PlannedItem] = ledger.open_items()[::-1]
        """Items to attempt, the next one last."""
        self._last_number = ledger.last_number
        self._failures = 0
        """How many attempts in a row failed."""
        self._error: str | None = None
        """Why the newest of them failed."""
        self._changed = asyncio.Event()
        """Set when an outcome was counted, or the work is to stop."""
        self.end: End | None = None

    def stop(self) -> None:
        """Begin no more items. Those in flight are finished."""
        self.end = self.end or End("stopped")
        self._changed.set()

    async def run(self) -> End:
        """Work until enough items are kept or a limit is reached, and return why the work ended.

        A cancellation stops the work in flight at once; a new engine over the same ledger continues it. Raises: the
        exceptions of `JobWork.attempt` and `JobWork.settle`.
        """
        batch: Batch[None] = Batch(self._attempt, self._items(), self._settings.window)
        deadline = self._meter.seconds_left
        try:
            async with asyncio.timeout(deadline):
                async for _ in batch:
                    pass
        except TimeoutError:
            if self._meter.find_limit() is None:
                raise
            self.end = End("max_seconds")
        finally:
            await batch.aclose()
        assert self.end is not None
        return self.end

    async def _items(self) -> AsyncIterator[PlannedItem]:
        while True:
            if self._until_free is not None:
                await self._until_free()
            item = await self._next()
            if item is None:
                return
            self.in_flight += 1
            yield item

    async def _next(self) -> PlannedItem | None:
        """Return the next item to attempt, after waiting until one is needed; `None` at the end."""
        while True:
            self._changed.clear()
            if self.end is None and self.counts.kept >= self._settings.wanted:
                self.end = End("done")
            if self.end is None and (limit := self._meter.find_limit()) is not None:
                self.end = End(limit)
            if self.end is not None:
                return None
            if self.counts.kept + self.in_flight < self._settings.wanted:
                if self._again:
                    return self._again.pop()
                if self._last_number < self._settings.max_items:
                    return self._plan_next()
                if not self.in_flight:
                    self.end = End("failures", self._error) if self.counts.failed else End("max_items")
                    return None
            await self._changed.wait()

    def _plan_next(self) -> PlannedItem:
        item = self._make_item(self._last_number + 1, self.counts)
        self.ledger.plan(item)
        self._last_number = item.number
        self.counts.planned += 1
        self.counts.shares[item.share] = self.counts.shares.get(item.share, 0) + 1
        return item

    async def _attempt(self, _: int, item: PlannedItem) -> None:
        attempt = item.attempts + 1
        self._on_begin(item, attempt)
        try:
            result = await self._work.attempt(item, attempt)
            outcome = self.ledger.count(
                item.number,
                attempt,
                lambda connection: self._work.settle(item, attempt, result, connection),
                self._meter.worked_seconds,
            )
        finally:
            self.in_flight -= 1
            self._changed.set()
        self._take(item, attempt, outcome)

    def _take(self, item: PlannedItem, attempt: int, outcome: ItemOutcome) -> None:
        counts = self.counts
        if outcome.status is ItemStatus.KEPT:
            counts.kept += 1
            counts.labels[outcome.label] = counts.labels.get(outcome.label, 0) + 1
            self._failures = 0
        elif outcome.status is ItemStatus.REJECTED:
            counts.rejected += 1
            name = outcome.reasons[0].partition(":")[0] if outcome.reasons else ""
            counts.reasons[name] = counts.reasons.get(name, 0) + 1
            self._failures = 0
            if outcome.is_final:
                counts.shares[item.share] -= 1
            else:
                self._again.append(replace(item, attempts=attempt, feedback=outcome.reasons))
        else:
            counts.failed += 1
            self._failures += 1
            self._error = outcome.reasons[0] if outcome.reasons else None
            if self._failures >= self._settings.max_failures and self.end is None:
                self.end = End("failures", self._error)
        self._on_outcome(item, outcome)
