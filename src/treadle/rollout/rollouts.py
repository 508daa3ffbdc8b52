"""The class `Rollouts`: all rollouts of one configuration, from the plan to the receivers of groups."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from treadle.agent.sync import iterate_blocking
from treadle.core.errors import ConfigError
from treadle.export.groups import Group
from treadle.jobs.attempt import AttemptDriver, ids_of, judges_of
from treadle.jobs.job import Job, JobEnd, JobSettings, open_job
from treadle.jobs.ledger import PlannedItem
from treadle.jobs.progress import JobNotice, TokenRate
from treadle.jobs.seeded_agents import MakeModel, SeededAgents
from treadle.journal.run_info import RunFilter
from treadle.models.protocol import Model
from treadle.models.tokens.weights import UpdateMode, Weights
from treadle.rollout.collect import GroupReader, Versions
from treadle.rollout.deliveries import DeliveryQueue, Handover, Parcel
from treadle.rollout.group_work import GROUPS, GroupWork, MadeGroup
from treadle.rollout.held_out import HeldOutWork, runs_of_round
from treadle.rollout.rollout_config import READER, GroupPlan, GroupSpec, RolloutConfig, make_config
from treadle.rollout.rollout_folder import RolloutFolder, check_continued
from treadle.rollout.rollout_progress import (
    Listener,
    RolloutEnded,
    RolloutProgress,
    RolloutRetried,
    SingleProgress,
    Started,
    Waiting,
)
from treadle.rollout.sinks.protocol import Sink
from treadle.rollout.sinks.registry import make_sinks
from treadle.runs.task import find_tasks
from treadle.trajectory.tokens.masks import make_mask
from treadle.workers.protocol import Workers
from treadle.workers.queued import QueueWorkers
from treadle.workers.registry import HereWorkers


class RolloutResult(Struct, frozen=True):
    """The outcome of the work."""

    end: JobEnd
    progress: RolloutProgress
    folder: RolloutFolder
    refusals: tuple[Parcel, ...] = ()
    """The groups that a sink or its receiver has refused, with the reasons."""


class Rollouts:
    """The rollouts of one configuration. A new object over the same folder continues them.

    `run` delivers groups to the sinks. `async for group in rollouts` also gives them to a trainer, one by one: a
    group counts as received when the next one is asked for, and is given again after a crash before that. `batches`
    gives them by the steps of a trainer that has checkpoints.
    """

    def __init__(
        self,
        config: RolloutConfig | str | Path | None = None,
        *,
        model: Model | MakeModel | str | Mapping[str, Any] | None = None,
        workers: Workers | str | None = None,
        weights: Weights | None = None,
        listener: Listener = lambda notice, progress: None,
        retry_failed: bool = False,
        **options: Any,
    ) -> None:
        """Prepare the rollouts of `config`, a configuration or the path of one, or of `options`, the keys of one.

        `model` may also be a model, or a function of a task and a seed that returns one; `workers` and `sinks` may
        also be objects. `weights` are those of the engines, for `update_weights`. With `retry_failed`, groups
        that were dropped are made again before new ones, with other seeds. Raises: `ConfigError`.
        """
        given = options.pop("sinks", ())
        self._sinks: list[Sink] = [item for item in given if not isinstance(item, str)]
        if names := [item for item in given if isinstance(item, str)]:
            options["sinks"] = names
        if isinstance(workers, str):
            options["workers"], workers = workers, None
        if isinstance(model, str | Mapping):
            options["model"], model = model, None
        config = make_config(options) if config is None else READER.resolve(config, options)
        if config.command is not None and workers is None:
            raise ConfigError(
                "a command needs workers that start it: give workers=ProgramWorkers(command), of "
                "treadle.server.gateway.programs, or use `treadle rollout --command`"
            )
        self.config = config
        self.folder = RolloutFolder(config.path)
        self.progress = RolloutProgress() if config.deliver == "group" else SingleProgress()
        self._model = model
        self._workers = workers
        self._listener = listener
        self._retry_failed = retry_failed
        self.weights = weights or Weights()
        """The weights of the engines."""
        self.end: JobEnd | None = None
        """Why the newest work ended; `None` before. A loop over groups ends at a limit too."""
        self._stop = asyncio.Event()
        self._work: _Work | None = None
        self._loop: AsyncGenerator[Group, None] | None = None
        """The loop of `async for`; `None` if there was none."""
        self._announced: list[str] = []
        """The versions that were announced before the work began."""

    async def run(self, stop: asyncio.Event | None = None) -> RolloutResult:
        """Make all groups, deliver them to the sinks, and return the outcome.

        If `stop` is set, groups in flight are finished and no new ones begun. A cancellation stops at once; what
        was counted is kept, and what was in flight is continued by the next call. Raises: `ConfigError` if another
        process works in the folder, or if a key was changed that cannot change; `ProviderError` for a fault of the
        user, such as a wrong key; `JournalError` if the journal or the ledger cannot be written.
        """
        async with contextlib.AsyncExitStack() as stack:
            work = await self._open(stack, stop or self._stop, is_consumed=False)
            self.end = end = await work.run()
            return RolloutResult(end, self.progress, self.folder, work.handover.refusals())

    async def groups(self) -> AsyncGenerator[Group, None]:
        """Yield the groups as they are completed. Leaving the loop stops the work; it can be continued."""
        # Not an `asynccontextmanager`: if the trainer fails, asyncio closes all asynchronous generators at the same
        # time, and this one could not close one within it.
        async with contextlib.AsyncExitStack() as stack:
            work, making = await self._begin(stack)
            if (left := await work.handover.find_open_group(work.job.journal)) is not None:
                yield left
                work.handover.acknowledge()
            while (group := await work.handover.next_group(making)) is not None:
                yield group
                work.handover.acknowledge()
            self.end = await making
            await work.finish(self.end)

    async def batches(self, size: int, step: int = 1) -> AsyncGenerator[tuple[Group, ...]]:
        """Yield the groups of a trainer's step, and then those of each next step. Leaving the loop stops the work.

        A step has `size` groups, the last one perhaps fewer. Which groups a step got is recorded: a trainer that
        goes back to a checkpoint, and gives the step that it goes on with, gets the groups of each step again and
        no others, until it comes to steps that it had not reached. Raises: `ConfigError` if `size` is less than 1.
        """
        if size < 1:
            raise ConfigError(f"the size of a batch is {size}; give how many groups a step trains on")
        async with contextlib.AsyncExitStack() as stack:
            work, making = await self._begin(stack)
            while groups := await work.handover.take_batch(step, size, making, work.job.journal):
                yield groups
                step += 1
            self.end = await making
            await work.finish(self.end)

    async def _begin(self, stack: contextlib.AsyncExitStack) -> "tuple[_Work, asyncio.Future[JobEnd]]":
        """Begin the work for a consumer, which ends with `stack`."""
        work = await self._open(stack, self._stop, is_consumed=True)
        making = asyncio.ensure_future(work.run())
        stack.push_async_callback(_end, making)
        return work, making

    def __aiter__(self) -> AsyncIterator[Group]:
        self._loop = self.groups()
        return self._loop

    async def aclose(self) -> None:
        """Stop the work of an `async for` loop that was left early, and wait until it has ended."""
        if self._loop is not None:
            await self._loop.aclose()

    def groups_sync(self) -> Iterator[Group]:
        """Yield what `groups` yields, and block in between."""
        return iterate_blocking(self.groups(), "async for group in rollouts")

    def stop(self) -> None:
        """Begin no more groups. Those in flight are finished and delivered."""
        self._stop.set()

    async def update_weights(
        self,
        version: str,
        load: Callable[[], Awaitable[object]],
        mode: UpdateMode | str = UpdateMode.WAIT,
    ) -> None:
        """Change the weights of the engines by `load`, while rollouts are made; see `Weights.update`."""
        await self.weights.update(version, load, mode)
        self.announce(version)

    def announce(self, version: str) -> None:
        """Record that the model has new weights, for engines that do not report their version."""
        if self._work is None:
            self._announced.append(version)
        else:
            self._work.note_version(version)

    async def _open(
        self, stack: contextlib.AsyncExitStack, stop: asyncio.Event, *, is_consumed: bool
    ) -> "_Work":
        """Begin the work, which ends with `stack`."""
        if self._work is not None:
            raise ConfigError("these rollouts are being made already; make another object with another path")
        folder, config = self.folder, self.config
        options = folder.options(
            config, {GROUPS: folder.groups}, workers=self._workers, stop=stop, listener=self._listener
        )
        job = open_job(
            stack,
            options,
            self.progress,
            partial(_runs_of, config),
            others=judges_of(config),
            check=partial(check_continued, config, retry_failed=self._retry_failed),
        )
        self._retry_failed = False
        mask = make_mask(config.loss, decode=config.find_decode())
        sinks = [*self._sinks, *make_sinks(config.sinks, group_size=config.unit_size, mask=mask)]
        queue = await stack.enter_async_context(DeliveryQueue(folder.ledger, sinks)) if sinks else None
        handover = Handover(config, job.ledger, queue, self.progress, stop, is_consumed=is_consumed)
        self._work = work = _Work(config, job, handover, self._model, self.weights)
        stack.callback(self._forget)
        if queue is not None:
            queue.find_fault = work.groups.find_fault
        for version in self._announced:
            work.note_version(version)
        self._announced.clear()
        return work

    def _forget(self) -> None:
        self._work = None


async def _end(making: "asyncio.Future[JobEnd]") -> None:
    making.cancel()
    await asyncio.wait([making])


class _Work:
    """One process's work on the rollouts of a configuration: the job, and all that its groups need."""

    def __init__(
        self,
        config: RolloutConfig,
        job: Job[MadeGroup, RolloutProgress],
        handover: Handover,
        model: Model | MakeModel | None,
        weights: Weights,
    ) -> None:
        self.job = job
        self.handover = handover
        self._config = config
        self._tasks = find_tasks(config.tasks)
        self._plan = GroupPlan(config, self._tasks)
        self._versions = Versions(job.ledger)
        self._rate = TokenRate()
        self._is_here = isinstance(job.workers, HereWorkers)
        self._agents = SeededAgents(
            config.agent,
            config.model if model is None else model,
            job.journal,
            (self._rate,),
            self._measure,
            weights if self._is_here else None,
        )
        if weights.version is not None:
            self._versions.announce(weights.version)
        reader = GroupReader(config, job.journal)
        driver = AttemptDriver(job, {"": self._agents}, config, RolloutRetried)
        self.groups = GroupWork(
            self._plan, driver, reader, self._versions, handover, handover.progress, self._tell
        )
        self._held_out: HeldOutWork | None = None
        if config.held_out is not None:
            self._held_out = HeldOutWork(
                config.held_out, driver, reader, self._versions, handover, self._tell
            )
            self._held_out.restore(job.ledger)
            self._versions.on_change = job.wake
        held_out = () if config.held_out is None else find_tasks(config.held_out.tasks)
        RolloutFolder(config.path).check_tasks(job.ledger, self._tasks, held_out)
        entries = list(job.ledger.entries())
        self._plan.restore(entries, [item for item in job.ledger.open_items() if item.number > 0])
        self.groups.restore(entries)
        job.progress.wanted = self._plan.wanted
        job.on_refresh = self._refresh
        job.make_beat = self._make_beat
        job.tell(Started(groups=self._plan.wanted, done=handover.progress.delivered, tasks=len(self._tasks)))

    async def run(self) -> JobEnd:
        """Work until enough groups are delivered, and return why the work ended."""
        config, wanted = self._config, self._plan.wanted
        settings = JobSettings(
            wanted=wanted,
            max_items=wanted * config.max_dropped,
            max_failures=3 + math.ceil(config.window / config.group_size),
        )
        async with self.job.beating():
            preparing = config.retries.policy().call(self._agents.prepare, self._tell_retry)
            if not await self.job.finish_unless_stopped(preparing):
                return JobEnd("stopped")
            end = await self.job.run(self.groups, settings, self._until_free, self._held_out)
            await self.handover.drain()
            self.job.refresh()
            return end

    async def finish(self, end: JobEnd) -> None:
        """Evaluate the weights that a consumer has made of the last groups, if that is wanted."""
        if self._held_out is not None and end.reason == "done":
            await self.run()

    async def _until_free(self) -> None:
        """Wait until all planned rollouts have begun. The next group is then prepared before a slot is free."""
        await self.job.slots.until_all_begun()
        await self.handover.until_few_wait()

    def note_version(self, version: str) -> None:
        """Record new weights."""
        self._versions.announce(version)
        self._versions.save()

    def _measure(self, model: Model) -> Model:
        return self.job.meter.measure(model) if self._is_here else model

    def _tell_retry(self, attempt: int, fault: str) -> None:
        self.job.tell(RolloutRetried(run_id="the first request", attempt=attempt, error=fault))

    def _tell(self, notice: JobNotice) -> None:
        if isinstance(notice, RolloutEnded) and not self._is_here:
            self._rate.add(notice.output_tokens)
            if not isinstance(self.job.workers, QueueWorkers):
                # Workers of another package do not tell what they use.
                self.job.meter.add(notice.input_tokens, notice.output_tokens, notice.cost_usd)
        self.job.tell(notice)

    def _refresh(self) -> None:
        self.handover.refresh()
        self.handover.progress.tokens_per_second = self._rate.per_second
        self.handover.progress.weight_version = self._versions.current

    def _make_beat(self) -> JobNotice:
        progress = self.handover.progress
        return Waiting(
            in_flight=progress.in_flight, undelivered=progress.undelivered, troubles=progress.troubles
        )


def _runs_of(config: RolloutConfig, item: PlannedItem) -> RunFilter:
    if item.number < 0:
        return runs_of_round(config, item)
    spec = msgspec.convert(item.spec, GroupSpec)
    begun = [spec.run_id(config.name, index) for index in spec.rollouts]
    return RunFilter(run_ids=[run_id for first in begun for run_id in ids_of(first)])
