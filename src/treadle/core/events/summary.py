"""The text of one line that describes an event or a delta."""

from enum import Enum

from msgspec import Struct, structs

from treadle.core.types import Completion, Message, ToolCall, ToolResult

_LINE_CHARS = 160
_VALUE_CHARS = 60


def summarize(body: Struct) -> str:
    """Return the type of a body, and those of its fields that differ from their defaults, in one short line."""
    line = ", ".join(_fields(body))
    return f"{body.__struct_config__.tag}({line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + '…'})"


def _fields(value: Struct) -> list[str]:
    found = []
    for field in structs.fields(value):
        item = getattr(value, field.name)
        if field.name == "at" or item == field.default or item in (None, (), {}):
            continue
        if isinstance(item, Completion | Message | ToolResult | ToolCall):
            found += _fields(item)
        else:
            found.append(f"{field.name}={_write(item)}")
    return found


def _write(item: object) -> str:
    if isinstance(item, Enum):
        return str(item.value)
    if isinstance(item, str):
        return repr(item if len(item) <= _VALUE_CHARS else item[:_VALUE_CHARS] + "…")
    if isinstance(item, tuple | list):
        return f"[{', '.join(map(_write, item))}]"
    if isinstance(item, Struct):
        name = getattr(item, "name", None)
        return type(item).__name__ if name is None else str(name)
    return repr(item)
