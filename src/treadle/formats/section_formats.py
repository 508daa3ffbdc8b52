"""The formats with a section of calls that have a head: DeepSeek V3 and R1 (a name and fenced JSON), V3.1 (a name
and JSON), and Kimi K2 (an id, which contains the name, and JSON)."""

import re

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat
from treadle.formats.scanner.headed import read_headed
from treadle.formats.scanner.json_body import after_space
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks
from treadle.formats.scanner.values import think, write_arguments

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
    result = "<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>"
    openers = (CALL, _ASCII[CALL])
    noise = (BEGIN, END, CALL_END, _ASCII[BEGIN], _ASCII[END], _ASCII[CALL_END])
    sections = (BEGIN, _ASCII[BEGIN])
    gap = 0
    ends = (FINISH, _ASCII[FINISH])

    def take(self, reader: Reader, found: FoundMarker) -> int:
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


class DeepSeekV31(DeepSeekV3):
    """The format of V3.1."""

    name = "deepseek_v31"
    between = ""

    def _write(self, name: str, arguments: str) -> str:
        return f"{CALL}{name}{SEP}{arguments}{CALL_END}"


_KIMI_BEGIN, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_CALL_END, _KIMI_ARGUMENTS = (
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)
_KIMI_SINGULAR = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>")


class KimiK2(TaggedFormat):
    """The format `kimi_k2`."""

    name = "kimi_k2"
    openers = (_KIMI_CALL,)
    noise = (_KIMI_BEGIN, _KIMI_END, _KIMI_CALL_END, *_KIMI_SINGULAR)
    sections = (_KIMI_BEGIN, _KIMI_SINGULAR[0])
    gap = 0
    ends = ("<|im_end|>",)

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_marks(text, start + len(_KIMI_CALL), (_KIMI_CALL,))
        at = reader.find(_KIMI_ARGUMENTS, position)
        head = text[position : min(at, position + 256) if at != -1 else position + 256]
        if at == -1 or at - position > 256 or "<|" in head or "{" in head:
            return read_headed(reader, start, position, "", (_KIMI_CALL_END,), (_KIMI_CALL, _KIMI_END))
        call_id = head.strip()
        name = _name_in(call_id)
        after = at + len(_KIMI_ARGUMENTS)
        return read_headed(
            reader, start, after, name, (_KIMI_CALL_END,), (_KIMI_CALL, _KIMI_END), call_id=call_id or None
        )

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for index, call in enumerate(message.tool_calls):
            is_ours = call.call_id.startswith("functions.") and _name_in(call.call_id) == call.name
            call_id = call.call_id if is_ours else f"functions.{call.name}:{index}"
            calls.append(f"{_KIMI_CALL}{call_id}{_KIMI_ARGUMENTS}{write_arguments(call)}{_KIMI_CALL_END}")
        section = f"{_KIMI_BEGIN}{''.join(calls)}{_KIMI_END}" if calls else ""
        return f"{think(message)}{message.content}{section}"

    def render_result(self, content: str, name: str, call_id: str | None) -> str:
        """Return the text that gives a tool's result to the model."""
        return f"## Return of {call_id or f'functions.{name}:0'}\n{content}"


def _name_in(call_id: str) -> str:
    """Return the tool's name in an id such as `functions.name:0`, or an empty string if the id has no name."""
    name, colon, number = call_id.removeprefix("functions.").rpartition(":")
    if not colon or not number.isdecimal():
        name = call_id.removeprefix("functions.")
    return "" if call_id.isdigit() or name == "functions" or "\n" in name else name
