"""The reader of text completions: a raw object, or the bytes of a plain answer, becomes a `Completion`."""

from typing import Any, Literal

from msgspec import Struct

from treadle.core.types import Completion, FinishReason, Json, Message, Role, Settings, TokenRecord, Usage
from treadle.models.wire.openai import PlainAnswer, read_reason, read_usage
from treadle.models.wire.plain import TokenReader
from treadle.models.wire.price import Price, cost_of
from treadle.models.wire.tokens import Versions, make_record, read_versions

_RESPONSE_FIELDS = frozenset(("id", "object", "created", "model", "choices", "usage", "error"))
_CHOICE_FIELDS = frozenset(
    (
        "index",
        "text",
        "finish_reason",
        "logprobs",
        "token_ids",
        "prompt_token_ids",
        "weight_versions",
        "error",
    )
)


def read_completion(raw: Json, settings: Settings, price: Price | None) -> Completion:
    """Return the completion for `raw`, a whole answer or one that was joined from a stream.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it contains an error or cannot be read.
    """
    choice = raw["choices"][0]
    text = choice["text"]
    finish = choice.get("finish_reason")
    if raw.get("error") or choice.get("error") or not isinstance(text, str):
        raise ValueError("an error")
    reason = read_reason(finish, has_calls=False, is_empty=not text)
    opaque = {key: value for key, value in raw.items() if key not in _RESPONSE_FIELDS and value is not None}
    rest = {key: value for key, value in choice.items() if key not in _CHOICE_FIELDS and value is not None}
    if rest:
        opaque["choices"] = [rest]
    if reason is None:
        reason = FinishReason.STOP
        if finish:
            opaque["finish_reason"] = finish
    usage = read_usage(raw["usage"]) if raw.get("usage") else None
    ids = choice.get("token_ids")
    versions, weights = read_versions(choice.get("weight_versions"), None if ids is None else len(ids))
    return Completion(
        Message(Role.ASSISTANT, text),
        reason,
        usage,
        cost_of(usage, price),
        raw.get("model"),
        raw.get("id"),
        settings,
        _read_tokens(choice, raw, usage, versions),
        opaque or None,
        weight_version=weights,
    )


def _read_tokens(
    choice: dict[str, Json], raw: dict[str, Json], usage: Usage | None, versions: Versions
) -> TokenRecord | None:
    """Return the token ids and log probabilities of an answer; `None` if there are none.

    Source: OpenAI's `token_logprobs`, vLLM's `token_ids` and `prompt_token_ids`.
    """
    told = choice.get("logprobs")
    logprobs = told.get("token_logprobs") if isinstance(told, dict) else None
    texts = told.get("tokens") if isinstance(told, dict) else None
    return make_record(
        choice.get("prompt_token_ids") or raw.get("prompt_token_ids"),
        choice.get("token_ids"),
        logprobs,
        counted=None if usage is None else usage.output_tokens,
        tokens=tuple(map(str, texts)) if isinstance(texts, list) else None,
        versions=versions,
    )


# Plain answers


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
    text: str
    finish_reason: Literal["stop"]
    index: int = 0
    logprobs: None = None
    token_ids: None = None
    prompt_token_ids: None = None
    prompt_logprobs: None = None
    stop_reason: None = None


class _Answer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    choices: tuple[_Choice]


class _Logprobs(Struct, gc=False):
    token_logprobs: list[float | None] | None = None


class _TokenChoice(Struct, forbid_unknown_fields=True, gc=False):
    """The choice of an answer with token ids."""

    text: str
    finish_reason: Literal["stop", "length"]
    token_ids: list[int]
    index: int = 0
    logprobs: _Logprobs | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: list[dict[str, Json]] | None = None
    prompt_logprobs: None = None
    stop_reason: None = None
    routed_experts: None = None


class _TokenAnswer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    """An answer with token ids."""

    choices: tuple[_TokenChoice]
    prompt_token_ids: list[int] | None = None  # type: ignore[assignment]
    ec_transfer_params: None = None
    metrics: None = None


class CompletionsReader(TokenReader):
    """The reader of plain completions. If token ids are asked for, an answer with them is a plain one."""

    ANSWER = _Answer
    TOKEN_ANSWER = _TokenAnswer

    def _read(self, answer: Any) -> Completion | None:
        usage = None if answer.usage is None else answer.usage.read()
        choice = answer.choices[0]
        if not self._has_ids:
            return self._complete(choice.text, (), usage, answer.model, answer.id)
        logprobs = None if choice.logprobs is None else choice.logprobs.token_logprobs
        return self._complete_tokens(answer, Message(Role.ASSISTANT, choice.text), usage, logprobs)
