"""The formats of Granite: lists of calls (3.x), one object in a tag (4.x), or a series of calls
(20b-functioncalling)."""

import json

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.json_body import (
    UNREAD,
    BadJson,
    after_space,
    decode,
    name_of,
    raw_items,
    read_call,
    to_call,
)
from treadle.formats.scanner.markers import FoundMarker, Reader
from treadle.formats.scanner.values import think, write_arguments

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
        position = after_space(text, start + len(found.marker))
        while text.startswith(self.openers, position):
            marker = next(item for item in self.openers if text.startswith(item, position))
            position = after_space(text, position + len(marker))
        if text.startswith("```", position):
            newline = text.find("\n", position, position + 20)
            position = after_space(text, newline + 1 if newline != -1 else position + 3)
        try:
            if text[position : position + 1] not in ("[", "{"):
                raise BadJson(
                    "the call is cut off" if position == len(text) else "the call contains no JSON", position
                )
            end, value = reader.end_and_value(position)
            body = text[position:end]
            if value is UNREAD:
                value = decode(body)
        except (BadJson, ValueError) as error:
            reached = error.position if isinstance(error, BadJson) else end
            after = resync(reader, position, reached, (TAG_CLOSE,), self.openers)
            reader.add_error(f"not valid JSON: {error}", start, after, name_of(text[start:after]))
            return after
        after = after_space(text, end)
        if text.startswith("```", after):
            end = after + 3
            after = after_space(text, end)
        for closer in self.noise:
            if text.startswith(closer, after):
                end = after + len(closer)
        if isinstance(value, dict):
            reader.attempt(lambda: read_call(body, value), start, end)
            return end
        if not value:
            reader.add_error("an empty list of calls", start, end)
        for item, raw in zip(value, raw_items(body), strict=True):
            reader.attempt(lambda item=item, raw=raw: to_call(item, raw), start, end)  # type: ignore[misc]
        return end

    def render(self, message: Message) -> str:
        """Return `message` as text in the format of Granite 3.x."""
        calls = [
            f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {write_arguments(call)}}}'
            for call in message.tool_calls
        ]
        listed = f"{MARK}[{', '.join(calls)}]" if calls else ""
        return f"{think(message)}{message.content}{listed}"
