"""The plan of rollouts: which group is about which task, and the seed of each rollout.

All of it depends on the configuration and the number of the group, and with a curriculum on the pass rates that
were known when the group was planned. The ledger keeps what was planned.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from treadle.jobs.ledger import JobCounts, LedgerEntry, PlannedItem
from treadle.rollout.rollout_config import CurriculumSection, RolloutConfig
from treadle.tasks.draws import Draw, fraction


class GroupSpec(Struct, frozen=True):
    """The plan of one item of the ledger: a group, or one rollout of a group."""

    group: int
    """The number of the group, from 1."""
    task: str
    """The task as `SET:ID`."""
    rollouts: tuple[int, ...]
    """The positions in the group of the rollouts to make."""

    def unit_id(self, name: str) -> str:
        """Return the id of the unit that is delivered: a group, or a single rollout."""
        return f"{name}-{self.group}" if len(self.rollouts) != 1 else self.run_id(name, self.rollouts[0])

    def run_id(self, name: str, index: int) -> str:
        """Return the id of the run of the rollout at `index`, given the name of the rollouts."""
        return f"{name}-{self.group}-{index}"

    def seed_of(self, seed: int, index: int) -> int:
        """Return the sampling seed of the rollout at `index`, given the seed of the plan."""
        return int(fraction(seed, self.group, index) * 2**31)


class GroupPlan:
    """The plan of the groups of one configuration."""

    def __init__(self, config: RolloutConfig, tasks: Sequence[str]) -> None:
        """Make a plan over `tasks`, each as `SET:ID`."""
        self._config = config
        self._tasks = tasks
        self._epoch: tuple[int, Sequence[str]] = (-1, tasks)
        self._newest = GroupSpec(0, "", ())
        """The newest planned group, which its later rollouts belong to if they are delivered one by one."""
        self._rates = None if config.curriculum is None else PassRates(config.curriculum, tasks)

    @property
    def wanted(self) -> int:
        """How many items are wanted: groups, or rollouts if they are delivered one by one."""
        config = self._config
        return config.groups * (config.group_size if config.deliver == "rollout" else 1)

    def make_item(self, number: int, counts: JobCounts) -> PlannedItem:
        """Return the item with this number."""
        size = self._config.group_size
        indices = tuple(range(size))
        group = number
        if self._config.deliver == "rollout":
            group, index = (number - 1) // size + 1, (number - 1) % size
            indices = (index,)
        task = self._newest.task if group == self._newest.group else self._choose(group)
        self._newest = GroupSpec(group, task, indices)
        return PlannedItem(number, "", task, msgspec.to_builtins(self._newest))

    def restore(self, entries: Iterable[LedgerEntry], items: Iterable[PlannedItem]) -> None:
        """Record what an earlier process has planned and counted."""
        for entry in entries:
            self._note(msgspec.convert(entry.spec, GroupSpec))
            details = entry.details if isinstance(entry.details, dict) else {}
            self.observe(entry.spec["task"], details.get("solved", 0), details.get("graded", 0))
        for item in items:
            self._note(msgspec.convert(item.spec, GroupSpec))

    def observe(self, task: str, solved: int, graded: int) -> None:
        """Record how many of the graded rollouts of a task have solved it."""
        if self._rates is not None and graded:
            self._rates.observe(task, solved, graded)

    def _note(self, spec: GroupSpec) -> None:
        if spec.group > self._newest.group:
            self._newest = spec

    def _choose(self, group: int) -> str:
        if self._rates is not None:
            return self._rates.draw(Draw(f"{self._config.seed}/task/{group}"))
        epoch, position = divmod(group - 1, len(self._tasks))
        if self._config.order == "given":
            return self._tasks[position]
        if self._epoch[0] != epoch:
            draw = Draw(f"{self._config.seed}/epoch/{epoch}")
            self._epoch = (epoch, draw.shuffled(self._tasks))
        return self._epoch[1][position]


class PassRates:
    """The pass rates of tasks or families, and draws that prefer the ones near a target."""

    def __init__(self, settings: CurriculumSection, tasks: Sequence[str]) -> None:
        self._settings = settings
        self._members: dict[str, list[str]] = {}
        for task in tasks:
            self._members.setdefault(self._key(task), []).append(task)
        self._keys = list(self._members)
        self._counts: dict[str, tuple[int, int]] = {}

    def observe(self, task: str, solved: int, graded: int) -> None:
        """Add the rollouts of a group."""
        key = self._key(task)
        before = self._counts.get(key, (0, 0))
        self._counts[key] = before[0] + solved, before[1] + graded

    def draw(self, draw: Draw) -> str:
        """Return a task."""
        weights = [self._weight(key) * len(self._members[key]) for key in self._keys]
        left = draw.below(2**31) / 2**31 * sum(weights)
        for key, weight in zip(self._keys, weights, strict=True):
            left -= weight
            if left < 0:
                return draw.pick(self._members[key])
        return draw.pick(self._members[self._keys[-1]])

    def _key(self, task: str) -> str:
        return task.rpartition("-")[0] or task if self._settings.by == "family" else task

    def _weight(self, key: str) -> float:
        known = self._counts.get(key)
        if known is None:
            return 1.0
        settings = self._settings
        distance = abs(known[0] / known[1] - settings.target)
        return max(settings.floor, 1.0 - distance / settings.width)
