"""Rollouts in this process: groups, faults of the infrastructure, drops, staleness, trees and the window."""

import asyncio
import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.students import School

from treadle.core.errors import AuthenticationError, ConfigError, ExportError, ServerError, TransportError
from treadle.core.events import InferenceCompleted
from treadle.core.types import Completion, FinishReason, Message, Request, Role, Usage
from treadle.export.groups import Group, load_rollout
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem
from treadle.jobs.progress import JobNotice, SettingsChanged
from treadle.journal.memory import MemoryJournal
from treadle.journal.registry import open_journal
from treadle.models import RetryModel
from treadle.models.protocol import Model, Watch
from treadle.rollout import Result, Rollouts
from treadle.rollout.rollout_config import GroupSpec, make_config
from treadle.rollout.rollout_folder import RolloutFolder, check_continued, read_groups, read_stored
from treadle.rollout.rollout_progress import GroupEnded, RolloutProgress, RolloutRetried
from treadle.rollout.sinks.protocol import BaseSink, Receipt
from treadle.rollout.sinks.registry import make_sinks
from treadle.runs.task import Task
from treadle.scoring.protocol import Subject

TASKS = ["files:csv_sum-*"]


class Told:
    """A listener that keeps the notices."""

    def __init__(self) -> None:
        self.notices: list[JobNotice] = []

    def __call__(self, notice: JobNotice, progress: RolloutProgress) -> None:
        self.notices.append(notice)

    def reasons(self) -> list[str]:
        """The reasons of the groups that were not delivered."""
        return [
            item.reason for item in self.notices if isinstance(item, GroupEnded) and item.reason is not None
        ]


def make(path: Path, school: School | None = None, **options: Any) -> Rollouts:
    given = {"tasks": TASKS, "groups": 3, "group_size": 4, "window": 8, "path": path, **options}
    given["retries"] = {"delay_seconds": 0, **given.get("retries", {})}
    return Rollouts(model=(school or School()).make, **given)


def lines(path: Path) -> list[Any]:
    """The delivered groups as the file has them."""
    return [json.loads(line) for line in (path / "groups.jsonl").read_text().splitlines()]


async def collect(rollouts: Rollouts) -> list[Group]:
    return [group async for group in rollouts]


def test_groups_have_n_graded_rollouts_of_one_task(tmp_path: Path) -> None:
    school = School(wrong_share=0.5)
    result = asyncio.run(make(tmp_path, school, groups=6).run())
    assert (result.end.reason, result.progress.delivered) == ("done", 6)
    found = lines(tmp_path)
    assert sorted(line["number"] for line in found) == [1, 2, 3, 4, 5, 6]
    for line in found:
        rewards = [rollout["reward"] for rollout in line["rollouts"]]
        assert len(rewards) == 4
        assert line["has_variance"] is (len(set(rewards)) > 1)
        assert sum(rollout["advantage"] for rollout in line["rollouts"]) == pytest.approx(0.0)
    assert {rollout["reward"] for line in found for rollout in line["rollouts"]} == {0.0, 1.0}
    assert len(school.seeds) == 24
    assert result.progress.rewards.count == 24
    assert result.progress.solved_once == sum(
        any(rollout["reward"] == 1.0 for rollout in line["rollouts"]) for line in found
    )


def test_what_other_rewards_add_solves_no_task(tmp_path: Path) -> None:
    """A rollout with a wrong result has the reward 1 here, since its calls are well-formed."""
    school = School(wrong_share=0.5)
    result = asyncio.run(
        make(tmp_path, school, groups=6, group_size=2, rewards={"check": 1, "tool_use": 1}).run()
    )
    rollouts = [
        rollout for group in read_groups(tmp_path, read_stored(tmp_path)) for rollout in group.rollouts
    ]
    assert {rollout.reward for rollout in rollouts} == {1.0, 2.0}
    assert all(rollout.is_solved is (rollout.rewards["check"] == 1) for rollout in rollouts)
    with closing(
        open_journal(read_stored(tmp_path).config.journal or RolloutFolder(tmp_path).journal)
    ) as journal:
        read = [load_rollout(journal, rollout.run_id)[0] for rollout in rollouts]
    assert [(one.reward, one.is_solved) for one in read] == [(one.reward, one.is_solved) for one in rollouts]
    solved = [any(item["rewards"]["check"] == 1 for item in line["rollouts"]) for line in lines(tmp_path)]
    assert result.progress.solved_once == sum(solved) < 6


