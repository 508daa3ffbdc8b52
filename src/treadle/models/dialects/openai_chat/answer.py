"""Reads a chat-completions answer: one raw object to a `Completion`.

What is modelled goes to its field, null and empty lists say nothing and are dropped, and all else is kept
opaque at the level where it stood. Shapes that make no sense are a `ServerError`, never a crash.
"""

from typing import Any

import msgspec

from treadle.core.errors import ProviderError, ServerError
from treadle.core.types import (
    Completion,
    FinishReason,
    Json,
    Message,
    Role,
    Settings,
    TokenRecord,
    ToolCall,
    Usage,
)
from treadle.models.wire.price import Price
from treadle.models.wire.server import Server, explain_error, find_error

_RESPONSE_FIELDS = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "error", "prompt_token_ids")
)
_CHOICE_FIELDS = frozenset(("index", "message", "delta", "finish_reason", "logprobs", "token_ids", "error"))
_MESSAGE_FIELDS = frozenset(
    ("role", "content", "tool_calls", "reasoning_content", "reasoning", "refusal", "function_call")
)
_CALL_FIELDS = frozenset(("id", "type", "function", "index"))
_FUNCTION_FIELDS = frozenset(("name", "arguments"))

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "safety": FinishReason.CONTENT_FILTER,
}
_CUT_SHORT = frozenset((FinishReason.LENGTH, FinishReason.CONTENT_FILTER))
"""These stand, whatever the message holds."""
_FAILED_REASONS = frozenset(("error", "abort", "insufficient_system_resource"))
"""The engine gave up in the middle; the same request may succeed."""


def read_completion(raw: Json, settings: Settings, price: Price | None, server: Server) -> Completion:
    """What `raw`, a whole answer or one put together from a stream, says.

    Raises: `ProviderError` if it holds an error, `ServerError` if it makes no sense.
    """
    try:
        choice = raw["choices"][0]
        raw_message = choice["message"]
        if raw.get("error") or choice.get("error"):
            raise _nonsense(raw, server)
        message, is_refused = _read_message(raw_message)
        finish = choice.get("finish_reason")
        reason = _FINISH_REASONS.get(finish)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError):
        raise _nonsense(raw, server) from None
    opaque = _rest_of(raw, _RESPONSE_FIELDS)
    if rest := _rest_of(choice, _CHOICE_FIELDS):
        opaque = {**(opaque or {}), "choices": [rest]}
    plain = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    if is_refused:
        reason = FinishReason.CONTENT_FILTER
    elif reason is None or (reason is not plain and reason not in _CUT_SHORT):
        if finish in _FAILED_REASONS:
            raise _nonsense(raw, server)
        reason = plain
        if finish is not None:
            opaque = {**(opaque or {}), "finish_reason": finish}
    raw_usage = raw.get("usage")
    usage = read_usage(raw_usage) if raw_usage else None
    tokens = None
    if "token_ids" in choice or "prompt_token_ids" in raw or choice.get("logprobs"):
        tokens = _read_tokens(raw, choice)
    return Completion(
        message,
        reason,
        usage,
        _cost(raw_usage, usage, price),
        _text(raw.get("model")),
        _text(raw.get("id")),
        settings,
        tokens,
        opaque,
    )


def _nonsense(raw: Json, server: Server) -> ProviderError:
    if (error := find_error(raw)) is not None:
        return explain_error(server, 200, error)
    excerpt = server.excerpt(msgspec.json.encode(raw))
    return ServerError(f"the answer of {server.origin} makes no sense: {excerpt}", status=200)


def _rest_of(raw: dict[str, Json], known: frozenset[str]) -> dict[str, Json] | None:
    if raw.keys() <= known:
        return None
    return {k: v for k, v in raw.items() if k not in known and v is not None and v != []} or None


def _text(value: Json) -> str | None:
    return value if value is None or type(value) is str else str(value)


