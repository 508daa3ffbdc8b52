"""The formats of DeepSeek: V3 and R1 (a name and fenced JSON), V3.1 (a name and JSON), V3.2 (elements with
typed values)."""

import re

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat
from treadle.formats.scanner.elements import make_elements, read_function
from treadle.formats.scanner.headed import read_headed
from treadle.formats.scanner.json_body import after_space
from treadle.formats.scanner.reader import Found, Reader
from treadle.formats.scanner.rendering import arguments_of, think, write_arguments, write_value

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEP = "<｜tool▁sep｜>"
FINISH = "<｜end▁of▁sentence｜>"
_ASCII = {
    item: item.replace("｜", "|").replace("▁", "_") for item in (BEGIN, END, CALL, CALL_END, SEP, FINISH)
}
_CLOSERS = (CALL_END, _ASCII[CALL_END])
_NEXT = (CALL, _ASCII[CALL], END, _ASCII[END])
_HEAD = re.compile(r"([^\n<{`]*+)(?:<｜tool▁sep｜>|<\|tool_sep\|>)([^\n<{`]*+)")


class DeepSeekV3(TaggedFormat):
    """The format of V3 and R1-0528. Their distillations write the marks in ASCII."""

    name = "deepseek_v3"
    openers = (CALL, _ASCII[CALL])
    noise = (BEGIN, END, CALL_END, _ASCII[BEGIN], _ASCII[END], _ASCII[CALL_END])
    sections = (BEGIN, _ASCII[BEGIN])
    gap = 0
    ends = (FINISH, _ASCII[FINISH])

    def take(self, reader: Reader, found: Found) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_space(text, start + len(found.marker))
        head = _HEAD.match(text, position)
        closers, openers = _CLOSERS, _NEXT
        if head is None:
            return read_headed(reader, start, position, "", closers, openers)
        first, second = head[1].strip(), head[2].strip()
        # V3 writes `function` and then the name; V3.1 writes only the name.
        name = second or first
        return read_headed(reader, start, head.end(), name, closers, openers, unwraps=True)

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = [self._write(call.name, write_arguments(call)) for call in message.tool_calls]
        body = f"{BEGIN}{self.between.join(calls)}{END}" if calls else ""
        return f"{think(message)}{message.content}{body}"

    between = "\n"

    def _write(self, name: str, arguments: str) -> str:
        return f"{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CALL_END}"

    def render_result(self, content: str, name: str, call_id: str | None) -> str:
        """Return the text that gives a tool's result to the model."""
        return f"<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>"


class DeepSeekV31(DeepSeekV3):
    """The format of V3.1."""

    name = "deepseek_v31"
    between = ""

    def _write(self, name: str, arguments: str) -> str:
        return f"{CALL}{name}{SEP}{arguments}{CALL_END}"


_TAG = "｜DSML｜"
DSML = make_elements(
    re.compile(rf"<{_TAG}(?:invoke|tool)\s++name=\"(?P<name>[^\"\n]++)\"\s*+>"),
    f"<{_TAG}invoke",
    f"</{_TAG}invoke>",
    re.compile(
        rf"<{_TAG}parameter\s++name=\"(?P<key>[^\"\n]++)\"\s*+(?:string=\"(?P<typed>true|false)\")?+\s*+>"
    ),
    f"<{_TAG}parameter",
    f"</{_TAG}parameter>",
    trims_newline=False,
    is_typed=True,
)
_WRAPPERS = ("function_calls", "tool_calls", "toolcalls")


class DeepSeekV32(TaggedFormat):
    """The format of V3.2, and of V4, which has another name for the element around the calls."""

    name = "deepseek_v32"
    openers = (f"<{_TAG}invoke", f"<{_TAG}tool ")
    noise = tuple([f"<{slash}{_TAG}{name}>" for name in _WRAPPERS for slash in ("", "/")])
    sections = tuple([f"<{_TAG}{name}>" for name in _WRAPPERS])
    gap = 2
    ends = (FINISH,)

    def take(self, reader: Reader, found: Found) -> int:
        """Read the call at `found` and return the position after it."""
        start = found.position
        return read_function(DSML, reader, start, start, (), (*self.openers, f"</{_TAG}function_calls>"))

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for call in message.tool_calls:
            parameters = "".join(
                f'<{_TAG}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
                f"{write_value(value)}</{_TAG}parameter>\n"
                for key, value in arguments_of(call).items()
            )
            calls.append(f'<{_TAG}invoke name="{call.name}">\n{parameters}</{_TAG}invoke>\n')
        wrapped = f"<{_TAG}function_calls>\n{''.join(calls)}</{_TAG}function_calls>" if calls else ""
        between = "\n\n" if message.content and calls else ""
        return f"{think(message)}{message.content}{between}{wrapped}"
