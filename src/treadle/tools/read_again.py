"""The tools `read_result` and `read_message`, by which a model reads what its context no longer holds."""

from collections.abc import Iterable, Sequence

from treadle.core.errors import ToolError
from treadle.core.types import Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.schema.validation import ArgumentChecker, own_spec

READ_RESULT, READ_MESSAGE = "read_result", "read_message"
_PAGE_CHARS = 4_000
"""How many characters are read if no end is given."""
_MOST_CHARS = 20_000
_NOTE_BEGIN, _NOTE_END = "\n[… ", " …]\n"


class ReadResult:
    """The tool that returns the whole result of an earlier call of the run, in pages."""

    spec = own_spec(READ_RESULT)

    def __init__(self) -> None:
        self.find_fault = ArgumentChecker(self.spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        """See `Tool.call`. Raises: `ToolError` if there is nothing of this kind, or it is shorter."""
        call_id = arguments["call_id"]
        found = await context.find_result(call_id)
        if found is None:
            raise ToolError(
                f"there is no result of a call {call_id!r}; give the id from the line about the cut result"
            )
        return _turn_to("result", found.content, arguments)


class ReadMessage(ReadResult):
    """The tool that returns the whole of an earlier message of the user, in pages."""

    spec = own_spec(READ_MESSAGE)

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        number = arguments["number"]
        text = await context.find_message(number)
        if text is None:
            raise ToolError(
                f"message {number} is not from the user; give the number from the line in the cut message"
            )
        return _turn_to("message", text, arguments)


def _turn_to(what: str, text: str, arguments: dict[str, Json]) -> str:
    """Return the asked part of `text`. Raises: `ToolError` if it ends before that part."""
    start = arguments.get("start", 0)
    if start >= max(1, len(text)):
        raise ToolError(f"the {what} has {len(text):,} characters, so it ends before character {start:,}")
    end = arguments.get("end", start + _PAGE_CHARS)
    if end <= start:
        raise ToolError(f"the end {end:,} is not above the start {start:,}; give another end, or none")
    stop = min(len(text), end, start + _MOST_CHARS)
    if start == 0 and stop == len(text):
        return text
    more = f"; go on with start={stop}" if stop < len(text) else ""
    return f"[characters {start:,} to {stop:,} of {len(text):,}{more}]\n{text[start:stop]}"


def cut_out(text: str, chars: int, how: str) -> str:
    """Return the beginning and the end of `text`, about `chars` characters, with a line about what was left out.

    `how` ends that line: it says how to read the rest, and `{start}` in it is the position of what was left out.
    """
    head, tail = chars * 2 // 3, chars // 3
    left_out = len(text) - head - tail
    told = how.replace("{start}", str(head))  # an id in it may hold braces
    note = f"{left_out:,} of {len(text):,} characters left out{told}"
    return f"{text[:head]}{_NOTE_BEGIN}{note}{_NOTE_END}{text[len(text) - tail :]}"


def cut_parts(names: Sequence[str], how: str) -> str:
    """Return the line about files of a message that are left out. `how` says how to get them."""
    return f"{_NOTE_BEGIN}left out: {', '.join(names)}; {how}{_NOTE_END}"


def is_cut_out(text: str, whole: str) -> bool:
    """Return whether `text` is what `cut_out` made of `whole`, once or twice; a line about files may follow."""
    head, mark, rest = text.partition(_NOTE_BEGIN)
    return bool(mark) and whole.startswith(head) and whole.endswith(rest.rpartition(_NOTE_END)[2])


def find_readers(specs: Iterable[ToolSpec]) -> frozenset[str]:
    """Return which of the two tools are among `specs`, and are not other tools with the same names."""
    return frozenset(
        own.name
        for spec in specs
        for own in (ReadResult.spec, ReadMessage.spec)
        if spec.name == own.name and spec.description.startswith(own.description)
    )
