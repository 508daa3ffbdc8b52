"""Finished runs as rollouts and groups."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.run import Run
from treadle.core import events as e
from treadle.core.errors import ExportError
from treadle.core.narrowing import Event
from treadle.core.types import FinishReason, StopReason, Usage
from treadle.export.groups import Group, Rollout
from treadle.journal.protocol import Journal
from treadle.rollout.config import Config
from treadle.rollout.plan import GroupSpec
from treadle.scoring.advantages import compute_advantages, has_variance
from treadle.scoring.grade import total_reward
from treadle.scoring.registry import read_rewards
from treadle.trajectory.tokens.graph import load_tokens

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


class Own(Struct, frozen=True):
    """What a rollout has sampled itself. The beginning that a fork shares with its root is not part of it."""

    usage: Usage
    cost_usd: float | None
    versions: frozenset[str]
    """The versions of the weights that sampled its tokens, those of the shared beginning included."""


def measure(events: Sequence[Event]) -> Own:
    """Return what the rollout with these events has used."""
    shared = 0
    usage, cost = Usage(), 0.0
    is_known = True
    versions: set[str] = set()
    for event in events:
        body = event.body
        if isinstance(body, e.RunStarted) and body.parent is not None:
            shared = body.parent.seq
        elif isinstance(body, e.InferenceCompleted):
            completion = body.completion
            versions |= _versions_of(completion.tokens, completion.weight_version)
            if event.seq > shared:
                usage += completion.usage or Usage()
                is_known = is_known and completion.cost_usd is not None
                cost += completion.cost_usd or 0.0
    return Own(usage, cost if is_known else None, frozenset(versions))


def _versions_of(tokens: Any, weight_version: str | None) -> set[str]:
    if tokens is not None and tokens.versions:
        return {version for _, version in tokens.versions}
    return set() if weight_version is None else {weight_version}


def is_cut(run: Run[Any]) -> bool:
    """Return whether a limit cut the rollout off."""
    if run.stop_reason in _LIMITS:
        return True
    answers = [event.body for event in run.events if isinstance(event.body, e.InferenceCompleted)]
    return bool(answers) and answers[-1].completion.finish_reason is FinishReason.LENGTH


class Rolled(Struct, frozen=True):
    """One finished rollout with what it used."""

    run: Run[Any]
    rollout: Rollout
    own: Own
    is_overlong: bool


class Collector:
    """The rollouts and groups of one configuration, read from the journal. Its methods block."""

    def __init__(self, config: Config, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self.rewards = read_rewards(config.rewards)

    def read(self, run: Run[Any]) -> Rolled:
        """Return the rollout of a finished run.

        Raises: `ExportError` if a sampled token would be lost or delivered twice.
        """
        assert run.stop_reason is not None
        started = run.state.started
        graph = load_tokens(self._journal, run.run_id)
        if graph.conservation.faults:
            raise ExportError(f"the tokens of run {run.run_id!r} cannot be delivered: {graph.conservation}")
        trajectories = graph.trajectories
        known = run.state.rewards
        most = self._config.max_row_tokens
        rollout = Rollout(
            run_id=run.run_id,
            trajectories=trajectories,
            reward=total_reward(known, self.rewards),
            rewards={spec.name: known[spec.name] for spec in self.rewards if spec.name in known},
            stop_reason=run.stop_reason,
            messages=tuple(run.messages),
            tools=() if started is None else started.tools,
            usage=run.usage,
            steps=run.steps,
            metadata=dict(run.metadata),
        )
        is_overlong = is_cut(run) or (
            most is not None and any([len(item.token_ids_T) > most for item in trajectories])
        )
        return Rolled(run, rollout, measure(run.events), is_overlong)

    def make_group(self, spec: GroupSpec, rolled: Sequence[Rolled], weight_version: str | None) -> Group:
        """Return a group as it is delivered."""
        config = self._config
        rewards = rewards_of(rolled)
        rollouts = [one.rollout for one in rolled]
        if config.advantages != "none" and config.deliver == "group":
            advantages = compute_advantages(config.advantages, rewards)
            rollouts = [replace(item, advantage=advantages[index]) for index, item in enumerate(rollouts)]
        return Group(
            group_id=f"{config.name}-{spec.group}",
            number=spec.group,
            task=spec.task,
            rollouts=tuple(rollouts),
            has_variance=has_variance(rewards),
            weight_version=weight_version,
        )

    def load(self, spec: GroupSpec, weight_version: str | None) -> Group:
        """Return a group that was delivered, from the journal. Raises: `RunNotFoundError`."""
        runs = [Run.load(spec.run_id(self._config.name, index), self._journal) for index in spec.rollouts]
        return self.make_group(spec, [self.read(run) for run in runs], weight_version)


def rewards_of(rolled: Iterable[Rolled]) -> list[float | None]:
    """Return the rewards of rollouts."""
    return [one.rollout.reward for one in rolled]
