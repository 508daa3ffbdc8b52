"""What a text of a model holds: its thinking, what it says, its calls, and what was meant as one and is none."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.types import Json, ToolSpec


class ParsedCall(Struct, frozen=True):
    """One tool call."""

    name: str
    """As the model wrote it, known or not."""
    arguments: dict[str, Json]
    raw: str
    """The text that it came from, its tags included."""
    arguments_text: str = ""
    """The arguments as JSON: the model's own text, where it wrote JSON."""
    call_id: str | None = None
    """Where the format has ids."""
    position: int = 0
    """Of `raw` in the text, in characters."""
    is_closed: bool = True
    """`False`: the text ended where more arguments could have come. It may have been cut off."""


class ParseError(Struct, frozen=True):
    """Something that was meant as a call, or looks like one, and was not taken."""

    position: int
    """In the text, in characters."""
    reason: str
    raw: str
    """The text that it is about. It is in no call."""
    name: str | None = None
    """The tool that was meant, where that can be told."""
    is_text: bool = False
    """It may be meant as text, and so the content, or the reasoning, holds it too."""


class Parsed(Struct, frozen=True):
    """The whole of a text."""

    reasoning: str | None = None
    """`None`: there is none."""
    content: str = ""
    tool_calls: tuple[ParsedCall, ...] = ()
    errors: tuple[ParseError, ...] = ()


class ContentPiece(Struct, frozen=True):
    """More of the content."""

    text: str


class ReasoningPiece(Struct, frozen=True):
    """More of the reasoning."""

    text: str


Piece: TypeAlias = ContentPiece | ReasoningPiece | ParsedCall | ParseError
"""What is certain of a text that is still coming. All pieces together are what `Parsed` says."""

ToolLike: TypeAlias = ToolSpec | Mapping[str, Json]
"""A tool: ours, or as OpenAI has it, with or without the `function` around it."""


class Schemas(dict[str, Mapping[str, Json]]):
    """Tool to the JSON Schema of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[tuple[str, str], frozenset[str]] = {}
        """Tool and parameter to the types that its values may have, as far as they were asked for."""


_MAX_KNOWN = 64
_known: dict[int, tuple[Iterable[ToolLike], Schemas]] = {}


def schemas_of(tools: Iterable[ToolLike] | None) -> Schemas:
    """The schemas by which values that are written without types are read."""
    if not isinstance(tools, tuple):
        return _read_schemas(tools or ())
    # The entry keeps the tools alive, so that their id stays theirs.
    entry = _known.get(id(tools))
    if entry is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        entry = _known[id(tools)] = (tools, _read_schemas(tools))
    return entry[1]


def _read_schemas(tools: Iterable[ToolLike]) -> Schemas:
    found = Schemas()
    for tool in tools:
        if isinstance(tool, ToolSpec):
            found[tool.name] = tool.parameters
        else:
            inner = tool.get("function", tool)
            schema = inner.get("parameters", inner.get("inputSchema", inner.get("input_schema")))
            found[str(inner.get("name", ""))] = schema if isinstance(schema, Mapping) else {}
    return found


def to_openai(tool: ToolLike) -> dict[str, Json]:
    """A tool as OpenAI has it, which is how most formats write tools into the prompt."""
    if isinstance(tool, ToolSpec):
        inner: dict[str, Json] = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }
    else:
        inner = dict(tool.get("function", tool))
    return {"type": "function", "function": inner}


def to_json(value: Json) -> str:
    """JSON with blanks, as templates write it."""
    import json

    return json.dumps(value, ensure_ascii=False)


encode = msgspec.json.Encoder().encode
