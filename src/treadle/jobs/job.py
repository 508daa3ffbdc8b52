"""The job: it works through a plan with a sliding window until enough items are kept, and counts each outcome.

A job does not know what its items are. Its `JobWork` plans items as long as more are needed, attempts them and
decides their outcomes. An item that is rejected is attempted again or replaced by a new one, and a ledger
records each outcome. A new job over the same ledger continues where the last one was interrupted.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError, ProviderError, RateLimitError, UserCodeError
from treadle.jobs.config_changes import Change
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, Ledger, PlannedItem
from treadle.jobs.meter import JobMeter, open_meter
from treadle.jobs.progress import JobListener, JobNotice, JobProgress, ServerFailed, SettingsChanged
from treadle.jobs.sections import LimitSection
from treadle.jobs.slots import Expected, Slots
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.journal.run_info import RunFilter
from treadle.runs.ensure import collecting_less
from treadle.runs.retries import RetryPolicy
from treadle.tools.toolset_parts import forget_files
from treadle.workers.protocol import LOSSES_ALONE, MAX_LOSSES, WorkerOptions, Workers
from treadle.workers.queued import QueueWorkers
from treadle.workers.registry import HereWorkers, make_workers

R = TypeVar("R")
P = TypeVar("P", bound=JobProgress)
_REFRESH_SECONDS = 0.5
"""How often the counts are refreshed while nothing happens."""
_LOOK_SECONDS = 0.2
"""How often the workers are asked at most what they do, which takes time for each run in flight."""
LOSSES = "losses"
"""The ledger's key for lost runs: how many losses each had at its newest progress, and that progress."""
_INTENTS = (e.RunResumed, e.RunPaused, e.InferenceStarted, e.InferenceFailed, e.ToolStarted)
"""The events that are no progress of a run."""
_TELL_SECONDS = 10.0
"""How often the same failure of a server is told at most."""
_BEATS = 10
"""The number of refreshes between two notices that the job goes on."""


class CutOffError(Exception):
    """Raised by the work on an item that a limit of the job has cut off. The item stays open."""


class JobWork(Protocol[R]):
    """The content of a job: the plan of its items, the attempts at them, and their outcomes."""

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        """Return the item with this number, given the counts so far."""

    async def attempt(self, item: PlannedItem, attempt: int, expected: Expected) -> R:
        """Work on an item in slots of the window, and return the result. `expected` announces one run.

        Raises: `CutOffError`; any other exception ends the whole job.
        """

    def settle(
        self, item: PlannedItem, attempt: int, result: R, connection: sqlite3.Connection
    ) -> ItemOutcome:
        """Decide the outcome of an attempt, and return it."""

    def set_aside(self, item: PlannedItem, attempt: int, reason: str) -> R:
        """Return the result of an item that is not worked on, as a fault of the infrastructure."""

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        """Take note of an outcome after it was counted."""


class WorkBeside(JobWork[R], Protocol[R]):
    """Items beside the plan of a job, such as evaluations. They have negative numbers, and none of them is a wanted
    item; the job does not end before them. They are worked on with the same window and limits."""

    def is_due(self, *, is_last: bool) -> bool:
        """Return whether an item is to be planned now. `is_last` is true once enough items of the plan are kept."""


class JobSettings(Struct, frozen=True, kw_only=True):
    wanted: int
    """How many items are wanted."""
    max_items: int
    """How many items the plan may have."""
    max_failures: int = 20
    """The job ends when this many attempts in a row have failed because of the infrastructure."""
    max_rejections: int | None = None
    """The job ends if this many attempts are rejected for one reason, or three times as many for several, before
    any is kept. `None`: it goes on until the plan is full."""


class JobEnd(Struct, frozen=True):
    """The end of a job, and its reason."""

    reason: str
    """`done`, `stopped`, `max_items`, `failures`, `rejections`, or the name of a limit."""
    error: str | None = None
    """The newest failure or rejection, if the reason is `failures` or `rejections`."""


