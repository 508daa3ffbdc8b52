"""The format of Qwen3-Coder, Qwen3.5, Nemotron 3 and Step 3.5: a function with its parameters as elements,
with values as plain text."""

from treadle.core.types import Message
from treadle.formats.hermes import Hermes
from treadle.formats.scanner.base import TaggedFormat
from treadle.formats.scanner.elements import CODER, read_function
from treadle.formats.scanner.json_body import after_space
from treadle.formats.scanner.reader import Found, Reader
from treadle.formats.scanner.rendering import arguments_of, join_parts, write_value

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

    def take(self, reader: Reader, found: Found) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = start
        while text.startswith(OPEN, position):
            position = after_space(text, position + len(OPEN))
        if text[position : position + 1] in ("{", "["):
            # The model wrote JSON, as in the format `hermes`.
            return self._json.take(reader, found)
        return read_function(CODER, reader, start, position, (CLOSE,), (OPEN, FUNCTION))

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for call in message.tool_calls:
            parameters = "".join(
                f"<parameter={key}>\n{write_value(value)}\n</parameter>\n"
                for key, value in arguments_of(call).items()
            )
            calls.append(f"{OPEN}\n{FUNCTION}{call.name}>\n{parameters}</function>\n{CLOSE}")
        return join_parts(message, "\n".join(calls))