def test_the_plan_follows_from_the_seed(tmp_path: Path) -> None:
    def plan(name: str, seed: int) -> tuple[list[str], set[int]]:
        school = School()
        asyncio.run(make(tmp_path / name, school, seed=seed, window=1).run())
        return [line["task"] for line in lines(tmp_path / name)], school.seeds

    assert plan("a", 1) == plan("b", 1)
    tasks, seeds = plan("c", 2)
    assert (tasks, seeds) != plan("d", 3)


def test_a_fault_of_the_infrastructure_is_tried_again_and_never_a_reward(tmp_path: Path) -> None:
    """Rules out that a failed generation is scored 0 without tokens and poisons the batch."""
    told, failures = Told(), Counter[int]()

    async def fail_at_first(seed: int) -> None:
        failures[seed] += 1
        if failures[seed] == 2:
            raise ServerError("the server is restarting", status=503)

    rollouts = make(tmp_path, School(pause=fail_at_first))
    rollouts._listener = told
    result = asyncio.run(rollouts.run())
    assert result.progress.retried == 12
    assert {type(item) for item in told.notices} >= {RolloutRetried}
    assert [rollout["reward"] for line in lines(tmp_path) for rollout in line["rollouts"]] == [1.0] * 12
    # The first answer, which was there before the fault, was not asked for again.
    with open_journal(tmp_path / "runs.db") as journal:
        for info in journal.runs():
            steps = [
                event.step
                for event in journal.read(info.run_id)
                if isinstance(event.body, InferenceCompleted)
            ]
            assert steps == sorted(set(steps))


def test_a_group_that_cannot_be_completed_is_dropped_and_says_why(tmp_path: Path) -> None:
    broken: set[int] = set()

    async def fail_for_one(seed: int) -> None:
        broken.add(min([seed, *broken]))
        if len(broken) == 1 and seed in broken:
            raise ServerError("no GPU is left", status=500)

    school = School(pause=fail_for_one)
    told = Told()
    rollouts = make(tmp_path, school, groups=2, window=1, retries={"attempts": 2})
    rollouts._listener = told
    result = asyncio.run(rollouts.run())
    assert (result.end.reason, result.progress.delivered, result.progress.failed) == ("done", 2, 1)
    assert told.reasons() == ["infrastructure: run rollout-1-0 failed 2 times, at last with: no GPU is left"]
    assert all(rollout["reward"] == 1.0 for line in lines(tmp_path) for rollout in line["rollouts"])
    # The next start tries the group again, under the same number.
    school.pause = lambda seed: asyncio.sleep(0)
    again = asyncio.run(make(tmp_path, school, groups=3).run())
    assert again.progress.delivered == 3
    assert sorted(line["number"] for line in lines(tmp_path)) == [1, 2, 3]


def test_a_wrong_key_ends_the_work(tmp_path: Path) -> None:
    async def refuse(seed: int) -> None:
        raise AuthenticationError("the key is wrong", status=401)

    with pytest.raises(Exception, match="the key is wrong"):
        asyncio.run(make(tmp_path, School(pause=refuse)).run())
    assert lines(tmp_path) == []


_graded: Counter[str] = Counter()


def grade_at_second(subject: Subject) -> float:
    """Fail when a run is graded for the first time."""
    _graded[subject.run.run_id] += 1
    if _graded[subject.run.run_id] == 1:
        raise TimeoutError("the compiler did not answer")
    return 0.25


def test_a_failing_grader_is_no_reward_of_zero(tmp_path: Path) -> None:
    """Rules out that an error of the reward function counts as a reward of 0."""
    _graded.clear()
    result = asyncio.run(make(tmp_path, rewards={"tests.rollout.test_rollouts:grade_at_second": 2.0}).run())
    assert result.progress.retried == 12
    assert {rollout["reward"] for line in lines(tmp_path) for rollout in line["rollouts"]} == {0.5}


def test_groups_without_variance_are_replaced_on_request(tmp_path: Path) -> None:
    result = asyncio.run(
        make(
            tmp_path, School(wrong_share=0.3), groups=4, group_size=2, no_variance="drop", max_dropped=20
        ).run()
    )
    assert result.progress.delivered == 4
    assert result.progress.reasons["no_variance"] == result.progress.dropped > 0
    assert all(line["has_variance"] for line in lines(tmp_path))


