"""Finished runs as the rollouts of a group."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from treadle.agent.run import Run
from treadle.core import events as e
from treadle.core.narrowing import Event
from treadle.core.types import FinishReason, StopReason, Usage
from treadle.export.groups import Rollout
from treadle.trajectory.tokens.types import TokenGrade, Trajectory

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


def make_rollout(run: Run[Any], rewards: Mapping[str, float], reward: float | None) -> Rollout:
    """Return the rollout of a finished run. It reads the run's events, and blocks."""
    assert run.stop_reason is not None
    started = run.state.started
    return Rollout(
        run_id=run.run_id,
        trajectories=tuple(read_trajectories(run)),
        reward=reward,
        rewards=dict(rewards),
        stop_reason=run.stop_reason,
        messages=tuple(run.messages),
        tools=() if started is None else started.tools,
        usage=run.usage,
        steps=run.steps,
        metadata=dict(run.metadata),
    )


def read_trajectories(run: Run[Any]) -> Iterable[Trajectory]:
    """Return the token trajectories of a run."""
    yield Trajectory(
        run_id=run.run_id,
        branch=0,
        grade=TokenGrade.TEXT,
        token_ids_T=array("i"),
        sampled_T=b"",
        logprobs_T=array("f"),
        messages=tuple(run.messages),
    )
