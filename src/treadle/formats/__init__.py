"""Text formats of tool calls: what a model wrote, as calls, and calls as it would write them."""

from treadle.formats.engine.parsing import (
    FORMATS,
    IncrementalParser,
    detect,
    parse,
    render,
    render_result,
    render_tools,
)
from treadle.formats.engine.types import ContentPiece, Parsed, ParsedCall, ParseError, Piece, ReasoningPiece

__all__ = [
    "FORMATS",
    "ContentPiece",
    "IncrementalParser",
    "ParseError",
    "Parsed",
    "ParsedCall",
    "Piece",
    "ReasoningPiece",
    "detect",
    "parse",
    "render",
    "render_result",
    "render_tools",
]
