"""The format of GLM 4.5 to 4.7: a name, then pairs of keys and values, with values as plain text."""

import re

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat
from treadle.formats.scanner.elements import make_elements, read_function
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks
from treadle.formats.scanner.values import join_parts, write_parameters

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_CLOSE = "<arg_key>", "</arg_key>"
VALUE, VALUE_CLOSE = "<arg_value>", "</arg_value>"
_SPACE = r"(?:[ \t\r\n]|\\n)*+"
"""White space, which may have newlines that are written as a backslash and an `n`."""
_BLANKS = re.compile(_SPACE)


def _after_space(text: str, position: int) -> int:
    return _BLANKS.match(text, position).end()  # type: ignore[union-attr]


PAIRS = make_elements(
    re.compile(rf"(?P<name>[^<>{{}}\"\n \\]++){_SPACE}(?=</?(?:tool_call|arg_key|arg_value)>)"),
    OPEN,
    CLOSE,
    re.compile(
        rf"<arg_key>(?P<key>[^<]*[^<\s][^<]*)</arg_key>(?:{_SPACE}</arg_key>)*+(?:{_SPACE}<arg_value>|(?P<bare>))"
    ),
    KEY,
    VALUE_CLOSE,
    trims_newline=False,
    skip_space=_after_space,
)


class Glm45(TaggedFormat):
    """The format `glm45`."""

    name = "glm45"
    openers = (OPEN,)
    noise = (CLOSE,)
    ends = ("<|user|>", "<|observation|>", "<|endoftext|>")
    manual = (
        "For each function call, output the function name and arguments within the following XML format:\n"
        "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
        "...\n</tool_call>"
    )

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        position = after_marks(reader.text, found.position + len(OPEN), (OPEN,))
        return read_function(PAIRS, reader, found.position, position, (CLOSE,), (OPEN,))

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for call in message.tool_calls:
            pairs = write_parameters(call, f"{KEY}{{key}}{KEY_CLOSE}\n{VALUE}{{value}}{VALUE_CLOSE}\n")
            calls.append(f"{OPEN}{call.name}\n{pairs}{CLOSE}")
        return join_parts(message, "\n".join(calls))
