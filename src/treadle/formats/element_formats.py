"""The formats whose calls are elements with values as plain text: MiniMax M2, and Qwen3-Coder with its relatives
Qwen3.5, Nemotron 3 and Step 3.5. MiniMax M1 writes JSON, one call on each line."""

import re

from treadle.core.types import Message
from treadle.formats.hermes import Hermes
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.elements import CODER, make_elements, read_function
from treadle.formats.scanner.json_body import BadJson, after_space, name_of
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks
from treadle.formats.scanner.values import join_parts, write_parameters

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

    def take(self, reader: Reader, found: FoundMarker) -> int:
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
                reader.add_calls(text[at:end], value, begin, end)
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
            parameters = write_parameters(call, '<parameter name="{key}">{value}</parameter>\n')
            calls.append(f'<invoke name="{call.name}">\n{parameters}</invoke>\n')
        return join_parts(message, f"{M2}\n{''.join(calls)}{M2_CLOSE}" if calls else "")


OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION = "<function="


class Qwen3Coder(TaggedFormat):
    """The format `qwen3_coder`."""

    name = "qwen3_coder"
    openers = (OPEN, FUNCTION)
    noise = (CLOSE,)
    ends = ("<|im_end|>", "<|endoftext|>")
    manual = (
        "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
        "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
        "</function>\n</tool_call>"
    )

    def __init__(self) -> None:
        super().__init__()
        self._json = Hermes()

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_marks(text, start, (OPEN,))
        if text[position : position + 1] in ("{", "["):
            # The model wrote JSON, as in the format `hermes`.
            return self._json.take(reader, found)
        return read_function(CODER, reader, start, position, (CLOSE,), (OPEN, FUNCTION))

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for call in message.tool_calls:
            parameters = write_parameters(call, "<parameter={key}>\n{value}\n</parameter>\n")
            calls.append(f"{OPEN}\n{FUNCTION}{call.name}>\n{parameters}</function>\n{CLOSE}")
        return join_parts(message, "\n".join(calls))
