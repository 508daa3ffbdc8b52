"""The collector of streamed chat completions: it joins the chunks to the raw object of a whole answer."""

import base64
from collections.abc import Callable
from typing import Any

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json
from treadle.models.dialects.openai_chat.answer import CLOSE, OPEN, read_parts
from treadle.models.wire.body_reader import StreamCollector
from treadle.models.wire.fitting import text_of_value
from treadle.models.wire.server import Server, explain_error, find_error, reason_of
from treadle.models.wire.token_records import VersionNotes

_GROWING_PARTS = frozenset(("text", "summary", "data", "thinking"))
"""Fields of reasoning parts whose pieces are joined; of the other fields the newest value counts."""


class ChatCollector(StreamCollector):
    """A collector for one streamed chat completion."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self.finish_reason: Json = None
        self._is_odd = False
        """True if an object came that is not a chunk."""
        self._head: dict[str, Json] = {}
        self._choice: dict[str, Json] = {}
        self._message: dict[str, Json] = {}
        self._texts: dict[str, list[str]] = {}
        """The pieces of each text field of the message."""
        self._calls = _Calls(on_delta)
        self._thinking: dict[str, Json] = {}
        """The part of the content that holds the reasoning, with the newest value of each field."""
        self._audio: dict[str, Json] = {}
        self._sound = bytearray()
        """The content of the audio so far."""
        self._token_ids: list[Json] | None = None
        self._logprobs: list[Json] = []
        self._versions, self._noted = VersionNotes(), 0

    def listen(self, on_delta: Callable[[Delta], None]) -> None:
        super().listen(on_delta)
        self._calls.on_delta = on_delta

    @property
    def is_complete(self) -> bool:
        return bool(self.finish_reason)

    def end(self) -> None:
        # Without a finish reason, an object that is not a chunk may have said what went wrong.
        self.is_done = self.is_complete or not self._is_odd

    def add(self, event: Json) -> None:
        choices = event.get("choices")
        if not choices or "error" in event or "error" in choices[0]:
            if (error := find_error(event)) is not None:
                raise explain_error(self._server, 200, error)
            choices = choices or ()
            self._is_odd = self._is_odd or not ("choices" in event or "usage" in event)
        for name, value in event.items():
            if name == "prompt_token_ids" and value and self._head.get(name, value) != value:
                self._head[name] = []  # one of them is wrong
            elif name != "choices" and value is not None:
                self._head[name] = value
        for choice in choices or ():
            if not choice.get("index"):
                self._add_choice(choice)
        told = event.get("metadata")
        if isinstance(told, dict):
            self._versions.note(told.get("weight_version"), self._noted, len(self._token_ids or ()))
            self._noted = len(self._token_ids or ())

    def _add_choice(self, choice: dict[str, Json]) -> None:
        for name, value in choice.items():
            if value is None:
                continue
            if name in ("delta", "message"):
                self._add_delta(value)
            elif name == "token_ids":
                self._token_ids = (self._token_ids or []) + value
            elif name == "logprobs":
                self._logprobs += value.get("content") or ()
            elif value != "":
                self._choice[name] = value
        self.finish_reason = reason_of(self._choice.get("finish_reason"))

    def _add_delta(self, delta: dict[str, Json]) -> None:
        for name, value in delta.items():
            if not value:
                continue
            if name == "content":
                self._add_content(value)
            elif name in ("reasoning_content", "reasoning"):
                self._add_reasoning(name, value)
            elif name == "tool_calls":
                for call in value:
                    self._calls.add(call)
            elif name == "function_call":
                self._calls.add({"index": 0, "function": value})
            elif name == "role":
                self._message[name] = value
            elif name == "audio":
                self._add_audio(value)
            elif isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):
                _extend_parts(self._message.setdefault(name, []), value)
            else:
                self._message[name] = value

    def _add_content(self, value: Json) -> None:
        if isinstance(value, list):
            for part in value:
                if isinstance(part, dict) and part.get("type") == "thinking":
                    self._thinking |= part
            value, thought, _ = read_parts(value)
            if thought:
                self._add_reasoning("reasoning_content", thought)
        if type(value) is not str:
            raise TypeError("'content' is neither a string nor a list of parts")
        if value:
            self._add_text(value)

    def _add_text(self, text: str) -> None:
        self._texts.setdefault("content", []).append(text)
        self._on_delta(TextDelta(text))

    def _add_reasoning(self, name: str, value: str) -> None:
        self._texts.setdefault(name, []).append(value)
        # Some servers send the same text under both names.
        if name == "reasoning_content" or "reasoning_content" not in self._texts:
            self._on_delta(ReasoningDelta(value))

    def _add_audio(self, value: dict[str, Json]) -> None:
        """Add a piece of spoken audio. Each piece is encoded in base64 separately."""
        for name, piece in value.items():
            if name == "data":
                self._sound += base64.b64decode(piece, validate=True)
            elif name == "transcript":
                self._audio[name] = self._audio.get(name, "") + piece
                self._on_delta(TextDelta(piece))
            else:
                self._audio[name] = piece

    def raw(self) -> Json:
        message = {**self._message, **{name: "".join(pieces) for name, pieces in self._texts.items()}}
        if self._thinking:
            text = message.get("content")
            thoughts = [{"type": "text", "text": message.pop("reasoning_content", "")}]
            told = [{"type": "text", "text": text}] if text else []
            message["content"] = [{**self._thinking, "thinking": thoughts}, *told]
        if self._audio:
            message["audio"] = {**self._audio, "data": base64.b64encode(self._sound).decode()}
        if self._calls.raw:
            message["tool_calls"] = self._calls.whole()
        choice = {**self._choice, "message": message}
        if self._token_ids is not None:
            choice["token_ids"] = self._token_ids
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        if (spans := self._versions.spans) is not None:
            # The newest version has not sampled all tokens.
            choice.setdefault("weight_versions", spans)
            self._head.pop("metadata", None)
        return {**self._head, "choices": [choice]}


class ThoughtCollector(ChatCollector):
    """A collector for servers that leave a model's reasoning in the text, between `<think>` and `</think>`.

    It gives what `split_thoughts` makes of the whole text.
    """

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._held = ""
        """Text that may belong to a tag, or to the line ends beside it."""
        self._has_thought = False
        self._is_thinking: bool | None = None
        """True while reasoning arrives; `None` at the beginning."""

    def _add_text(self, text: str) -> None:
        self._held += text
        if self._is_thinking is None:
            begin = self._held.lstrip()
            if len(begin) < len(OPEN) and OPEN.startswith(begin):
                return
            self._is_thinking = begin.startswith(OPEN)
            self._held = begin.removeprefix(OPEN) if self._is_thinking else self._held
            self._has_thought = self._is_thinking
        if self._is_thinking:
            thought, tag, rest = self._held.partition(CLOSE)
            end = len(thought) if tag else _end_before(thought, CLOSE)
            self._held = rest if tag else thought[len(thought[:end].rstrip("\n")) :]
            self._think(thought[:end].rstrip("\n"))
            self._is_thinking = not tag
        if not self._is_thinking:
            is_first = self._has_thought and "content" not in self._texts
            text, self._held = self._held.lstrip("\n") if is_first else self._held, ""
            if text:
                super()._add_text(text)

    def _think(self, text: str) -> None:
        text = text if "reasoning_content" in self._texts else text.lstrip("\n")
        if text:
            self._add_reasoning("reasoning_content", text)

    def raw(self) -> Json:
        if self._is_thinking:
            self._think(self._held.rstrip("\n"))
        elif self._held:
            super()._add_text(self._held)
        return super().raw()


def _end_before(text: str, tag: str) -> int:
    """Return where the text ends if its last characters that may begin `tag` are left out."""
    sizes = [size for size in range(1, len(tag)) if text.endswith(tag[:size])]
    return len(text) - max(sizes, default=0)


class _Calls:
    """Streamed tool calls. Their pieces may be interleaved; index, id, or order alone tells them apart."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self.raw: list[dict[str, Json]] = []
        self._arguments: list[list[str]] = []
        self._position_of_index: dict[int, int] = {}
        self.on_delta = on_delta

    def add(self, piece: dict[str, Json]) -> None:
        """Add a piece of a call, or a whole call."""
        function = piece.get("function") or {}
        call_id, name = piece.get("id") or None, function.get("name") or None
        position = self._position(piece.get("index"), call_id, name)
        call = self.raw[position]
        known = call["function"]
        arguments = text_of_value(function.get("arguments"))
        if name and name != known.get("name"):
            # A name may come in pieces, or again with every piece.
            known["name"] = known.get("name", "") + name
        for key, value in piece.items():
            if key not in ("function", "index") and value is not None and not (key == "id" and "id" in call):
                call[key] = value
        for key, value in function.items():
            if key not in ("name", "arguments") and value is not None:
                known[key] = value
        if arguments:
            self._arguments[position].append(arguments)
        if arguments or name:
            self.on_delta(ToolCallDelta(position, call.get("id"), known.get("name"), arguments))

    def _position(self, index: Json, call_id: str | None, name: str | None) -> int:
        """Return the position of the call that a piece belongs to, and begin a new call if there is none."""
        if isinstance(index, int):
            position = self._position_of_index.get(index)
            # Some servers number all calls 0; some give every piece of one call a new id, but no name.
            if position is not None and not (
                call_id and name and self.raw[position].get("id") not in (None, call_id)
            ):
                return position
        elif call_id:
            for position, call in enumerate(self.raw):
                if call.get("id") == call_id:
                    return position
        elif self.raw and not name:
            return len(self.raw) - 1
        self.raw.append({"function": {}})
        self._arguments.append([])
        if isinstance(index, int):
            self._position_of_index[index] = len(self.raw) - 1
        return len(self.raw) - 1

    def whole(self) -> list[dict[str, Json]]:
        """Return the calls in the form of a whole answer."""
        for call, pieces in zip(self.raw, self._arguments, strict=True):
            call["function"]["arguments"] = "".join(pieces)
        return self.raw


def _extend_parts(parts: list[Any], more: list[Any]) -> None:
    """Join pieces of structured parts (OpenRouter's `reasoning_details`) by their `index`."""
    for part in more:
        last = parts[-1] if parts else None
        index = part.get("index") if isinstance(part, dict) else None
        if index is None or not isinstance(last, dict) or last.get("index") != index:
            parts.append(part)
            continue
        for key, value in part.items():
            if key in _GROWING_PARTS and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] += value
            elif value is not None:
                last[key] = value
