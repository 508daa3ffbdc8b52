"""The work on groups: driving their rollouts, and deciding what becomes of them.

After a fault of the infrastructure, a rollout is tried again; the fault is never a reward. A group that cannot be
completed is dropped with the reason.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import (
    ConfigError,
    JournalError,
    LeaseHeldError,
    LeaseLostError,
    ProviderError,
    RunExistsError,
    ScoringError,
)
from treadle.core.state import Status as RunStatus
from treadle.core.types import Fault, Json, StopReason, Usage
from treadle.export.groups import WEIGHTS_LABEL, Group
from treadle.jobs.ledger import ItemOutcome, ItemStatus, PlannedItem
from treadle.jobs.seeded import SeededAgents
from treadle.rollout.collect import GroupReader, Rolled, fork_once, rewards_of
from treadle.rollout.group_plan import GroupSpec
from treadle.rollout.rollout_config import RolloutConfig
from treadle.rollout.rollout_progress import RolloutEnded, RolloutRetried
from treadle.rollout.slots import Expected, Slots
from treadle.rollout.versions import SampledVersions, Versions, merge_sampled
from treadle.runs.run import Run
from treadle.runs.task import Task, load_task
from treadle.sandbox.in_memory import SharedFiles
from treadle.scoring.advantages import has_variance
from treadle.scoring.grade import grade
from treadle.scoring.registry import make_scorers
from treadle.workers.protocol import Workers

GROUPS = "groups"
"""The name of the ledger's file with the delivered groups."""
_MAX_DELAY_SECONDS = 30.0
_BUDGETS = frozenset((StopReason.MAX_STEPS, StopReason.MAX_TOKENS, StopReason.MAX_COST, StopReason.DEADLINE))
"""The limits that answers which were lost on the way count for."""


class DroppedError(Exception):
    """Raised within this module if a group cannot be completed. The text is `reason: explanation`."""

    def __init__(self, text: str, status: ItemStatus = ItemStatus.REJECTED) -> None:
        super().__init__(text)
        self.status = status


class Made(Struct, frozen=True):
    """The result of the work on one item."""

    spec: GroupSpec
    rolled: tuple[Rolled, ...] = ()
    dropped: DroppedError | None = None
    """Why it cannot be delivered; `None` if it can."""


