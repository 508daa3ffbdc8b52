"""The export of groups of rollouts as rows with token ids, in the conventions of trainers.

A format is a pure function of a group. The sentinels of its convention (-100, 1.0, 0.0, omitted values) are
made in its file and nowhere else: before that, a token is sampled or not, and a log probability is known or
NaN.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from math import inf
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import ExportError
from treadle.core.registry import Registry
from treadle.core.types import Json
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group, Rollout
from treadle.trajectory.tokens.trajectories import TokenGrade, Trajectory

LossMask: TypeAlias = Callable[[Trajectory], Sequence[float]]
"""Which tokens to train on: a weight for each token of a trajectory, 0 where it is not trained on. It chooses among
the sampled tokens."""

_GRADES = tuple(TokenGrade)
"""The grades, the most exact one first."""
MAX_LOGPROB = 1e-3
"""The largest log probability that an engine may return. A probability is at most 1; engines round."""


class TokenFormat(Protocol):
    """A convention for rows with token ids."""

    needs: TokenGrade
    """The lowest grade of trajectories that the format can express."""
    columns: Mapping[str, ColumnType]
    """The keys of a row and their types."""

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        """Return the rows of a group. Raises: `ExportError` if the format cannot express the group."""


TOKEN_FORMATS: Registry[TokenFormat] = Registry(
    "token format",
    "treadle.token_formats",
    {
        "tokens": "treadle.export.token_formats.token_groups:FORMAT",
        "atropos": "treadle.export.token_formats.atropos_groups:FORMAT",
        "trl_grpo": "treadle.export.token_formats.trl_groups:GRPO",
        "trl_sft": "treadle.export.token_formats.trl_groups:SFT",
        "verl": "treadle.export.token_formats.verl:FORMAT",
        "skyrl": "treadle.export.token_formats.skyrl:FORMAT",
        "verifiers": "treadle.export.token_formats.verifiers:FORMAT",
        "prime_rl": "treadle.export.token_formats.prime_rl:FORMAT",
    },
)


class Branch(Struct, frozen=True):
    """One branch of a rollout with the tokens to train on, checked. The arrays are aligned."""

    rollout: Rollout
    index: int
    """The position of the rollout in its group."""
    trajectory: Trajectory
    ids_T: list[int]
    loss_T: list[float]
    """The weight of each token in the loss; 0 where it is not trained on."""
    logprobs_T: list[float]
    """The engine's log probabilities, NaN where none is known."""
    begin: int
    """The position of the first sampled token. The tokens before it are the prompt."""

    def masked_logprobs(self, otherwise: float, begin: int = 0) -> list[float]:
        """Return the log probabilities from `begin` on, with `otherwise` at all positions that are not trained."""
        return [
            value if weight else otherwise
            for value, weight in zip(self.logprobs_T[begin:], self.loss_T[begin:], strict=True)
        ]

    def binary_mask(self, begin: int = 0) -> list[int]:
        """Return 1 where a token is trained on and 0 elsewhere, from `begin` on.

        Raises: `ExportError` if a token has another weight.
        """
        odd = {*self.loss_T} - {0.0, 1.0}
        if odd:
            raise ExportError(
                f"run {self.rollout.run_id!r} has a token with the weight {min(odd)!r}, and the format only "
                "has tokens that are trained on or not; use the format tokens, or a mask without weights"
            )
        return list(map(int, self.loss_T[begin:]))


def sampled_mask(trajectory: Trajectory) -> Sequence[float]:
    """Return 1 for each sampled token and 0 for the others: train on all that the model wrote."""
    return list(map(float, trajectory.sampled_T))


def read_branches(group: Group, mask: LossMask, needs: TokenGrade) -> list[Branch]:
    """Return the branches of a group that have sampled tokens, in order, after all checks.

    Raises: `ExportError` if a branch is below the grade `needs`, if its arrays are not aligned, if a token is to be
    trained on that was not sampled, if a token to be trained on has no real log probability although the grade is
    `token_exact`, if a rollout has no sampled token at all, or if ids of several renderers are to be trained on.
    """
    found: list[Branch] = []
    for index, rollout in enumerate(group.rollouts):
        made = [
            read_branch(rollout, index, item, mask, needs)
            for item in rollout.trajectories
            if item.sampled_tokens or item.grade is TokenGrade.TEXT
        ]
        if not made:
            raise ExportError(f"run {rollout.run_id!r} of group {group.group_id!r} has no sampled tokens")
        found += made
    if not found:
        raise ExportError(f"group {group.group_id!r} has no rollouts")
    trained = [branch.trajectory for branch in found if any(branch.loss_T)]
    for branch in trained:
        check_same_renderer(trained[0], branch)
    return found


