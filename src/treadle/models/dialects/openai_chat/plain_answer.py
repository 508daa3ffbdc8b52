"""The plain answers of chat completions; see `plain`."""

from typing import Literal

from msgspec import Struct

from treadle.core.types import Completion, ToolCall, Usage
from treadle.models.wire.plain import PlainReader


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


class PlainUsage(Struct, gc=False):
    """What chat completions and completions say of tokens."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: None = None
    cost: None = None


class PlainAnswer(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """What stands beside the choices of chat completions and of completions."""

    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    usage: PlainUsage | None = None
    error: None = None
    service_tier: None = None
    system_fingerprint: None = None
    prompt_logprobs: None = None
    prompt_token_ids: None = None
    kv_transfer_params: None = None


class _Answer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    choices: tuple[_Choice]


class ChatReader(PlainReader):
    """See `PlainReader`."""

    ANSWER = _Answer

    def _read(self, answer: _Answer) -> Completion | None:
        choice = answer.choices[0]
        raw = choice.message
        calls = [
            ToolCall(call.id, call.function.name, call.function.arguments) for call in raw.tool_calls or ()
        ]
        if (choice.finish_reason == "tool_calls") != bool(calls):
            return None
        usage = None if answer.usage is None else to_usage(answer.usage)
        return self._complete(
            raw.content or "", calls, usage, answer.model, answer.id, raw.reasoning_content or None
        )


def to_usage(raw: PlainUsage) -> Usage:
    """The same as we have it."""
    before, after = raw.prompt_tokens_details, raw.completion_tokens_details
    return Usage(
        raw.prompt_tokens,
        raw.completion_tokens,
        (before.cached_tokens or 0) if before is not None else 0,
        (after.reasoning_tokens or 0) if after is not None else 0,
    )
