"""The formats of Mistral: a list behind `[TOOL_CALLS]` (tokenizers up to v7), or `[TOOL_CALLS]name[ARGS]{}`
for each call."""

import json
import re

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.headed import read_headed
from treadle.formats.scanner.json_body import BadJson, name_of
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks
from treadle.formats.scanner.parsed import to_openai
from treadle.formats.scanner.values import write_arguments

MARK, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(
    r"\s*+([^\s\[\]{}\"<>`|]++)\s*+(?:\[CALL_ID\]\s*+([^\s\[\]{}\"<>`|]++)\s*+)?+(?:\[ARGS\]|(?=\{))"
)


class Mistral(TaggedFormat):
    """The formats of Mistral."""

    name = "mistral"
    result = "[TOOL_RESULTS]{content}[/TOOL_RESULTS]"
    reasoning = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))
    may_begin_in_reasoning = False
    openers = (MARK, "[TOOL_CALLS")
    ends = ("</s>",)

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_marks(text, start + len(found.marker), (MARK,))
        if text[position : position + 1] in ("[", "{"):
            return self._take_list(reader, start, position)
        head = _HEAD.match(text, position)
        if head is None:
            end = resync(reader, position, position, (), (MARK,))
            at_end = position == len(text)
            reader.add_error(
                "the call is cut off" if at_end else "there is no call after the mark", start, end
            )
            return end
        return read_headed(reader, start, head.end(), head[1], (), (MARK,), call_id=head[2])

    def _take_list(self, reader: Reader, start: int, position: int) -> int:
        try:
            end, value = reader.read_json(position)
        except BadJson as error:
            end = resync(reader, position, error.position, (), (MARK,))
            reader.add_error(f"not valid JSON: {error}", start, end, name_of(reader.text[start:end]))
        else:
            reader.add_calls(reader.text[position:end], value, start, end)
        return end

    def render(self, message: Message) -> str:
        """Return `message` as text in the format of tokenizers from v13 on."""
        thought = f"[THINK]{message.reasoning}[/THINK]" if message.reasoning else ""
        calls = [f"{MARK}{call.name}{ARGS}{write_arguments(call)}" for call in message.tool_calls]
        return f"{thought}{message.content}{''.join(calls)}"

    def render_tools(self, tools):  # type: ignore[no-untyped-def]
        """Return the text that describes `tools` in the system message."""
        listed = json.dumps([to_openai(tool) for tool in tools], ensure_ascii=False)
        return f"[AVAILABLE_TOOLS]{listed}[/AVAILABLE_TOOLS]"
