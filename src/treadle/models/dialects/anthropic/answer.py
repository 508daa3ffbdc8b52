"""The reader of answers of the Messages API: a raw object, or the bytes of a plain answer, becomes a `Completion`.

In a raw object the `input` of a call is its exact text. Blocks that the fields of a message cannot hold, such as
signed thinking and the results of server tools, are kept opaque, in their order.
"""

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.events import Delta, ReasoningDelta, ServerCallDelta, TextDelta, ToolCallDelta
from treadle.core.texts.documents import decode_or
from treadle.core.types import (
    UNREPORTED,
    Completion,
    FinishReason,
    Json,
    Message,
    Role,
    ServerCall,
    ToolCall,
    Usage,
)
from treadle.models.wire.body_reader import StreamCollector, mend
from treadle.models.wire.fitting import (
    INVALID_KEY,
    exact_text,
    fields_of,
    rest_of,
    text_of,
    text_of_value,
    text_or_none,
)
from treadle.models.wire.openai_style import Name, PlainReader
from treadle.models.wire.provider import TokenCounts, cost_of, read_usage
from treadle.models.wire.server import Server, UnfinishedError, reason_of, reasons_of

KEY = "anthropic"
"""The key under which a message keeps data that Treadle has no field for."""
_KNOWN, _REASONS = fields_of(KEY), reasons_of(KEY)
_SAID = frozenset(("end_turn", "tool_use", "max_tokens", "refusal", None))
"""The API's reasons that `FinishReason` expresses without loss."""
_SERVER_USES = frozenset(("server_tool_use", "mcp_tool_use"))

_encode = msgspec.json.Encoder().encode


keep_inputs = exact_text(
    "content", "*", "input", mark=b"tool_use", applies=lambda block: block["type"] == "tool_use"
)


def read_completion(raw: Json) -> Completion:
    """Return the completion for `raw`, a whole answer or one that was joined from a stream.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it contains an error or cannot be read.
    """
    if raw.get("type") == "error":
        raise ValueError("it contains an error")
    content = raw["content"]
    message = message_of([{"type": "text", "text": content}] if isinstance(content, str) else content)
    told = reason_of(raw.get("stop_reason"))
    if not told and not message.content and not message.tool_calls:
        raise UnfinishedError("it is empty and has no stop_reason")
    if told == "tool_use" and not message.tool_calls:
        raise UnfinishedError("the stop_reason is 'tool_use', but there are no calls")
    plain = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    reason = plain if told is None else _REASONS.get(told, plain)
    if reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        reason = plain
    opaque = rest_of(raw, _KNOWN["answer"])
    if told not in _SAID:
        opaque["finish_reason"] = told
    return Completion(
        message,
        reason,
        read_usage(raw.get("usage"), _Usage),
        model=text_or_none(raw.get("model")),
        response_id=text_or_none(raw.get("id")),
        opaque=opaque or None,
    )


def message_of(blocks: list[Json]) -> Message:
    """Return the message that content blocks form. Blocks that its fields cannot hold are kept in their order."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    uses: dict[str, ServerCall] = {}
    for block in blocks:
        kind = block["type"]
        if kind == "text":
            texts.append(block["text"])
        elif kind == "thinking":
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            rest = rest_of(block, _KNOWN["call"])
            opaque = {KEY: rest} if rest else None
            calls.append(ToolCall(block["id"], block["name"], text_of_value(block.get("input")), opaque))
        elif kind in _SERVER_USES:
            arguments = _encode(block.get("input", {})).decode()
            offset = sum(map(len, texts))
            uses[block["id"]] = ServerCall(block["id"], block["name"], arguments, offset=offset)
        elif (call := uses.get(block.get("tool_use_id"))) is not None:
            uses[call.call_id] = _answered(call, block)
    return Message(
        Role.ASSISTANT,
        "".join(texts),
        tuple(calls),
        reasoning="\n\n".join([text for text in thoughts if text]) or None,
        opaque=opaque_of(blocks),
        server_calls=tuple(uses.values()),
    )


def opaque_of(blocks: list[Json]) -> dict[str, Json] | None:
    """Return the blocks that the fields of a message cannot hold, or only the signature of a single thought."""
    kept = [block for block in blocks if block["type"] != "text" or block["text"] or block.get("citations")]
    shape = ["cited" if block.get("citations") else block["type"] for block in kept]
    at = 1 if shape[:1] == ["thinking"] else 0
    rest = shape[at + 1 :] if shape[at : at + 1] == ["text"] else shape[at:]
    if rest.count("tool_use") < len(rest):
        return {KEY: {"content": [_without_known(block) for block in kept]}}
    if at and (signature := kept[0].get("signature")):
        return {KEY: {"signature": signature}}
    return None


def _without_known(block: dict[str, Json]) -> Json:
    if block["type"] == "text":
        return {"text": "", **rest_of(block, ())}
    return {"type": "tool_use"} if block["type"] == "tool_use" else block


def _answered(call: ServerCall, block: dict[str, Json]) -> ServerCall:
    """Return the server's call with the result that `block` contains."""
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


class _OutputDetails(Struct, gc=False):
    thinking_tokens: int = 0