def _read_message(raw: dict[str, Json]) -> tuple[Message, bool]:
    """The message, and whether it is a refusal."""
    content = raw.get("content")
    reasoning = raw.get("reasoning_content") or raw.get("reasoning") or None
    opaque = _rest_of(raw, _MESSAGE_FIELDS)
    if type(content) is not str:
        if isinstance(content, list):
            content, thought, is_plain = read_parts(content)
            reasoning = reasoning or thought
            if not is_plain:
                opaque = {**(opaque or {}), "content": raw["content"]}
        elif content is None:
            content = ""
        else:
            raise TypeError("content is neither text nor parts")
    refusal = raw.get("refusal")
    if refusal:
        if content:
            opaque = {**(opaque or {}), "refusal": refusal}
        else:
            content = str(refusal)
    raw_calls = raw.get("tool_calls")
    calls = tuple([_read_call(call) for call in raw_calls]) if raw_calls else ()
    if raw.get("function_call") and not calls:
        calls = (_read_call({"function": raw["function_call"]}),)
    return Message(Role.ASSISTANT, content, calls, None, None, False, _text(reasoning), opaque), bool(refusal)


def read_parts(parts: list[Json]) -> tuple[str, str | None, bool]:
    """The text of content that comes as parts, the thinking in it, and whether there is nothing but text.

    Source: Mistral API 2025, `{"type": "thinking", "thinking": [{"type": "text", …}]}`.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    is_plain = True
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") in ("text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            is_plain = False
            inner = part.get("thinking")
            if isinstance(inner, list):
                inner = read_parts(inner)[0]
            if isinstance(inner, str):
                thoughts.append(inner)
    return "".join(texts), "".join(thoughts) or None, is_plain


def _read_call(raw: dict[str, Json]) -> ToolCall:
    function = raw["function"]
    arguments = function.get("arguments")
    if type(arguments) is not str:
        arguments = text_of_arguments(arguments)
    opaque = _rest_of(raw, _CALL_FIELDS)
    if rest := _rest_of(function, _FUNCTION_FIELDS):
        opaque = {**(opaque or {}), "function": rest}
    return ToolCall(_text(raw.get("id")) or "", _text(function.get("name")) or "", arguments, opaque)


def text_of_arguments(arguments: Json) -> str:
    """Arguments that came as a value, or not at all, as the text that they should have been."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def read_usage(raw: Json) -> Usage | None:
    """Source: OpenAI; DeepSeek for `prompt_cache_hit_tokens`. What is not a count is taken as not said."""
    try:
        details = raw.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if details else raw.get("prompt_cache_hit_tokens")
        details = raw.get("completion_tokens_details")
        reasoning = details.get("reasoning_tokens") if details else None
        return Usage(
            _count(raw.get("prompt_tokens")),
            _count(raw.get("completion_tokens")),
            _count(cached),
            _count(reasoning),
        )
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def _count(value: Any) -> int:
    return value if type(value) is int else int(value or 0)


def _cost(raw_usage: Json, usage: Usage | None, price: Price | None) -> float | None:
    """What the server says it cost (OpenRouter), or else what the user's price makes of the tokens."""
    if usage is None:
        return None
    told = raw_usage.get("cost")
    if isinstance(told, int | float) and not isinstance(told, bool):
        return float(told)
    return None if price is None else price.cost_usd(usage)


def _read_tokens(raw: dict[str, Json], choice: dict[str, Json]) -> TokenRecord | None:
    """Source: OpenAI for logprobs, vLLM 0.11 for `prompt_token_ids`, `token_ids` and `token_id:N` texts."""
    token_ids = read_ids(choice.get("token_ids"))
    logprobs: tuple[float, ...] | None = None
    tokens: tuple[str, ...] | None = None
    try:
        content = (choice.get("logprobs") or {}).get("content")
        if content:
            logprobs = tuple([float(item["logprob"]) for item in content])
            if token_ids is None:
                tokens = tuple([str(item["token"]) for item in content])
                if all(token.startswith("token_id:") for token in tokens):
                    token_ids, tokens = tuple([int(token[9:]) for token in tokens]), None
    except (AttributeError, TypeError, KeyError, ValueError):
        logprobs = tokens = None
    record = TokenRecord(read_ids(raw.get("prompt_token_ids")), 0, token_ids, logprobs, tokens)
    return None if record == TokenRecord() else record


def read_ids(value: Json) -> tuple[int, ...] | None:
    """Token ids, or `None` for what is no list of them."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return None
    return tuple(value)
