"""One process's work on rollouts: it plans groups, delivers them, and counts what became of them."""

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, JournalError
from treadle.export.groups import Group
from treadle.jobs.attempt import find_tasks
from treadle.jobs.job import End, Job, JobSettings
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem
from treadle.jobs.meter import JobLimits, JobMeter
from treadle.jobs.seeded import MakeModel, SeededAgents
from treadle.journal.protocol import Journal, RunFilter
from treadle.models.protocol import Model, part_of
from treadle.models.tokens.weights import Weights
from treadle.rollout.deliveries import DeliveryQueue, Parcel, ParcelStatus
from treadle.rollout.group_plan import GroupPlan, GroupSpec
from treadle.rollout.rollout_config import RolloutConfig
from treadle.rollout.rollout_folder import rebuild
from treadle.rollout.rollout_progress import (
    GroupEnded,
    Listener,
    RolloutEnded,
    RolloutNotice,
    RolloutProgress,
    RolloutRetried,
    Started,
    TokenRate,
    Waiting,
)
from treadle.rollout.slots import Slots
from treadle.rollout.versions import KnownVersion, SampledVersions, Versions
from treadle.rollout.work import GroupWork, Made
from treadle.runs.retries import NO_RETRIES
from treadle.workers.protocol import WorkerOptions, Workers
from treadle.workers.registry import HereWorkers, make_workers

_REFRESH_SECONDS = 0.5
"""How often the counts are refreshed while nothing happens."""
MAX_REFUSED = 3
"""If a sink has refused so many groups and taken none, the work ends."""
_BEATS = 10
"""The number of refreshes between two notices that the work goes on."""
_OPEN = "open_group"
"""The fact of the ledger with the number of the group that a consumer got and has not acknowledged."""


class Given(Struct, kw_only=True):
    """What the caller of the work gives, besides the configuration."""

    model: Model | MakeModel | None
    """The model in place of the configured one."""
    workers: Workers | None
    """The workers in place of the configured one."""
    weights: Weights
    listener: Listener
    progress: RolloutProgress
    stop: asyncio.Event
    """If it is set, groups in flight are finished and no new ones begun."""
    is_consumed: bool
    """True if groups are also given to a consumer, one by one."""


