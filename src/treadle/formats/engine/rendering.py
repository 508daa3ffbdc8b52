"""What all formats write alike."""

import json

import msgspec

from treadle.core.errors import FormatError
from treadle.core.types import Json, Message, ToolCall
from treadle.formats.engine.json_body import decode


def arguments_of(call: ToolCall) -> dict[str, Json]:
    """The arguments as a value. Raises: `FormatError` for what is no JSON object."""
    try:
        value = decode(call.arguments) if call.arguments.strip() else {}
    except ValueError as error:
        raise FormatError(f"the arguments of {call.name!r} are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"the arguments of {call.name!r} are no JSON object: {call.arguments[:80]!r}")
    return value


def write_arguments(call: ToolCall) -> str:
    """The arguments as JSON, as they were written. Raises: `FormatError` for what is no JSON object."""
    arguments_of(call)
    return call.arguments.strip() or "{}"


def write_value(value: Json) -> str:
    """A value where a text stands as it is, and all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def think(message: Message, opener: str = "<think>", closer: str = "</think>") -> str:
    """The thinking before all else, if there is some."""
    return f"{opener}\n{message.reasoning}\n{closer}\n\n" if message.reasoning else ""


def join_parts(message: Message, calls: str, between: str = "\n") -> str:
    """Thinking, what is said, and the calls."""
    said = f"{message.content}{between}" if message.content and calls else message.content
    return f"{think(message)}{said}{calls}"


encode = msgspec.json.Encoder().encode
