"""What a row loses in a format: the kinds of losses, and functions that find them by comparing rows."""

from collections.abc import Iterator, Mapping, Set
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from treadle.core.types import Json, Message, ToolCall
from treadle.export.rows import Row


class Loss(StrEnum):
    """A part of a row that a format cannot hold. The value is its name in messages."""

    CONVERSATION = "the conversation before the answer"
    REASONING = "reasoning"
    ARGUMENTS = "the exact text of arguments, whose values are kept"
    CALL_IDS = "the ids of calls"
    ERRORS = "which results are errors"
    OPAQUE = "data that only the model's provider can read"
    SERVER_CALLS = "calls that the model's server made"
    PARTS = "images, audio and documents"
    TOOLS = "the definitions of tools"
    TOOL_LIMITS = "effects, limits and output schemas of tools"
    LINEAGE = "lineage"


COMMON_LOSSES = (Loss.OPAQUE, Loss.SERVER_CALLS, Loss.PARTS, Loss.TOOL_LIMITS)
"""The losses that all formats except `treadle` have."""


def find_losses(before: Row, after: Row) -> tuple[Loss, ...]:
    """Return what `after` lacks in comparison with `before`.

    `after` is `before`, written and read in another format.
    """
    found = {*_compare_messages(before, after)}
    if before.lineage != after.lineage:
        found.add(Loss.LINEAGE)
    if before.tools != after.tools:
        texts = [
            [(tool.name, tool.description, tool.parameters) for tool in row.tools] for row in (before, after)
        ]
        found.add(Loss.TOOL_LIMITS if texts[0] == texts[1] else Loss.TOOLS)
    return tuple([loss for loss in Loss if loss in found])


def _compare_messages(before: Row, after: Row) -> Iterator[Loss]:
    if [_outline(message) for message in before.messages] != [
        _outline(message) for message in after.messages
    ]:
        yield Loss.CONVERSATION
        return
    for old, new in zip(before.messages, after.messages, strict=True):
        if (old.reasoning or None) != (new.reasoning or None):
            yield Loss.REASONING
        if old.opaque != new.opaque or [c.opaque for c in old.tool_calls] != [
            c.opaque for c in new.tool_calls
        ]:
            yield Loss.OPAQUE
        if old.server_calls != new.server_calls:
            yield Loss.SERVER_CALLS
        if old.parts != new.parts:
            yield Loss.PARTS
        if old.is_error != new.is_error:
            yield Loss.ERRORS
        if [call.arguments for call in old.tool_calls] != [call.arguments for call in new.tool_calls]:
            yield Loss.ARGUMENTS
        ids = [(item.call_id, *[call.call_id for call in item.tool_calls]) for item in (old, new)]
        if ids[0] != ids[1]:
            yield Loss.CALL_IDS


def _outline(message: Message) -> object:
    """Return the parts of a message that every format with messages must keep."""
    calls = [(call.name, _value(call)) for call in message.tool_calls]
    return message.role, message.content, message.name, calls


def _value(call: ToolCall) -> Json:
    try:
        # The text tells true from 1, and 1 from 1.0.
        return repr(call.parsed)
    except msgspec.DecodeError:
        return call.arguments


def find_unread(raw: Mapping[str, Json], again: Mapping[str, Json], known: Set[str]) -> tuple[str, ...]:
    """Return the keys of a row that its format does not read, as texts for people.

    `again` is the row after reading and writing it. `known` are keys that are read and written under another name.
    Keys within messages are compared too.
    """
    found = [
        f"the key {key!r}"
        for key, value in raw.items()
        if key not in again and key not in known and _has(value)
    ]
    for key, value in raw.items():
        others = again.get(key)
        if isinstance(value, dict) and isinstance(others, dict):
            found += [
                f"the key {name!r} in {key!r}" for name in value if name not in others and _has(value[name])
            ]
        elif isinstance(value, list) and isinstance(others, list):
            kept = {name for item in others if isinstance(item, dict) for name in item}
            lost = {
                name: None
                for item in value
                if isinstance(item, dict)
                for name, inner in item.items()
                if name not in kept and _has(inner)
            }
            found += [f"the key {name!r} in {key!r}" for name in lost]
    return tuple(found)


def _has(value: Json) -> bool:
    return value not in (None, "", [], {})


def without_reasoning(row: Row) -> Row:
    """Return the row without its reasoning."""
    return replace(row, messages=tuple([replace(message, reasoning=None) for message in row.messages]))
