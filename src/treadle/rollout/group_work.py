"""The work on groups: driving their rollouts, and deciding what becomes of them."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.types import Json
from treadle.export.groups import WEIGHTS_LABEL, Group
from treadle.jobs.attempt import Attempt, AttemptDriver, AttemptFailedError
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, LedgerEntry, PlannedItem
from treadle.jobs.progress import JobNotice
from treadle.jobs.slots import Expected
from treadle.rollout.collect import (
    GroupReader,
    Rolled,
    SampledVersions,
    Versions,
    find_fork,
    merge_sampled,
    rewards_of,
    sum_use,
)
from treadle.rollout.deliveries import Handover
from treadle.rollout.rollout_config import GroupPlan, GroupSpec
from treadle.rollout.rollout_progress import GroupEnded, RolloutEnded, RolloutProgress
from treadle.runs.begin import share_files
from treadle.runs.run import Run
from treadle.runs.task import Task, load_task
from treadle.sandbox.in_memory import SharedFiles
from treadle.scoring.advantages import has_variance

GROUPS = "groups"
"""The name of the ledger's file with the delivered groups."""
_STATUSES = {ItemStatus.KEPT: "delivered", ItemStatus.REJECTED: "dropped", ItemStatus.FAILED: "failed"}


_OF_GROUPS = ("group_id", "number", "task", "has_variance", "weight_version")
_OF_ROLLOUTS = ("run_id", "reward", "rewards", "advantage", "stop_reason", "steps")


class MadeGroup(Struct, frozen=True):
    """The result of the work on one item."""

    spec: GroupSpec
    rolled: tuple[Rolled, ...] = ()
    failed: AttemptFailedError | None = None
    """Why the item cannot be delivered; `None` if it can."""


