"""Requests of other wire formats, as requests of the Responses API."""

from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.models.dialects.anthropic.served import Block, MessagesRequest
from treadle.server.responses.request_items import CreateResponse, Item, TextFormat, TextOptions

_NAMED = frozenset(
    (
        "model",
        "messages",
        "tools",
        "tool_choice",
        "stream",
        "stream_options",
        "response_format",
        "n",
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "parallel_tool_calls",
        "stop",
        "seed",
        "user",
        "metadata",
        "store",
        "logprobs",
        "top_logprobs",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
    )
)


class ForeignRequest(Struct):
    """A request in another wire format."""

    body: CreateResponse
    settings: dict[str, Json]
    """Settings of the model that the Responses API does not have."""
    has_usage: bool = False
    """True if the stream ends with the token counts."""


def read_chat(raw: dict[str, Any]) -> ForeignRequest:
    """Read a request of OpenAI's chat completions.

    Fields that are not known are passed on to the model's server. Raises: `ConfigError` that names the field.
    """
    if raw.get("n") not in (None, 1):
        raise ConfigError(f"n is {raw['n']!r}; ask for one answer at a time")
    if raw.get("logprobs"):
        raise ConfigError(
            "logprobs are recorded, and not returned; leave logprobs out, and read them from the run"
        )
    messages = raw.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ConfigError("messages is missing; give a list of messages")
    items: list[Item] = []
    for number, message in enumerate(messages):
        try:
            items += _items_of(message)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"messages[{number}] is not a message of chat completions ({error!r})"
            ) from None
    settings = {name: value for name in ("stop", "seed") if (value := raw.get(name)) is not None}
    if isinstance(settings.get("stop"), str):
        settings["stop"] = [settings["stop"]]
    extra = {name: value for name, value in raw.items() if name not in _NAMED and value is not None}
    if extra:
        settings["extra"] = extra
    options = raw.get("stream_options")
    body = CreateResponse(
        model=str(raw.get("model") or ""),
        input=items,
        tools=_read_tools(raw.get("tools"), raw.get("tool_choice")),
        stream=bool(raw.get("stream")),
        temperature=raw.get("temperature"),
        top_p=raw.get("top_p"),
        max_output_tokens=raw.get("max_completion_tokens") or raw.get("max_tokens"),
        text=_read_format(raw.get("response_format")),
        user=raw.get("user"),
        metadata=raw.get("metadata"),
    )
    has_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return ForeignRequest(body, settings, has_usage)


def _items_of(message: dict[str, Any]) -> list[Item]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message["tool_call_id"],
                "output": "\n".join([part.get("text", "") for part in content])
                if isinstance(content, list)
                else content or "",
            }
        ]
    if role != "assistant":
        parts = content if isinstance(content, str) else [_part_of(part) for part in content or ()]
        return [{"role": role, "content": parts}]
    items: list[Item] = []
    if message.get("reasoning_content"):
        told = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
        items.append({"type": "reasoning", "content": told})
    if isinstance(content, list):
        content = "\n".join([part.get("text", "") for part in content])
    if content or not message.get("tool_calls"):
        items.append({"role": "assistant", "content": content or ""})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        named = {"name": function["name"], "arguments": function.get("arguments") or ""}
        items.append({"type": "function_call", "call_id": call["id"], **named})
    return items


def _part_of(part: dict[str, Any]) -> Item:
    kind = part["type"]
    if kind == "text":
        return {"type": "input_text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"]}
    if kind == "file":
        return {"type": "input_file", **part["file"]}
    return part


def _read_tools(tools: Any, choice: Any) -> list[Item]:
    if choice not in (None, "auto", "none"):
        raise ConfigError(f"tool_choice is {choice!r:.100}; give 'auto' or 'none', since the model decides")
    if not tools or choice == "none":
        return []
    if not isinstance(tools, list):
        raise ConfigError(f"tools is {tools!r:.100}; give a list")
    found = []
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            raise ConfigError(f"tools[{number}] is not a function")
        found.append({"type": "function", **function})
    return found


def _read_format(given: Any) -> TextOptions | None:
    if not isinstance(given, dict) or given.get("type") in (None, "text"):
        return None
    if given["type"] == "json_object":
        return TextOptions(format=TextFormat(type="json_object"))
    wanted = given.get("json_schema")
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    return TextOptions(format=TextFormat(type="json_schema", schema=schema))


def read_messages(asked: MessagesRequest) -> ForeignRequest:
    """Read a request of Anthropic's Messages API. Raises: `ConfigError` that names the field."""
    items: list[Item] = []
    for number, message in enumerate(asked.messages):
        try:
            items += _items_of_blocks(message.role, message.content)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"messages[{number}] is not a message of the Messages API ({error!r})"
            ) from None
    choice = (asked.tool_choice or {}).get("type", "auto")
    if choice not in ("auto", "none"):
        raise ConfigError(f"tool_choice is {choice!r:.100}; give 'auto' or 'none', since the model decides")
    tools: list[Item] = []
    for number, tool in enumerate(asked.tools if choice == "auto" else ()):
        if tool.type != "custom":
            raise ConfigError(
                f"tools[{number}] is of the type {tool.type!r}; clients can only give their own tools"
            )
        named = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        tools.append({"type": "function", **named})
    system = asked.system
    if isinstance(system, list):
        system = "\n\n".join([str(block.get("text", "")) for block in system])
    body = CreateResponse(
        model=asked.model,
        input=items,
        instructions=system or None,
        tools=tools,
        stream=asked.stream,
        temperature=asked.temperature,
        top_p=asked.top_p,
        max_output_tokens=asked.max_tokens,
    )
    return ForeignRequest(body, {"stop": asked.stop_sequences} if asked.stop_sequences else {})


def _items_of_blocks(role: str, content: str | list[Block]) -> list[Item]:
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    items: list[Item] = []
    parts: list[Item] = []
    for block in content:
        kind = block["type"]
        if kind == "text":
            parts.append({"type": "input_text" if role == "user" else "output_text", "text": block["text"]})
        elif kind == "image" and block["source"].get("type") == "base64":
            source = block["source"]
            url = f"data:{source['media_type']};base64,{source['data']}"
            parts.append({"type": "input_image", "image_url": url})
        elif kind == "thinking":
            told = [{"type": "reasoning_text", "text": block["thinking"]}]
            items.append({"type": "reasoning", "content": told})
        elif kind == "tool_use":
            if parts:
                items.append({"role": role, "content": parts})
                parts = []
            arguments = msgspec.json.encode(block["input"]).decode()
            named = {"name": block["name"], "arguments": arguments}
            items.append({"type": "function_call", "call_id": block["id"], **named})
        elif kind == "tool_result":
            said = block.get("content") or ""
            if isinstance(said, list):
                said = "\n".join([str(part.get("text", "")) for part in said])
            is_error = bool(block.get("is_error"))
            named = {"call_id": block["tool_use_id"], "output": said, "is_error": is_error}
            items.append({"type": "function_call_output", **named})
        elif kind != "redacted_thinking":
            raise ConfigError(f"blocks of the type {kind!r} are not supported")
    if parts:
        items.append({"role": role, "content": parts})
    return items
