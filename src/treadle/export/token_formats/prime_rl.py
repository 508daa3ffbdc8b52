"""The token format `prime_rl`: the fields of prime-rl's `TrainingSample`, a row for each branch.

The orchestrator of prime-rl makes `TrainingSample(**row)`, or decodes `encode_samples`, and packs them. Each token
has the temperature of its answer, and the advantage of its rollout, so that the statistics of a group have counted
each rollout once. Positions that are not trained on have the log probability 0.0, the temperature 1.0 and the
advantage 0.0; prime-rl reads none of them. Weights other than 0 and 1 are its `rl_weights`.

Source: prime-rl of August 2026, `transports/rollouts/types.py` and `trainer/batch.py`.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from treadle.core.errors import ExportError
from treadle.core.types import Json
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group
from treadle.export.token_exporter import Branch, LossMask, read_branches
from treadle.runs.task import split_reference
from treadle.trajectory.tokens.trajectories import TokenGrade

_UNUSED_LOGPROB, _UNUSED_TEMPERATURE = 0.0, 1.0


class PrimeExperts(Struct, array_like=True):
    """The experts of tokens, in the order in which prime-rl writes the fields."""

    data: bytes
    shape: list[int]
    """The tokens, the layers, and the experts for each."""
    dtype: str


class PrimeSample(Struct, array_like=True, omit_defaults=True):
    """One branch, in the order in which prime-rl writes the fields. The lists are aligned."""

    token_ids: list[int]
    mask: list[bool]
    """True for a token that is trained on."""
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: None = None
    mm_kwargs: None = None
    routed_experts: PrimeExperts | None = None
    """The experts of each token. The last token, which was not sent through the model, has those of the one before.
    Rows of files have none."""
    mm_token_type_ids: None = None
    rl_weights: list[float] | None = None
    """The weight of each token in the loss; `None` if it is 1 for all that are trained on."""
    ce_weights: None = None
    ref_kl_weights: None = None
    advantages: list[float] | None = None
    """The advantage of the rollout at each token that is trained on."""


class PrimeRows:
    """The token format `prime_rl`: the fields of a `TrainingSample` of prime-rl, a row for each branch."""

    needs = TokenGrade.TOKEN_EXACT
    columns: Mapping[str, ColumnType] = {
        "token_ids": ColumnType.IDS,
        "mask": ColumnType.FLAGS,
        "logprobs": ColumnType.FLOATS,
        "temperatures": ColumnType.FLOATS,
        "env_name": ColumnType.TEXT,
        "rl_weights": ColumnType.FLOATS,
        "advantages": ColumnType.FLOATS,
    }

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        return [
            {key: getattr(sample, key) for key in self.columns} | {"mask": list(map(int, sample.mask))}
            for sample in _make_samples(group, mask)
        ]


FORMAT = PrimeRows()


def encode_samples(group: Group, mask: LossMask) -> bytes:
    """Return the branches of a group as msgpack, which prime-rl decodes as a list of `TrainingSample`."""
    return msgspec.msgpack.encode(_make_samples(group, mask))


def _make_samples(group: Group, mask: LossMask) -> list[PrimeSample]:
    name = split_reference(group.task)[0]
    return [_make_sample(branch, name) for branch in read_branches(group, mask, FORMAT.needs)]


def _make_sample(branch: Branch, name: str) -> PrimeSample:
    advantage, weights = branch.rollout.advantage, branch.loss_T
    if advantage is None:
        raise ExportError(
            f"run {branch.rollout.run_id!r} has no advantage, and prime-rl computes none from rows; deliver whole "
            "groups with advantages, or use the format verifiers"
        )
    return PrimeSample(
        token_ids=branch.ids_T,
        mask=[weight != 0 for weight in weights],
        logprobs=branch.masked_logprobs(_UNUSED_LOGPROB),
        temperatures=_read_temperatures(branch),
        env_name=name,
        rl_weights=None if {*weights} <= {0.0, 1.0} else weights,
        advantages=[advantage if weight else 0.0 for weight in weights],
        routed_experts=_write_experts(branch),
    )


def _write_experts(branch: Branch) -> PrimeExperts | None:
    experts, size = branch.trajectory.routed_experts, len(branch.ids_T)
    if experts is None or not experts.layers:
        return None
    last = experts.data[-experts.row_bytes :] if experts.end < size else b""
    return PrimeExperts(
        experts.data + last, [size, experts.layers, experts.chosen], f"uint{8 * experts.width}"
    )


def _read_temperatures(branch: Branch) -> list[float]:
    """Return the temperature at which each token was sampled. Raises: `ExportError` if one is not known."""
    found = [_UNUSED_TEMPERATURE] * len(branch.ids_T)
    for span in branch.trajectory.spans:
        if not any(branch.loss_T[span.start : span.end]):
            continue
        temperature = None if span.settings is None else span.settings.temperature
        if temperature is None:
            raise ExportError(
                f"event {span.seq} of run {span.run_id!r} does not say at which temperature it was sampled, and "
                "prime-rl divides by it; set the temperature of the model"
            )
        found[span.start : span.end] = [temperature] * (span.end - span.start)
    return found
