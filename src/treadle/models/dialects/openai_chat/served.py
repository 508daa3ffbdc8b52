"""The serving half of OpenAI's chat completions: its requests are read, and its responses written.

Source: OpenAI API reference, chat completions, 2025. The name `reasoning_content` comes from DeepSeek and vLLM.
"""

import time
from collections.abc import Container, Iterable
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.tokens.packed import unpack_ids, unpack_logprobs
from treadle.core.types import Artifact, Completion, Json, Message, Role, ToolCall, ToolSpec, Usage
from treadle.models.wire.served import (
    AUTO,
    NONE,
    REQUIRED,
    ServedRequest,
    arguments_of_text,
    choose_allowed,
    join_answers,
    make_text_tool,
    read_each,
    read_fields,
    read_url,
    text_of_call,
)

_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


_SETTINGS = {name: name for name in ("temperature", "top_p", "seed", "stop", "logprobs")} | {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}
"""The fields of requests that are settings of models, with their names there."""
_READ = frozenset(
    ("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "n")
)
"""The fields of requests that are read one by one. Other fields are handed to the model's server."""


def read_request(body: bytes) -> ServedRequest:
    """Read a request with all its fields. Raises: `ConfigError` that names the field which cannot be read."""
    raw = read_fields(body)
    if raw.get("n") not in (None, 1):
        raise ConfigError(f"n is {raw['n']!r:.100}; ask for one answer at a time")
    asked = ServedRequest(
        model=_text(raw, "model"), dialect="openai_chat", instructions=None, messages=[], blobs={}
    )
    messages = read_messages(raw.get("messages"), asked.blobs)
    told = [message.content for message in messages if message.role is Role.SYSTEM and message.content]
    asked.instructions = "\n\n".join(told) or None
    asked.messages = join_answers([message for message in messages if message.role is not Role.SYSTEM])
    asked.is_stream = raw.get("stream") is True
    options = raw.get("stream_options")
    asked.has_usage = isinstance(options, dict) and options.get("include_usage") is True
    asked.is_parallel = raw.get("parallel_tool_calls")
    _read_choice(asked, raw.get("tool_choice"), _read_tools(raw.get("tools"), "tools"))
    for name, value in raw.items():
        if value is None or name in _READ or (name == "top_logprobs" and not value):
            continue
        if (setting := _SETTINGS.get(name)) is None:
            asked.extra[name] = value
        elif value is not False:
            asked.settings[setting] = value
    if isinstance(form := asked.extra.get("response_format"), dict) and form.get("type") != "text":
        asked.form = form
    if isinstance(labels := raw.get("metadata"), dict):
        asked.labels = {name: text for name, text in labels.items() if isinstance(text, str)}
    return asked


_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning")
"""The fields of an assistant message that may have no content."""
_KEPT = frozenset(("name", "reasoning_details"))
"""The fields of messages that servers are sent as they are."""


def read_messages(given: Json, blobs: dict[str, bytes]) -> list[Message]:
    """Return the messages of a request, with the contents of their parts in `blobs`. Raises: `ConfigError`."""
    return read_each(given, lambda item: [_read_message(item, blobs)])


def _read_message(item: Any, blobs: dict[str, bytes]) -> Message:
    role = _ROLES.get(item["role"])
    if role is None:
        raise ConfigError(f"{item['role']!r:.100} is not a role; the roles are {', '.join(_ROLES)}")
    content: Any = item.get("content")
    if content is None and not (role is Role.ASSISTANT and any(map(item.get, _INSTEAD_OF_CONTENT))):
        raise ConfigError("content is missing; only an assistant message with tool_calls may have none")
    parts: tuple[Artifact, ...] = ()
    if isinstance(content, list):
        texts = [_text(part, "text") for part in content if part["type"] in ("text", "refusal")]
        parts = tuple(
            [_read_part(part, blobs) for part in content if part["type"] not in ("text", "refusal")]
        )
        content = "\n".join(texts)
    elif not isinstance(content, str | None):
        raise ConfigError(f"content is {content!r:.100}; give a text or a list of parts")
    if role is Role.TOOL:
        return Message(role, content or "", call_id=_text(item, "tool_call_id"), parts=parts)
    kept = None if _KEPT.isdisjoint(item) else {key: item[key] for key in item if key in _KEPT and item[key]}
    if role is not Role.ASSISTANT:
        return Message(role, content or "", parts=parts, opaque=kept or None)
    calls = [_read_call(call) for call in item.get("tool_calls") or ()]
    reasoning = item.get("reasoning_content") or item.get("reasoning")
    return Message(
        role,
        content or "",
        tuple(calls),
        reasoning=reasoning if isinstance(reasoning, str) else None,
        opaque=kept or None,
    )


def _read_call(call: dict[str, Any]) -> ToolCall:
    if call.get("type") == "custom":
        named = call["custom"]
        return ToolCall(_text(call, "id"), _text(named, "name"), arguments_of_text(_text(named, "input")))
    return ToolCall(_text(call, "id"), _text(call["function"], "name"), _text(call["function"], "arguments"))


def _read_part(part: dict[str, Any], blobs: dict[str, bytes]) -> Artifact:
    kind = part["type"]
    if kind == "image_url":
        return read_url(part["image_url"]["url"], blobs)
    if kind == "input_audio":
        audio = part["input_audio"]
        mime_type = {"mp3": "mpeg"}.get(audio["format"], audio["format"])
        return read_url(f"data:audio/{mime_type};base64,{audio['data']}", blobs, kind="audio")
    if kind == "file" and part["file"].get("file_data"):
        return read_url(part["file"]["file_data"], blobs, part["file"].get("filename"), "document")
    raise ConfigError(f"parts of the type {kind!r:.100} are not supported")


def _read_choice(asked: ServedRequest, choice: Any, tools: list[dict[str, Json]]) -> None:
    """Give a request the tools of the client that the model may call, and which it must call."""
    fields = choice if isinstance(choice, dict) else {}
    named = fields.get("function") or fields.get("custom")
    if choice in (None, AUTO, NONE, REQUIRED):
        asked.tool_choice, tools = choice or AUTO, [] if choice == NONE else tools
    elif isinstance(named, dict):
        asked.tool_choice = _text(named, "name")
    elif isinstance(allowed := fields.get("allowed_tools"), dict):
        where = "tool_choice.allowed_tools"
        wanted = _read_tools(allowed.get("tools"), f"{where}.tools")
        asked.tool_choice, tools = choose_allowed(tools, wanted, allowed.get("mode"), where)
        asked.allows_all = False
    else:
        raise ConfigError(
            f"tool_choice is {choice!r:.100}; give 'auto', 'none', 'required', a function, a custom tool or "
            "allowed_tools"
        )
    asked.tools = tuple(map(_to_definition, tools))


def read_tools(tools: Json) -> list[ToolSpec]:
    """Return the tools of a request. Raises: `ConfigError`."""
    return to_specs(map(_to_definition, _read_tools(tools, "tools")))


def to_specs(definitions: Iterable[dict[str, Any]]) -> list[ToolSpec]:
    """Return tools given as functions of OpenAI's flat form. Raises: `ConfigError` if one has no name."""
    return [
        ToolSpec(
            _text({"name": None, **tool}, "name"), tool.get("description") or "", tool.get("parameters") or {}
        )
        for tool in definitions
    ]


def _read_tools(tools: Any, name: str) -> list[dict[str, Json]]:
    """Return the functions and custom tools in a field with this name, in the flat form of the Responses API."""
    if not isinstance(tools, list | None):
        raise ConfigError(f"{name} is {tools!r:.100}; give a list")
    found = []
    for number, tool in enumerate(tools or ()):
        kind = "custom" if isinstance(tool, dict) and tool.get("type") == "custom" else "function"
        named = tool.get(kind) if isinstance(tool, dict) else None
        if not isinstance(named, dict):
            raise ConfigError(f"{name}[{number}] is neither a function nor a custom tool")
        found.append({**named, "type": kind})
    return found


def _to_definition(tool: dict[str, Json]) -> dict[str, Json]:
    return make_text_tool(tool) if tool["type"] == "custom" else tool


def _text(fields: dict[str, Any], name: str) -> str:
    """Return a field that is a text. Raises: `ConfigError`, `KeyError`."""
    value = fields[name] if name not in ("model", "arguments") else fields.get(name) or ""
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r:.100}; give a text")
    return value


