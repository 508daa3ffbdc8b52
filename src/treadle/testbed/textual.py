"""Requests in which tools, calls and results are text, as models without native tool calling get them.

The format is recognised by the description of the tools in the system message. This works for hermes, qwen3_coder,
glm45 and mistral. The other formats cannot be recognised by their descriptions.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import FormatError, RequestError
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.formats import parse, quote_result, render, render_tools
from treadle.formats.parsing import FORMATS

_PLACE = "\x00"


class TextRequest(Struct, frozen=True):
    """A request whose tools are text, with its contents as values."""

    format: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]

    def write(self, message: Message) -> Message | None:
        """Return an answer with its calls as text; `None` if the format cannot express them."""
        for reasoning in (message.reasoning, None):
            try:
                return Message(
                    Role.ASSISTANT, render(replace(message, reasoning=reasoning), self.format, self.tools)
                )
            except FormatError:
                continue
        return None


def read_text_request(messages: Sequence[Message]) -> TextRequest | None:
    """Return a request with tools as text; `None` if the system message describes no tools in a known format.

    Raises: `RequestError` if the format is not recognised.
    """
    if not messages or messages[0].role is not Role.SYSTEM or '"name"' not in messages[0].content:
        return None
    found = _recognise(messages[0].content)
    if found is None:
        return None
    format, tools = found
    made: list[Message] = []
    calls: tuple[ToolCall, ...] = ()
    for message in messages:
        if message.role is Role.ASSISTANT:
            message = _read_answer(message, format, tools, len(made))
            calls = message.tool_calls
            made.append(message)
        elif message.role is Role.USER and calls:
            made += _read_results(message.content, calls, format) or [message]
            calls = ()
        else:
            made.append(message)
    return TextRequest(format, tools, tuple(made))


@lru_cache(maxsize=64)
def _recognise(system: str) -> tuple[str, tuple[ToolSpec, ...]] | None:
    tools = tuple(_find_tools(system))
    if not tools:
        return None
    written = {format: _describe(tools, format) for format in FORMATS.names()}
    # A short description may be a part of a longer one.
    longest = max([len(text) for text in written.values() if text in system], default=0)
    found = [format for format, text in written.items() if text in system and len(text) == longest]
    if len(found) > 1:
        raise RequestError(
            "the built-in teacher cannot tell in which text format it has to call tools: the description fits "
            f"{', '.join(found)}; use hermes, qwen3_coder, glm45 or mistral",
            status=400,
        )
    return (found[0], tools) if found and longest else None


def _describe(tools: Sequence[ToolSpec], format: str) -> str:
    try:
        return render_tools(tools, format)
    except (FormatError, ValueError):
        return ""


def _find_tools(text: str) -> list[ToolSpec]:
    """Return the tools whose descriptions are JSON objects in `text`, or lists of them."""
    tools = []
    position = 0
    while (start := min([at for sign in "{[" if (at := text.find(sign, position)) >= 0], default=-1)) >= 0:
        try:
            value, position = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            position = start + 1
            continue
        for item in value if isinstance(value, list) else [value]:
            tool = item.get("function", item) if isinstance(item, dict) else None
            if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
                continue
            parameters = tool.get("parameters", tool.get("input_schema"))
            if isinstance(parameters, dict):
                tools.append(ToolSpec(tool["name"], str(tool.get("description", "")), parameters))
    return tools


def _read_answer(message: Message, format: str, tools: Sequence[ToolSpec], position: int) -> Message:
    parsed = parse(message.content, format, tools)
    calls = tuple(
        [
            ToolCall(call.call_id or f"call_{position}_{index}", call.name, call.arguments_text)
            for index, call in enumerate(parsed.tool_calls)
        ]
    )
    return Message(Role.ASSISTANT, parsed.content, calls, reasoning=parsed.reasoning)


def _read_results(text: str, calls: Sequence[ToolCall], format: str) -> list[Message] | None:
    """Return the results of `calls` in a message of the user; `None` if it does not have them."""
    patterns = []
    for call in calls:
        written = quote_result(_PLACE, call.name, format, call_id=call.call_id)
        if written.count(_PLACE) != 1:
            return None
        patterns.append("(.*?)".join(map(re.escape, written.split(_PLACE))))
    found = re.fullmatch("\n".join(patterns), text, re.DOTALL)
    if found is None:
        return None
    return [
        Message(Role.TOOL, content, call_id=call.call_id, name=call.name)
        for call, content in zip(calls, found.groups(), strict=True)
    ]
