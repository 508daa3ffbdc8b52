"""Text formats of tool calls: parse the text that a model wrote, and render calls as it would write them.

Read first: `parsing.py` (the functions that other rooms call), `scanner/base.py` (how a format finds its calls)
and `hermes.py` (a format). A format is a class in a file of its own or of its family, its grammar in
`scanner/grammars.toml`, and a line in `FORMATS` of `parsing.py`; the marks by which it is detected are in
`marks.toml`. Other packages register an entry point in
the group `treadle.formats`. The tests in `tests/formats` then check that parsing inverts rendering, that
cutting the text changes nothing, and that hostile texts do no harm.
"""

from treadle.formats.parsing import (
    AUTO,
    FORMATS,
    IncrementalParser,
    detect,
    find_format,
    parse,
    quote_result,
    render,
    render_result,
    render_tools,
)
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
