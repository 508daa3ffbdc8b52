"""The evaluation of each version of the weights on held-out tasks, beside the groups of the same job."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.students import School

from treadle.core.errors import ConfigError, ExportError, ServerError
from treadle.export.groups import GroupBy, find_groups
from treadle.jobs.ledger import Ledger
from treadle.journal.registry import open_journal
from treadle.rollout import Result, Rollouts
from treadle.rollout.held_out_scores import HeldOutScore, read_scores
from treadle.rollout.rollout_progress import RolloutProgress, VersionScored
from treadle.tasks.draws import fraction

HELD_OUT = [f"files:csv_sum-{number:04}" for number in range(900, 904)]


def make(path: Path, school: School, **options: Any) -> Rollouts:
    given: dict[str, Any] = {"groups": 6, "group_size": 2, "window": 4, "path": path, **options}
    held_out = {"tasks": HELD_OUT, **given.pop("held_out", {})}
    return Rollouts(
        model=school.make,
        tasks=["files:csv_sum-00*"],
        retries={"delay_seconds": 0, "attempts": 2},
        held_out=held_out,
        **given,
    )


def scores_in(path: Path) -> list[HeldOutScore]:
    with Ledger(path / "ledger.db", is_readonly=True) as ledger:
        return read_scores(ledger.entries(is_beside=True), 1.0)


def told(scores: list[HeldOutScore]) -> list[tuple[str | None, int]]:
    return [(item.version, 0 if item.score is None else item.score.samples) for item in scores]


def test_each_version_is_evaluated_once_and_none_of_it_is_trained_on(tmp_path: Path) -> None:
    school = School(version="0", wrong_share=0.5)

    async def train() -> list[str]:
        rollouts, seen = make(tmp_path, school), list[str]()
        async for batch in rollouts.batches(2):
            seen += [rollout.run_id for group in batch for rollout in group.rollouts]
            # A version that is replaced before its tasks were begun could not be evaluated any more.
            while school.version not in [version for version, _ in told(scores_in(tmp_path))]:
                await asyncio.sleep(0.01)
            school.version = str(len(seen) // 4)
            rollouts.announce(school.version)
        return seen

    seen = asyncio.run(train())
    assert len(seen) == len(set(seen)) == 12
    assert not [run_id for run_id in seen if "held" in run_id]
    found = scores_in(tmp_path)
    # The last version is that which the trainer made of the last groups.
    assert [version for version, _ in told(found)] == ["0", "1", "2", "3"]
    assert {item.left_out + (item.score.samples if item.score else 0) for item in found} == {4}
    assert (found[-1].groups, found[-1].own_answers) == (6, 1)
    assert (tmp_path / "groups.jsonl").read_text().count("\n") == 6
    with Ledger(tmp_path / "ledger.db", is_readonly=True) as ledger:
        assert (ledger.counts().kept, ledger.counts().planned) == (6, 6)
        assert [entry.number for entry in ledger.entries()] == [1, 2, 3, 4, 5, 6]


def test_what_other_rewards_add_solves_no_held_out_task(tmp_path: Path) -> None:
    school = School(version="0", wrong_share=1.0)
    asyncio.run(make(tmp_path, school, groups=1, rewards={"check": 1, "tool_use": 1}).run())
    assert [(item.score.mean if item.score else None, item.solved) for item in scores_in(tmp_path)] == [
        (1.0, 0.0)
    ]


def test_a_version_is_evaluated_while_complete_groups_wait_for_the_trainer(tmp_path: Path) -> None:
    school = School(version="0")

    async def train() -> None:
        rollouts = make(tmp_path, school, groups=20)
        batches = rollouts.batches(2)
        async with asyncio.timeout(60):
            await anext(batches)
            while rollouts.progress.waiting < 2:
                await asyncio.sleep(0.01)
            school.version = "1"
            rollouts.announce("1")
            while "1" not in [version for version, _ in told(scores_in(tmp_path))]:
                await asyncio.sleep(0.01)
        await batches.aclose()

    asyncio.run(train())


def test_no_version_is_evaluated_after_a_stop(tmp_path: Path) -> None:
    school = School(version="0")

    async def train() -> None:
        rollouts = make(tmp_path, school, groups=20)
        batches = rollouts.batches(2)
        async with asyncio.timeout(60):
            await anext(batches)
            while rollouts.progress.waiting < 2:
                await asyncio.sleep(0.01)
            rollouts.stop()
            school.version = "1"
            rollouts.announce("1")
            async for _ in batches:
                pass

    asyncio.run(train())
    assert [version for version, _ in told(scores_in(tmp_path))] == ["0"]


@pytest.mark.sets(0)
def test_an_engine_that_reports_its_version_is_evaluated_at_first_and_when_it_changes(tmp_path: Path) -> None:
    school, notices = School(version="7"), list[VersionScored]()

    def listen(notice: object, progress: RolloutProgress) -> None:
        if isinstance(notice, VersionScored):
            notices.append(notice)
            school.version = "8"

    rollouts = make(tmp_path, school, groups=30)
    rollouts._listener = listen
    result = asyncio.run(rollouts.run())
    assert told(result.progress.held_out) == [("7", 4), ("8", 4)] == told(scores_in(tmp_path))
    assert notices[0].line().startswith("held-out tasks: weights 7: 1.000 [")


def test_an_engine_without_versions_is_evaluated_at_first_and_at_last(tmp_path: Path) -> None:
    result = asyncio.run(make(tmp_path, School()).run())
    assert told(result.progress.held_out) == [(None, 4), (None, 4)]
    assert [item.groups for item in result.progress.held_out][-1] == 6
    again = asyncio.run(make(tmp_path, School()).run())
    assert told(again.progress.held_out) == [(None, 4), (None, 4)]


def test_groups_keep_their_share_of_the_window(tmp_path: Path) -> None:
    at_once, most = Counter[str](), Counter[str]()
    school = School(version="1")
    held: dict[int, str] = {}

    async def pause(seed: int) -> None:
        kind = held.setdefault(seed, "held-out" if seed in known else "group")
        at_once[kind] += 1
        most[kind] = max(most[kind], at_once[kind])
        await asyncio.sleep(0.001)
        at_once[kind] -= 1

    school.pause = pause
    rollouts = make(tmp_path, school, window=8, groups=12, held_out={"epochs": 3})
    known = {int(fraction(0, "held_out", task, epoch) * 2**31) for task in HELD_OUT for epoch in range(3)}
    result = asyncio.run(rollouts.run())
    assert told(result.progress.held_out) == [("1", 12)]
    assert most["held-out"] == 2
    assert most["group"] >= 6


def test_a_round_that_the_weights_overtake_ends_early_and_says_so(tmp_path: Path) -> None:
    school = School(version="1")
    asked = 0

    async def pause(seed: int) -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            rollouts.announce("2")
            school.version = "2"

    school.pause = pause
    rollouts = make(tmp_path, school, groups=2, window=1)
    rollouts.announce("1")
    first, second = asyncio.run(rollouts.run()).progress.held_out
    assert (first.version, second.version) == ("1", "2")
    assert "left out" in str(first)
    assert first.own_answers < 1 == second.own_answers
    assert told([second]) == [("2", 4)]


def test_a_fault_of_the_infrastructure_is_no_score(tmp_path: Path) -> None:
    school, held = School(version="1"), set[int]()

    async def fail(seed: int) -> None:
        if seed == min(held or {seed}):
            held.add(seed)
            raise ServerError("the server is restarting", status=503)

    school.pause = fail
    (score,) = asyncio.run(make(tmp_path, school, window=1).run()).progress.held_out
    assert (score.failed, told([score])) == (1, [("1", 3)])


def test_tasks_that_are_trained_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"held_out.*1 of these tasks are trained on too"):
        make(tmp_path, School(), held_out={"tasks": ["files:csv_sum-0001", *HELD_OUT]})


@pytest.mark.parametrize("after", [1, 7, 14, 22])
def test_no_version_is_evaluated_twice_or_lost_when_the_process_dies(tmp_path: Path, after: int) -> None:
    school = School(version="1")
    asked = 0

    async def die(seed: int) -> None:
        nonlocal asked
        asked += 1
        if asked >= after:
            await asyncio.sleep(3600)

    async def interrupted() -> None:
        running = asyncio.ensure_future(make(tmp_path, school).run())
        while asked < after and not running.done():
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])

    school.pause = die
    asyncio.run(interrupted())
    fresh = School(version="1")
    result: Result = asyncio.run(make(tmp_path, fresh).run())
    assert told(result.progress.held_out) == told(scores_in(tmp_path)) == [("1", 4)]
    with open_journal(tmp_path / "runs.db") as journal:
        runs = [info.run_id for info in journal.runs() if "held" in info.run_id]
        with pytest.raises(ExportError, match="made to evaluate"):
            find_groups(journal, runs, GroupBy.GROUP)
    assert sorted(runs) == [f"rollout-held-1-{index}" for index in range(4)]
    lines = (tmp_path / "groups.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["number"] for line in lines) == [1, 2, 3, 4, 5, 6]
    # More groups of the same version need no further evaluation.
    more = asyncio.run(make(tmp_path, fresh, groups=7).run())
    assert (more.progress.delivered, told(more.progress.held_out)) == (7, [("1", 4)])
