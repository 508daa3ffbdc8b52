"""Groups of rollouts for tests, with tokens, made without an engine."""

import random
from array import array

from treadle.core.types import FinishReason, Message, Role, StopReason, ToolCall, Usage
from treadle.export.groups import Group, Rollout
from treadle.scoring.advantages import compute_advantages, has_variance
from treadle.trajectory.tokens.trajectories import Drift, DriftReport, Span, TokenGrade, Trajectory


def make_trajectory(run_id: str, draw: random.Random, *, branch: int = 0, version: str = "1") -> Trajectory:
    """Return a trajectory of two answers, with a drift if it is not the first branch."""
    prompt, between = draw.randrange(5, 20), draw.randrange(3, 9)
    sizes = (draw.randrange(4, 30), draw.randrange(4, 30))
    ids, sampled, logprobs, spans = array("i"), bytearray(), array("f"), []
    for index, (given, size) in enumerate(zip((prompt, between), sizes, strict=True)):
        ids.extend([draw.randrange(300) for _ in range(given + size)])
        sampled += bytes(given) + b"\x01" * size
        logprobs.extend([float("nan")] * given)
        logprobs.extend([-draw.expovariate(1.0) for _ in range(size)])
        end = len(ids)
        spans.append(
            Span(
                start=end - size,
                end=end,
                run_id=run_id,
                seq=4 + 3 * index,
                step=index + 1,
                finish_reason=FinishReason.STOP if index else FinishReason.TOOL_CALLS,
                model="m",
                weight_versions=((size, version),),
            )
        )
    drift = None
    if branch:
        drift = DriftReport(Drift.COMPACTION, 7, (1, 2), (3, 4), "so", "<b>far</b>", run_id, 4)
    return Trajectory(
        run_id=run_id,
        branch=branch,
        grade=TokenGrade.TOKEN_EXACT,
        token_ids_T=ids,
        sampled_T=bytes(sampled),
        logprobs_T=logprobs,
        spans=tuple(spans),
        drift=drift,
    )


def make_rollout(run_id: str, reward: float | None, draw: random.Random) -> Rollout:
    """Return a rollout with a call, and two branches if its number is odd."""
    call = ToolCall("c1", "read_file", '{"path": "a.txt"}')
    messages = (
        Message(Role.USER, "Sum <script>alert(1)</script>"),
        Message(Role.ASSISTANT, "", (call,), reasoning="I read it."),
        Message(Role.TOOL, "1\n2", call_id="c1", name="read_file", is_error=draw.random() < 0.3),
        Message(Role.ASSISTANT, "3"),
    )
    branches = 2 if draw.random() < 0.4 else 1
    return Rollout(
        run_id=run_id,
        trajectories=tuple([make_trajectory(run_id, draw, branch=index) for index in range(branches)]),
        reward=reward,
        rewards={} if reward is None else {"check": reward},
        stop_reason=StopReason.COMPLETED,
        messages=messages,
        usage=Usage(100, draw.randrange(20, 200)),
        steps=2,
    )


def make_groups(count: int, size: int = 8, *, seed: int = 0) -> list[Group]:
    """Return groups whose rewards rise, one of them without variance and one with a reward that is not known."""
    draw = random.Random(seed)
    groups = []
    for number in range(1, count + 1):
        rewards: list[float | None] = [float(draw.random() < number / count) for _ in range(size)]
        if number == 2:
            rewards = [0.0] * size
        if number == 3:
            rewards[0] = None
        group_id = f"g{number:05}"
        advantages = compute_advantages("group", rewards)
        rollouts = [make_rollout(f"{group_id}-{index}", reward, draw) for index, reward in enumerate(rewards)]
        groups.append(
            Group(
                group_id=group_id,
                number=number,
                task=f"files:csv_sum-{number:04}",
                rollouts=tuple(
                    [_with(rollout, value) for rollout, value in zip(rollouts, advantages, strict=True)]
                ),
                has_variance=has_variance(rewards),
                weight_version="1",
            )
        )
    return groups


def _with(rollout: Rollout, advantage: float | None) -> Rollout:
    from msgspec.structs import replace

    return replace(rollout, advantage=advantage)
