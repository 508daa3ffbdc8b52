"""Reads an answer of the Messages API, and writes messages back as the content blocks that they came as.

In a raw object the `input` of a call is its text: exact, whole or streamed. What a plain message holds is made from
its fields again; thinking with its signature, and what the server looked up, is kept as it came and sent back in
place.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.types import (
    Completion,
    FinishReason,
    Json,
    Message,
    Role,
    ServerCall,
    Settings,
    ToolCall,
    Usage,
)
from treadle.models.wire.arguments import fit_id, object_of, text_of
from treadle.models.wire.plain import PlainReader
from treadle.models.wire.price import Price

PAUSED = "pause_turn"
_KEY = "anthropic"
_KNOWN = frozenset(("id", "type", "role", "content", "model", "stop_reason", "usage"))
_CALL_FIELDS = frozenset(("type", "id", "name", "input"))
_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}
_SAID = frozenset(("end_turn", "tool_use", "max_tokens", "refusal", None))
"""Reasons of which `FinishReason` says all."""
_SERVER_USES = frozenset(("server_tool_use", "mcp_tool_use"))

_encode = msgspec.json.Encoder().encode


# Reading.


class _BlockInput(Struct):
    type: str = ""
    input: msgspec.Raw = msgspec.Raw()


class _Inputs(Struct):
    content: list[_BlockInput]


_decode_inputs = msgspec.json.Decoder(_Inputs).decode


def keep_inputs(raw: Json, body: bytes) -> Json:
    """`raw`, decoded from `body`, with the inputs of its calls as the text that stands there."""
    try:
        blocks = raw["content"]
        if not any(block.get("type") == "tool_use" for block in blocks):
            return raw
        for block, exact in zip(blocks, _decode_inputs(body).content, strict=True):
            if exact.type == "tool_use":
                block["input"] = text_of(exact.input)
    except (TypeError, LookupError, AttributeError, ValueError):
        pass  # It makes no sense, as reading it will tell.
    return raw


def read_completion(raw: Json, settings: Settings, price: Price | None) -> Completion:
    """What `raw`, a whole answer or one put together from a stream, says.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it makes no sense.
    """
    if raw.get("type") == "error":
        raise ValueError("an error")
    content = raw["content"]
    message = message_of([{"type": "text", "text": content}] if isinstance(content, str) else content)
    told = raw.get("stop_reason")
    plain = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    reason = _REASONS.get(told, plain)
    if reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        reason = plain
    opaque = {key: value for key, value in raw.items() if key not in _KNOWN and value is not None}
    if told not in _SAID:
        opaque["finish_reason"] = told
    usage = read_usage(raw.get("usage"))
    cost = None if usage is None or price is None else price.cost_usd(usage)
    return Completion(
        message,
        reason,
        usage,
        cost,
        _text(raw.get("model")),
        _text(raw.get("id")),
        settings,
        None,
        opaque or None,
    )


def message_of(blocks: list[Json]) -> Message:
    """The message that content blocks are; what has no field is kept, in place."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    uses: dict[str, ServerCall] = {}
    shape: list[str] = []
    kept: list[Json] = []
    for block in blocks:
        kind = block["type"]
        if kind == "text":
            texts.append(block["text"])
            if not block["text"] and not block.get("citations"):
                continue
            if block.get("citations"):
                kind = "cited"
            kept.append({key: value for key, value in block.items() if value is not None})
        elif kind == "thinking":
            thoughts.append(block["thinking"])
            kept.append(block)
        elif kind == "tool_use":
            rest = {
                key: value for key, value in block.items() if key not in _CALL_FIELDS and value is not None
            }
            opaque = {_KEY: rest} if rest else None
            calls.append(ToolCall(block["id"], block["name"], _input_text(block.get("input")), opaque))
            kept.append({"type": kind})
        else:
            if kind in _SERVER_USES:
                uses[block["id"]] = ServerCall(
                    block["id"], block["name"], _encode(block.get("input", {})).decode()
                )
            elif "tool_use_id" in block and block["tool_use_id"] in uses:
                uses[block["tool_use_id"]] = _answered(uses[block["tool_use_id"]], block)
            kept.append(block)
        shape.append(kind)
    return Message(
        Role.ASSISTANT,
        "".join(texts),
        tuple(calls),
        reasoning="\n\n".join([text for text in thoughts if text]) or None,
        opaque=_opaque(shape, kept),
        server_calls=tuple(uses.values()),
    )


def _opaque(shape: list[str], kept: list[Json]) -> dict[str, Json] | None:
    """What of the blocks the fields of a message do not say: often nothing, or the signature of the one thought."""
    at = 1 if shape[:1] == ["thinking"] else 0
    rest = shape[at + 1 :] if shape[at : at + 1] == ["text"] else shape[at:]
    if any(kind != "tool_use" for kind in rest):
        return {_KEY: {"content": kept}}
    if at and (signature := kept[0].get("signature")):
        return {_KEY: {"signature": signature}}
    return None


def _answered(call: ServerCall, block: dict[str, Json]) -> ServerCall:
    content = block.get("content")
    is_error = bool(block.get("is_error")) or (
        isinstance(content, dict) and str(content.get("type", "")).endswith("_error")
    )
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    ):
        result = "".join([part["text"] for part in content])
    else:
        result = content if isinstance(content, str) else _encode(content).decode()
    return replace(call, result=result, is_error=is_error)


def _input_text(value: Json) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _encode(value).decode()


