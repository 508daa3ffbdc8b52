"""The serving half of OpenAI's chat completions: its requests are read, and its responses written.

Source: OpenAI API reference, chat completions, 2025. The name `reasoning_content` comes from DeepSeek and vLLM.
"""

import time
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Completion, Json, Message, Role, ToolCall, ToolSpec, Usage

_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


class _Function(Struct):
    name: str
    arguments: str = ""


class _ToolCall(Struct):
    id: str
    function: _Function


class _Part(Struct):
    text: str = ""


class _Message(Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class _StreamOptions(Struct):
    include_usage: bool = False


class _ToolFunction(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] = {}


class _Tool(Struct):
    function: _ToolFunction


class _JsonSchema(Struct):
    schema: dict[str, Any] | None = None


class _ResponseFormat(Struct):
    json_schema: _JsonSchema | None = None


class ChatRequest(Struct):
    """The fields of a request that the server uses."""

    model: str
    messages: list[_Message]
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    response_format: _ResponseFormat | None = None
    n: int | None = None

    @property
    def output_schema(self) -> dict[str, Json] | None:
        """The JSON Schema that the answer must fit; `None`: any text."""
        wanted = self.response_format and self.response_format.json_schema
        return wanted.schema if wanted else None

    @property
    def required_tool(self) -> str | None:
        """The name of the tool that must be called; `None` if no call is required."""
        function = self.tool_choice.get("function") if isinstance(self.tool_choice, dict) else None
        return str(function.get("name")) if isinstance(function, dict) else None


decode_request = msgspec.json.Decoder(ChatRequest).decode


_decode_tool = msgspec.json.Decoder(_Tool).decode


def to_tools(asked: ChatRequest) -> list[ToolSpec]:
    """Return the tools of a request. Raises: `msgspec.DecodeError` if one is malformed."""
    tools = [_decode_tool(item).function for item in asked.tools or ()]
    return [ToolSpec(tool.name, tool.description or "", tool.parameters) for tool in tools]


def to_message(item: _Message) -> Message:
    """Convert a message of a request. Raises: `msgspec.ValidationError` if its role is unknown."""
    role = _ROLES.get(item.role)
    if role is None:
        raise msgspec.ValidationError(f"{item.role!r} is not a role; the roles are {', '.join(_ROLES)}")
    parts = item.content
    content = parts if isinstance(parts, str) else "".join([part.text for part in parts or ()])
    calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in item.tool_calls or ()]
    return Message(role, content, tuple(calls), item.tool_call_id, reasoning=item.reasoning_content or None)


def to_wire(completion: Completion, model: str) -> dict[str, Json]:
    """Return the body of a complete response."""
    message = completion.message
    wire: dict[str, Json] = {"role": "assistant", "content": message.content or None, "refusal": None}
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": _to_function(call.name, call.arguments)}
            for call in message.tool_calls
        ]
    reason = completion.finish_reason.value
    choice = {"index": 0, "message": wire, "finish_reason": reason, "logprobs": None}
    return _envelope(completion, model, "chat.completion", [choice], _to_usage(completion.usage))


class ChatStream:
    """The events of one streamed answer."""

    def __init__(self, response_id: str, model: str, *, has_usage: bool) -> None:
        self._head = {
            "id": f"chatcmpl-{response_id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._has_usage = has_usage

    def begin(self) -> dict[str, Json]:
        """Return the first event."""
        return self._choice({"role": "assistant", "content": ""})

    def add(self, piece: Delta) -> dict[str, Json] | None:
        """Return the event for a piece of the answer; `None` if the format has none for it."""
        if isinstance(piece, TextDelta):
            return self._choice({"content": piece.text})
        if isinstance(piece, ReasoningDelta):
            return self._choice({"reasoning_content": piece.text})
        if not isinstance(piece, ToolCallDelta):
            return None
        call: dict[str, Json] = {"index": piece.index}
        if piece.call_id is not None:
            call |= {"id": piece.call_id, "type": "function"}
        call["function"] = _to_function(piece.name, piece.arguments)
        return self._choice({"tool_calls": [call]})

    def finish(self, reason: str, usage: Usage) -> list[dict[str, Json]]:
        """Return the last events."""
        events = [self._choice({}, reason)]
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
    events = [stream.begin(), *[event for piece in pieces if (event := stream.add(piece)) is not None]]
    return [*events, *stream.finish(completion.finish_reason.value, completion.usage)]


def _to_function(name: str | None, arguments: str) -> dict[str, Json]:
    return {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}


def _envelope(
    completion: Completion, model: str, kind: str, choices: Json, usage: dict[str, Json] | None
) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{completion.response_id}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage,
    }


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
