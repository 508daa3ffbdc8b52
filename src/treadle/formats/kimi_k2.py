"""The format of Kimi K2: a section of calls, each with its id, which contains the name, and JSON."""

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat
from treadle.formats.scanner.headed import read_headed
from treadle.formats.scanner.json_body import after_space
from treadle.formats.scanner.reader import Found, Reader
from treadle.formats.scanner.rendering import think, write_arguments

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END, ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_SINGULAR = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>")


class KimiK2(TaggedFormat):
    """The format `kimi_k2`."""

    name = "kimi_k2"
    openers = (CALL,)
    noise = (BEGIN, END, CALL_END, *_SINGULAR)
    sections = (BEGIN, _SINGULAR[0])
    gap = 0
    ends = ("<|im_end|>",)

    def take(self, reader: Reader, found: Found) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_space(text, start + len(CALL))
        while text.startswith(CALL, position):
            position = after_space(text, position + len(CALL))
        at = reader.find(ARGUMENTS, position)
        head = text[position : min(at, position + 256) if at != -1 else position + 256]
        if at == -1 or at - position > 256 or "<|" in head or "{" in head:
            return read_headed(reader, start, position, "", (CALL_END,), (CALL, END))
        call_id = head.strip()
        name = _name_in(call_id)
        after = at + len(ARGUMENTS)
        return read_headed(reader, start, after, name, (CALL_END,), (CALL, END), call_id=call_id or None)

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for index, call in enumerate(message.tool_calls):
            is_ours = call.call_id.startswith("functions.") and _name_in(call.call_id) == call.name
            call_id = call.call_id if is_ours else f"functions.{call.name}:{index}"
            calls.append(f"{CALL}{call_id}{ARGUMENTS}{write_arguments(call)}{CALL_END}")
        section = f"{BEGIN}{''.join(calls)}{END}" if calls else ""
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