def check_same_renderer(one: Trajectory, other: Trajectory) -> None:
    """Check that equal ids mean the same in two branches. Raises: `ExportError` unless one renderer made both."""
    if one.tokenizer != other.tokenizer:
        raise ExportError(
            f"{_name_ids(one)} and {_name_ids(other)} have ids of different renderers, which one trainer cannot "
            "use; export them apart, or give a mask that leaves one out"
        )


def _name_ids(item: Trajectory) -> str:
    models = dict.fromkeys([span.model for span in item.spans if span.model])
    return f"branch {item.branch} of run {item.run_id!r} ({', '.join(models) or 'an unknown model'})"


def read_branch(
    rollout: Rollout, index: int, trajectory: Trajectory, mask: LossMask, needs: TokenGrade
) -> Branch:
    """Return one branch, checked. Raises: as `read_branches` does."""
    where = f"branch {trajectory.branch} of run {trajectory.run_id!r}"
    if _GRADES.index(trajectory.grade) > _GRADES.index(needs):
        raise ExportError(
            f"{where} has the grade {trajectory.grade.value!r}, and the format needs {needs.value!r}: "
            + (
                "it has no token ids, for which only vLLM and SGLang are asked; `treadle models check` says what "
                "the server is"
                if trajectory.grade is TokenGrade.TEXT
                else "the engine returned no log probabilities"
            )
        )
    ids = trajectory.token_ids_T.tolist()
    loss = list(map(float, mask(trajectory))) if rollout.is_trained else [0.0] * len(ids)
    logprobs = trajectory.logprobs_T.tolist()
    if not len(ids) == len(trajectory.sampled_T) == len(logprobs) == len(loss):
        raise ExportError(
            f"{where} has {len(ids)} ids, {len(trajectory.sampled_T)} flags, {len(logprobs)} log probabilities and "
            f"{len(loss)} weights"
        )
    trained = list(compress(logprobs, loss))
    if not all(compress(trajectory.sampled_T, loss)):
        at = next(at for at, weight in enumerate(loss) if weight and not trajectory.sampled_T[at])
        raise ExportError(f"{where}: the mask trains on token {at}, which the model did not sample")
    if needs is TokenGrade.TOKEN_EXACT and not all(map(_is_logprob, trained)):
        at = next(at for at, weight in enumerate(loss) if weight and not _is_logprob(logprobs[at]))
        raise ExportError(
            f"{where}: token {at} is to be trained on and has no real log probability ({logprobs[at]!r})"
        )
    begin = trajectory.sampled_T.find(1)
    return Branch(rollout, index, trajectory, ids, loss, logprobs, max(begin, 0))


def _is_logprob(value: float) -> bool:
    # A comparison with NaN is false, so that an unknown value is refused too.
    return -inf < value <= MAX_LOGPROB


def reward_of(rollout: Rollout) -> float:
    """Return the reward of a rollout. Raises: `ExportError` if it was not graded."""
    if rollout.reward is None and rollout.rewards:
        known = ", ".join(map(repr, rollout.rewards))
        raise ExportError(f"run {rollout.run_id!r} does not have the reward that was asked for, only {known}")
    if rollout.reward is None:
        raise ExportError(
            f"run {rollout.run_id!r} has no reward; grade it with `treadle rescore` (a rollout without a reward is "
            "never one with a reward of 0)"
        )
    return rollout.reward


def encode_group(group: Group, token_format: TokenFormat, mask: LossMask = sampled_mask) -> bytes:
    """Return the rows of a group as lines of JSON, each with a newline. Raises: `ExportError`."""
    return b"".join([msgspec.json.encode(row) + b"\n" for row in token_format.write(group, mask)])
