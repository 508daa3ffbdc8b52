"""The formats whose calls are JSON behind a mark and, in most of them, a head.

The heads of DeepSeek V3, R1 and V3.1 have the name; that of Kimi K2 is an id, which contains the name. Mistral
writes a list behind `[TOOL_CALLS]` (tokenizers up to v7), or `[TOOL_CALLS]name[ARGS]{}` for each call, and Granite
a list of calls (3.x), one object in a tag (4.x), or a series of calls (20b-functioncalling).
"""

import re
from collections.abc import Sequence

from treadle.core.types import ToolCall, ToolSpec
from treadle.formats.scanner.base import TaggedFormat, read_headed, resync
from treadle.formats.scanner.json_body import after_space
from treadle.formats.scanner.markers import FoundMarker, Reader, after_fence, after_marks
from treadle.formats.scanner.parsed import to_json, to_openai

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


_MISTRAL = "[TOOL_CALLS]"
_MISTRAL_HEAD = re.compile(
    r"\s*+([^\s\[\]{}\"<>`|]++)\s*+(?:\[CALL_ID\]\s*+([^\s\[\]{}\"<>`|]++)\s*+)?+(?:\[ARGS\]|(?=\{))"
)


class Mistral(TaggedFormat):
    """The formats of Mistral."""

    name = "mistral"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_marks(text, start + len(found.marker), (_MISTRAL,))
        if text[position : position + 1] in ("[", "{"):
            return self.take_json(reader, start, position)
        head = _MISTRAL_HEAD.match(text, position)
        if head is None:
            end = resync(reader, position, position, (), (_MISTRAL,))
            at_end = position == len(text)
            reader.add_error(
                "the call is cut off" if at_end else "there is no call after the mark", start, end
            )
            return end
        return read_headed(reader, start, head.end(), head[1], (), (_MISTRAL,), call_id=head[2])

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        """Return the text that describes `tools` in the system message."""
        listed = to_json([to_openai(tool) for tool in tools])
        return f"[AVAILABLE_TOOLS]{listed}[/AVAILABLE_TOOLS]"


class Granite(TaggedFormat):
    """The formats of Granite."""

    name = "granite"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        position = after_marks(reader.text, found.position + len(found.marker), self.openers)
        return self.take_json(reader, found.position, after_fence(reader.text, position))
