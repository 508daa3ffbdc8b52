"""The formats of Granite: lists of calls (3.x), one object in a tag (4.x), or a series of calls
(20b-functioncalling)."""

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.json_body import BadJson, name_of
from treadle.formats.scanner.markers import FENCE, FoundMarker, Reader, after_closer, after_fence, after_marks
from treadle.formats.scanner.values import think, write_call

MARK = "<|tool_call|>"
TAG, TAG_CLOSE = "<tool_call>", "</tool_call>"
FUNCTION = "<function_call>"


class Granite(TaggedFormat):
    """The formats of Granite."""

    name = "granite"
    reasoning = (
        ("<think>", "</think>"),
        ("Here is my thought process:", "Here is my response:"),
        ("Here's my thought process:", "Here's my response:"),
    )
    may_begin_in_reasoning = False
    openers = (MARK, TAG, FUNCTION)
    noise = (TAG_CLOSE, "</function_call>")
    ends = ("<|end_of_text|>", "<|endoftext|>")

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_fence(text, after_marks(text, start + len(found.marker), self.openers))
        try:
            if text[position : position + 1] not in ("[", "{"):
                raise BadJson(
                    "the call is cut off" if position == len(text) else "the call contains no JSON", position
                )
            end, value = reader.read_json(position)
        except BadJson as error:
            after = resync(reader, position, error.position, (TAG_CLOSE,), self.openers)
            reader.add_error(f"not valid JSON: {error}", start, after, name_of(text[start:after]))
            return after
        body = text[position:end]
        end = after_closer(text, after_closer(text, end, (FENCE,)), self.noise)
        reader.add_calls(body, value, start, end)
        return end

    def render(self, message: Message) -> str:
        """Return `message` as text in the format of Granite 3.x."""
        calls = ", ".join(map(write_call, message.tool_calls))
        listed = f"{MARK}[{calls}]" if calls else ""
        return f"{think(message)}{message.content}{listed}"