def to_logprobs(completion: Completion) -> dict[str, Json] | None:
    """Return the log probabilities of an answer as the server gave them, or from its tokens: those without a text
    are named by their ids, as vLLM does it. `None` if there are none."""
    kept = (completion.opaque or {}).get("logprobs")
    if isinstance(kept, dict):
        return kept
    record = completion.tokens
    if record is None or record.logprobs is None:
        return None
    names = record.tokens
    if names is None and record.token_ids is not None:
        names = tuple([f"token_id:{number}" for number in unpack_ids(record.token_ids)])
    content: list[Json] = [
        {"token": name, "logprob": value if value == value else -9999.0, "bytes": None, "top_logprobs": []}
        for name, value in zip(names or (), unpack_logprobs(record.logprobs), strict=True)
    ]
    return {"content": content, "refusal": None}


def to_wire(
    completion: Completion, model: str, *, has_logprobs: bool = False, texts: Container[str] = ()
) -> dict[str, Json]:
    """Return the body of a complete response. `texts` are the names of the tools whose calls are texts."""
    message = completion.message
    content = message.content or (None if message.tool_calls else "")  # what it needs to be sent back
    wire: dict[str, Json] = {"role": "assistant", "content": content, "refusal": None}
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            _custom_call(call.arguments, name=call.name, id=call.call_id)
            if call.name in texts
            else {"id": call.call_id, "type": "function", "function": _to_function(call.name, call.arguments)}
            for call in message.tool_calls
        ]
    reason = completion.finish_reason.value
    logprobs = to_logprobs(completion) if has_logprobs else None
    choice = {"index": 0, "message": wire, "finish_reason": reason, "logprobs": logprobs}
    return {
        "id": f"chatcmpl-{completion.response_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": _to_usage(completion.usage),
    }


