"""The tokens of a branch as a page shows them: aligned arrays as bytes, so that 100,000 tokens are read at once."""

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from treadle.core.errors import ExportError
from treadle.trajectory.tokens.trajectories import (
    Decoders,
    DriftReport,
    Span,
    TokenGrade,
    Trajectory,
    find_decode,
    split_text,
)


class TokenMap(Struct, frozen=True, kw_only=True):
    """One branch. Arrays are aligned with the ids, and JSON has them in base64."""

    run_id: str
    branch: int
    grade: TokenGrade
    tokens: int
    sampled_tokens: int
    trained_tokens: int
    ids: bytes
    """32-bit integers, the lowest byte first."""
    logprobs: bytes
    """32-bit floats; NaN where none is known."""
    sampled: bytes
    """1 for a token that the model sampled and that no other branch delivers."""
    weights: bytes
    """32-bit floats: the weight of each token in the loss; empty if it is 1 for all that are sampled."""
    texts: list[str] | None
    """The text of each token; `None` if there is no decoder."""
    answers: tuple[Span, ...]
    drift: DriftReport | None
    is_of_policy: bool | None
    """Whether the log probabilities are those of the sampled distribution; `None` if that is not known."""
    advantage: float | None
    """The advantage of the rollout in its group; `None` if there is none."""
    mask_error: str = ""
    """Why the loss mask could not be applied, so that `weights` are those of the mask `all`."""


Weigh: TypeAlias = Callable[[Trajectory], Sequence[float]]


def _weigh_sampled(branch: Trajectory) -> Sequence[float]:
    return array("f", map(float, branch.sampled_T))


def make_token_maps(
    trajectories: Sequence[Trajectory],
    *,
    mask: Weigh = _weigh_sampled,
    decoders: Decoders = None,
    advantage: float | None = None,
) -> list[TokenMap]:
    """Return the branches that have token ids, with the weights that a loss mask gives them."""
    return [
        _make_token_map(item, mask, decoders, advantage)
        for item in trajectories
        if item.grade is not TokenGrade.TEXT and len(item.token_ids_T)
    ]


def _make_token_map(branch: Trajectory, mask: Weigh, decoders: Decoders, advantage: float | None) -> TokenMap:
    plain = weights_T = array("f", _weigh_sampled(branch))
    error = ""
    try:
        weights_T = array("f", mask(branch))
    except ExportError as failed:
        error = str(failed)
    decode = find_decode(decoders, branch.tokenizer)
    return TokenMap(
        run_id=branch.run_id,
        branch=branch.branch,
        grade=branch.grade,
        tokens=len(branch.token_ids_T),
        sampled_tokens=branch.sampled_tokens,
        trained_tokens=sum(map(bool, weights_T)),
        ids=branch.token_ids_T.tobytes(),
        logprobs=branch.logprobs_T.tobytes(),
        sampled=branch.sampled_T,
        weights=b"" if weights_T == plain else weights_T.tobytes(),
        texts=None if decode is None else split_text(branch.token_ids_T, decode),
        answers=branch.spans,
        drift=branch.drift,
        is_of_policy=branch.has_policy_logprobs,
        advantage=advantage,
        mask_error=error,
    )
