"""The base of all bodies of events, the version of their types, and what is streamed and never journalled.

A new version adds optional fields to bodies, so that older journals can still be read.
"""

from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from treadle.core.types import ServerCall

VERSION = "2.8"
"""The version of the event types, `major.minor`. A reader refuses a newer major version.

Before 2.1, inferences that were lost did not count for budgets. Before 2.2, contexts were not compacted, and a turn
ended with an answer that had no content. Before 2.3, token ids and log probabilities were lists of numbers. Before
2.4, inferences whose answer was lost counted as steps. Before 2.5, an estimate alone could end a turn. Before
2.6, the outcome of a pure call that was stopped was unknown. Before 2.7, a turn that a limit ended before its first
inference had no error, and an approval on which nobody decided counted as working time. Before 2.8, calls of
external tools counted for `max_tool_calls`.
"""


@lru_cache(maxsize=64)
def is_since(version: str, major: int, minor: int) -> bool:
    """Return whether the event version of a run is `major.minor` or later."""
    parts = version.split(".")
    return all(part.isdecimal() for part in parts) and [int(part) for part in parts] >= [major, minor]


class Body(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False, tag_field="type"):
    """The base of all bodies."""

    at: float = 0.0
    """The time in seconds since the epoch, by the clock of the process that appended the event. A new body has no
    time; the driver sets it when it appends the event."""
    worked_seconds: float | None = None
    """How long the turn had been worked on, by a monotonic clock and without pauses and waits for a decision.
    `None` if the policy has no deadline."""
    inbox: int | None = None
    """The number of the inbox message that this event results from, see `core.inbox`. The run has then taken in
    all messages up to this number. `None`: the event results from no such message."""


class BodyWithContents(Body, frozen=True, kw_only=True, gc=False):
    """The base of the bodies that refer to contents in the store."""

    contents: dict[str, str] | None = None
    """The contents that the body refers to, by hash, in base64. Only in an exported journal; `None` elsewhere."""


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


class ServerCallDelta(Struct, frozen=True, gc=False, tag_field="type", tag="server_call_delta"):
    """A tool call that the model's server makes by itself during the answer: its start, or its result."""

    index: int
    """The position of the call among those of the server, from 0."""
    call: ServerCall
    """The call. Its result and often its arguments are empty as long as it runs."""
    is_done: bool
    """True if the call has ended."""


class ToolProgress(Struct, frozen=True, gc=False, tag_field="type", tag="tool_progress"):
    """A progress report of a running tool."""

    call_id: str
    text: str


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | ServerCallDelta | ToolProgress
"""A piece of output that is streamed to listeners and never journalled."""