class Making:
    """One process's work on the rollouts of a configuration."""

    def __init__(
        self,
        config: RolloutConfig,
        ledger: Ledger,
        journal: Journal,
        outbox: DeliveryQueue | None,
        given: Given,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._journal = journal
        self._stop = given.stop
        self._outbox = outbox
        self._parcels: dict[int, list[Parcel]] = {}
        """The groups that are to be counted, encoded for the sinks."""
        self._admitted = 0
        """How many groups have room in the queue of the sinks and are not counted yet."""
        self._listener = given.listener
        self._is_consumed = given.is_consumed
        self.progress = given.progress
        tasks = find_tasks(config.tasks)
        self._plan = GroupPlan(config, tasks)
        self._plan.restore(ledger.entries(), ledger.open_items())
        self._slots = Slots(config.window)
        self._saved_versions = ledger.get("versions") or "[]"
        self._versions = Versions(msgspec.json.decode(self._saved_versions, type=list[KnownVersion]))
        self._rate = TokenRate()
        self._meter = self._make_meter()
        options = WorkerOptions(window=config.window, retries=NO_RETRIES)
        self._workers = given.workers or make_workers(config.workers, journal, options)
        self._is_here = isinstance(self._workers, HereWorkers)
        weights = given.weights if self._is_here else None
        model = config.model if given.model is None else given.model
        self._agents = SeededAgents(config.agent, model, journal, (self._rate,), self._measure, weights)
        if given.weights.version is not None:
            self._versions.announce(given.weights.version)
        self.work = GroupWork(
            config,
            self._agents,
            self._slots,
            self._versions,
            self._workers,
            until_wanted=self._until_wanted,
            tell=self._on_rollout,
        )
        self._demand = asyncio.Semaphore(0)
        """How many groups the consumer asks for."""
        self._ready: asyncio.Queue[Group] = asyncio.Queue()
        self._changed = asyncio.Event()
        ahead = math.ceil(config.window / config.group_size) if config.ahead is None else config.ahead
        self._ahead = max(1, ahead)
        self._made: dict[int, Made] = {}
        self._sampled: dict[str, SampledVersions] = {}
        """The versions of the delivered groups, which may still wait for a sink."""
        if outbox is not None:
            outbox.find_fault = self._find_fault
        self._restore()
        self._tell(Started(groups=self._plan.wanted, done=self.progress.delivered, tasks=len(tasks)))

    async def run(self) -> End:
        """Work until enough groups are delivered, and return why the work ended."""
        beating = asyncio.ensure_future(self._beat())
        try:
            await self._agents.prepare()
            end = await self._make_groups()
            await self._drain()
            return end
        finally:
            beating.cancel()

    async def _make_groups(self) -> End:
        config, plan = self._config, self._plan
        engine: Job[Made] = Job(
            self._ledger,
            self,
            plan.make_item,
            JobSettings(
                wanted=plan.wanted,
                window=config.window,
                max_items=plan.wanted * config.max_dropped,
                max_failures=3 + math.ceil(config.window / config.group_size),
            ),
            self._meter,
            on_outcome=self._count,
            until_free=self._until_free,
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        stopping.add_done_callback(lambda _: engine.stop() if self._stop.is_set() else None)
        try:
            return await engine.run()
        finally:
            stopping.cancel()

    async def attempt(self, item: PlannedItem, attempt: int) -> Made:
        """See `engines.engine.Work`."""
        made = await self.work.attempt(item, attempt)
        if made.dropped is None and self._outbox is not None:
            group = self.work.make_group(made)
            parcels = await asyncio.to_thread(self._outbox.encode, group)
            self._check_refusals(self._outbox, parcels)
            self._parcels[item.number] = parcels
        return made

    def _check_refusals(self, outbox: DeliveryQueue, parcels: Sequence[Parcel]) -> None:
        """Raise a `ConfigError` if a sink has refused every group so far, because it will refuse the others too."""
        counts = outbox.counts()
        for parcel in parcels:
            seen = counts[parcel.sink]
            if parcel.data is None and MAX_REFUSED <= seen[ParcelStatus.REFUSED] == sum(seen.values()):
                raise ConfigError(
                    f"the sink {parcel.sink!r} has refused all {seen[ParcelStatus.REFUSED]} groups so far, the "
                    f"last one because {parcel.reason}. Give another sink, or a model that it can take"
                )

    def settle(self, item: PlannedItem, attempt: int, result: Made, connection: Any) -> ItemOutcome:
        """See `engines.engine.Work`."""
        outcome = self.work.settle(item, attempt, result, connection)
        parcels = self._parcels.pop(item.number, None)
        self._admitted -= parcels is not None
        if outcome.status is ItemStatus.KEPT:
            self._made[item.number] = result
            if self._outbox is not None and parcels is not None:
                self._outbox.put(connection, parcels)
            if self._is_consumed:
                connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_OPEN, str(item.number)))
        return outcome

    async def next_group(self, making: "asyncio.Future[End]") -> Group | None:
        """Return the next group for the consumer; `None` if there are no more. Raises: what the work raises."""
        self._demand.release()
        getting = asyncio.ensure_future(self._ready.get())
        try:
            waiting: list[asyncio.Future[Any]] = [getting, making]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()

    def acknowledge(self) -> None:
        """Record that the consumer is done with the group that it got."""
        self._ledger.set(_OPEN, "")

    async def find_open_group(self) -> Group | None:
        """Return the group that a consumer got before a crash and did not acknowledge; `None` if there is none."""
        number = self._ledger.get(_OPEN)
        if not number:
            return None
        entry = next(item for item in self._ledger.entries(ItemStatus.KEPT) if item.number == int(number))
        return await asyncio.to_thread(rebuild, self._config, self._journal, entry)

    def note_version(self, version: str) -> None:
        """Record new weights."""
        self._versions.announce(version)
        self._save_versions()

    def refusals(self) -> tuple[Parcel, ...]:
        """Return the groups that a sink or its receiver has refused."""
        return () if self._outbox is None else tuple(self._outbox.refusals())

    async def close(self) -> None:
        """Stop the workers, and record how long was worked."""
        await self._workers.close()
        with contextlib.suppress(JournalError):
            self._ledger.set("worked_seconds", repr(self._meter.worked_seconds))

    async def _until_wanted(self) -> None:
        """Wait until the sinks have room for another group, and the consumer asks for one."""
        self.progress.waiting += 1
        try:
            if self._outbox is not None:
                await self._find_room(self._outbox)
            if self._is_consumed:
                await self._demand.acquire()
        finally:
            self.progress.waiting -= 1
            self._changed.set()

    async def _find_room(self, outbox: DeliveryQueue) -> None:
        """Wait until the queue of the sinks has room for a group, and reserve it.

        If the work is to stop and a sink cannot deliver, the groups in flight enter the queue on disk at once.
        """
        while self._admitted + outbox.backlog >= self._ahead:
            if self._stop.is_set() and outbox.troubles:
                break
            await outbox.wait()
        self._admitted += 1

    async def _until_free(self) -> None:
        """Wait until all planned rollouts have begun, and not too many complete groups wait for their receivers."""
        while True:
            await self._slots.until_all_begun()
            if self.progress.waiting < self._ahead:
                return
            self._changed.clear()
            await self._changed.wait()

    def _count(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        progress = self.progress
        details: Mapping[str, Any] = outcome.details
        spec = msgspec.convert(item.spec, GroupSpec)
        made = self._made.pop(item.number, None)
        if made is None and self._is_consumed and outcome.status is ItemStatus.REJECTED and details["graded"]:
            self._give_back(outcome)
        self._save_versions()
        self._plan.observe(spec.task, details["solved"], details["graded"])
        progress.count(outcome.status, outcome.reasons, details)
        if outcome.status is ItemStatus.KEPT:
            self._keep_sampled(spec, details)
        if made is not None and self._is_consumed:
            self._ready.put_nowait(self.work.make_group(made))
        if self._outbox is not None:
            self._outbox.wake()
        self._tell(
            GroupEnded(
                group_id=spec.unit_id(self._config.name),
                task=spec.task,
                status={"kept": "delivered", "rejected": "dropped"}.get(outcome.status.value, "failed"),
                rewards=tuple(details["rewards"]),
                has_variance=details["has_variance"],
                staleness=details["staleness"],
                reason=outcome.reasons[0] if outcome.reasons else None,
            )
        )
        progress.staleness = details["staleness"] if made is not None else progress.staleness

    async def _drain(self) -> None:
        """Wait until the sinks have delivered all groups. If the work is to stop, do not wait for a sink that
        cannot deliver: the groups stay in the queue on disk."""
        if self._outbox is None:
            return
        draining = asyncio.ensure_future(self._outbox.drain())
        try:
            while not draining.done() and not (self._stop.is_set() and self._outbox.troubles):
                await asyncio.wait([draining], timeout=_REFRESH_SECONDS)
            if draining.done():
                await draining
        finally:
            draining.cancel()
            self._refresh()

    async def _beat(self) -> None:
        """Refresh the counts regularly, and send notices that the work goes on."""
        while True:
            for _ in range(_BEATS):
                await asyncio.sleep(_REFRESH_SECONDS)
                self._refresh()
            progress = self.progress
            self._tell(
                Waiting(
                    in_flight=progress.in_flight,
                    undelivered=progress.undelivered,
                    troubles=progress.troubles,
                )
            )

    def _give_back(self, outcome: ItemOutcome) -> None:
        """Let another group take the place of one that was too stale when the consumer wanted it."""
        if outcome.reasons[0].startswith("stale:"):
            self._demand.release()

    def _restore(self) -> None:
        """Count what earlier processes have done."""
        for entry in self._ledger.entries():
            self.progress.count(entry.status, entry.reasons, entry.details)
            if entry.status == ItemStatus.KEPT:
                self._keep_sampled(msgspec.convert(entry.spec, GroupSpec), entry.details)
        self.progress.wanted = self._plan.wanted
        self.progress.resumed = self.progress.delivered

    def _keep_sampled(self, spec: GroupSpec, details: Mapping[str, Any]) -> None:
        sampled = msgspec.convert(details["sampled"], SampledVersions)
        self._sampled[spec.unit_id(self._config.name)] = sampled

    def _find_fault(self, key: str) -> str | None:
        """Return why a group that waits for a sink must not be delivered any more; `None` if it may be."""
        sampled = self._sampled.get(key)
        return None if sampled is None else self.work.find_stale([sampled])

    def _make_meter(self) -> JobMeter:
        limits = self._config.limits
        meter = JobMeter(
            JobLimits(
                max_cost_usd=limits.max_cost_usd, max_tokens=limits.max_tokens, max_seconds=limits.max_seconds
            )
        )
        counts = self._ledger.counts()
        meter.add(counts.input_tokens, counts.output_tokens, counts.cost_usd)
        meter.seconds_before = float(self._ledger.get("worked_seconds") or 0.0)
        for item in self._ledger.open_items():
            spec = msgspec.convert(item.spec, GroupSpec)
            for info in self._journal.runs(RunFilter(id_prefix=f"{self._config.name}-{spec.group}-")):
                meter.add(info.input_tokens, info.output_tokens, info.cost_usd)
        return meter

    def _measure(self, model: Model) -> Model:
        if not self._is_here:
            return model
        is_free = part_of(model).name.partition(":")[0] in ("mock", "oracle")
        return self._meter.measure(model, is_free=is_free)

    def _save_versions(self) -> None:
        known = msgspec.json.encode(self._versions.known).decode()
        if known != self._saved_versions:
            self._saved_versions = known
            self._ledger.set("versions", known)

    def _on_rollout(self, notice: RolloutEnded | RolloutRetried) -> None:
        self.progress.retried += isinstance(notice, RolloutRetried)
        if isinstance(notice, RolloutEnded) and not self._is_here:
            self._meter.add(notice.input_tokens, notice.output_tokens, notice.cost_usd)
            self._rate.add(notice.output_tokens)
        self._tell(notice)

    def _tell(self, notice: RolloutNotice) -> None:
        self._refresh()
        self._listener(notice, self.progress)

    def _refresh(self) -> None:
        progress, meter, status = self.progress, self._meter, self._workers.status()
        progress.input_tokens, progress.output_tokens = meter.input_tokens, meter.output_tokens
        progress.cost_usd, progress.seconds = meter.cost_usd, meter.seconds
        progress.in_flight = self._slots.used
        progress.on_model, progress.on_tools = status.waiting_on_model, status.waiting_on_tools
        progress.workers, progress.restarts = status.workers, status.restarts
        progress.tokens_per_second = self._rate.per_second
        progress.weight_version = self._versions.current
        progress.is_stopping = self._stop.is_set()
        if self._outbox is not None:
            counts = self._outbox.counts().values()
            progress.undelivered = max([item[ParcelStatus.QUEUED] for item in counts], default=0)
            progress.refused = max([item[ParcelStatus.REFUSED] for item in counts], default=0)
            progress.troubles = dict(self._outbox.troubles)
