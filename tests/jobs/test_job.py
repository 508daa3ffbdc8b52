"""A job delivers exactly the wanted number of items, replaces those that fail, and can be stopped."""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.jobs.job import Job, JobEnd, JobSettings
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, Ledger, PlannedItem
from treadle.jobs.meter import JobMeter
from treadle.jobs.progress import JobNotice, JobProgress
from treadle.jobs.sections import LimitSection
from treadle.jobs.slots import Expected
from treadle.journal.registry import open_journal
from treadle.workers.registry import HereWorkers


class Trial:
    """Work that ends as `judge` says, after a time that the number gives."""

    def __init__(self, judge: Callable[[int, int], ItemStatus], window: int = 0) -> None:
        """`window`: so many items are in flight at once before the first one ends."""
        self.judge = judge
        self.window = window
        self.most = self.now = 0
        self.feedback: list[tuple[str, ...]] = []

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        return PlannedItem(number, "any", f"topic {number % 3}", {})

    async def attempt(self, item: PlannedItem, attempt: int, expected: Expected) -> ItemStatus:
        async with expected.slot():
            self.now += 1
            self.most = max(self.most, self.now)
            self.feedback.append(item.feedback)
            try:
                return await self.make(item, attempt)
            finally:
                self.now -= 1

    async def make(self, item: PlannedItem, attempt: int) -> ItemStatus:
        await asyncio.sleep(random.Random(item.number).random() / 500)
        while self.most < self.window:
            await asyncio.sleep(0)
        return self.judge(item.number, attempt)

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        pass

    def settle(
        self, item: PlannedItem, attempt: int, result: ItemStatus, connection: sqlite3.Connection
    ) -> ItemOutcome:
        return ItemOutcome(
            status=result,
            label=item.label,
            reasons=("why: so",) if result is not ItemStatus.KEPT else (),
            is_final=attempt >= 2 or result is not ItemStatus.REJECTED,
            file="rows" if result is ItemStatus.KEPT else None,
            line=b"%d\n" % item.number,
            input_tokens=10,
        )


class TrialJob(Job[ItemStatus, JobProgress]):
    """A job over a trial, in a folder."""

    def __init__(
        self, path: Path, trial: Trial, *, meter: JobMeter | None = None, window: int = 8, **settings: int
    ) -> None:
        ledger = Ledger(path / "ledger.db", {"rows": path / "rows.jsonl"})
        meter = meter or JobMeter(LimitSection())
        super().__init__(ledger, open_journal("memory:"), meter, HereWorkers(), JobProgress(), window=window)
        self.trial = trial
        self.settings = JobSettings(**{"wanted": 50, "max_items": 200, **settings})


async def finish(made: TrialJob) -> JobEnd:
    try:
        return await made.run(made.trial, made.settings)
    finally:
        made.ledger.close()


def rows(path: Path) -> list[int]:
    return [int(line) for line in (path / "rows.jsonl").read_text().split()]


async def test_the_wanted_number_is_delivered_although_items_fail(tmp_path: Path) -> None:
    """A batch with failures is topped up to exactly the number that was asked for."""
    judge = {0: ItemStatus.REJECTED, 1: ItemStatus.FAILED}
    trial = Trial(lambda number, attempt: judge.get(number % 4, ItemStatus.KEPT), window=8)
    made = TrialJob(tmp_path, trial)
    assert (await finish(made)).reason == "done"
    found = rows(tmp_path)
    assert len(found) == len(set(found)) == made.counts.kept == 50
    assert all(number % 4 > 1 for number in found)
    assert trial.most == 8
    assert ("why: so",) in trial.feedback


async def test_a_second_run_goes_on_and_a_third_has_nothing_to_do(tmp_path: Path) -> None:
    trial = Trial(lambda number, attempt: ItemStatus.KEPT)
    made = TrialJob(tmp_path, trial)
    asyncio.get_running_loop().call_later(0.005, made.stop.set)
    assert (await finish(made)).reason == "stopped"
    before = rows(tmp_path)
    assert len(before) < 50
    assert (await finish(TrialJob(tmp_path, trial))).reason == "done"
    assert rows(tmp_path)[: len(before)] == before
    assert sorted(rows(tmp_path)) == list(range(1, 51))
    asked = len(trial.feedback)
    assert (await finish(TrialJob(tmp_path, trial))).reason == "done"
    assert len(trial.feedback) == asked


async def test_a_cancellation_loses_nothing_that_was_counted(tmp_path: Path) -> None:
    trial = Trial(lambda number, attempt: ItemStatus.KEPT)
    task = asyncio.create_task(finish(TrialJob(tmp_path, trial)))
    await asyncio.sleep(0.006)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trial.now == 0
    assert (await finish(TrialJob(tmp_path, trial))).reason == "done"
    assert sorted(rows(tmp_path)) == list(range(1, 51))


async def test_work_that_a_stop_cuts_off_has_ended_before_its_job_goes_on(tmp_path: Path) -> None:
    made, ended = TrialJob(tmp_path, Trial(lambda number, attempt: ItemStatus.KEPT)), []

    async def work() -> None:
        made.stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    assert not await made.finish_unless_stopped(work())
    assert ended


