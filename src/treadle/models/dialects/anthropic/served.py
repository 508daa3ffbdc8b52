"""The serving half of Anthropic's Messages API: its requests are read, and its responses written.

Source: Anthropic API reference, Messages, version 2023-06-01.
"""

from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json, Usage

Block = dict[str, Any]
STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
"""The names of finish reasons."""


class WireTurn(Struct):
    """A message of a request."""

    role: str
    content: str | list[Block]


class WireTool(Struct):
    """A tool of a request that the client runs."""

    name: str
    description: str = ""
    input_schema: dict[str, Json] = {}
    type: str = "custom"


class MessagesRequest(Struct):
    """The fields of a request that Treadle reads."""

    model: str
    messages: list[WireTurn]
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    tools: list[WireTool] = []
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    tool_choice: Block | None = None


decode_request = msgspec.json.Decoder(MessagesRequest).decode


def write_usage(usage: Usage) -> dict[str, Json]:
    """Return token counts as the API gives them: cached input tokens are counted apart."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
    }


def write_message(
    response_id: str, model: str, content: list[Block], reason: str | None, usage: Usage
) -> dict[str, Json]:
    """Return a response. `reason` is a finish reason, or `None` while the answer comes."""
    return {
        "id": f"msg_{response_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None if reason is None else STOP_REASONS.get(reason, "end_turn"),
        "stop_sequence": None,
        "usage": write_usage(usage),
    }


class MessageStream:
    """The events of one streamed answer, and its blocks."""

    def __init__(self, response_id: str, model: str) -> None:
        self._id, self._model = response_id, model
        self.blocks: list[Block] = []
        """The blocks so far, with their whole contents."""
        self._is_open = False
        self._key: Json = None
        """What the open block belongs to."""

    def begin(self) -> list[dict[str, Json]]:
        """Return the first event."""
        message = write_message(self._id, self._model, [], None, Usage())
        return [{"type": "message_start", "message": message}]

    def add(self, piece: Delta) -> list[dict[str, Json]]:
        """Return the events for a piece of the answer."""
        if isinstance(piece, TextDelta):
            told = self._open("text", {"type": "text", "text": ""})
            self.blocks[-1]["text"] += piece.text
            return [*told, self._delta({"type": "text_delta", "text": piece.text})]
        if isinstance(piece, ReasoningDelta):
            told = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self.blocks[-1]["thinking"] += piece.text
            return [*told, self._delta({"type": "thinking_delta", "thinking": piece.text})]
        if not isinstance(piece, ToolCallDelta):
            return []
        block: Block = {"type": "tool_use", "id": piece.call_id, "name": piece.name, "input": {}}
        told = self._open(piece.index, block) if piece.call_id is not None else []
        self.blocks[-1]["arguments"] = self.blocks[-1].get("arguments", "") + piece.arguments
        if piece.arguments:
            told.append(self._delta({"type": "input_json_delta", "partial_json": piece.arguments}))
        return told

    def finish(self, reason: str, usage: Usage) -> list[dict[str, Json]]:
        """Return the last events."""
        delta = {"stop_reason": STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": write_usage(usage)}
        return [*self._close(), end, {"type": "message_stop"}]

    def content(self) -> list[Block]:
        """Return the blocks of the complete answer."""
        found = []
        for block in self.blocks:
            arguments = block.pop("arguments", None)
            if arguments:
                block["input"] = msgspec.json.decode(arguments)
            found.append(block)
        return found

    def _open(self, key: Json, block: Block) -> list[dict[str, Json]]:
        if self._is_open and self._key == key:
            return []
        told = self._close()
        self._is_open, self._key = True, key
        self.blocks.append(block)
        return [
            *told,
            {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)},
        ]

    def _close(self) -> list[dict[str, Json]]:
        if not self._is_open:
            return []
        self._is_open = False
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _delta(self, delta: Block) -> dict[str, Json]:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}