class Job(Generic[R, P]):
    """One process's work on a plan."""

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal,
        meter: JobMeter,
        workers: Workers,
        progress: P,
        *,
        window: int,
        stop: asyncio.Event | None = None,
        listener: JobListener = lambda notice, progress: None,
    ) -> None:
        """Make a job whose runs are driven by `workers`, at most `window` at a time; see `JobOptions`."""
        self.ledger = ledger
        self.journal = journal
        self.meter = meter
        self.workers = workers
        self.progress = progress
        self.slots = Slots(window, progress)
        self.counts = ledger.counts()
        self.stop = stop or asyncio.Event()
        self.in_flight = 0
        """How many items of the plan are worked on."""
        self._beside = 0
        """How many items beside the plan are worked on."""
        self.suspects: Mapping[int, str] = {}
        """See `find_suspects`."""
        self.end: JobEnd | None = None
        self.on_refresh: Callable[[], None] = lambda: None
        """Called when the counts are refreshed, for counts of a job's own."""
        self.make_beat: Callable[[], JobNotice] | None = None
        """Return the notice that says that the job goes on; `None` if there is none."""
        self._listener = listener
        self._failures = 0
        """How many attempts in a row failed."""
        self._error: str | None = None
        """Why the newest of them failed."""
        self._rejections: dict[str, tuple[int, str]] = {}
        """The number of rejections in this process and the newest text, by the name of the reason."""
        self._changed = asyncio.Event()
        """Set when an outcome was counted, or the job is to stop."""
        self._looked_at = -_LOOK_SECONDS
        """When the workers were last asked what they do, on the clock of the meter."""
        meter.on_failure, meter.stop = self._tell_failure, self.stop
        self._failure = ("", 0.0)
        """The failure of a server that was told last, and when, on the clock of the meter."""
        progress.resumed = self.counts.kept
        self.refresh()

    def tell(self, notice: JobNotice, *, has_news: bool = True) -> None:
        """Pass a notice to the listener, with refreshed counts if it `has_news` about them, or they are old."""
        if has_news or self.meter.seconds - self.progress.seconds >= _REFRESH_SECONDS:
            self.refresh()
        self._listener(notice, self.progress)

    def _tell_failure(self, model: str, error: ProviderError, delay_seconds: float) -> None:
        """Tell once in a while that a server does not answer. A server that asks to slow down does answer."""
        said, at = self._failure
        if isinstance(error, RateLimitError) or (
            said == str(error) and self.meter.seconds - at < _TELL_SECONDS
        ):
            return
        self._failure = str(error), self.meter.seconds
        self.tell(ServerFailed(model=model, error=str(error), retry_in_seconds=delay_seconds))

    def refresh(self) -> None:
        progress, counts, meter = self.progress, self.counts, self.meter
        progress.kept, progress.rejected, progress.failed = counts.kept, counts.rejected, counts.failed
        progress.reasons = counts.reasons
        progress.input_tokens, progress.output_tokens = meter.input_tokens, meter.output_tokens
        progress.cost_usd, progress.seconds = meter.cost_usd, meter.seconds
        progress.is_stopping, progress.run_seconds = self.stop.is_set(), self.slots.seconds.mean
        if progress.seconds - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = progress.seconds
            status = self.workers.status()
            progress.on_model, progress.on_tools = status.waiting_on_model, status.waiting_on_tools
            progress.workers, progress.restarts = status.workers, status.restarts
        self.on_refresh()

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Refresh the counts regularly within the `with` block, and tell that the job goes on."""
        task = asyncio.ensure_future(self._beat())
        try:
            yield
        finally:
            task.cancel()

    async def _beat(self) -> None:
        while True:
            for _ in range(_BEATS):
                await asyncio.sleep(_REFRESH_SECONDS)
                self.refresh()
            if self.make_beat is not None:
                self.tell(self.make_beat())

    async def run(
        self,
        work: JobWork[R],
        settings: JobSettings,
        until_free: Callable[[], Awaitable[None]] | None = None,
        beside: WorkBeside[Any] | None = None,
    ) -> JobEnd:
        """Work until enough items are kept or a limit is reached, and return why the job ended.

        `until_free` waits until another item of the plan may begin; by default, until a slot is free. `beside` has
        further items, which do not wait for it; a job that has ended may run again for those that are due since. A
        cancellation stops the work in flight at once; a new job over the same ledger continues it. Raises: the
        exceptions of `JobWork.attempt` and `JobWork.settle`.
        """
        again = [item for item in self.ledger.open_items() if beside is not None or item.number > 0]
        again.sort(key=lambda item: (item.number in self.suspects, item.number < 0, -item.number))
        self.end = None
        stopping = asyncio.ensure_future(self._wait_for_stop())
        try:
            with collecting_less(self.slots.size):
                async with asyncio.timeout(self.meter.seconds_left), asyncio.TaskGroup() as group:
                    while True:
                        await self._until_free(until_free or self.slots.until_free, again, beside)
                        item = await self._next(work, settings, again, beside)
                        if item is None:
                            break
                        self._note_in_flight(item, 1)
                        expected = self.slots.expect(1)
                        its_work = work if item.number > 0 or beside is None else beside
                        task = group.create_task(self._attempt(its_work, settings, item, expected, again))
                        if item.number in self.suspects:
                            await asyncio.wait([task])  # no other run shares its next loss
        except TimeoutError:
            if self.meter.find_limit() is None:
                raise
            self.end = JobEnd("max_seconds")
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            stopping.cancel()
            self.refresh()
        assert self.end is not None
        return self.end

    async def finish_unless_stopped(self, work: Coroutine[Any, Any, object]) -> bool:
        """Return true when `work` is done; false if the job is to stop before, once it is cancelled. Raises: what
        it raises."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
            return working.done()
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def close(self) -> None:
        """Stop the workers, and record how long was worked."""
        await self.workers.close()
        with contextlib.suppress(JournalError):
            self.ledger.keep(self.meter.facts())

    def wake(self) -> None:
        """Look again whether an item beside the plan is due."""
        self._changed.set()

    def _note_in_flight(self, item: PlannedItem, change: int) -> None:
        if item.number > 0:
            self.in_flight += change
        else:
            self._beside += change

    async def _wait_for_stop(self) -> None:
        await self.stop.wait()
        self.end = self.end or JobEnd("stopped")
        self._changed.set()

    async def _until_free(
        self,
        until_free: Callable[[], Awaitable[None]],
        again: list[PlannedItem],
        beside: WorkBeside[Any] | None,
    ) -> None:
        """Wait until another item of the plan may begin, or an item beside it is to begin."""
        if beside is None:
            return await until_free()
        free = asyncio.ensure_future(until_free())
        try:
            while not free.done():
                self._changed.clear()
                if self._is_due(beside, again, is_last=False):
                    return None
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((free, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            return free.result()
        finally:
            free.cancel()

    async def _next(
        self,
        work: JobWork[R],
        settings: JobSettings,
        again: list[PlannedItem],
        beside: WorkBeside[Any] | None,
    ) -> PlannedItem | None:
        """Return the next item to attempt, after waiting until one is needed; `None` at the end."""
        counts = self.counts
        while True:
            self._changed.clear()
            is_done = counts.kept >= settings.wanted
            if beside is not None:
                if self._is_due(beside, again, is_last=is_done):
                    return self._next_beside(beside, again)
                is_done = is_done and not self._beside
            if self.end is None and is_done:
                self.end = JobEnd("done")
            if self.end is None and (limit := self.meter.find_limit()) is not None:
                self.end = JobEnd(limit)
            if self.end is None and self.stop.is_set():
                self.end = JobEnd("stopped")
            if self.end is not None:
                return None
            if counts.kept + self.in_flight < settings.wanted:
                if again:
                    return again.pop()
                if counts.planned < settings.max_items:
                    return self._plan_next(work)
                if not self.in_flight:
                    self.end = JobEnd("failures", self._error) if counts.failed else JobEnd("max_items")
                    return None
            await self._changed.wait()

    def _is_due(self, beside: WorkBeside[Any], again: list[PlannedItem], *, is_last: bool) -> bool:
        """Return whether an item beside the plan is to begin now."""
        if self.end is not None or self.stop.is_set() or self.meter.find_limit() is not None:
            return False
        if again and (again[-1].number < 0 or again[-1].number in self.suspects):
            return again[-1].number < 0
        return beside.is_due(is_last=is_last)

    def _next_beside(self, beside: WorkBeside[Any], again: list[PlannedItem]) -> PlannedItem:
        """Return the item beside the plan that is due."""
        if again and again[-1].number < 0:
            return again.pop()
        item = beside.make_item(self.ledger.last_beside - 1, self.counts)
        self.ledger.plan(item)
        return item

    def _plan_next(self, work: JobWork[R]) -> PlannedItem:
        item = work.make_item(self.counts.planned + 1, self.counts)
        self.ledger.plan(item)
        self.counts.planned += 1
        self.counts.shares[item.share] = self.counts.shares.get(item.share, 0) + 1
        return item

    async def _attempt(
        self,
        work: JobWork[R],
        settings: JobSettings,
        item: PlannedItem,
        expected: Expected,
        again: list[PlannedItem],
    ) -> None:
        attempt = item.attempts + 1
        try:
            with expected:
                if reason := self.suspects.get(item.number):
                    result = work.set_aside(item, attempt, reason)
                else:
                    result = await work.attempt(item, attempt, expected)
            outcome = self.ledger.count(
                item.number,
                attempt,
                lambda connection: work.settle(item, attempt, result, connection),
                self.meter.facts(),
            )
        except CutOffError:
            return
        finally:
            self._note_in_flight(item, -1)
            self._changed.set()
        if item.number > 0:
            self._count(item, outcome, settings)
        if outcome.status is ItemStatus.REJECTED and not outcome.is_final:
            again.append(replace(item, attempts=attempt, feedback=outcome.reasons))
        work.note(item, outcome)

    def _count(self, item: PlannedItem, outcome: ItemOutcome, settings: JobSettings) -> None:
        counts = self.counts
        self._failures = self._failures + 1 if outcome.status is ItemStatus.FAILED else 0
        if outcome.status is ItemStatus.KEPT:
            counts.kept += 1
            counts.labels[outcome.label] = counts.labels.get(outcome.label, 0) + 1
        elif outcome.status is ItemStatus.REJECTED:
            counts.rejected += 1
            text = outcome.reasons[0] if outcome.reasons else ""
            name = text.partition(":")[0]
            counts.reasons[name] = counts.reasons.get(name, 0) + 1
            self._note_rejection(name, text, settings)
            if outcome.is_final:
                counts.shares[item.share] -= 1
        else:
            counts.failed += 1
            self._error = outcome.reasons[0] if outcome.reasons else None
            if self.suspects.get(item.number):
                self._failures -= 1  # it was not tried
            if self._failures >= settings.max_failures and self.end is None:
                self.end = JobEnd("failures", self._error)

    def _note_rejection(self, name: str, text: str, settings: JobSettings) -> None:
        """Keep the text of the commonest reason for the view, and end a job that can only be rejected."""
        found, count = self._rejections, self._rejections.get(name, (0, ""))[0] + 1
        found[name] = count, text
        self.progress.rejection = max(found.values())[1]
        if self.counts.kept or self.end is not None or settings.max_rejections is None:
            return
        total = sum([count for count, _ in found.values()])
        # Several reasons may be chance for longer than one.
        if total >= settings.max_rejections * (1 if len(found) == 1 else 3):
            self.end = JobEnd("rejections", max(found.values())[1])


class JobOptions(Struct, frozen=True, kw_only=True):
    """The options of a job: where it is kept, and how its runs are driven."""

    ledger: Path
    files: Mapping[str, Path]
    """The files of the ledger by name."""
    journal: str | Path
    """The journal of the runs: a file, or the address of a store."""
    limits: LimitSection
    window: int
    """How many runs are driven at the same time."""
    workers: str | Workers
    """The workers that drive the runs, or their name, such as `local:4`."""
    worker_retries: RetryPolicy = RetryPolicy()
    """How often a worker elsewhere continues a run that ended with a fault of the infrastructure."""
    stop: asyncio.Event | None = None
    """An event that stops the job: once it is set, items in flight are finished and no new ones begin."""
    listener: JobListener = lambda notice, progress: None
    """The function that is called for each notice, with the counts after it."""


def open_job(
    stack: AsyncExitStack,
    options: JobOptions,
    progress: P,
    runs_of: Callable[[PlannedItem], RunFilter],
    *,
    others: RunFilter | None = None,
    check: Callable[[Ledger, Journal], Sequence[Change] | None] = lambda ledger, journal: None,
) -> Job[Any, P]:
    """Open a job, or continue it if it was interrupted; `stack` closes it.

    `runs_of` finds the runs of an item, and `others` are the runs that belong to no item: what they have used
    counts for the limits. `check` is called first, and may refuse to continue; the listener is told of the changes
    that it returns. Raises: `ConfigError` if another process works on the job; `JournalError`.
    """
    ledger = stack.enter_context(Ledger(options.ledger))
    if ledger.last_number and isinstance(options.journal, Path) and not options.journal.exists():
        found = sorted([file.name for file in options.ledger.parent.glob("*.db") if file != options.ledger])
        hint = f"; the folder has {found[0]!r}, perhaps the journal of another kind of job" if found else ""
        raise ConfigError(
            f"the journal {str(options.journal)!r} with the runs of this job is missing; put it back, or name "
            f"another folder (--out){hint}"
        )
    ledger.open_files(options.files)
    journal = stack.enter_context(closing(open_journal(options.journal, packs=True)))
    changes = check(ledger, journal)
    meter = open_meter(options.limits, ledger, journal, runs_of, others)
    workers = options.workers
    if isinstance(workers, str):
        given = WorkerOptions(window=options.window, retries=options.worker_retries)
        workers = make_workers(workers, journal, given)
    if isinstance(workers, QueueWorkers):
        workers.on_used = lambda usage, cost_usd: meter.add(usage.input_tokens, usage.output_tokens, cost_usd)
    job: Job[Any, P] = Job(
        ledger,
        journal,
        meter,
        workers,
        progress,
        window=options.window,
        stop=options.stop,
        listener=options.listener,
    )
    if isinstance(workers, HereWorkers):  # other workers set runs aside themselves
        job.suspects = find_suspects(ledger, journal, runs_of)
    stack.push(_forget_mistakes)
    stack.push_async_callback(job.close)
    if changes:
        job.tell(SettingsChanged(changes=tuple(map(str, changes))))
    return job


def find_suspects(
    ledger: Ledger, journal: Journal, runs_of: Callable[[PlannedItem], RunFilter]
) -> dict[int, str]:
    """Return the open items with a run that may have ended its processes, by number.

    Each is driven while nothing else is, so that the next loss names the guilty one. It has the text of why it is
    set aside if its run was then lost `MAX_LOSSES` times more with no progress, else an empty text.
    """
    before = msgspec.json.decode(ledger.get(LOSSES) or "{}", type=dict[str, tuple[int, int]])
    found: dict[int, str] = {}
    seen: dict[str, tuple[int, int]] = {}
    for item in ledger.open_items():
        for info in journal.runs(runs_of(item)):
            if info.losses < LOSSES_ALONE or info.is_driven:
                continue
            progress = sum(not isinstance(event.body, _INTENTS) for event in journal.scan(info.run_id))
            since, then = before.get(info.run_id, (info.losses, progress))
            if then != progress or info.losses < since:
                since = info.losses
            seen[info.run_id] = since, progress
            if info.losses - since >= MAX_LOSSES:
                found[item.number] = (
                    f"{info.losses} processes in a row ended while they drove run {info.run_id}, and it made no "
                    f"progress; mend the cause, then resume it with `treadle resume {info.run_id}`"
                )
            else:
                found.setdefault(item.number, "")
    ledger.set(LOSSES, msgspec.json.encode(seen).decode())
    return found


def _forget_mistakes(kind: type[BaseException] | None, *_: object) -> None:
    """Let the files of users be loaded anew by the next job if this one ended with a mistake in them."""
    if kind is not None and issubclass(kind, UserCodeError):
        forget_files()