def _text(value: Json) -> str | None:
    return value if value is None or type(value) is str else str(value)


def read_usage(raw: Json) -> Usage | None:
    """The API's input tokens are without those that were read from the cache or written to it."""
    try:
        read = raw.get("cache_read_input_tokens") or 0
        written = raw.get("cache_creation_input_tokens") or 0
        details = raw.get("output_tokens_details")
        thought = details.get("thinking_tokens") or 0 if details else 0
        return Usage(raw["input_tokens"] + read + written, int(raw["output_tokens"]), read, thought, written)
    except (AttributeError, TypeError, LookupError):
        return None


def join_completions(first: Completion, second: Completion) -> Completion:
    """One completion of an answer that the server paused and its going on."""
    blocks = [*_blocks_of(first.message), *_blocks_of(second.message)]
    message = message_of([_with_text(block) for block in blocks])
    usage = None if first.usage is None or second.usage is None else first.usage + second.usage
    cost = None if first.cost_usd is None or second.cost_usd is None else first.cost_usd + second.cost_usd
    return replace(second, message=message, usage=usage, cost_usd=cost)


def _with_text(block: dict[str, Json]) -> dict[str, Json]:
    if block["type"] != "tool_use":
        return block
    return {**block, "input": bytes(block["input"]).decode()}


# Writing.


def encode_blocks(message: Message) -> bytes:
    """The content blocks of a message, joined by commas. Pure, so that a history keeps them."""
    if message.role is Role.TOOL:
        result: dict[str, Json] = {"type": "tool_result", "tool_use_id": fit_id(message.call_id or "")}
        if message.content:
            result["content"] = message.content
        if message.is_error:
            result["is_error"] = True
        return _encode(result)
    if message.role is Role.ASSISTANT:
        return _encode(list(_blocks_of(message)))[1:-1]
    return _encode({"type": "text", "text": message.content})


def _blocks_of(message: Message) -> Iterable[dict[str, Json]]:
    """The blocks of an assistant's message, as they came if they came from here."""
    opaque = (message.opaque or {}).get(_KEY)
    opaque = opaque if isinstance(opaque, dict) else {}
    calls = [_encode_call(call) for call in message.tool_calls]
    kept = opaque.get("content")
    if isinstance(kept, list) and _fits(kept, message):
        remaining = iter(calls)
        return [next(remaining) if block["type"] == "tool_use" else block for block in kept]
    blocks: list[dict[str, Json]] = []
    if signature := opaque.get("signature"):
        # Thoughts without a signature, as other servers give them, the API refuses.
        blocks.append({"type": "thinking", "thinking": message.reasoning or "", "signature": signature})
    if message.content.strip():
        blocks.append({"type": "text", "text": message.content})
    return blocks + calls


def _fits(kept: list[Json], message: Message) -> bool:
    """Whether the blocks still are what the message says: it may have been edited."""
    calls = sum(block["type"] == "tool_use" for block in kept)
    text = "".join([block["text"] for block in kept if block["type"] == "text"])
    return calls == len(message.tool_calls) and text == message.content


def _encode_call(call: ToolCall) -> dict[str, Json]:
    raw = {
        "type": "tool_use",
        "id": fit_id(call.call_id),
        "name": call.name,
        "input": object_of(call.arguments),
    }
    rest = (call.opaque or {}).get(_KEY)
    return raw | rest if isinstance(rest, dict) else raw


# The answers with nothing unusual, which are nearly all, by a typed decoder that refuses all others.


class _Text(Struct, tag="text", tag_field="type", forbid_unknown_fields=True, gc=False):
    text: str
    citations: None = None


class _Thinking(Struct, tag="thinking", tag_field="type", forbid_unknown_fields=True, gc=False):
    thinking: str
    signature: str


class _ToolUse(Struct, tag="tool_use", tag_field="type", forbid_unknown_fields=True):
    id: str
    name: str
    input: msgspec.Raw


class _OutputDetails(Struct, gc=False):
    thinking_tokens: int = 0


class _Usage(Struct, gc=False):
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Answer(Struct, forbid_unknown_fields=True):
    content: list[_Text | _Thinking | _ToolUse]
    stop_reason: Literal["end_turn", "tool_use"]
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    stop_sequence: None = None
    stop_details: None = None
    container: None = None
    diagnostics: None = None


class MessageReader(PlainReader):
    """See `PlainReader`."""

    ANSWER = _Answer

    def _read(self, answer: _Answer) -> Completion | None:
        content, reasoning, opaque = "", None, None
        calls: list[ToolCall] = []
        for index, block in enumerate(answer.content):
            if isinstance(block, _ToolUse):
                calls.append(ToolCall(block.id, block.name, text_of(block.input)))
            elif isinstance(block, _Text) and not calls and not content:
                content = block.text
            elif isinstance(block, _Thinking) and index == 0:
                reasoning, opaque = block.thinking or None, {_KEY: {"signature": block.signature}}
            else:
                return None
        if (answer.stop_reason == "tool_use") != bool(calls):
            return None
        usage = None if answer.usage is None else _to_usage(answer.usage)
        return self._complete(content, calls, usage, answer.model, answer.id, reasoning, opaque)


def _to_usage(raw: _Usage) -> Usage:
    read, written = raw.cache_read_input_tokens or 0, raw.cache_creation_input_tokens or 0
    thought = raw.output_tokens_details.thinking_tokens if raw.output_tokens_details is not None else 0
    return Usage(raw.input_tokens + read + written, raw.output_tokens, read, thought, written)