class _Usage(TokenCounts, gc=False):
    """The token counts of an answer. The API's input tokens exclude those read from the cache or written to it."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None

    def read(self) -> Usage:
        read, written = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        thought = 0 if self.output_tokens_details is None else self.output_tokens_details.thinking_tokens
        return Usage(self.input_tokens + read + written, self.output_tokens, read, thought, written)


# Plain answers


class _Text(Struct, tag="text", tag_field="type", forbid_unknown_fields=True, gc=False):
    text: str
    citations: None = None


class _Thinking(Struct, tag="thinking", tag_field="type", forbid_unknown_fields=True, gc=False):
    thinking: str
    signature: str


class _ToolUse(Struct, tag="tool_use", tag_field="type", forbid_unknown_fields=True):
    id: str
    name: Name
    input: msgspec.Raw


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
    """The reader of plain messages."""

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
                reasoning, opaque = block.thinking or None, {KEY: {"signature": block.signature}}
            else:
                return None
        if (answer.stop_reason == "tool_use") != bool(calls):
            return None
        message = Message(Role.ASSISTANT, content, tuple(calls), reasoning=reasoning, opaque=opaque)
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        usage = UNREPORTED if answer.usage is None else answer.usage.read()
        cost = cost_of(usage, self._price)
        return Completion(message, finish, usage, cost, answer.model, answer.id, self._settings)


_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The types of deltas and the field that each extends. The delta has a field of the same name."""


class MessageCollector(StreamCollector):
    """A collector for one streamed message."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._usage: dict[str, Json] = {}
        self._blocks: dict[int, dict[str, Json]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._calls: dict[int, int] = {}
        """The position of each call among the calls, by the index of its block."""

    @property
    def is_complete(self) -> bool:
        return bool(reason_of(self._head.get("stop_reason")))

    def add(self, event: Json) -> None:
        kind = event["type"]
        if kind == "content_block_delta":
            self._add_delta(event["index"], event["delta"])
        elif kind == "content_block_start":
            self._start(event["index"], dict(event["content_block"]))
        elif kind == "content_block_stop":
            block = self._blocks.get(event["index"], {})
            if block.get("type") in _SERVER_USES:
                self._tell_served(block["id"], is_done=False)
        elif kind == "message_start":
            self._head = {
                key: value for key, value in event["message"].items() if key not in ("content", "usage")
            }
            self._usage = dict(event["message"].get("usage") or {})
        elif kind == "message_delta":
            self._head |= rest_of(event["delta"], ())
            # Counts are cumulative.
            self._usage |= rest_of(event.get("usage") or {}, ())
        elif kind == "message_stop":
            self.is_done = True

    def add_whole(self, raw: Json) -> None:
        self.add({"type": "message_start", "message": raw})
        for index, block in enumerate(raw["content"]):
            self._start(index, dict(block))

    def _start(self, index: int, block: dict[str, Json]) -> None:
        kind = block["type"]
        self._blocks[index] = block
        if kind == "tool_use":
            self._calls[index] = len(self._calls)
            given = block.get("input")
            block["input"] = _encode(given).decode() if given else "{}"
            self._on_delta(ToolCallDelta(self._calls[index], block["id"], block["name"], ""))
            if given:
                self._on_delta(ToolCallDelta(self._calls[index], block["id"], block["name"], block["input"]))
        elif kind == "text" and block["text"]:
            self._on_delta(TextDelta(block["text"]))
        elif kind == "thinking" and block["thinking"]:
            self._on_delta(ReasoningDelta(block["thinking"]))
        elif "tool_use_id" in block:
            self._tell_served(block["tool_use_id"], is_done=True)

    def _tell_served(self, call_id: str, *, is_done: bool) -> None:
        for index, call in enumerate(message_of(mend(self.raw()["content"])).server_calls):
            if call.call_id == call_id:
                self._on_delta(ServerCallDelta(index, call, is_done))

    def _add_delta(self, index: int, delta: dict[str, Json]) -> None:
        kind = delta["type"]
        block = self._blocks[index]
        if kind == "input_json_delta":
            piece: str = delta["partial_json"]
            if piece:
                self._inputs.setdefault(index, []).append(piece)
                if index in self._calls:
                    self._on_delta(ToolCallDelta(self._calls[index], block["id"], block["name"], piece))
        elif (field := _GROWING.get(kind)) is not None:
            text: str = delta[field]
            self._pieces.setdefault((index, field), [block.get(field) or ""]).append(text)
            if text and field == "text":
                self._on_delta(TextDelta(text))
            elif text and field == "thinking":
                self._on_delta(ReasoningDelta(text))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]

    def raw(self) -> Json:
        for (index, field), pieces in self._pieces.items():
            self._blocks[index][field] = "".join(pieces)
        for index, pieces in self._inputs.items():
            text = "".join(pieces)
            # The answer may have been cut off within the input of a server tool's call.
            self._blocks[index]["input"] = (
                text if index in self._calls else decode_or(text, {INVALID_KEY: text})
            )
        content = [block for _, block in sorted(self._blocks.items())]
        return {**self._head, "content": content, "usage": self._usage or None}