def test_dropped_groups_are_made_again_on_request(tmp_path: Path) -> None:
    school = School(wrong_share=0.3)
    given: dict[str, Any] = {"groups": 6, "group_size": 2, "no_variance": "drop", "max_dropped": 1}
    first = asyncio.run(make(tmp_path, school, **given).run())
    assert first.progress.dropped > 0
    seeds = set(school.seeds)
    same = asyncio.run(make(tmp_path, school, **given).run())
    assert (same.progress.delivered, school.seeds) == (first.progress.delivered, seeds)
    again = asyncio.run(make(tmp_path, school, retry_failed=True, **given).run())
    assert len(school.seeds) == len(seeds) + 2 * first.progress.dropped
    assert again.progress.delivered >= first.progress.delivered
    made = [rollout["run_id"] for line in lines(tmp_path) for rollout in line["rollouts"]]
    assert len(set(made)) == 2 * again.progress.delivered
    assert all(line["has_variance"] for line in lines(tmp_path))


def test_the_window_is_over_rollouts_and_there_is_no_barrier(tmp_path: Path) -> None:
    """One rollout of the first group never ends by itself; all other groups are delivered meanwhile."""
    school, told, blocked = School(), Told(), asyncio.Event()
    first = GroupSpec(1, "", ()).seed_of(0, 0)

    async def pause(seed: int) -> None:
        if seed == first:
            await blocked.wait()
        await asyncio.sleep(0.001)

    school.pause = pause
    rollouts = make(tmp_path, school, groups=9, group_size=3, window=4)

    def listen(notice: JobNotice, progress: RolloutProgress) -> None:
        told(notice, progress)
        assert progress.in_flight <= 4
        if progress.delivered == 8:
            blocked.set()

    rollouts._listener = listen
    asyncio.run(rollouts.run())
    ended = [item.group_id for item in told.notices if isinstance(item, GroupEnded)]
    assert (ended[-1], len(ended)) == ("rollout-1", 9)
    assert school.most == 4


@pytest.mark.parametrize("limit", [0, None])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("7", "8"),
        # SGLang has this version until it is told another one.
        ("default", "1"),
        ("a7", "b"),
        # An engine that does not tell its version.
        (None, "8"),
    ],
)
def test_a_group_of_old_weights_is_dropped_when_it_is_delivered(
    tmp_path: Path, old: str | None, new: str, limit: int | None
) -> None:
    """Rules out that the order of versions depends on which group is ready first, and that tokens without a
    version are never stale."""
    school = School(version=old)
    rollouts = make(tmp_path, school, groups=2, window=4, max_staleness=limit)
    changed: list[str] = []

    async def pause(seed: int) -> None:
        await asyncio.sleep(0)
        # The weights change in the middle of the first group.
        if school.asked > 4 and not changed:
            changed.append(new)
            school.version = old and new
            rollouts.announce(new)

    school.pause = pause
    rollouts._listener = told = Told()
    result = asyncio.run(rollouts.run())
    if limit == 0:
        assert told.reasons() == [
            "stale: the weights are 1 ahead of its oldest token, and max_staleness is 0"
        ]
        assert [line["staleness"] for line in lines(tmp_path)] == [0, 0]
    else:
        assert sorted(line["staleness"] for line in lines(tmp_path)) == [0, 1]
        assert result.progress.oldest == 1
    assert {line["weight_version"] for line in lines(tmp_path)} == {new}


def test_a_version_that_was_announced_before_the_work_began_counts(tmp_path: Path) -> None:
    rollouts = make(tmp_path, School(version="6"), groups=1, max_dropped=1, max_staleness=0)
    rollouts.announce("7")
    rollouts._listener = told = Told()
    asyncio.run(rollouts.run())
    assert told.reasons() == ["stale: the weights are 1 ahead of its oldest token, and max_staleness is 0"]


def test_a_tree_samples_the_shared_beginning_once(tmp_path: Path) -> None:
    school = School()
    asyncio.run(make(tmp_path, school, groups=2, group_size=4, tree={"roots": 1}).run())
    own: Counter[str] = Counter()
    with open_journal(tmp_path / "runs.db") as journal:
        for info in journal.runs():
            events = journal.read(info.run_id)
            parent = events[0].body.parent
            shared = 0 if parent is None else parent.seq
            own["forked"] += parent is not None
            own["sampled"] += sum(
                isinstance(event.body, InferenceCompleted) for event in events if event.seq > shared
            )
            own["all"] += sum(isinstance(event.body, InferenceCompleted) for event in events)
    assert own["forked"] == 6
    assert school.asked == own["sampled"] < own["all"]
    stored = read_stored(tmp_path)
    # What was paid for is counted once.
    assert stored.counts.output_tokens < sum(
        rollout.usage.output_tokens for group in read_groups(tmp_path, stored) for rollout in group.rollouts
    )


