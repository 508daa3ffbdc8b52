"""The token format `verl`: the fields of verl's `AgentLoopOutput`, with the group as `uid`.

The response begins with the first sampled token. Positions that are not trained on have 0 in `response_mask`
and the log probability 0.0, with which verl pads too.

verl computes advantages from the rewards of the rows that have the same `uid`, so each rollout has one such row:
the branch with its final answer. Any other branch has a `uid` of its own, and the advantage of the rollout as its
reward, which verl uses unchanged for a group of one. An agent loop of verl may also return the rows of a rollout as
a list: verl then gives all of them the advantage of the last one.

Source: verl 0.9.1, `experimental/agent_loop/agent_loop.py`, `trainer/ppo/core_algos.py` and
`trainer/ppo/v1/agent_loop_tq.py`.
"""

from collections.abc import Iterator, Mapping

from treadle.core.types import Json, Role
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group
from treadle.export.token_exporter import Branch, LossMask, read_branches, reward_of
from treadle.scoring.advantages import group_relative
from treadle.trajectory.tokens.trajectories import TokenGrade

UNKNOWN_LOGPROB = 0.0


class VerlRows:
    """The token format `verl`: the fields of an `AgentLoopOutput` of verl, a row for each branch."""

    needs = TokenGrade.TOKEN_EXACT
    columns: Mapping[str, ColumnType] = {
        "uid": ColumnType.TEXT,
        "prompt_ids": ColumnType.IDS,
        "response_ids": ColumnType.IDS,
        "response_mask": ColumnType.FLAGS,
        "response_logprobs": ColumnType.FLOATS,
        "reward_score": ColumnType.FLOAT,
        "num_turns": ColumnType.INTEGER,
        "metrics": ColumnType.JSON,
        "extra_fields": ColumnType.JSON,
    }

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        rows: list[dict[str, Json]] = []
        branches = list(read_branches(group, mask, self.needs))
        advantages = list(_advantages_of(group))
        final = {branch.rollout.run_id: branch for branch in branches}
        for branch in branches:
            rollout = branch.rollout
            uid, reward = group.group_id, reward_of(rollout)
            if branch is not final[rollout.run_id]:
                uid += f"/{branch.trajectory.run_id}/{branch.trajectory.branch}"
                reward = advantages[branch.index]
            rows.append({"uid": uid, **write_output(branch, reward, group.task)})
        return rows


def write_output(branch: Branch, reward: float | None, task: str) -> dict[str, Json]:
    """Return the fields of the `AgentLoopOutput` of a branch. `reward` is that of its row."""
    rollout, begin = branch.rollout, branch.begin
    is_exact = branch.trajectory.grade is TokenGrade.TOKEN_EXACT
    turns = [item for item in branch.trajectory.messages if item.role is not Role.SYSTEM]
    return {
        "prompt_ids": branch.ids_T[:begin],
        "response_ids": branch.ids_T[begin:],
        "response_mask": branch.binary_mask(begin),
        "response_logprobs": branch.masked_logprobs(UNKNOWN_LOGPROB, begin) if is_exact else None,
        "reward_score": reward,
        "num_turns": len(turns),
        "metrics": {},
        "extra_fields": {
            "run_id": rollout.run_id,
            "branch": branch.trajectory.branch,
            "task": task,
            "reward": rollout.reward,
            "rewards": rollout.rewards,
            "stop_reason": rollout.stop_reason.value,
            # verl reads this key of a rollout's last row, if the rollout has several.
            "reward_extra_info": {},
        },
    }


def _advantages_of(group: Group) -> Iterator[float]:
    """Yield the advantage of each rollout; without one, what verl computes for GRPO by default."""
    usual = group_relative([reward_of(rollout) for rollout in group.rollouts])
    for rollout, other in zip(group.rollouts, usual, strict=True):
        yield (rollout.advantage if rollout.advantage is not None else other) or 0.0


FORMAT = VerlRows()
