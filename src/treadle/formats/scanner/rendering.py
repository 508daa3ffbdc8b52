"""Functions that write the parts which formats have in common."""

import json

import msgspec

from treadle.core.errors import FormatError
from treadle.core.types import Json, Message, ToolCall
from treadle.formats.scanner.json_body import decode


def arguments_of(call: ToolCall) -> dict[str, Json]:
    """Return the arguments as a value. Raises: `FormatError` if they are not a JSON object."""
    try:
        value = decode(call.arguments) if call.arguments.strip() else {}
    except ValueError as error:
        raise FormatError(f"the arguments of {call.name!r} are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"the arguments of {call.name!r} are not a JSON object: {call.arguments[:80]!r}")
    return value


def write_arguments(call: ToolCall) -> str:
    """Return the arguments as the JSON text that the model wrote. Raises: `FormatError` if they are not a
    JSON object."""
    arguments_of(call)
    return call.arguments.strip() or "{}"


def write_value(value: Json) -> str:
    """Return a string unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def think(message: Message, opener: str = "<think>", closer: str = "</think>") -> str:
    """Return the reasoning within its tags, or an empty string if there is none."""
    return f"{opener}\n{message.reasoning}\n{closer}\n\n" if message.reasoning else ""


def join_parts(message: Message, calls: str, between: str = "\n") -> str:
    """Return the reasoning, the content and the calls as one text."""
    said = f"{message.content}{between}" if message.content and calls else message.content
    return f"{think(message)}{said}{calls}"


encode = msgspec.json.Encoder().encode
