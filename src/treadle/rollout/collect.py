"""Finished runs as rollouts and groups."""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.lineage import Parent
from treadle.core.types import FinishReason, StopReason, Usage
from treadle.export.groups import Group, Rollout, make_group, read_rollout
from treadle.journal.protocol import Journal
from treadle.rollout.group_plan import GroupSpec
from treadle.rollout.rollout_config import RolloutConfig
from treadle.rollout.versions import SampledVersions, read_sampled
from treadle.runs.run import Run
from treadle.scoring.advantages import compute_advantages
from treadle.scoring.grade import total_reward
from treadle.scoring.registry import read_rewards
from treadle.tasks.draws import fraction

_LIMITS = frozenset(
    (
        StopReason.MAX_STEPS,
        StopReason.MAX_TOKENS,
        StopReason.MAX_TOOL_CALLS,
        StopReason.DEADLINE,
        StopReason.CONTEXT_OVERFLOW,
    )
)
"""The stop reasons of rollouts that a limit cut off."""


class Rolled(Struct, frozen=True):
    """One finished rollout, with the tokens and the cost that it used."""

    run: Run[Any]
    rollout: Rollout
    usage: Usage
    """The tokens that the rollout used itself. The beginning that a fork shares with its root is not part of
    it."""
    cost_usd: float | None
    """The cost of these tokens in US dollars; `None` if a price is unknown."""
    sampled: SampledVersions
    """The versions of the weights that sampled the rollout's tokens, including the tokens of the shared
    beginning."""
    is_overlong: bool


class GroupReader:
    """The rollouts and groups of one configuration, read from the journal. Its methods block."""

    def __init__(self, config: RolloutConfig, journal: Journal) -> None:
        self.config = config
        self._journal = journal
        self.rewards = read_rewards(config.rewards)
        self._decode = config.find_decode()

    def read(self, run: Run[Any]) -> Rolled:
        """Return the rollout of a finished run.

        Raises: `ExportError` if a sampled token would be lost or delivered twice.
        """
        rollout, graph = read_rollout(self._journal, run, self._decode)
        trajectories, known = rollout.trajectories, rollout.rewards
        most = self.config.max_row_tokens
        spans = [span for item in trajectories for span in item.spans]
        is_overlong = (
            run.stop_reason in _LIMITS
            or (bool(spans) and spans[-1].finish_reason is FinishReason.LENGTH)
            or (most is not None and any([len(item.token_ids_T) > most for item in trajectories]))
        )
        rollout = replace(
            rollout,
            reward=total_reward(known, self.rewards),
            rewards={spec.name: known[spec.name] for spec in self.rewards if spec.name in known},
            is_trained=not (is_overlong and self.config.overlong == "mask"),
        )
        usage, cost = self._own(run)
        sampled = read_sampled([node for nodes in graph.nodes.values() for node in nodes])
        return Rolled(run, rollout, usage, cost, sampled, is_overlong)

    def _own(self, run: Run[Any]) -> tuple[Usage, float | None]:
        """Return what a run has used itself, and what that has cost."""
        parent = None if run.state.started is None else run.state.started.parent
        if parent is None:
            return run.usage, run.cost_usd
        shared = Run.load(run.run_id, self._journal, parent.seq)
        costs = run.cost_usd, shared.cost_usd
        cost = None if costs[0] is None or costs[1] is None else costs[0] - costs[1]
        return run.usage - shared.usage, cost

    def make_group(self, spec: GroupSpec, rolled: Sequence[Rolled], weight_version: str | None) -> Group:
        """Return a group as it is delivered."""
        config = self.config
        has_advantages = config.advantages != "none" and config.deliver == "group"
        return make_group(
            [one.rollout for one in rolled],
            partial(compute_advantages, config.advantages) if has_advantages else None,
            group_id=spec.unit_id(config.name),
            number=spec.group,
            task=spec.task,
            weight_version=weight_version,
        )

    def load(self, spec: GroupSpec, weight_version: str | None) -> Group:
        """Return a group that was delivered, from the journal. Raises: `RunNotFoundError`."""
        runs = [Run.load(spec.run_id(self.config.name, index), self._journal) for index in spec.rollouts]
        return self.make_group(spec, [self.read(run) for run in runs], weight_version)


def rewards_of(rolled: Iterable[Rolled]) -> list[float | None]:
    """Return the rewards of rollouts."""
    return [one.rollout.reward for one in rolled]


def find_fork(root: Run[Any], run_id: str, *, seed: int) -> Parent:
    """Return where the run `run_id` is forked from `root`: before an inference that the seed chooses.

    The inferences before it are neither sampled nor paid for again. A root that has only one step is forked at its
    beginning.
    """
    starts = [
        (before.seq, event.body.step)
        for before, event in itertools.pairwise(root.events)
        if isinstance(event.body, e.InferenceStarted)
    ]
    points = [seq for seq, step in starts if step > 1] or [starts[0][0]]
    return Parent(root.run_id, points[int(fraction(seed, run_id, "fork") * len(points))])
