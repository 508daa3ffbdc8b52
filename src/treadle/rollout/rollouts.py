"""The class `Rollouts`: all rollouts of one configuration, from the plan to the receivers of groups."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from treadle.agent.sync import iterate_blocking
from treadle.core.errors import ConfigError
from treadle.export.groups import Group
from treadle.jobs.job import End
from treadle.jobs.ledger import Ledger
from treadle.jobs.seeded import MakeModel
from treadle.journal.registry import open_journal
from treadle.models.protocol import Model
from treadle.models.tokens.weights import UpdateMode, Weights
from treadle.rollout.deliveries import DeliveryQueue, Parcel
from treadle.rollout.making import Given, Making
from treadle.rollout.rollout_config import RolloutConfig, load_config, make_config
from treadle.rollout.rollout_folder import RolloutFolder, check_continued
from treadle.rollout.rollout_progress import (
    Listener,
    RolloutProgress,
)
from treadle.rollout.sinks.protocol import Sink
from treadle.rollout.sinks.registry import make_sinks
from treadle.rollout.work import GROUPS
from treadle.trajectory.tokens.masks import make_mask
from treadle.workers.protocol import Workers


class RolloutResult(Struct, frozen=True):
    """The outcome of the work."""

    end: End
    progress: RolloutProgress
    folder: RolloutFolder
    refusals: tuple[Parcel, ...] = ()
    """The groups that a sink or its receiver has refused, with the reasons."""


class Rollouts:
    """The rollouts of one configuration. A new object over the same folder continues them.

    `run` delivers groups to the sinks. `async for group in rollouts` also gives them to a trainer, one by one: a
    group counts as received when the next one is asked for, and is given again after a crash before that.
    """

    def __init__(
        self,
        config: RolloutConfig | str | Path | None = None,
        *,
        model: Model | MakeModel | str | Mapping[str, Any] | None = None,
        workers: Workers | str | None = None,
        weights: Weights | None = None,
        listener: Listener = lambda notice, progress: None,
        **options: Any,
    ) -> None:
        """Prepare the rollouts of `config`, a configuration or the path of one, or of `options`, the keys of one.

        `model` may also be a model, or a function of a task and a seed that returns one; `workers` and `sinks` may
        also be objects. `weights` are those of the engines, for `update_weights`. Raises: `ConfigError`.
        """
        given = options.pop("sinks", ())
        self._sinks: list[Sink] = [item for item in given if not isinstance(item, str)]
        if names := [item for item in given if isinstance(item, str)]:
            options["sinks"] = names
        if isinstance(model, str | Mapping):
            options["model"], model = model, None
        if isinstance(workers, str):
            options["workers"], workers = workers, None
        if config is None:
            config = make_config(options)
        elif isinstance(config, str | Path):
            config = load_config(config, options)
        elif options:
            raise ConfigError(f"give a configuration or options, not both: {', '.join(options)}")
        self.config = config
        self.folder = RolloutFolder(config.path)
        self.progress = RolloutProgress()
        self._model = model
        self._workers = workers
        self._listener = listener
        self.weights = weights or Weights()
        """The weights of the engines."""
        self._stop = asyncio.Event()
        self._work: Making | None = None
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
            end = await work.run()
            return RolloutResult(end, self.progress, self.folder, work.refusals())

    async def groups(self) -> AsyncGenerator[Group, None]:
        """Yield the groups as they are completed. Leaving the loop stops the work; it can be continued."""
        # Not an `asynccontextmanager`: if the trainer fails, asyncio closes all asynchronous generators at the same
        # time, and this one could not close one within it.
        async with contextlib.AsyncExitStack() as stack:
            work = await self._open(stack, self._stop, is_consumed=True)
            making = asyncio.ensure_future(work.run())
            try:
                if (left := await work.find_open_group()) is not None:
                    yield left
                    work.acknowledge()
                while (group := await work.next_group(making)) is not None:
                    yield group
                    work.acknowledge()
                await making
            finally:
                making.cancel()
                await asyncio.wait([making])

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
    ) -> Making:
        """Begin the work, which ends with `stack`."""
        if self._work is not None:
            raise ConfigError("these rollouts are being made already; make another object with another path")
        folder, config = self.folder, self.config
        ledger = stack.enter_context(Ledger(folder.ledger, {GROUPS: folder.groups}))
        journal = stack.enter_context(contextlib.closing(open_journal(config.journal or folder.journal)))
        check_continued(config, ledger, journal)
        mask = make_mask(config.loss, decode=config.find_decode())
        made = make_sinks(config.sinks, group_size=config.unit_size, mask=mask)
        sinks = [*self._sinks, *made]
        outbox = await stack.enter_async_context(DeliveryQueue(folder.ledger, sinks)) if sinks else None
        given = Given(
            model=self._model,
            workers=self._workers,
            weights=self.weights,
            listener=self._listener,
            progress=self.progress,
            stop=stop,
            is_consumed=is_consumed,
        )
        self._work = work = Making(config, ledger, journal, outbox, given)
        stack.push_async_callback(self._close, work)
        for version in self._announced:
            work.note_version(version)
        self._announced.clear()
        return work

    async def _close(self, work: Making) -> None:
        try:
            await work.close()
        finally:
            self._work = None
