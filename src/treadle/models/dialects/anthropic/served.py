"""The serving half of Anthropic's Messages API: its requests are read, and its responses written.

Source: Anthropic API reference, Messages, version 2023-06-01.
"""

import uuid
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Artifact, Completion, Json, Message, Role, ToolCall, Usage
from treadle.models.dialects.anthropic.answer import KEY, opaque_of
from treadle.models.wire.fitting import is_strict, kept_in
from treadle.models.wire.served import (
    AUTO,
    NONE,
    REQUIRED,
    ServedRequest,
    join_answers,
    read_each,
    read_fields,
    read_url,
)

Block = dict[str, Any]
STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
"""The names of finish reasons."""
_OTHER_REASONS = frozenset(("stop_sequence", "pause_turn", "model_context_window_exceeded"))
"""The API's reasons for which `FinishReason` has no word of their own."""
_THOUGHTS = ("thinking", "redacted_thinking")

_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_output_tokens",
    "stop_sequences": "stop",
}
"""The fields of requests that are settings of models, with their names there."""
_READ = frozenset(("model", "messages", "system", "tools", "tool_choice", "stream"))
"""The fields of requests that are read one by one. Other fields are handed to the model's server."""


def read_request(body: bytes) -> ServedRequest:
    """Read a request with all its fields. Raises: `ConfigError` that names the field which cannot be read."""
    raw = read_fields(body)
    model = raw.get("model")
    if not isinstance(model, str):
        raise ConfigError(f"model is {model!r:.100}; give a text")
    asked = ServedRequest(model=model, dialect="anthropic", instructions=None, messages=[], blobs={})
    asked.messages = join_answers(
        read_each(raw.get("messages"), lambda item: _read_blocks(item["role"], item["content"], asked.blobs))
    )
    asked.instructions = _text_of(raw.get("system") or "", "system") or None
    asked.is_stream = raw.get("stream") is True
    choice = raw.get("tool_choice")
    if choice is not None:
        asked.tool_choice = _read_choice(choice)
        asked.is_parallel = False if choice.get("disable_parallel_tool_use") else None
    if asked.tool_choice != NONE:
        asked.tools = _read_tools(raw.get("tools") or [])
    for name, value in raw.items():
        if value is None or name in _READ:
            continue
        if (setting := _SETTINGS.get(name)) is None:
            asked.extra[name] = value
        else:
            asked.settings[setting] = value
    _read_form(asked)
    return asked


def _read_form(asked: ServedRequest) -> None:
    """Read the form that the answer must have, unless there is none."""
    for field in ("output_config", "output_format"):
        given = asked.extra.get(field)
        form = given
        if field == "output_config" and isinstance(given, dict):
            form = given.get("format")
            if given.keys() <= {"format", "effort"}:
                asked.form_field = field
        if isinstance(form, dict) and form.get("type") == "json_schema":
            named = {"name": "answer", "schema": form.get("schema"), "strict": is_strict(form.get("schema"))}
            asked.form = {"type": "json_schema", "json_schema": named}
            if form is given:
                asked.form_field = field


def _read_choice(choice: Any) -> str:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool" and isinstance(choice.get("name"), str):
        return str(choice["name"])
    if kind not in _CHOICES:
        raise ConfigError(f"tool_choice is {choice!r:.100}; give the type auto, none, any or tool")
    return _CHOICES[kind]


_CHOICES = {"auto": AUTO, "none": NONE, "any": REQUIRED}


def _read_tools(tools: Any) -> tuple[dict[str, Json], ...]:
    if not isinstance(tools, list):
        raise ConfigError(f"tools is {tools!r:.100}; give a list")
    found = []
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise ConfigError(f"tools[{number}] is not a tool with a name")
        if tool.get("type", "custom") != "custom":
            raise ConfigError(
                f"tools[{number}] is of the type {tool['type']!r:.100}; clients can only give their own tools"
            )
        named = {"description": tool.get("description") or "", "parameters": tool.get("input_schema") or {}}
        found.append({"type": "function", "name": tool["name"], **named})
    return tuple(found)


