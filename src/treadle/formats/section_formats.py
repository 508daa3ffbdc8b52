"""The formats with a section of calls that have a head: DeepSeek V3 and R1 (a name and fenced JSON), V3.1 (a name
and JSON), and Kimi K2 (an id, which contains the name, and JSON)."""

import re

from treadle.core.types import ToolCall
from treadle.formats.scanner.base import TaggedFormat
from treadle.formats.scanner.headed import read_headed
from treadle.formats.scanner.json_body import after_space
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks

_HEAD = re.compile(r"([^\n<{`]*+)(?:<｜tool▁sep｜>|<\|tool_sep\|>)([^\n<{`]*+)")


class DeepSeekV3(TaggedFormat):
    """The format of V3 and R1-0528. Their distillations write the marks in ASCII."""

    name = "deepseek_v3"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_space(text, start + len(found.marker))
        head = _HEAD.match(text, position)
        if head is None:
            return read_headed(reader, start, position, "", self.closers, self.stops)
        first, second = head[1].strip(), head[2].strip()
        # V3 writes `function` and then the name; V3.1 writes only the name.
        name = second or first
        return read_headed(reader, start, head.end(), name, self.closers, self.stops, unwraps=True)


class DeepSeekV31(DeepSeekV3):
    """The format of V3.1."""

    name = "deepseek_v31"


_ARGUMENTS = "<|tool_call_argument_begin|>"


class KimiK2(TaggedFormat):
    """The format `kimi_k2`."""

    name = "kimi_k2"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_marks(text, start + len(self.openers[0]), self.openers)
        at = reader.find(_ARGUMENTS, position)
        head = text[position : min(at, position + 256) if at != -1 else position + 256]
        if at == -1 or at - position > 256 or "<|" in head or "{" in head:
            return read_headed(reader, start, position, "", self.closers, self.stops)
        call_id = head.strip()
        name = _name_in(call_id)
        after = at + len(_ARGUMENTS)
        return read_headed(reader, start, after, name, self.closers, self.stops, call_id=call_id or None)

    def id_of(self, call: ToolCall, place: int) -> str:
        """See `Format.id_of`. The id has the name of the tool."""
        is_ours = call.call_id.startswith("functions.") and _name_in(call.call_id) == call.name
        return call.call_id if is_ours else f"functions.{call.name}:{place}"

    def render_result(self, content: str, name: str, call_id: str | None) -> str:
        """Return the text that gives a tool's result to the model."""
        return f"## Return of {call_id or f'functions.{name}:0'}\n{content}"


def _name_in(call_id: str) -> str:
    """Return the tool's name in an id such as `functions.name:0`, or an empty string if the id has no name."""
    name, colon, number = call_id.removeprefix("functions.").rpartition(":")
    if not colon or not number.isdecimal():
        name = call_id.removeprefix("functions.")
    return "" if call_id.isdigit() or name == "functions" or "\n" in name else name