def test_a_trainer_gets_each_group_once_and_the_last_one_again_after_a_crash(tmp_path: Path) -> None:
    async def take(count: int) -> list[str]:
        found = []
        async for group in make(tmp_path, groups=5):
            found.append(group.group_id)
            if len(found) == count:
                break
        return found

    first = asyncio.run(take(2))
    # The loop was left within the second group, so it was not acknowledged.
    second = asyncio.run(take(9))
    assert second[0] == first[1]
    assert (len({*first, *second}), len(first) + len(second)) == (5, 6)


def test_a_trainer_that_goes_back_to_a_checkpoint_gets_the_groups_of_its_steps_again(tmp_path: Path) -> None:
    async def take(step: int, steps: int, groups: int = 8) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        taken = make(tmp_path, groups=groups).batches(2, step)
        async for batch in taken:
            found[step] = [group.group_id for group in batch]
            for group in batch:
                assert len({rollout.run_id for rollout in group.rollouts}) == 4
            step += 1
            if len(found) == steps:
                break
        await taken.aclose()
        return found

    async def crash_within_a_step() -> None:
        taken = make(tmp_path, groups=8)
        asked = taken.batches(2, 4)
        getting = asyncio.ensure_future(anext(asked))
        while taken.progress.delivered < 7 and not getting.done():
            await asyncio.sleep(0.001)
        getting.cancel()
        await asyncio.wait([getting])
        await asked.aclose()

    first = asyncio.run(take(1, 3))
    assert len({group for batch in first.values() for group in batch}) == 6
    assert asyncio.run(take(2, 2)) == {2: first[2], 3: first[3]}
    asyncio.run(crash_within_a_step())
    whole = asyncio.run(take(1, 9))
    assert whole == {**first, 4: whole[4]}
    ids = [group for batch in whole.values() for group in batch]
    assert len(ids) == len({*ids}) == 8
    assert [line["group_id"] for line in lines(tmp_path)] == ids
    # The last step of other work has what is left.
    assert [*map(len, asyncio.run(take(5, 9, groups=9)).values())] == [1]
    with pytest.raises(ConfigError, match="the size of a batch is 0"):
        asyncio.run(anext(make(tmp_path, groups=8).batches(0)))  # type: ignore[arg-type]


def test_a_closed_loop_can_be_begun_again(tmp_path: Path) -> None:
    async def work() -> list[str]:
        rollouts = make(tmp_path, groups=4)
        async for group in rollouts:
            first = group.group_id
            break
        await rollouts.aclose()
        return [first, *[group.group_id async for group in rollouts]]

    found = asyncio.run(work())
    assert (found[0], len(found), len(set(found))) == (found[1], 5, 4)


def test_rollouts_come_one_by_one(tmp_path: Path) -> None:
    groups = asyncio.run(collect(make(tmp_path, groups=2, group_size=3, deliver="rollout")))
    assert [len(group.rollouts) for group in groups] == [1] * 6
    assert len({group.rollouts[0].run_id for group in groups}) == 6
    assert len({(group.number, group.task) for group in groups}) == 2


def test_the_synchronous_form_yields_the_same(tmp_path: Path) -> None:
    assert len(list(make(tmp_path).groups_sync())) == 3


@pytest.mark.sets(0)
def test_a_curriculum_prefers_tasks_near_the_target(tmp_path: Path) -> None:
    tasks = ["files:csv_sum-0001", "files:todo_count-0001"]
    school = School()
    make_model = school.make

    def make_half(task: Any, seed: int) -> Any:
        school.wrong_share = 0.0 if task.task_id.startswith("csv") else 0.5
        return make_model(task, seed)

    rollouts = Rollouts(
        model=lambda task, seed: Half(make_half(task, seed), task.task_id.startswith("csv"), seed),
        tasks=tasks,
        groups=30,
        group_size=4,
        window=4,
        path=tmp_path,
        curriculum={"floor": 0.05},
    )
    asyncio.run(rollouts.run())
    drawn = Counter(line["task"] for line in lines(tmp_path))
    assert drawn["files:todo_count-0001"] > 2 * drawn["files:csv_sum-0001"] > 0


