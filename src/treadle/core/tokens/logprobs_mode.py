"""The distribution that an engine's log probabilities are of, and whether it is the one that was sampled from."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class LogprobsMode(StrEnum):
    """The distribution that an engine's log probabilities are of."""

    PROCESSED = "processed"
    """The one that was sampled from: after temperature, penalties, top-p and top-k."""
    SCALED = "scaled"
    """The one after the temperature, and before top-p and top-k."""
    RAW = "raw"
    """The model's own, before all of these."""
    SCALED_DEFAULTS = "scaled_defaults"
    """As `scaled`; where a request has no setting, the server uses one of its own, or may do so."""
    RAW_DEFAULTS = "raw_defaults"
    """As `raw`; where a request has no setting, the server uses one of its own, or may do so."""


_CUTS = {"top_p": (1,), "top_k": (0, -1), "min_p": (0,), "typical_p": (1,), "allowed_token_ids": ()}
"""What leaves tokens out, with the values that leave out none."""
_CHANGES = {
    "temperature": (1,),
    "repetition_penalty": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "bad_words": ([],),
}
"""What changes the probabilities, with the values that change nothing."""
_OF_SERVERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a server may set by itself. Source: vLLM 0.32, `ModelConfig.get_diff_sampling_param`."""


def has_policy_logprobs(mode: LogprobsMode | str | None, sampling: Mapping[str, Any]) -> bool | None:
    """Return whether log probabilities of this mode are those of the distribution that `sampling` samples from.

    `sampling` has the sampling parameters by their names in the engines' requests; one that is `None` was not sent.
    Returns `None` if it is not known, as the mode or a setting of the server is not known.
    """
    if mode is None or mode == LogprobsMode.PROCESSED:
        return None if mode is None else True
    neutral = _CUTS if mode in (LogprobsMode.SCALED, LogprobsMode.SCALED_DEFAULTS) else _CUTS | _CHANGES
    given = {name: value for name, value in sampling.items() if value is not None}
    if any(given[name] not in values for name, values in neutral.items() if name in given):
        return False
    has_defaults = mode in (LogprobsMode.SCALED_DEFAULTS, LogprobsMode.RAW_DEFAULTS)
    return (
        None if has_defaults and any(name in neutral and name not in given for name in _OF_SERVERS) else True
    )
