"""Text formats of tool calls: parse the text that a model wrote, and render calls as it would write them."""

from treadle.formats.parsing import (
    IncrementalParser,
    parse,
    quote_result,
    render,
    render_result,
    render_tools,
)
from treadle.formats.registry import AUTO, FORMATS, detect, find_format
from treadle.formats.scanner.parsed import ContentPiece, Parsed, ParsedCall, ParseError, Piece, ReasoningPiece

__all__ = [
    "AUTO",
    "FORMATS",
    "ContentPiece",
    "IncrementalParser",
    "ParseError",
    "Parsed",
    "ParsedCall",
    "Piece",
    "ReasoningPiece",
    "detect",
    "find_format",
    "parse",
    "quote_result",
    "render",
    "render_result",
    "render_tools",
]