class Half:
    """A model that solves tasks which are easy, and half of the others."""

    name = "half"

    def __init__(self, inner: Any, is_easy: bool, seed: int) -> None:
        inner._school = School(wrong_share=0.0 if is_easy else 0.5)
        self.infer = inner.infer


def test_what_would_change_the_plan_is_refused(tmp_path: Path) -> None:
    asyncio.run(make(tmp_path).run())
    with pytest.raises(ConfigError, match=r"group_size was 4 and is now 8.*another folder"):
        asyncio.run(make(tmp_path, group_size=8).run())
    with pytest.raises(ConfigError, match="runs of other rollouts with the name 'rollout'"):
        asyncio.run(make(tmp_path / "other", journal=str(tmp_path / "runs.db")).run())
    result: Result = asyncio.run(make(tmp_path, groups=4).run())
    assert result.progress.resumed == 3


def test_a_changed_model_is_told_once_and_applies_to_new_groups(tmp_path: Path) -> None:
    told: list[list[str]] = []
    for groups, model in ((1, "oracle"), (2, "oracle:0.5"), (3, "oracle:0.5")):
        listener = Told()
        given = {"tasks": TASKS, "groups": groups, "group_size": 2, "model": model, "path": tmp_path}
        asyncio.run(Rollouts(listener=listener, **given).run())
        told += [[notice.line() for notice in listener.notices if isinstance(notice, SettingsChanged)]]
    expected = (
        'since the last call, model was "oracle" and is now "oracle:0.5"; what is complete stays as it is'
    )
    assert told == [[], [expected], []]


def test_a_loop_that_ends_at_a_limit_says_why(tmp_path: Path) -> None:
    """The loop of a trainer ends as if all groups were there."""
    rollouts = make(tmp_path, groups=20, limits={"max_tokens": 20_000})
    assert rollouts.end is None
    assert len(list(rollouts.groups_sync())) < 50
    assert rollouts.end is not None
    assert rollouts.end.reason == "max_tokens"


def test_a_limit_on_tokens_stops_the_work(tmp_path: Path) -> None:
    result = asyncio.run(make(tmp_path, groups=50, limits={"max_tokens": 60_000}).run())
    assert result.end.reason == "max_tokens"
    assert 0 < result.progress.delivered < 20
    # Groups that the limit cut off are unfinished, and no server was at fault.
    with Ledger(tmp_path / "ledger.db", is_readonly=True) as ledger:
        assert list(ledger.entries(ItemStatus.FAILED)) == []
        assert ledger.open_items()
    result = asyncio.run(make(tmp_path, groups=20).run())
    assert (result.end.reason, result.progress.delivered) == ("done", 20)


class Slow(BaseSink):
    """A sink that keeps what it gets, and fails at first."""

    name = "slow"

    def __init__(self, failures: int = 2) -> None:
        self.got: list[str] = []
        self.failures = failures
        self.is_open = asyncio.Event()

    def encode(self, group: Group) -> bytes:
        if group.number == 2:
            raise ExportError("group 2 cannot be expressed")
        return group.group_id.encode()

    async def deliver(self, key: str, data: bytes) -> Receipt:
        await self.is_open.wait()
        if self.failures:
            self.failures -= 1
            raise ServerError("the trainer is away", status=503)
        self.got.append(data.decode())
        return Receipt()