class GroupWork:
    """The work on the groups of one configuration; see `engines.engine.Work`."""

    def __init__(
        self,
        config: RolloutConfig,
        agents: SeededAgents,
        slots: Slots,
        versions: Versions,
        workers: Workers,
        *,
        until_wanted: Callable[[], Any],
        tell: Callable[[RolloutEnded | RolloutRetried], None],
    ) -> None:
        """Make the work. `until_wanted` waits until the receivers want another group."""
        self._config = config
        self._agents = agents
        self._slots = slots
        self._versions = versions
        self._workers = workers
        self._journal = agents.journal
        self._collector = GroupReader(config, agents.journal)
        self._scorers = make_scorers(self._collector.rewards)
        self._until_wanted = until_wanted
        self._tell = tell

    async def attempt(self, item: PlannedItem, attempt: int) -> Made:
        """Make one group, or one rollout of it. Raises: `ProviderError` for a fault of the user."""
        spec = msgspec.convert(item.spec, GroupSpec)
        task = load_task(spec.task)
        try:
            tree = self._config.tree
            roots = [index for index in spec.rollouts if tree is None or index < tree.roots]
            with self._slots.expect(len(roots)) as expected:
                rolled = await self._drive(spec, task, expected)
        except DroppedError as dropped:
            return Made(spec, dropped=dropped)
        for one in rolled:
            self._versions.note(one.sampled)
        made = Made(spec, tuple(rolled))
        fault = self._find_fault(made)
        if fault is None:
            await self._until_wanted()
        return made if fault is None else replace(made, dropped=fault)

    async def _drive(self, spec: GroupSpec, task: Task, expected: Expected) -> list[Rolled]:
        """Return the finished rollouts of a group. The first one that cannot be finished ends the others."""
        files = SharedFiles(task.files)
        made: dict[int, asyncio.Task[Rolled]] = {}
        tree = self._config.tree
        try:
            async with asyncio.TaskGroup() as group:
                for index in spec.rollouts:
                    root = None if tree is None or index < tree.roots else made[index % tree.roots]
                    work = _Rollout(spec, index, task, files, root)
                    made[index] = group.create_task(self._persist(work, expected))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [made[index].result() for index in spec.rollouts]

    async def _persist(self, work: "_Rollout", expected: Expected) -> Rolled:
        """Return a finished rollout, after that of the rollout that it is forked from."""
        if work.root is None:
            return await self._repeat(work, expected, None)
        root = await asyncio.shield(work.root)
        with self._slots.expect(1) as own:
            return await self._repeat(work, own, root.run)

    async def _repeat(self, work: "_Rollout", expected: Expected, root: Run[Any] | None) -> Rolled:
        """Return a finished rollout, which is tried again after a fault of the infrastructure."""
        retries, run_id = self._config.retries, work.spec.run_id(self._config.name, work.index)
        for attempt in range(1, retries.attempts + 1):
            async with self._slots:
                if attempt == 1:
                    expected.arrive()
                run, fault = await self._try(work, run_id, root)
            if run is not None:
                rolled = await asyncio.to_thread(self._collector.read, run)
                self._tell(_describe_rollout(work.spec.task, rolled))
                return rolled
            if attempt < retries.attempts:
                self._tell(RolloutRetried(run_id=run_id, attempt=attempt, error=fault))
                await asyncio.sleep(min(retries.delay_seconds * 2 ** (attempt - 1), _MAX_DELAY_SECONDS))
        text = f"rollout {run_id} failed {retries.attempts} times, at last with: {fault}"
        raise DroppedError(f"infrastructure: {text}", ItemStatus.FAILED)

    async def _try(self, work: "_Rollout", run_id: str, root: Run[Any] | None) -> tuple[Run[Any] | None, str]:
        """Return the finished run, or `None` and the fault of the infrastructure.

        Raises: `DroppedError` if another attempt would not help; `ProviderError` for a fault of the user.
        """
        agent = self._agents.make(work.task, work.spec.seed_of(self._config.seed, work.index))
        metadata: dict[str, Json] = {
            "rollout": self._config.name,
            "group": f"{self._config.name}-{work.spec.group}",
            "index": work.index,
            WEIGHTS_LABEL: {spec.name: spec.weight for spec in self._collector.rewards},
        }
        try:
            if root is None:
                run = await self._workers.run(agent, run_id, work.task, files=work.files, metadata=metadata)
            else:
                run = await fork_once(agent, root, run_id, seed=self._config.seed)
        except (ConfigError, ProviderError):
            raise
        except (LeaseHeldError, LeaseLostError, RunExistsError) as error:
            return None, str(error)
        except JournalError:
            raise
        except Exception as error:
            # Graders and other code of users raise anything.
            return None, f"{type(error).__name__}: {error}"
        fault = self._judge(run)
        if fault is not None:
            return None, fault
        missing = [item for item in self._scorers if item.name not in run.state.turn.rewards]
        if missing:
            try:
                await grade(self._journal, run_id, missing)
            except ScoringError as error:
                return None, str(error)
            run = await asyncio.to_thread(Run.load, run_id, self._journal)
        return run, ""

    def _judge(self, run: Run[Any]) -> str | None:
        """Return the fault of the infrastructure that a run ended with; `None` if there was none.

        Raises: `DroppedError`, `ProviderError`.
        """
        if run.status is not RunStatus.FINISHED:
            raise DroppedError(f"paused: rollout {run.run_id} waits for an answer or an approval")
        if run.stop_reason is StopReason.CANCELLED:
            raise DroppedError(f"cancelled: rollout {run.run_id} was cancelled")
        if run.stop_reason is StopReason.DEADLINE and run.error is not None:
            # A grade of what there was would depend on how fast the server is.
            raise DroppedError(
                f"deadline: rollout {run.run_id} waited for an answer when its deadline passed"
            )
        lost = run.state.turn.spent.steps - run.steps
        if run.stop_reason in _BUDGETS and lost > 0:
            raise DroppedError(
                f"infrastructure: rollout {run.run_id} ended with {run.stop_reason.value}, which counts answers "
                f"that were lost on the way, {lost} in this rollout"
            )
        if run.fault is Fault.USER:
            raise ProviderError(f"rollout {run.run_id!r} cannot be made: {run.error}")
        if run.stop_reason is StopReason.ERROR and run.fault is Fault.INFRASTRUCTURE:
            return run.error or "unknown"
        return None

    def _find_fault(self, made: Made) -> DroppedError | None:
        """Return why a group of finished rollouts is not wanted; `None` if it is."""
        config = self._config
        overlong = [one.rollout.run_id for one in made.rolled if one.is_overlong]
        if overlong and config.overlong == "drop":
            return DroppedError(f"overlong: {', '.join(overlong)}")
        if (
            config.no_variance == "drop"
            and config.deliver == "group"
            and not has_variance(rewards_of(made.rolled))
        ):
            return DroppedError("no_variance: all rewards are equal")
        return None

    def settle(
        self, item: PlannedItem, attempt: int, result: Made, connection: sqlite3.Connection
    ) -> ItemOutcome:
        """Return the outcome of an item; see `engines.engine.Work`."""
        usage, cost = _sum(result.rolled)
        outcome = ItemOutcome(
            status=ItemStatus.REJECTED,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=cost,
            details=self._describe(result),
        )
        dropped = result.dropped
        staleness = self.staleness_of(result)
        stale = self.find_stale([one.sampled for one in result.rolled])
        if dropped is None and stale is not None:
            dropped = DroppedError(stale)
        if dropped is not None:
            return replace(outcome, status=dropped.status, reasons=(str(dropped),))
        group = self.make_group(result)
        line = msgspec.json.encode(outline(group, staleness)) + b"\n"
        return replace(outcome, status=ItemStatus.KEPT, file=GROUPS, line=line)

    def find_stale(self, sampled: Sequence[SampledVersions]) -> str | None:
        """Return why tokens are too old to be delivered now; `None` if they are not."""
        age, most = self._versions.age(sampled), self._config.max_staleness
        if most is None or age <= most:
            return None
        return f"stale: the weights are {age} ahead of its oldest token, and max_staleness is {most}"

    def staleness_of(self, made: Made) -> int:
        """Return how many versions the weights are ahead of those of the oldest token."""
        return self._versions.age([one.sampled for one in made.rolled])

    def make_group(self, made: Made) -> Group:
        """Return the group as it is delivered now."""
        return self._collector.make_group(made.spec, made.rolled, self._versions.current)

    def _describe(self, made: Made) -> Json:
        rewards = rewards_of(made.rolled)
        graded = [reward for reward in rewards if reward is not None]
        return {
            "rewards": rewards,
            "graded": len(graded),
            "solved": sum([reward >= self._config.solved_at for reward in graded]),
            "has_variance": has_variance(rewards),
            "staleness": self.staleness_of(made),
            "sampled": msgspec.to_builtins(merge_sampled([one.sampled for one in made.rolled])),
            "weight_version": self._versions.current,
            "sampled_tokens": sum(
                [item.sampled_tokens for one in made.rolled for item in one.rollout.trajectories]
            ),
        }