def _read_blocks(role: str, content: Any, blobs: dict[str, bytes]) -> list[Message]:
    """Return the messages that a message of a request is: results of tools are messages of their own."""
    if role not in ("user", "assistant"):
        raise ConfigError(f"{role!r:.100} is not a role; the roles are user and assistant")
    if not isinstance(content, str | list):
        raise ConfigError(f"content is {content!r:.100}; give a text or a list of blocks")
    results: list[Message] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    parts: list[Artifact] = []
    signed: list[Block] = []
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        kind = block["type"]
        if kind in ("text", "tool_use", "redacted_thinking") or (
            kind == "thinking" and block.get("signature")
        ):
            signed.append(block)
        if kind == "text":
            texts.append(_text_of(block["text"], "text"))
        elif kind in ("image", "document"):
            parts.append(_read_source(block, blobs))
        elif kind == "thinking":
            thoughts.append(_text_of(block["thinking"], "thinking"))
        elif kind == "tool_use":
            arguments = msgspec.json.encode(block["input"]).decode()
            calls.append(ToolCall(_text_of(block["id"], "id"), _text_of(block["name"], "name"), arguments))
        elif kind == "tool_result":
            inner = block.get("content") or ""
            shown = () if isinstance(inner, str) else [part for part in inner if part["type"] == "image"]
            results.append(
                Message(
                    Role.TOOL,
                    _text_of(inner, "content"),
                    call_id=_text_of(block["tool_use_id"], "tool_use_id"),
                    is_error=block.get("is_error") is True,
                    parts=tuple([_read_source(part, blobs) for part in shown]),
                )
            )
        elif kind != "redacted_thinking":
            raise ConfigError(f"blocks of the type {kind!r:.100} are not supported")
    has_signed = role == "assistant" and any([block["type"] in _THOUGHTS for block in signed])
    said = Message(
        Role(role),
        ("" if has_signed else "\n").join(texts),
        tuple(calls),
        reasoning="\n".join(thoughts) or None,
        parts=tuple(parts),
        # The API wants its thoughts back as it has signed them.
        opaque=opaque_of(signed) if has_signed else None,
    )
    return results if results and not texts and not parts else [*results, said]


def _read_source(block: Block, blobs: dict[str, bytes]) -> Artifact:
    source, kind = block["source"], block["type"]
    if source["type"] == "url":
        return read_url(source["url"], blobs, kind=kind)
    if source["type"] != "base64":
        raise ConfigError(f"sources of the type {source['type']!r:.100} are not supported")
    return read_url(f"data:{source['media_type']};base64,{source['data']}", blobs, block.get("title"))


def _text_of(content: Any, name: str) -> str:
    """Return a text, or the text of blocks. Raises: `ConfigError`."""
    if isinstance(content, list):
        content = "\n\n".join([str(block["text"]) for block in content if block["type"] == "text"])
    if not isinstance(content, str):
        raise ConfigError(f"{name} is {content!r:.100}; give a text")
    return content


def write_usage(usage: Usage) -> dict[str, Json]:
    """Return token counts as the API gives them: cached input tokens are counted apart."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
    }


def write_message(
    answer_id: str, model: str, content: list[Block], ending: dict[str, Json], usage: Usage
) -> dict[str, Json]:
    """Return a response. `ending` says why the answer ended."""
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **ending,
        "usage": write_usage(usage),
    }


def write_answer(answer_id: str, completion: Completion, asked: ServedRequest) -> dict[str, Json]:
    """Return the body of the answer to a request."""
    said = completion.message
    calls = [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": _input_of(call)}
        for call in said.tool_calls
    ]
    kept = kept_in(said.opaque, KEY).get("content")
    if isinstance(kept, list):
        remaining = iter(calls)
        content = [
            next(remaining) if block["type"] == "tool_use" else block
            for block in kept
            if block["type"] in ("text", "tool_use", *_THOUGHTS)  # what a client can send back
        ]
    else:
        content = []
        if said.reasoning or _signatures_of(said):
            signature = (_signatures_of(said) or [""])[0]
            content.append({"type": "thinking", "thinking": said.reasoning or "", "signature": signature})
        if said.content:
            content.append({"type": "text", "text": said.content})
        content += calls
    return write_message(answer_id, asked.model, content, _ending_of(completion), completion.usage)


def _signatures_of(message: Message) -> list[str]:
    """Return the signatures of the thoughts in a message, in their order."""
    kept = kept_in(message.opaque, KEY)
    if isinstance(kept.get("content"), list):
        return [block.get("signature") or "" for block in kept["content"] if block["type"] == "thinking"]
    return [kept["signature"]] if kept.get("signature") else []


def _ending_of(completion: Completion) -> dict[str, Json]:
    """Return why an answer ended, in the words of this API, or of the server if it speaks them."""
    opaque = completion.opaque or {}
    told = opaque.get("finish_reason")
    if told not in _OTHER_REASONS:
        told = STOP_REASONS.get(completion.finish_reason.value, "end_turn")
    return {"stop_reason": told, "stop_sequence": opaque.get("stop_sequence")}


_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The types of errors, by status. Other errors from 500 are of the type `api_error`."""


