"""What the log probabilities of an engine are of, found out by a few short answers."""

from collections.abc import Callable
from typing import Any

from treadle.core.errors import ProviderError
from treadle.core.log import Log
from treadle.core.texts.documents import read_data
from treadle.core.tokens.logprobs_mode import LogprobsMode
from treadle.core.tokens.packed import unpack_ids, unpack_logprobs
from treadle.core.types import Json, Message, Request, Role, Settings
from treadle.models.protocol import Model, Watch

MakeModel = Callable[..., Model]
"""A function that makes the model with additional settings, such as `logprobs=True`."""

_TOKENS = 16
_ONE_TOKEN, _COLD, _HOT = 1e-5, 1.0, 2.0
"""A top-p that leaves only the likeliest token, and two temperatures. vLLM takes none above 2."""
_ZERO, _ROUNDING = 1e-6, 0.05
"""The log probability of a token that must be sampled, and the rounding of engines that compute in 16 bits."""
_NEUTRAL: dict[str, Json] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a server may set by itself, with the values that change nothing."""
_SEED = 7
_QUESTION: str = read_data(__package__, "probe")["questions"]["surprise"]

Sampled = tuple[tuple[int, ...], tuple[float, ...]]


async def find_logprobs_mode(make: MakeModel, settings: Settings) -> LogprobsMode | None:
    """Return what the log probabilities of an engine are of; `None` if it cannot be told from its answers.

    Its settings say it nowhere. An answer whose top-p leaves one token is the same at every temperature. Its log
    probabilities are 0 if they are those of the distribution that was sampled from, equal at two temperatures if
    they are the model's own, and lower at the higher temperature otherwise. Two answers with one seed differ if the
    server has sampling settings of its own. They also differ if it ignores seeds, as SGLang does without
    `--enable-deterministic-inference`; so it only may have some.

    `make` makes the model with additional settings, and `settings` are those that it has without them.
    """
    cold = await _sample(make, temperature=_COLD, top_p=_ONE_TOKEN)
    hot = await _sample(make, temperature=_HOT, top_p=_ONE_TOKEN)
    if cold is None or hot is None:
        return None
    same = [
        (one, other)
        for id_cold, id_hot, one, other in zip(cold[0], hot[0], cold[1], hot[1], strict=False)
        if id_cold == id_hot
    ]
    if not same or cold[0][0] != hot[0][0]:
        return None
    if all(abs(value) < _ZERO for pair in same for value in pair):
        return LogprobsMode.PROCESSED
    has_defaults = await _has_defaults(make, settings)
    if has_defaults is None:
        return None
    if all(abs(one - other) <= _ROUNDING * (1 + abs(one)) for one, other in same):
        return LogprobsMode.RAW_DEFAULTS if has_defaults else LogprobsMode.RAW
    return LogprobsMode.SCALED_DEFAULTS if has_defaults else LogprobsMode.SCALED


async def _has_defaults(make: MakeModel, settings: Settings) -> bool | None:
    """Return whether the server may sample otherwise if neutral settings are sent; `None` if it does not answer."""
    extra = settings.extra or {}
    neutral: dict[str, Any] = {"extra": _NEUTRAL | extra}
    if settings.top_p is None and "top_p" not in extra:
        neutral["top_p"] = 1.0
    warm = {} if settings.temperature is not None or "temperature" in extra else {"temperature": 1.0}
    for plain, more in (({}, warm), ({"temperature": _HOT}, {})):
        one = await _sample(make, seed=_SEED, **plain)
        other = await _sample(make, seed=_SEED, **plain, **more, **neutral)
        if one is None or other is None:
            return None
        if one[0] != other[0]:
            return True
    return False


async def _sample(make: MakeModel, **settings: Any) -> Sampled | None:
    """Return the ids and log probabilities of a short answer; `None` if the server refuses or returns none."""
    model = make(logprobs=True, return_token_ids=True, max_output_tokens=_TOKENS, **settings)
    try:
        answer = await model.infer(Request(Log([Message(Role.USER, _QUESTION)])), Watch())
    except ProviderError:
        return None
    record = answer.tokens
    if record is None or record.token_ids is None or record.logprobs is None:
        return None
    found = unpack_ids(record.token_ids), unpack_logprobs(record.logprobs)
    return found if found[0] else None
