"""The evaluation of each version of the weights on held-out tasks, beside the groups of the same job.

An evaluation is one item of the ledger, whose number is negative. It is planned when the newest version of the
weights is one that has none, at the beginning and at the end. Its runs have fixed ids, so that a process that goes
on with it makes none again.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable

import msgspec

from treadle.core.types import Json
from treadle.export.groups import EVALUATION, PHASE_LABEL
from treadle.jobs.attempt import Attempt, AttemptDriver, AttemptFailedError, ids_of
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, Ledger, PlannedItem
from treadle.jobs.progress import JobNotice
from treadle.jobs.slots import Expected
from treadle.journal.run_info import RunFilter
from treadle.rollout.collect import GroupReader, Rolled, Versions, sum_use
from treadle.rollout.deliveries import Handover
from treadle.rollout.held_out_scores import (
    HeldOutDetails,
    HeldOutRound,
    HeldOutSample,
    HeldOutScore,
    read_scores,
    score_round,
)
from treadle.rollout.rollout_config import HeldOutSection, RolloutConfig
from treadle.rollout.rollout_progress import HeldOutEnded, VersionScored
from treadle.runs.task import find_tasks, load_task
from treadle.tasks.draws import fraction


class HeldOutWork:
    """The evaluations of one configuration; see `jobs.job.WorkBeside`."""

    def __init__(
        self,
        settings: HeldOutSection,
        driver: AttemptDriver,
        reader: GroupReader,
        versions: Versions,
        handover: Handover,
        tell: Callable[[JobNotice], None],
    ) -> None:
        self._config = reader.config
        self._settings = settings
        self._tasks = tuple(find_tasks(settings.tasks))
        self._driver = driver
        self._reader = reader
        self._versions = versions
        self._handover = handover
        self._tell = tell
        # At most so many runs at a time, so that groups keep the rest of the window.
        self._room = asyncio.Semaphore(max(1, int(self._config.window * settings.share)))
        self._begun: set[str | None] = set()
        """The versions that have an evaluation."""
        self._unnamed: set[int] = set()
        """The evaluations whose version is not known yet."""
        self._names: dict[int, str | None] = {}
        """The versions of the evaluations in flight."""

    def restore(self, ledger: Ledger) -> None:
        """Take note of the evaluations that earlier processes have planned and ended."""
        progress = self._handover.progress
        progress.held_out = read_scores(ledger.entries(is_beside=True), self._config.solved_at)
        self._begun.update([score.version for score in progress.held_out])
        for item in ledger.open_items():
            if item.number < 0:
                self._begin(item)

    def is_due(self, *, is_last: bool) -> bool:
        if self._unnamed:
            return False
        progress, current = self._handover.progress, self._versions.current
        if current is None and is_last and progress.held_out:
            # Nobody knows whether the weights have changed.
            return progress.held_out[-1].groups < progress.delivered
        return current not in self._begun

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        version, settings = self._versions.current, self._settings
        spec = HeldOutRound(version, self._tasks, settings.epochs, self._handover.progress.delivered)
        item = PlannedItem(number, "", "", msgspec.to_builtins(spec))
        self._begin(item)
        return item

    def _begin(self, item: PlannedItem) -> None:
        version = item.spec["version"]
        if version is None:
            self._unnamed.add(item.number)
        else:
            self._name(item.number, version)

    def _name(self, number: int, version: str | None) -> None:
        self._names[number] = version
        self._unnamed.discard(number)
        self._begun.add(version)

    async def attempt(self, item: PlannedItem, attempt: int, expected: Expected) -> ItemOutcome:
        """Make one evaluation. Raises: as `AttemptDriver.drive` does."""
        spec = msgspec.convert(item.spec, HeldOutRound)
        # Groups do not wait until all of these runs have begun.
        expected.add(-1)
        journal = self._reader.journal
        begun = {info.run_id for info in journal.runs(runs_of_round(self._config, item))}
        try:
            async with asyncio.TaskGroup() as group:
                made = [
                    group.create_task(self._make(item.number, index, place, expected, begun))
                    for index, place in enumerate(spec.places)
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return self._summarise(item, spec, [task.result() for task in made])

    async def _make(
        self, number: int, index: int, place: tuple[str, int], expected: Expected, begun: set[str]
    ) -> Rolled | AttemptFailedError | None:
        """Return a finished run, why there is none, or `None` if it was not begun: the weights had changed."""
        config, run_id = self._config, _find_run_id(self._config, number, index)
        metadata: dict[str, Json] = {"rollout": config.name, "held_out": -number, PHASE_LABEL: EVALUATION}
        async with self._room:
            if run_id not in begun and self._is_over(number):
                return None
            seed = int(fraction(config.seed, "held_out", *place) * 2**31)
            planned = Attempt(run_id=run_id, task=load_task(place[0]), seed=seed, metadata=metadata)
            try:
                with expected.expect(1) as own:
                    run = await self._driver.drive(planned, own)
            except AttemptFailedError as failed:
                return failed
            rolled = await asyncio.to_thread(self._reader.read, run)
        self._versions.note(rolled.sampled)
        if number in self._unnamed and (first := _find_first([rolled], self._versions)) is not None:
            self._name(number, first)
        self._tell(rolled.notice(HeldOutEnded, place[0]))
        return rolled

    def _is_over(self, number: int) -> bool:
        """Return whether there are newer weights than those of an evaluation."""
        return number in self._names and self._versions.current != self._names[number]

    def _summarise(
        self, item: PlannedItem, spec: HeldOutRound, made: list[Rolled | AttemptFailedError | None]
    ) -> ItemOutcome:
        rolled = [one for one in made if isinstance(one, Rolled)]
        if item.number in self._unnamed:
            self._name(item.number, _find_first(rolled, self._versions))
        version, find = self._names[item.number], self._versions.find_version
        failed = {
            _find_run_id(self._config, item.number, index): str(one)
            for index, one in enumerate(made)
            if isinstance(one, AttemptFailedError)
        }
        samples: list[HeldOutSample] = []
        for one, (task, _) in zip(made, spec.places, strict=True):
            if isinstance(one, Rolled) and (reward := one.rollout.reward) is not None:
                own = [
                    {*answer} == {version} if isinstance(answer, tuple) else find(answer) == version
                    for answer in one.answers
                ]
                share = sum(own) / len(own) if own else 1.0
                run_id, is_solved = one.rollout.run_id, one.rollout.is_solved
                samples.append(HeldOutSample(run_id, task, reward, share, is_solved))
        details = HeldOutDetails(version, spec.groups, tuple(samples), made.count(None), failed)
        return _decide(details, rolled, next(iter(failed.values()), None) if not samples else None)

    def set_aside(self, item: PlannedItem, attempt: int, reason: str) -> ItemOutcome:
        self._unnamed.discard(item.number)
        return _decide(HeldOutDetails(None, 0), (), f"infrastructure: {reason}")

    def settle(
        self, item: PlannedItem, attempt: int, result: ItemOutcome, connection: sqlite3.Connection
    ) -> ItemOutcome:
        """See `JobWork.settle`. The sinks that take scores get the score in the same transaction."""
        if result.status is ItemStatus.KEPT:
            self._handover.put_score(connection, self._score(item, result))
        return result

    def _score(self, item: PlannedItem, outcome: ItemOutcome) -> HeldOutScore:
        details = msgspec.convert(outcome.details, HeldOutDetails)
        return score_round(item.number, details, self._config.solved_at)

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        self._versions.save()
        self._names.pop(item.number, None)
        if outcome.status is ItemStatus.KEPT:
            score = self._score(item, outcome)
            self._handover.progress.held_out.append(score)
            self._handover.finish(None)
            self._tell(VersionScored(score=score))
        else:
            self._tell(VersionScored(score=None, reason=outcome.reasons[0]))


def _decide(details: HeldOutDetails, rolled: Iterable[Rolled], fault: str | None) -> ItemOutcome:
    """Return the outcome of an evaluation. `fault` is why it has no result; `None` if it has one."""
    return ItemOutcome(
        status=ItemStatus.KEPT if fault is None else ItemStatus.FAILED,
        reasons=() if fault is None else (fault,),
        details=msgspec.to_builtins(details),
        **sum_use(rolled),
    )


def _find_first(rolled: Iterable[Rolled], versions: Versions) -> str | None:
    """Return the oldest version that sampled an answer; `None` if none is known."""
    found = {versions.find_version(answer) for one in rolled for answer in one.answers}
    return next((item.version for item in versions.known if item.version in found), None)


def _find_run_id(config: RolloutConfig, number: int, index: int) -> str:
    return f"{config.name}-held-{-number}-{index}"


def runs_of_round(config: RolloutConfig, item: PlannedItem) -> RunFilter:
    spec = msgspec.convert(item.spec, HeldOutRound)
    begun = [_find_run_id(config, item.number, index) for index in range(len(spec.places))]
    return RunFilter(run_ids=[run_id for first in begun for run_id in ids_of(first)])