def test_a_full_queue_stops_new_groups_until_the_sink_goes_on(tmp_path: Path) -> None:
    school, sink, most = School(), Slow(), []

    async def work() -> Result:
        rollouts = make(tmp_path, school, groups=12, group_size=2, window=4, ahead=2, sinks=[sink])

        def listen(notice: JobNotice, progress: RolloutProgress) -> None:
            most.append(progress.undelivered)
            if progress.undelivered == 2:
                asyncio.get_running_loop().call_later(0.02, sink.is_open.set)

        rollouts._listener = listen
        return await rollouts.run()

    result = asyncio.run(work())
    assert max(most) == 2
    assert sorted(sink.got) == sorted(f"rollout-{number}" for number in range(1, 13) if number != 2)
    assert (result.progress.refused, result.refusals[0].reason) == (1, "group 2 cannot be expressed")
    assert result.progress.undelivered == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_that_becomes_too_old_while_it_waits_for_its_sink_is_not_delivered(
    tmp_path: Path, restarts: bool
) -> None:
    """Rules out that the staleness is checked only when a group enters the queue."""
    school, sink = School(version="7"), Slow(failures=10**6 if restarts else 1)

    async def work() -> Result:
        rollouts = make(tmp_path, school, groups=1, group_size=2, max_staleness=0, sinks=[sink])

        def listen(notice: JobNotice, progress: RolloutProgress) -> None:
            if isinstance(notice, GroupEnded):
                rollouts.stop()
                if not restarts:
                    rollouts.announce("8")
                sink.is_open.set()

        rollouts._listener = listen
        if sink.is_open.is_set():
            sink.failures = 0
            rollouts.announce("8")
        return await rollouts.run()

    result = asyncio.run(work())
    if restarts:
        assert (result.progress.undelivered, sink.got) == (1, [])
        result = asyncio.run(work())
    assert sink.got == []
    assert [item.reason for item in result.refusals] == [
        "stale: the weights are 1 ahead of its oldest token, and max_staleness is 0"
    ]


def test_weights_are_updated_while_rollouts_are_made(tmp_path: Path) -> None:
    loaded = []

    async def work() -> list[str | None]:
        rollouts = make(tmp_path, groups=4, window=4, ahead=1)
        found = []

        async def load() -> None:
            loaded.append(len(found))

        async for group in rollouts:
            found.append(group.weight_version)
            await rollouts.update_weights(str(len(found)), load)
        return found

    assert asyncio.run(work()) == [None, "1", "2", "3"]
    assert loaded == [1, 2, 3, 4]


def test_a_deadline_that_passes_while_the_server_answers_ends_one_group(tmp_path: Path) -> None:
    """Rules out that one slow answer ends all the work, as if the configuration were wrong."""

    async def hang_for_first(seed: int) -> None:
        await asyncio.sleep(60.0 if seed == slow else 0)

    slow = GroupSpec(1, "", ()).seed_of(0, 0)
    rollouts = make(
        tmp_path, School(pause=hang_for_first), groups=2, window=4, agent={"deadline_seconds": 4.0}
    )
    rollouts._listener = told = Told()
    result = asyncio.run(rollouts.run())
    assert (result.end.reason, result.progress.delivered) == ("done", 2)
    assert told.reasons() == ["deadline: run rollout-1-0 waited for an answer when its deadline passed"]


@pytest.mark.parametrize("agent", [{"max_steps": 3}, {"max_tokens": 1500}])
def test_answers_that_were_lost_use_up_no_steps_and_no_tokens_and_are_no_reward_of_zero(
    tmp_path: Path, agent: dict[str, Any]
) -> None:
    """Rules out that lost connections use up what a rollout may do, so that its check gives 0 or its group is
    dropped: long rollouts would be lost more often than short ones."""
    failures: Counter[int] = Counter()

    async def lose(seed: int) -> None:
        failures[seed] += 1
        if seed == unlucky and failures[seed] in (2, 3):
            raise TransportError("the connection was lost")

    unlucky = GroupSpec(1, "", ()).seed_of(0, 0)
    rollouts = make(
        tmp_path, School(pause=lose), groups=2, window=4, tasks=["files:csv_sum-0450"], agent=agent
    )
    rollouts._listener = told = Told()
    result = asyncio.run(rollouts.run())
    assert (result.end.reason, result.progress.delivered) == ("done", 2)
    assert {rollout["reward"] for line in lines(tmp_path) for rollout in line["rollouts"]} == {1.0}
    assert told.reasons() == []


class CutOff:
    """A model whose first request is lost, and whose answers are cut off at its own limit."""

    name = "cut"

    def __init__(self) -> None:
        self._asked = 0

    async def infer(self, request: Request, watch: Watch) -> Completion:
        self._asked += 1
        if self._asked == 1:
            raise TransportError("the connection was lost")
        return Completion(Message(Role.ASSISTANT, "long"), FinishReason.LENGTH, Usage(10, 5))


class CuttingSchool(School):
    """Models that are `CutOff`."""

    def make(self, task: Task, seed: int) -> Model:
        """Return the model of one rollout."""
        return RetryModel(CutOff(), min_delay_seconds=0.0)