class GroupWork:
    """The work on the groups of one configuration; see `jobs.job.JobWork`."""

    def __init__(
        self,
        plan: GroupPlan,
        driver: AttemptDriver,
        reader: GroupReader,
        versions: Versions,
        handover: Handover,
        progress: RolloutProgress,
        tell: Callable[[JobNotice], None],
    ) -> None:
        self._config = reader.config
        self._progress = progress
        self._plan = plan
        self._driver = driver
        self._reader = reader
        self._versions = versions
        self._handover = handover
        self._tell = tell
        self._kept: dict[int, MadeGroup] = {}
        """The groups that are being counted, by the number of their item."""
        self._sampled: dict[str, SampledVersions] = {}
        """The versions of the delivered groups, which may still wait for a sink."""

    def restore(self, entries: Sequence[LedgerEntry]) -> None:
        """Take note of the groups that earlier processes have counted."""
        for entry in entries:
            self._progress.observe(entry.status, entry.details)
            if entry.status == ItemStatus.KEPT:
                self._keep_sampled(msgspec.convert(entry.spec, GroupSpec), entry.details)

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        return self._plan.make_item(number, counts)

    async def attempt(self, item: PlannedItem, attempt: int, expected: Expected) -> MadeGroup:
        """Make one group, or one rollout of it. Raises: as `AttemptDriver.drive` does."""
        spec = msgspec.convert(item.spec, GroupSpec)
        try:
            rolled = await self._roll(spec, load_task(spec.task), expected)
        except AttemptFailedError as failed:
            return MadeGroup(spec, failed=failed)
        for one in rolled:
            self._versions.note(one.sampled)
        made = MadeGroup(spec, tuple(rolled))
        if (fault := self._find_fault(made)) is not None:
            return replace(made, failed=fault)
        await self._handover.prepare(item.number, lambda: self._make_group(made))
        return made

    def set_aside(self, item: PlannedItem, attempt: int, reason: str) -> MadeGroup:
        failed = AttemptFailedError(f"infrastructure: {reason}", ItemStatus.FAILED)
        return MadeGroup(msgspec.convert(item.spec, GroupSpec), failed=failed)

    async def _roll(self, spec: GroupSpec, task: Task, expected: Expected) -> list[Rolled]:
        """Return the finished rollouts of a group. The first one that cannot be finished ends the others."""
        files = share_files(task)
        made: dict[int, asyncio.Task[Rolled]] = {}
        tree = self._config.tree
        roots = len(spec.rollouts) if tree is None else tree.roots
        expected.add(min(roots, len(spec.rollouts)) - 1)
        try:
            async with asyncio.TaskGroup() as group:
                for index in spec.rollouts:
                    attempt = self._plan_attempt(spec, index, task, files)
                    root = None if tree is None or index < tree.roots else made[index % tree.roots]
                    made[index] = group.create_task(self._finish(spec, attempt, expected, root))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [made[index].result() for index in spec.rollouts]

    def _plan_attempt(self, spec: GroupSpec, index: int, task: Task, files: SharedFiles) -> Attempt:
        config = self._config
        metadata: dict[str, Json] = {
            "rollout": config.name,
            "group": f"{config.name}-{spec.group}",
            "index": index,
            WEIGHTS_LABEL: {item.name: item.weight for item in self._reader.rewards},
        }
        run_id, seed = spec.run_id(config.name, index), spec.seed_of(config.seed, index)
        return Attempt(run_id=run_id, task=task, seed=seed, files=files, metadata=metadata)

    async def _finish(
        self, spec: GroupSpec, attempt: Attempt, expected: Expected, root: "asyncio.Task[Rolled] | None"
    ) -> Rolled:
        """Return a finished rollout, after that of the rollout `root` that it is forked from."""
        if root is None:
            run = await self._driver.drive(attempt, expected)
        else:
            parent = find_fork((await asyncio.shield(root)).run, attempt.run_id, seed=self._config.seed)
            with expected.expect(1) as own:
                run = await self._driver.drive(replace(attempt, parent=parent), own)
        return await self._read(spec, run)

    async def _read(self, spec: GroupSpec, run: Run[Any]) -> Rolled:
        rolled = await asyncio.to_thread(self._reader.read, run)
        self._tell(rolled.notice(RolloutEnded, spec.task))
        return rolled

    def _find_fault(self, made: MadeGroup) -> AttemptFailedError | None:
        """Return why a group of finished rollouts is not wanted; `None` if it is."""
        config = self._config
        overlong = [one.rollout.run_id for one in made.rolled if one.is_overlong]
        if overlong and config.overlong == "drop":
            return AttemptFailedError(f"overlong: {', '.join(overlong)}")
        is_group = config.no_variance == "drop" and config.deliver == "group"
        if is_group and not has_variance(rewards_of(made.rolled)):
            return AttemptFailedError("no_variance: all rewards are equal")
        return None

    def settle(
        self, item: PlannedItem, attempt: int, result: MadeGroup, connection: sqlite3.Connection
    ) -> ItemOutcome:
        """Return the outcome of an item, and hand a group that is delivered over in the same transaction."""
        outcome = self._decide(result)
        self._handover.settle(connection, item.number, outcome.status)
        if outcome.status is ItemStatus.KEPT:
            self._kept[item.number] = result
        return outcome

    def _decide(self, made: MadeGroup) -> ItemOutcome:
        sampled = [one.sampled for one in made.rolled]
        staleness, failed = self._versions.age(sampled), made.failed
        outcome = ItemOutcome(
            status=ItemStatus.REJECTED, **sum_use(made.rolled), details=self._describe(made, staleness)
        )
        if failed is None and (stale := self._find_stale(sampled)) is not None:
            failed = AttemptFailedError(stale)
        if failed is not None:
            return replace(outcome, status=failed.status, reasons=(str(failed),))
        line = msgspec.json.encode(_outline(self._make_group(made), staleness)) + b"\n"
        return replace(outcome, status=ItemStatus.KEPT, file=GROUPS, line=line)

    def note(self, item: PlannedItem, outcome: ItemOutcome) -> None:
        """Learn from an outcome, and wake the receivers of the group."""
        details: Mapping[str, Any] = outcome.details
        spec, made = msgspec.convert(item.spec, GroupSpec), self._kept.pop(item.number, None)
        reason = outcome.reasons[0] if outcome.reasons else None
        if self._handover.is_consumed and details["graded"] and (reason or "").startswith("stale:"):
            self._handover.ask_again()
        self._versions.save()
        self._plan.observe(spec.task, details["solved"], details["graded"])
        self._progress.observe(outcome.status, details)
        if made is not None:
            self._keep_sampled(spec, details)
        self._handover.finish(
            self._make_group(made) if made is not None and self._handover.is_consumed else None
        )
        self._tell(
            GroupEnded(
                group_id=spec.unit_id(self._config.name),
                task=spec.task,
                status=_STATUSES[outcome.status],
                rewards=tuple(details["rewards"]),
                has_variance=details["has_variance"],
                staleness=details["staleness"],
                reason=reason,
            )
        )
        if made is not None:
            self._progress.staleness = details["staleness"]

    def find_fault(self, key: str) -> str | None:
        """Return why a group that waits for a sink must not be delivered any more; `None` if it may be."""
        sampled = self._sampled.get(key)
        return None if sampled is None else self._find_stale([sampled])

    def _keep_sampled(self, spec: GroupSpec, details: Mapping[str, Any]) -> None:
        sampled = msgspec.convert(details["sampled"], SampledVersions)
        self._sampled[spec.unit_id(self._config.name)] = sampled

    def _find_stale(self, sampled: Sequence[SampledVersions]) -> str | None:
        """Return why tokens are too old to be delivered now; `None` if they are not."""
        age, most = self._versions.age(sampled), self._config.max_staleness
        if most is None or age <= most:
            return None
        return f"stale: the weights are {age} ahead of its oldest token, and max_staleness is {most}"

    def _make_group(self, made: MadeGroup) -> Group:
        """Return the group as it is delivered now."""
        return self._reader.make_group(made.spec, made.rolled, self._versions.current)

    def _describe(self, made: MadeGroup, staleness: int) -> Json:
        rewards = rewards_of(made.rolled)
        graded = [reward for reward in rewards if reward is not None]
        branches = [branch for one in made.rolled for branch in one.rollout.trajectories]
        return {
            "run_ids": [one.rollout.run_id for one in made.rolled],
            "rewards": rewards,
            "graded": len(graded),
            "solved": sum([one.rollout.is_solved for one in made.rolled]),
            "has_variance": has_variance(rewards),
            "staleness": staleness,
            "sampled": msgspec.to_builtins(merge_sampled([one.sampled for one in made.rolled])),
            "weight_version": self._versions.current,
            "sampled_tokens": sum([branch.sampled_tokens for branch in branches]),
            "other_logprobs": sum(
                [branch.sampled_tokens for branch in branches if branch.has_policy_logprobs is False]
            ),
        }


def _outline(group: Group, staleness: int) -> Json:
    """Return what `groups.jsonl` has about a delivered group. The tokens are in the journal."""
    told = {name: getattr(group, name) for name in _OF_GROUPS} | {"staleness": staleness}
    return told | {
        "rollouts": [
            {name: getattr(rollout, name) for name in _OF_ROLLOUTS}
            | {"output_tokens": rollout.usage.output_tokens}
            for rollout in group.rollouts
        ]
    }