class _Rollout(Struct, frozen=True):
    """One rollout to make."""

    spec: GroupSpec
    index: int
    task: Task
    files: SharedFiles
    root: "asyncio.Task[Rolled] | None"
    """The rollout that this one is forked from; `None` if it begins from the start."""


def _describe_rollout(task: str, rolled: Rolled) -> RolloutEnded:
    rollout = rolled.rollout
    return RolloutEnded(
        run_id=rollout.run_id,
        task=task,
        reward=rollout.reward,
        steps=rollout.steps,
        stop_reason=rollout.stop_reason.value,
        input_tokens=rolled.usage.input_tokens,
        output_tokens=rolled.usage.output_tokens,
        cost_usd=rolled.cost_usd,
    )


def outline(group: Group, staleness: int) -> Json:
    """Return what `groups.jsonl` has about a delivered group. The tokens are in the journal."""
    return {
        "group_id": group.group_id,
        "number": group.number,
        "task": group.task,
        "has_variance": group.has_variance,
        "weight_version": group.weight_version,
        "staleness": staleness,
        "rollouts": [
            {
                "run_id": rollout.run_id,
                "reward": rollout.reward,
                "rewards": rollout.rewards,
                "advantage": rollout.advantage,
                "stop_reason": rollout.stop_reason,
                "steps": rollout.steps,
                "output_tokens": rollout.usage.output_tokens,
            }
            for rollout in group.rollouts
        ],
    }


def _sum(rolled: Sequence[Rolled]) -> tuple[Usage, float | None]:
    usage = Usage()
    for one in rolled:
        usage += one.usage
    costs = [one.cost_usd for one in rolled]
    return usage, None if None in costs else sum([cost for cost in costs if cost is not None])
