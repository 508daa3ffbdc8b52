"""The collector of streamed answers of the Messages API: it joins the events to the raw object of a whole
answer."""

from collections.abc import Callable

import msgspec

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json
from treadle.models.wire.arguments import INVALID_KEY
from treadle.models.wire.server import Server
from treadle.models.wire.stream import Collector

_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The types of deltas and the field that each extends. The delta has a field of the same name."""


class MessageCollector(Collector):
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
        return bool(self._head.get("stop_reason"))

    def add(self, event: Json) -> None:
        kind = event["type"]
        if kind == "content_block_delta":
            self._add_delta(event["index"], event["delta"])
        elif kind == "content_block_start":
            self._start(event["index"], dict(event["content_block"]))
        elif kind == "message_start":
            self._head = {
                key: value for key, value in event["message"].items() if key not in ("content", "usage")
            }
            self._usage = dict(event["message"].get("usage") or {})
        elif kind == "message_delta":
            self._head |= {key: value for key, value in event["delta"].items() if value is not None}
            # Counts are cumulative.
            self._usage |= {
                key: value for key, value in (event.get("usage") or {}).items() if value is not None
            }
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
            block["input"] = _encode(given) if given else "{}"
            self._on_delta(ToolCallDelta(self._calls[index], block["id"], block["name"], ""))
            if given:
                self._on_delta(ToolCallDelta(self._calls[index], block["id"], block["name"], block["input"]))
        elif kind == "text" and block["text"]:
            self._on_delta(TextDelta(block["text"]))
        elif kind == "thinking" and block["thinking"]:
            self._on_delta(ReasoningDelta(block["thinking"]))

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
            self._blocks[index]["input"] = text if index in self._calls else _decode(text)
        content = [block for _, block in sorted(self._blocks.items())]
        return {**self._head, "content": content, "usage": self._usage or None}


def _encode(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _decode(text: str) -> Json:
    """Return the decoded input of a server tool's call, or its text if the answer was cut off within it."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {INVALID_KEY: text}