def write_error(status: int, message: str) -> dict[str, Json]:
    """Return the body of an error, which is also an event of a stream."""
    kind = _ERROR_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    request_id = f"req_{uuid.uuid4().hex}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def _input_of(call: ToolCall) -> Json:
    """Return the arguments as an object; those that are none are within one, so that they are not lost."""
    value = call.parsed_or(call.arguments)
    return value if isinstance(value, dict) else {"arguments": value}


class MessageStream:
    """The events of one streamed answer."""

    @classmethod
    def of(cls, answer_id: str, asked: ServedRequest) -> "MessageStream":
        return cls(answer_id, asked.model)

    def __init__(self, answer_id: str, model: str) -> None:
        self._id, self._model = answer_id, model
        self._index = -1
        """The index of the newest block."""
        self._is_open = False
        self._key: Json = None
        """What the open block belongs to."""
        self._thoughts: list[int] = []
        """The indexes of the blocks with thoughts."""

    def begin(self) -> list[dict[str, Json]]:
        """Return the first event."""
        not_ended: dict[str, Json] = {"stop_reason": None, "stop_sequence": None}
        message = write_message(self._id, self._model, [], not_ended, Usage())
        return [{"type": "message_start", "message": message}]

    def add(self, piece: Delta) -> list[dict[str, Json]]:
        """Return the events for a piece of the answer."""
        if isinstance(piece, TextDelta):
            told = self._open("text", {"type": "text", "text": ""})
            return [*told, self._delta({"type": "text_delta", "text": piece.text})]
        if isinstance(piece, ReasoningDelta):
            told = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if told:
                self._thoughts.append(self._index)
            return [*told, self._delta({"type": "thinking_delta", "thinking": piece.text})]
        if not isinstance(piece, ToolCallDelta):
            return []
        block: Block = {"type": "tool_use", "id": piece.call_id, "name": piece.name, "input": {}}
        told = self._open(piece.index, block) if piece.call_id is not None else []
        if piece.arguments:
            told.append(self._delta({"type": "input_json_delta", "partial_json": piece.arguments}))
        return told

    def end(self, completion: Completion) -> list[dict[str, Json]]:
        """Return the last events. Signatures come with the whole answer, and clients join them by the index."""
        signatures = _signatures_of(completion.message)
        places = self._thoughts if len(self._thoughts) == len(signatures) else []
        signed = [
            self._delta({"type": "signature_delta", "signature": signature}, index)
            for index, signature in zip(places, signatures, strict=False)
        ]
        usage = write_usage(completion.usage)
        end = {"type": "message_delta", "delta": _ending_of(completion), "usage": usage}
        return [*self._close(), *signed, end, {"type": "message_stop"}]

    def _open(self, key: Json, block: Block) -> list[dict[str, Json]]:
        if self._is_open and self._key == key:
            return []
        told = self._close()
        self._is_open, self._key = True, key
        self._index += 1
        return [*told, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _close(self) -> list[dict[str, Json]]:
        if not self._is_open:
            return []
        self._is_open = False
        return [{"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: Block, index: int | None = None) -> dict[str, Json]:
        where = self._index if index is None else index
        return {"type": "content_block_delta", "index": where, "delta": delta}
