"""The token format `verl`: the fields of verl's `AgentLoopOutput`, with the group as `uid`.

The response begins with the first sampled token. Positions that are not trained on have 0 in `response_mask`
and the log probability 0.0, with which verl pads too.

Source: verl 0.9.1, `experimental/agent_loop/agent_loop.py`.
"""

from collections.abc import Mapping

from treadle.core.types import Json, Role
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group
from treadle.export.token_exporter import LossMask, read_branches, reward_of
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
        """Return a row for each branch."""
        rows: list[dict[str, Json]] = []
        for branch in read_branches(group, mask, self.needs):
            rollout, begin = branch.rollout, branch.begin
            turns = [item for item in branch.trajectory.messages if item.role is not Role.SYSTEM]
            rows.append(
                {
                    "uid": group.group_id,
                    "prompt_ids": branch.ids_T[:begin],
                    "response_ids": branch.ids_T[begin:],
                    "response_mask": branch.binary_mask(begin),
                    "response_logprobs": branch.masked_logprobs(UNKNOWN_LOGPROB, begin),
                    "reward_score": reward_of(rollout),
                    "num_turns": len(turns),
                    "metrics": {},
                    "extra_fields": {
                        "run_id": rollout.run_id,
                        "branch": branch.trajectory.branch,
                        "task": group.task,
                        "rewards": rollout.rewards,
                        "stop_reason": rollout.stop_reason.value,
                    },
                }
            )
        return rows


FORMAT = VerlRows()
