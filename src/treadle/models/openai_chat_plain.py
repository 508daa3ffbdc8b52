"""Reads the answers that have nothing unusual, which are nearly all, with a typed decoder.

The decoder refuses every field that it does not know, so that an answer which holds more than we model
goes to `openai_chat_read`, which keeps it. Both give the same completion for what both can read.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from treadle.core.types import Completion, FinishReason, Message, Role, Settings, ToolCall, Usage
from treadle.models.price import Price

_MAX_MISSES = 16
"""A server whose answers never fit is not tried for ever."""


class _Function(Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _Call(Struct, forbid_unknown_fields=True, gc=False):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: int = 0


class _Message(Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    reasoning_content: str | None = None
    refusal: None = None
    reasoning: None = None
    annotations: tuple[()] | None = None
    audio: None = None
    function_call: None = None


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
    message: _Message
    finish_reason: Literal["stop", "tool_calls"]
    index: int = 0
    logprobs: None = None
    token_ids: None = None
    stop_reason: None = None


class _InputDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: None = None
    cost: None = None


class _Answer(Struct, forbid_unknown_fields=True, gc=False):
    choices: tuple[_Choice, ...]
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    usage: _Usage | None = None
    error: None = None
    service_tier: None = None
    system_fingerprint: None = None
    prompt_logprobs: None = None
    prompt_token_ids: None = None
    kv_transfer_params: None = None


class PlainReader:
    """The fast way to read one server's answers."""

    __slots__ = ("_decode", "_misses", "_price", "_settings")

    def __init__(self, settings: Settings, price: Price | None) -> None:
        self._decode = msgspec.json.Decoder(_Answer).decode
        self._settings = settings
        self._price = price
        self._misses = 0

    def read(self, body: bytes) -> Completion | None:
        """The completion, or `None` for an answer with anything unusual in it, damage included."""
        if self._misses >= _MAX_MISSES:
            return None
        try:
            answer = self._decode(body)
            (choice,) = answer.choices
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            self._misses += 1
            return None
        self._misses = 0
        raw = choice.message
        calls: tuple[ToolCall, ...] = ()
        reason = FinishReason.STOP
        if raw.tool_calls:
            reason = FinishReason.TOOL_CALLS
            calls = tuple(
                [ToolCall(call.id, call.function.name, call.function.arguments) for call in raw.tool_calls]
            )
        if choice.finish_reason != reason:
            return None
        message = Message(
            Role.ASSISTANT, raw.content or "", calls, None, None, False, raw.reasoning_content or None
        )
        usage = None if answer.usage is None else _to_usage(answer.usage)
        cost = None if usage is None or self._price is None else self._price.cost_usd(usage)
        return Completion(message, reason, usage, cost, answer.model, answer.id, self._settings)


def _to_usage(raw: _Usage) -> Usage:
    before, after = raw.prompt_tokens_details, raw.completion_tokens_details
    return Usage(
        raw.prompt_tokens,
        raw.completion_tokens,
        (before.cached_tokens or 0) if before is not None else 0,
        (after.reasoning_tokens or 0) if after is not None else 0,
    )
