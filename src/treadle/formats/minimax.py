"""The formats of MiniMax: M1 (JSON, one call on each line) and M2 (elements, with values as plain text)."""

import re

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.calls import read_call
from treadle.formats.scanner.elements import make_elements, read_function
from treadle.formats.scanner.json_body import BadJson, after_space, name_of
from treadle.formats.scanner.reader import Found, Reader
from treadle.formats.scanner.rendering import arguments_of, join_parts, write_value

M1, M1_CLOSE = "<tool_calls>", "</tool_calls>"
M2, M2_CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE = "<invoke"
ELEMENTS = make_elements(
    re.compile(r"<invoke\s++name=(?P<name>\"[^\"\n]++\"|'[^'\n]++'|[^\s\"'<>]++)\s*+>"),
    INVOKE,
    "</invoke>",
    re.compile(r"<parameter\s++name=(?P<key>\"[^\"\n]++\"|'[^'\n]++'|[^\s\"'<>]++)\s*+>"),
    "<parameter",
    "</parameter>",
    trims_newline=False,
)


class MiniMax(TaggedFormat):
    """The formats of MiniMax M1 and M2."""

    name = "minimax"
    openers = (M1, INVOKE)
    noise = (M2, M2_CLOSE, M1_CLOSE)
    sections = (M2,)
    ends = ("<end_of_sentence>", "[e~[")

    def take(self, reader: Reader, found: Found) -> int:
        """Read the call at `found` and return the position after it."""
        if found.marker == M1:
            return self._take_lines(reader, found.position)
        start = found.position
        return read_function(ELEMENTS, reader, start, start, (), (INVOKE, M2_CLOSE, M2))

    def _take_lines(self, reader: Reader, start: int) -> int:
        """Read the calls of M1, and return the position after them. An error in one line does not affect the
        others."""
        text = reader.text
        at = after_space(text, start + len(M1))
        if text.startswith((M1, INVOKE), at):
            return at
        begin = start
        while True:
            at = after_space(text, at)
            if text.startswith(M1_CLOSE, at):
                if begin == start:
                    reader.add_error("there is no call between the tags", start, at + len(M1_CLOSE))
                return at + len(M1_CLOSE)
            if at == len(text) or (text.startswith(M1, at) and begin != start):
                if begin == start:
                    reader.add_error("the call is cut off", start, at)
                return at
            try:
                if text[at] != "{":
                    raise BadJson(f"{text[at]!r} does not begin a call", at)
                end, value = reader.end_and_value(at)
            except BadJson as error:
                end = self._line_end(reader, at, error.position)
                reader.add_error(f"not valid JSON: {error.reason}", begin, end, name_of(text[at:end]))
            else:
                body = text[at:end]
                reader.attempt(lambda body=body, value=value: read_call(body, value), begin, end)  # type: ignore[misc]
            begin = at = end

    def _line_end(self, reader: Reader, at: int, reached: int) -> int:
        """Return the end of a malformed line: its newline, or the tag that closes all calls."""
        stop = resync(reader, at, reached, (), (M1_CLOSE, M1))
        newline = reader.find("\n", max(at + 1, reached))
        return stop if newline == -1 else min(stop, newline)

    def render(self, message: Message) -> str:
        """Return `message` as text in the format of M2."""
        calls = []
        for call in message.tool_calls:
            parameters = "".join(
                f'<parameter name="{key}">{write_value(value)}</parameter>\n'
                for key, value in arguments_of(call).items()
            )
            calls.append(f'<invoke name="{call.name}">\n{parameters}</invoke>\n')
        return join_parts(message, f"{M2}\n{''.join(calls)}{M2_CLOSE}" if calls else "")