@pytest.mark.parametrize("agent", [{}, {"max_tokens": 100_000}, {"max_steps": 1}], ids=str)
def test_an_answer_that_was_cut_off_is_no_fault_of_a_lost_connection(
    tmp_path: Path, agent: dict[str, Any]
) -> None:
    """Rules out that a group is dropped by chance: an answer cut off at the model's limit is delivered, whether a
    connection was lost before it or not."""
    rollouts = make(tmp_path, CuttingSchool(), groups=1, agent=agent)
    rollouts._listener = told = Told()
    result = asyncio.run(rollouts.run())
    assert (result.end.reason, result.progress.delivered, told.reasons()) == ("done", 1, [])
    assert {rollout["stop_reason"] for line in lines(tmp_path) for rollout in line["rollouts"]} == {
        "max_tokens"
    }


@pytest.mark.parametrize("part", ["tasks", "held_out"])
def test_a_file_of_rows_that_changed_is_told(tmp_path: Path, part: str) -> None:
    """The groups of rollouts are known by their tasks, which now mean other rows."""
    rows = tmp_path / "r.jsonl"
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}]
    rows.write_text(json.dumps({"messages": said}))
    of_rows = [f"conversations:{rows}"]
    given: dict[str, Any] = {"tasks": of_rows} if part == "tasks" else {"held_out": {"tasks": of_rows}}
    given = {"tasks": TASKS, "model": "mock:echo", "groups": 1, "group_size": 2, "path": tmp_path, **given}
    assert asyncio.run(Rollouts(**given).run()).end.reason == "done"
    given["groups"] = 2
    assert asyncio.run(Rollouts(**given).run()).end.reason == "done"
    rows.write_text(rows.read_text().replace("hi", "ho"))
    with pytest.raises(ConfigError, match=r"the file '.*r\.jsonl' changed since the rollouts"):
        asyncio.run(Rollouts(**given).run())
    assert [line["number"] for line in lines(tmp_path)] == [1, 2]


def test_the_folder_has_no_secrets(tmp_path: Path) -> None:
    """Rules out that headers of the model, keys of toolsets and passwords in addresses stay in the ledger."""
    secret = "s3cret-abcdefgh"
    journal = f"memory:?password={secret}"
    headers = {"X-Token": secret}
    settings = {"model": "openai:m", "base_url": "http://127.0.0.1:1", "headers": headers}
    given = {"model": settings, "tasks": TASKS, "journal": journal, "sinks": [f"atropos:http://u:{secret}@h"]}
    tools = ["files", f"mcp:https://example.org/mcp?token={secret}"]
    config = make_config({**given, "agent": {"tools": tools}})
    with Ledger(tmp_path / "ledger.db", {}) as ledger, MemoryJournal() as runs:
        check_continued(config, ledger, runs)
        ledger.plan(PlannedItem(1, "one", "share", {}))
        ledger.count(1, 1, lambda _: ItemOutcome(status=ItemStatus.FAILED, reasons=("infrastructure: down",)))
        check_continued(config, ledger, runs)
        other = config.model_copy(update={"journal": f"postgres://u:{secret}@h/d"})
        with pytest.raises(ConfigError, match="another configuration") as caught:
            check_continued(other, ledger, runs)
    assert secret not in str(caught.value)
    assert [sink.name for sink in make_sinks(config.sinks, group_size=4)] == ["atropos:http://u@h"]
    assert secret.encode() not in (tmp_path / "ledger.db").read_bytes()


def test_a_folder_from_elsewhere_opens_no_journal_and_loads_no_renderer(tmp_path: Path) -> None:
    """Rules out that a report of foreign rollouts connects to a server that they name."""
    asyncio.run(make(tmp_path, groups=1).run())
    assert read_stored(tmp_path).is_trusted
    with Ledger(tmp_path / "ledger.db", is_readonly=False) as ledger:
        settings = json.loads(ledger.get("settings") or "")
        settings |= {
            "journal": str(tmp_path / "runs.db"),
            "model": {"model": "openai:m", "renderer": "hf:/none"},
        }
        ledger.set("settings", json.dumps(settings))
    stored = read_stored(tmp_path)
    assert (stored.is_trusted, stored.config.model) == (False, None)
    with pytest.raises(ConfigError, match="name it with --journal"):
        next(read_groups(tmp_path, stored))
    (group,) = read_groups(tmp_path, stored, str(tmp_path / "runs.db"))
    assert len(group.rollouts) == 4
