"""The pieces of output that are streamed to listeners and never journalled."""

from typing import TypeAlias

from msgspec import Struct


class TextDelta(Struct, frozen=True, gc=False, tag_field="type", tag="text_delta"):
    """A piece of the answer's text."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag_field="type", tag="reasoning_delta"):
    """A piece of the model's thinking."""

    text: str


class ToolCallDelta(Struct, frozen=True, gc=False, tag_field="type", tag="tool_call_delta"):
    """A piece of a tool call's arguments."""

    index: int
    """The position of the call in the message, from 0."""
    call_id: str | None
    """The id of the call; `None` if this piece does not repeat it."""
    name: str | None
    """The name of the tool; `None` if this piece does not repeat it."""
    arguments: str
    """The piece of the arguments' text."""


class ToolProgress(Struct, frozen=True, gc=False, tag_field="type", tag="tool_progress"):
    """A progress report of a running tool."""

    call_id: str
    text: str


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | ToolProgress
"""A piece of output that is streamed to listeners and never journalled."""
