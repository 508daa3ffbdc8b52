"""Groups of rollouts, made by hand and at random, for the tests of token formats and sinks."""

import math
from array import array
from collections.abc import Sequence

from hypothesis import strategies as st

from treadle.core.types import (
    Effect,
    FinishReason,
    Message,
    Role,
    Settings,
    StopReason,
    ToolCall,
    ToolSpec,
    Usage,
)
from treadle.export.groups import Group, Rollout
from treadle.trajectory.tokens.trajectories import Drift, DriftReport, Span, TokenGrade, Trajectory

NAN = math.nan
TOOL = ToolSpec(
    "read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}, Effect.PURE
)


def make_trajectory(
    run_id: str, turns: Sequence[tuple[int, int]], branch: int = 0, first: int = 10
) -> Trajectory:
    """Return a branch with, for each turn, so many tokens of input and then so many sampled ones."""
    ids: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    spans: list[Span] = []
    messages = [Message(Role.USER, "Count the files.")]
    for turn, (given, answered) in enumerate(turns):
        ids += range(first + len(ids), first + len(ids) + given + answered)
        sampled += [0] * given + [1] * answered
        logprobs += [NAN] * given + [-0.125 * (1 + position) for position in range(answered)]
        is_last = turn == len(turns) - 1
        call = () if is_last else (ToolCall(f"c{turn}", "read", '{"path": "a"}'),)
        messages.append(Message(Role.ASSISTANT, f"Answer {turn}", call, reasoning="So." if turn else None))
        spans.append(
            Span(
                start=len(ids) - answered,
                end=len(ids),
                run_id=run_id,
                seq=3 + 4 * turn,
                step=turn,
                message=len(messages) - 1,
                finish_reason=FinishReason.STOP if is_last else FinishReason.TOOL_CALLS,
                model="m",
                engine="vllm 0.11.2",
                weight_versions=((answered, "7"),),
                settings=Settings(temperature=0.5),
            )
        )
        messages += [Message(Role.TOOL, "3", (), item.call_id, item.name) for item in call]
    drift = DriftReport(Drift.COMPACTION, 4, (1, 2), (3, 4)) if branch else None
    return Trajectory(
        run_id=run_id,
        branch=branch,
        grade=TokenGrade.TOKEN_EXACT,
        token_ids_T=array("i", ids),
        sampled_T=bytes(sampled),
        logprobs_T=array("f", logprobs),
        spans=tuple(spans),
        drift=drift,
        messages=tuple(messages),
        tokenizer="chatml-1",
    )


def make_rollout(
    run_id: str, reward: float | None = 1.0, branches: int = 1, advantage: float | None = 0.5
) -> Rollout:
    trajectories = tuple(
        [make_trajectory(run_id, [(4, 3), (2, 2)], branch, 10 + 100 * branch) for branch in range(branches)]
    )
    return Rollout(
        run_id=run_id,
        trajectories=trajectories,
        reward=reward,
        rewards={} if reward is None else {"check": reward},
        advantage=advantage,
        stop_reason=StopReason.COMPLETED,
        messages=trajectories[-1].messages if trajectories else (),
        tools=(TOOL,),
        usage=Usage(input_tokens=20, output_tokens=5),
        steps=2,
        metadata={"a": [1, None]},
    )


def make_group(
    number: int = 1, size: int = 4, branches: Sequence[int] = (), rewards: Sequence[float | None] = ()
) -> Group:
    """Return a group whose rollouts have rewards of 0 and 1 by turns, and one branch, unless said otherwise."""
    rollouts = [
        make_rollout(
            f"g{number}-{index}",
            rewards[index] if rewards else float(index % 2),
            branches[index] if branches else 1,
            float(index % 2) - 0.5,
        )
        for index in range(size)
    ]
    return Group(
        group_id=f"g{number}", number=number, task="files:7", rollouts=tuple(rollouts), weight_version="7",
        metadata={"seed": 3},
    )  # fmt: skip


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Groups of all grades, with any number of branches and turns."""
    size = draw(st.integers(1, 4))
    rollouts = []
    for index in range(size):
        run_id = f"r{index}"
        trajectories = []
        for branch in range(draw(st.integers(1, 3))):
            turns = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3))
            made = make_trajectory(
                draw(st.sampled_from([run_id, f"{run_id}/sub"])), turns, branch, draw(st.integers(0, 2**20))
            )
            trajectories.append(made)
        rewards = draw(st.dictionaries(st.sampled_from(["check", "length"]), st.floats(-2, 2, width=32)))
        rollouts.append(
            Rollout(
                run_id=run_id,
                trajectories=tuple(trajectories),
                reward=draw(st.none() | st.floats(-2, 2)),
                rewards=rewards,
                advantage=draw(st.none() | st.floats(-2, 2)),
                is_solved=draw(st.booleans()),
                stop_reason=draw(st.sampled_from(list(StopReason))),
                messages=draw(st.sampled_from([(), trajectories[0].messages])),
                tools=draw(st.sampled_from([(), (TOOL,)])),
                usage=draw(st.sampled_from([Usage(), Usage(input_tokens=3, reasoning_tokens=1)])),
                steps=draw(st.integers(0, 9)),
                metadata=draw(st.sampled_from([{}, {"k": {"a": [1.5, None, "ä"]}}])),
            )
        )
    return Group(
        group_id=draw(st.sampled_from(["g1", "files:1/2"])),
        number=draw(st.integers(1, 100)),
        task="files:7",
        rollouts=tuple(rollouts),
        has_variance=draw(st.booleans()),
        weight_version=draw(st.sampled_from([None, "12"])),
        metadata=draw(st.sampled_from([{}, {"seed": 1}])),
    )
