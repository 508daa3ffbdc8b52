"""The numbers of a report, counted group by group."""

from collections import Counter
from collections.abc import Iterable
from statistics import fmean, pstdev

from msgspec import Struct, field

from treadle.core.types import Message, Role
from treadle.export.groups import Group, Rollout
from treadle.export.html.spread import Spread
from treadle.trajectory.tokens.trajectories import DriftReport, TokenGrade


class ToolFacts(Struct):
    """How one tool was used."""

    calls: int = 0
    errors: int = 0
    """Calls that failed or were not run."""


class GroupFacts(Struct, frozen=True):
    """One group as a line of the report."""

    number: int
    group_id: str
    task: str
    rewards: tuple[float | None, ...]
    run_ids: tuple[str, ...]
    has_variance: bool

    @property
    def known(self) -> list[float]:
        """The rewards that are known."""
        return [reward for reward in self.rewards if reward is not None]

    @property
    def mean(self) -> float | None:
        """The mean reward; `None` if no reward is known."""
        return fmean(self.known) if self.known else None

    @property
    def deviation(self) -> float:
        """The standard deviation of the rewards."""
        return pstdev(self.known) if self.known else 0.0


class DriftFacts(Struct):
    """The branches of one kind."""

    branches: int = 0
    example: DriftReport | None = None
    """The first one."""
    run_id: str = ""
    """The run that the example is from."""


class Facts(Struct):
    """Everything that a report counts."""

    groups: list[GroupFacts] = field(default_factory=list)
    tokens: Spread = field(default_factory=Spread)
    """Output tokens of a rollout."""
    steps: Spread = field(default_factory=Spread)
    calls: Spread = field(default_factory=Spread)
    tools: dict[str, ToolFacts] = field(default_factory=dict)
    drift: dict[str, DriftFacts] = field(default_factory=dict)
    stop_reasons: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    """Trajectories by grade."""
    versions: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by the version of the weights."""
    rewards: dict[str, list[float]] = field(default_factory=dict)
    """The grades by name."""
    sampled_tokens: int = 0

    @property
    def rollouts(self) -> int:
        """How many rollouts there are."""
        return sum(len(group.rewards) for group in self.groups)

    @property
    def solved(self) -> int:
        """How many groups have a rollout with the reward 1 or more."""
        return sum(any(reward >= 1.0 for reward in group.known) for group in self.groups)

    def add(self, group: Group) -> None:
        """Count a group."""
        rollouts = group.rollouts
        self.groups.append(
            GroupFacts(
                group.number,
                group.group_id,
                group.task,
                group.rewards_G,
                tuple([item.run_id for item in rollouts]),
                group.has_variance,
            )
        )
        for rollout in rollouts:
            self._add_rollout(rollout)

    def _add_rollout(self, rollout: Rollout) -> None:
        self.tokens.add(rollout.usage.output_tokens)
        self.steps.add(rollout.steps)
        self.stop_reasons[rollout.stop_reason.value] += 1
        for name, reward in rollout.rewards.items():
            self.rewards.setdefault(name, []).append(reward)
        calls = 0
        for name, is_error in calls_of(rollout.messages):
            tool = self.tools.setdefault(name, ToolFacts())
            tool.calls += 1
            tool.errors += is_error
            calls += 1
        self.calls.add(calls)
        for trajectory in rollout.trajectories:
            self.grades[trajectory.grade.value] += 1
            self.sampled_tokens += trajectory.sampled_tokens
            if trajectory.drift is not None:
                found = self.drift.setdefault(trajectory.drift.kind.value, DriftFacts())
                found.branches += 1
                if found.example is None:
                    found.example, found.run_id = trajectory.drift, trajectory.run_id
            if trajectory.grade is TokenGrade.TEXT:
                continue
            for span in trajectory.spans:
                if not span.is_trained:
                    continue
                for tokens, version in span.weight_versions:
                    self.versions[version] += tokens


def calls_of(messages: Iterable[Message]) -> list[tuple[str, bool]]:
    """Return the name of the tool of each call, and whether the call failed or was not run."""
    return [(item.name or "", item.is_error) for item in messages if item.role is Role.TOOL]
