"""The token format `skyrl`: one `GeneratorOutput` of SkyRL for each group.

A rollout's branches are steps in SkyRL's sense: they follow one another, share a `trajectory_id`, and
`is_last_step` is true for the last one, whose reward counts. Positions that are not trained on have 0 in
`loss_masks` and the log probability 0.0. `stop_reasons` has the finish reason of each branch's last answer.

Source: SkyRL 0.4.0, `skyrl/train/generators/base.py` and `validate_generator_output`.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from treadle.core.types import FinishReason, Json
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group
from treadle.export.token_exporter import Branch, LossMask, read_branches, reward_of
from treadle.trajectory.tokens.trajectories import TokenGrade

UNKNOWN_LOGPROB = 0.0


class SkyRlRows:
    """The token format `skyrl`: a `GeneratorOutput` of SkyRL for each group."""

    needs = TokenGrade.TOKEN_EXACT
    columns: Mapping[str, ColumnType] = {
        "prompt_token_ids": ColumnType.LIST,
        "response_ids": ColumnType.LIST,
        "rewards": ColumnType.LIST,
        "loss_masks": ColumnType.LIST,
        "stop_reasons": ColumnType.LIST,
        "rollout_metrics": ColumnType.JSON,
        "rollout_logprobs": ColumnType.LIST,
        "trajectory_ids": ColumnType.LIST,
        "is_last_step": ColumnType.LIST,
    }

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        branches = read_branches(group, mask, self.needs)
        found = [
            Repetition(
                reward_of(rollout),
                {"instance_id": group.group_id, "repetition_id": index},
                [branch for branch in branches if branch.index == index],
            )
            for index, rollout in enumerate(group.rollouts)
        ]
        return [write_output(found)]


FORMAT = SkyRlRows()


class Repetition(Struct, frozen=True):
    """One rollout of a `GeneratorOutput`."""

    reward: float
    trajectory_id: Json
    branches: Sequence[Branch]
    """The branches that are trained on; the last one has the final answer."""


def write_output(repetitions: Sequence[Repetition]) -> dict[str, Json]:
    """Return a `GeneratorOutput` with the branches of rollouts as their steps."""
    pairs = [(one, branch) for one in repetitions for branch in one.branches]
    branches = [branch for _, branch in pairs]
    return {
        "prompt_token_ids": [branch.ids_T[: branch.begin] for branch in branches],
        "response_ids": [branch.ids_T[branch.begin :] for branch in branches],
        "rewards": [one.reward for one, _ in pairs],
        "loss_masks": [branch.binary_mask(branch.begin) for branch in branches],
        "stop_reasons": [_stop_reason(branch) for branch in branches],
        "rollout_metrics": None,
        "rollout_logprobs": [branch.masked_logprobs(UNKNOWN_LOGPROB, branch.begin) for branch in branches],
        "trajectory_ids": [one.trajectory_id for one, _ in pairs],
        "is_last_step": [branch is one.branches[-1] for one, branch in pairs],
    }


def _stop_reason(branch: Branch) -> str:
    spans = branch.trajectory.spans
    is_cut = bool(spans) and spans[-1].finish_reason is FinishReason.LENGTH
    return "length" if is_cut else "stop"