def write_answer(answer_id: str, completion: Completion, asked: ServedRequest) -> dict[str, Json]:
    """Return the body of the answer to a request."""
    has_logprobs = bool(asked.settings.get("logprobs"))
    wire = to_wire(completion, asked.model, has_logprobs=has_logprobs, texts=asked.text_tools)
    return {**wire, "id": f"chatcmpl-{answer_id}"}


class ChatStream:
    """The events of one streamed answer."""

    has_logprobs = False
    """True if the last events have the log probabilities of the answer."""
    texts: Container[str] = ()
    """The names of the tools whose calls are texts. Their calls come at the end, whole."""

    @classmethod
    def of(cls, answer_id: str, asked: ServedRequest) -> "ChatStream":
        made = cls(answer_id, asked.model, has_usage=asked.has_usage)
        made.has_logprobs, made.texts = bool(asked.settings.get("logprobs")), asked.text_tools
        return made

    def __init__(self, response_id: str, model: str, *, has_usage: bool) -> None:
        self._head = {
            "id": f"chatcmpl-{response_id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._has_usage = has_usage
        self._called: dict[int, tuple[str | None, str]] = {}
        """The id and the name of each call, as far as the client has them."""
        self._written: dict[int, str] = {}
        """The arguments of the calls that are texts, by their positions."""

    def begin(self) -> list[dict[str, Json]]:
        """Return the first event."""
        return [self._choice({"role": "assistant", "content": ""})]

    def add(self, piece: Delta) -> list[dict[str, Json]]:
        """Return the event for a piece of the answer; nothing if the format has none for it."""
        if isinstance(piece, TextDelta):
            return [self._choice({"content": piece.text})]
        if isinstance(piece, ReasoningDelta):
            return [self._choice({"reasoning_content": piece.text})]
        if not isinstance(piece, ToolCallDelta):
            return []
        call_id, name = self._called.get(piece.index, (None, ""))
        self._called[piece.index] = known = call_id or piece.call_id, piece.name or name
        if known[1] in self.texts:
            self._written[piece.index] = self._written.get(piece.index, "") + piece.arguments
            return []
        call: dict[str, Json] = {"index": piece.index}
        if call_id is None and piece.call_id is not None:
            call |= {"id": piece.call_id, "type": "function"}
        # Clients join the pieces of a name, as those of the arguments.
        rest = (piece.name or "").removeprefix(name)
        call["function"] = _to_function(rest or None, piece.arguments)
        return [self._choice({"tool_calls": [call]})]

    def end(self, completion: Completion) -> list[dict[str, Json]]:
        """Return the last events; the log probabilities of the whole answer come at once."""
        usage, events = completion.usage, []
        for index, arguments in self._written.items():
            call_id, name = self._called[index]
            call = _custom_call(arguments, name=name, id=call_id, index=index)
            events.append(self._choice({"tool_calls": [call]}))
        events.append(self._choice({}, completion.finish_reason.value))
        if self.has_logprobs:
            events[-1]["choices"][0]["logprobs"] = to_logprobs(completion)
        if self._has_usage:
            events.append({**self._head, "choices": [], "usage": _to_usage(usage)})
        return events

    def _choice(self, delta: dict[str, Json], reason: str | None = None) -> dict[str, Json]:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        return {**self._head, "choices": choices, "usage": None}


def to_events(
    completion: Completion, model: str, pieces: Iterable[Delta], has_usage: bool
) -> list[dict[str, Json]]:
    """Return the events of a streamed response that comes in `pieces`."""
    stream = ChatStream(str(completion.response_id), model, has_usage=has_usage)
    events = [event for piece in pieces for event in stream.add(piece)]
    return [*stream.begin(), *events, *stream.end(completion)]


def _to_function(name: str | None, arguments: str) -> dict[str, Json]:
    return {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}


def _custom_call(arguments: str, *, name: str, **where: Json) -> dict[str, Json]:
    """Return a call of a tool that takes a text."""
    return {**where, "type": "custom", "custom": {"name": name, "input": text_of_call(arguments)}}


def _to_usage(usage: Usage) -> dict[str, Json] | None:
    if not usage.is_reported:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
