"""The token formats `trl_grpo` and `trl_sft`: tokens for TRL's GRPO and SFT trainers.

A row of `trl_grpo` has the fields that a `rollout_func` returns for one prompt. Positions of the completion
that are not trained on have 0 in `env_mask` and the log probability 0.0, with which TRL pads too. A row of
`trl_sft` has the labels themselves, with -100 where no loss is computed; TRL uses such a column unchanged.

Source: TRL 1.16, `GRPOTrainer._generate` and `DataCollatorForLanguageModeling`.
"""

from collections.abc import Mapping

from treadle.core.types import Json
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group
from treadle.export.token_exporter import Branch, LossMask, read_branches
from treadle.trajectory.tokens.trajectories import TokenGrade

IGNORED = -100
UNKNOWN_LOGPROB = 0.0


class GrpoRows:
    """The token format `trl_grpo`: what a `rollout_func` of TRL returns, a row for each branch."""

    needs = TokenGrade.TOKEN_EXACT
    columns: Mapping[str, ColumnType] = {
        "prompt_ids": ColumnType.IDS,
        "completion_ids": ColumnType.IDS,
        "logprobs": ColumnType.FLOATS,
        "env_mask": ColumnType.FLAGS,
        "reward": ColumnType.FLOAT,
        "rewards": ColumnType.JSON,
        "advantage": ColumnType.FLOAT,
        "group_id": ColumnType.TEXT,
        "run_id": ColumnType.TEXT,
        "branch": ColumnType.INTEGER,
    }

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        return [
            {
                **write_completion(branch),
                "reward": branch.rollout.reward,
                "rewards": branch.rollout.rewards,
                "advantage": branch.rollout.advantage,
                "group_id": group.group_id,
                "run_id": branch.rollout.run_id,
                "branch": branch.trajectory.branch,
            }
            for branch in read_branches(group, mask, self.needs)
        ]


class SftRows:
    """The token format `trl_sft`: `input_ids` and `labels` for the SFT trainer of TRL, a row for each branch."""

    needs = TokenGrade.TOKEN_IDS
    columns: Mapping[str, ColumnType] = {"input_ids": ColumnType.IDS, "labels": ColumnType.IDS}

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        return [
            {
                "input_ids": branch.ids_T,
                "labels": [
                    token if flag else IGNORED
                    for token, flag in zip(branch.ids_T, branch.binary_mask(), strict=True)
                ],
            }
            for branch in read_branches(group, mask, self.needs)
        ]


GRPO = GrpoRows()
SFT = SftRows()


def write_completion(branch: Branch) -> dict[str, Json]:
    """Return the fields that a `rollout_func` returns for one prompt."""
    begin = branch.begin
    return {
        "prompt_ids": branch.ids_T[:begin],
        "completion_ids": branch.ids_T[begin:],
        "logprobs": branch.masked_logprobs(UNKNOWN_LOGPROB, begin),
        "env_mask": branch.binary_mask(begin),
    }