async def test_a_plan_ends_at_its_limits(tmp_path: Path) -> None:
    never = Trial(lambda number, attempt: ItemStatus.REJECTED)
    assert (await finish(TrialJob(tmp_path / "a", never, max_items=20))).reason == "max_items"
    assert len(never.feedback) == 40
    down = Trial(lambda number, attempt: ItemStatus.FAILED)
    end = await finish(TrialJob(tmp_path / "b", down, max_failures=5))
    assert (end.reason, end.error) == ("failures", "why: so")
    assert len(down.feedback) < 5 + 8
    half = Trial(lambda number, attempt: ItemStatus.FAILED if number % 2 else ItemStatus.REJECTED)
    end = await finish(TrialJob(tmp_path / "c", half, max_items=20))
    assert (end.reason, end.error) == ("failures", "why: so"), "the samples were not all to blame"


async def test_a_time_limit_stops_work_in_flight(tmp_path: Path) -> None:
    class Slow(Trial):
        async def make(self, item: PlannedItem, attempt: int) -> ItemStatus:
            await asyncio.sleep(60)
            return ItemStatus.KEPT

    meter = JobMeter(LimitSection(max_seconds=0.05))
    end = await finish(TrialJob(tmp_path, Slow(lambda number, attempt: ItemStatus.KEPT), meter=meter))
    assert end.reason == "max_seconds"


async def test_an_exception_of_the_work_ends_the_plan_and_is_raised(tmp_path: Path) -> None:
    def judge(number: int, attempt: int) -> ItemStatus:
        if number == 7:
            raise LookupError("broken")
        return ItemStatus.KEPT

    with pytest.raises(LookupError, match="broken"):
        await finish(TrialJob(tmp_path, Trial(judge)))
    assert (await finish(TrialJob(tmp_path, Trial(lambda number, attempt: ItemStatus.KEPT)))).reason == "done"
    assert sorted(rows(tmp_path)) == list(range(1, 51))


async def test_a_larger_number_continues_a_finished_plan(tmp_path: Path) -> None:
    trial = Trial(lambda number, attempt: ItemStatus.KEPT)
    await finish(TrialJob(tmp_path, trial, wanted=10))
    await finish(TrialJob(tmp_path, trial, wanted=15))
    assert sorted(rows(tmp_path)) == list(range(1, 16))


async def test_rejected_items_are_tried_again_on_request(tmp_path: Path) -> None:
    await finish(TrialJob(tmp_path, Trial(lambda number, attempt: ItemStatus.REJECTED), max_items=5))
    with Ledger(tmp_path / "ledger.db", {"rows": tmp_path / "rows.jsonl"}) as ledger:
        assert ledger.reopen(ItemStatus.REJECTED) == 5
    trial = Trial(lambda number, attempt: ItemStatus.KEPT)
    await finish(TrialJob(tmp_path, trial, wanted=5, max_items=5))
    assert sorted(rows(tmp_path)) == [1, 2, 3, 4, 5]
    assert trial.feedback == [("why: so",)] * 5


async def test_one_slow_item_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """DeepFabric waits for the slowest sample of each batch before it begins the next one."""
    others = asyncio.Event()

    class Slow(Trial):
        async def make(self, item: PlannedItem, attempt: int) -> ItemStatus:
            if item.number == 1:
                await others.wait()
            result = await super().make(item, attempt)
            if item.number == 30:
                others.set()
            return result

    made = TrialJob(tmp_path, Slow(lambda number, attempt: ItemStatus.KEPT), wanted=30, window=3)
    assert (await asyncio.wait_for(finish(made), 60)).reason == "done"
    assert rows(tmp_path)[-1] == 1


async def test_counts_that_are_old_are_refreshed_with_any_notice(tmp_path: Path) -> None:
    """The steps of a slow sample are noticed for minutes before anything is counted."""
    clock = [0.0]
    meter = JobMeter(LimitSection(), now=lambda: clock[0])
    made = TrialJob(tmp_path, Trial(lambda number, attempt: ItemStatus.KEPT), meter=meter)
    seen = []
    for second in (0.1, 60.0):
        meter.add(5, 7, None)
        clock[0] = second
        made.tell(JobNotice(), has_news=False)
        seen.append((made.progress.seconds, made.progress.output_tokens))
    assert seen == [(0.0, 0), (60.0, 14)]
    made.ledger.close()
    made.journal.close()


def test_a_long_rejection_is_cut_with_a_mark() -> None:
    for length, end in ((120, "x"), (121, "…")):
        (told,) = JobProgress(rejected=1, rejection="x" * length).faults()
        assert (told[-1], len(told.partition("such as: ")[2])) == (end, 120)


class Beside(Trial):
    """One item beside the plan, which is due at once."""

    def __init__(self) -> None:
        super().__init__(lambda number, attempt: ItemStatus.KEPT)
        self.is_begun = False
        self.is_over = asyncio.Event()

    def is_due(self, *, is_last: bool) -> bool:
        return not self.is_begun

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        self.is_begun = True
        return super().make_item(number, counts)

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        self.is_over.set()


async def test_nobody_waits_for_a_slot_while_an_item_beside_the_plan_begins(tmp_path: Path) -> None:
    """A wait that went on would take a slot for nothing, or act when the job is over."""
    made, beside = TrialJob(tmp_path, Trial(lambda number, attempt: ItemStatus.KEPT), wanted=2), Beside()
    waiting: list[str] = []

    async def until_free() -> None:
        waiting.append("one")
        assert len(waiting) == 1
        try:
            await beside.is_over.wait()
        finally:
            waiting.pop()

    try:
        assert (await made.run(made.trial, made.settings, until_free, beside)).reason == "done"
    finally:
        made.ledger.close()
    assert beside.is_begun
    assert not waiting
