"""Text formats of tool calls: parse the text that a model wrote, and render calls as it would write them.

Read first: `parsing.py` (the functions that other rooms call), `scanner/base.py` (how a format finds its calls)
and `hermes.py` (a format). A format is a class in a file of its own or of its family, its grammar in
`scanner/grammars.toml`, and a line in `FORMATS` of `parsing.py`; the marks by which it is detected are in
`marks.toml`. Other packages register an entry point in
the group `treadle.formats`. The tests in `tests/formats` then check that parsing inverts rendering, that
cutting the text changes nothing, and that hostile texts do no harm.
"""

from treadle.formats.parsing import AUTO as AUTO
from treadle.formats.parsing import FORMATS as FORMATS
from treadle.formats.parsing import IncrementalParser as IncrementalParser
from treadle.formats.parsing import detect as detect
from treadle.formats.parsing import find_format as find_format
from treadle.formats.parsing import parse as parse
from treadle.formats.parsing import quote_result as quote_result
from treadle.formats.parsing import render as render
from treadle.formats.parsing import render_result as render_result
from treadle.formats.parsing import render_tools as render_tools
from treadle.formats.scanner.parsed import ContentPiece as ContentPiece
from treadle.formats.scanner.parsed import Parsed as Parsed
from treadle.formats.scanner.parsed import ParsedCall as ParsedCall
from treadle.formats.scanner.parsed import ParseError as ParseError
from treadle.formats.scanner.parsed import Piece as Piece
from treadle.formats.scanner.parsed import ReasoningPiece as ReasoningPiece
