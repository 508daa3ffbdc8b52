"""The formats of Mistral: a list behind `[TOOL_CALLS]` (tokenizers up to v7), or `[TOOL_CALLS]name[ARGS]{}`
for each call."""

import re

from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.headed import read_headed
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks
from treadle.formats.scanner.parsed import to_json, to_openai

MARK = "[TOOL_CALLS]"
_HEAD = re.compile(
    r"\s*+([^\s\[\]{}\"<>`|]++)\s*+(?:\[CALL_ID\]\s*+([^\s\[\]{}\"<>`|]++)\s*+)?+(?:\[ARGS\]|(?=\{))"
)


class Mistral(TaggedFormat):
    """The formats of Mistral."""

    name = "mistral"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_marks(text, start + len(found.marker), (MARK,))
        if text[position : position + 1] in ("[", "{"):
            return self.take_json(reader, start, position)
        head = _HEAD.match(text, position)
        if head is None:
            end = resync(reader, position, position, (), (MARK,))
            at_end = position == len(text)
            reader.add_error(
                "the call is cut off" if at_end else "there is no call after the mark", start, end
            )
            return end
        return read_headed(reader, start, head.end(), head[1], (), (MARK,), call_id=head[2])

    def render_tools(self, tools):  # type: ignore[no-untyped-def]
        """Return the text that describes `tools` in the system message."""
        listed = to_json([to_openai(tool) for tool in tools])
        return f"[AVAILABLE_TOOLS]{listed}[/AVAILABLE_TOOLS]"
