"""Types for the parsed text of a model: content, reasoning, tool calls and errors."""

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from treadle.core.tool_cache import ToolCache
from treadle.core.types import Json, ToolSpec


class ParsedCall(Struct, frozen=True):
    """One tool call in the text."""

    name: str
    """The name that the model wrote, whether or not there is such a tool."""
    arguments: dict[str, Json]
    raw: str
    """The text of the call, including its tags."""
    arguments_text: str = ""
    """The arguments as JSON. If the model wrote JSON, this is its own text."""
    call_id: str | None = None
    """The call's id, or `None` if the format has no ids."""
    position: int = 0
    """The position of `raw` in the text, in characters."""
    is_closed: bool = True
    """False if the text ended where more arguments could follow, so that the call may be cut off."""


class ParseError(Struct, frozen=True):
    """Text that looks like a tool call but could not be read as one."""

    position: int
    """The position in the text, in characters."""
    reason: str
    raw: str
    """The text that the error is about. It is not part of any call."""
    name: str | None = None
    """The name of the tool, or `None` if it is unknown."""
    is_text: bool = False
    """True if the text may be ordinary text, in which case the content or the reasoning contains it too."""


class Parsed(Struct, frozen=True):
    """The result of parsing a whole text."""

    reasoning: str | None = None
    """The model's reasoning, or `None` if the text has none."""
    content: str = ""
    tool_calls: tuple[ParsedCall, ...] = ()
    errors: tuple[ParseError, ...] = ()


class ContentPiece(Struct, frozen=True):
    """A part of the content."""

    text: str


class ReasoningPiece(Struct, frozen=True):
    """A part of the reasoning."""

    text: str


Piece: TypeAlias = ContentPiece | ReasoningPiece | ParsedCall | ParseError
"""A part of the text that further text cannot change. All pieces together equal `Parsed`."""


class ToolSchemas(dict[str, Mapping[str, Json]]):
    """A mapping from a tool's name to the JSON Schema of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[tuple[str, str], frozenset[str]] = {}
        """A cache for `types_of`: tool and parameter to the types of the parameter's values."""


def schemas_of(tools: Iterable[ToolSpec] | None) -> ToolSchemas:
    """Return the schemas of `tools`, by tool name. The result is cached if `tools` is a tuple."""
    return _SCHEMAS.find(tools) if isinstance(tools, tuple) else _read_schemas(tools or ())


def _read_schemas(tools: Iterable[ToolSpec]) -> ToolSchemas:
    found = ToolSchemas()
    found.update({tool.name: tool.parameters for tool in tools})
    return found


_SCHEMAS = ToolCache(_read_schemas)


def to_openai(tool: ToolSpec) -> dict[str, Json]:
    """Return a tool in OpenAI's form, in which most formats write tools into the prompt."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


to_json = json.JSONEncoder(ensure_ascii=False).encode
"""A function that encodes a value as JSON with spaces after separators, as chat templates do."""
