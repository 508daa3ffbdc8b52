"""The formats of Functionary: recipients behind `>>>` (v3.2), or `<function=name>` with JSON in the text (v3.1)."""

import re

from treadle.core.types import Message
from treadle.formats.scanner.base import TaggedFormat, read_headed
from treadle.formats.scanner.json_body import Wanted, after_space
from treadle.formats.scanner.markers import FoundMarker, Reader, Scanner, Steps, wait_for_all
from treadle.formats.scanner.values import encode, write_arguments

MARK = ">>>"
_RECIPIENT = re.compile(r"\s*+(?:>>>\s*+)?+([A-Za-z_][\w.\-]*+)[ \t]*+\n")
_NEXT = re.compile(r">>>([A-Za-z_][\w.\-]*+)[ \t]*+\n")
_FUNCTION = re.compile(r"<function=([^<>\n({]++)(?:>|\()")


class Functionary(TaggedFormat):
    """The formats of Functionary v3.1 and v3.2."""

    name = "functionary"

    def __init__(self) -> None:
        super().__init__()
        # Marks quoted in closed code are text.
        self._marks = Scanner((MARK,), ends_open_code=True)
        self._bare_marks = Scanner((MARK,), has_code=False)

    def read(self, reader: Reader) -> Steps:
        """Read the whole text."""
        yield from wait_for_all(reader)
        head = _RECIPIENT.match(reader.text)
        if head is not None and self._is_recipient(reader, head):
            self._read_recipients(reader, head)
            return
        yield from self._read_content(reader, 0)

    def _is_recipient(self, reader: Reader, head: re.Match[str]) -> bool:
        """Return whether a line names the recipient of the next lines, and is not just a word."""
        name = head[1]
        is_marked = MARK in head[0]
        return (
            name in ("all", "python")
            or name in reader.schemas
            or (is_marked and (not reader.schemas or not head.start()))
            or reader.text.startswith("{", after_space(reader.text, head.end()))
        )

    def _next(self, reader: Reader, position: int, marks: Scanner) -> re.Match[str] | None:
        """Return the next line that names a recipient, or `None`."""
        while True:
            found = marks.find(reader, position)
            if not found.marker:
                return None
            head = _NEXT.match(reader.text, found.position)
            if head is not None and self._is_recipient(reader, head):
                return head
            position = found.position + 1

    def _read_recipients(self, reader: Reader, head: re.Match[str] | None) -> None:
        text = reader.text
        while head is not None:
            name, start, position = head[1], head.start(), head.end()
            if name == "all":
                follower = self._next(reader, position, self._marks)
                limit = follower.start() if follower is not None else len(text)
                said = text[position:limit]
                for item in self.ends:
                    said = said.removesuffix(item)
                reader.content.add(said)
                if follower is not None:
                    reader.content.end_piece(0)
                head = follower
                continue
            if name == "python" and not text.startswith("{", after_space(text, position)):
                follower = self._next(reader, position, self._bare_marks)
                limit = follower.start() if follower is not None else len(text)
                self._take_code(reader, name, start, position, limit)
                head = follower
                continue
            last = read_headed(reader, start, position, name, (), (MARK, *self.ends))
            head = self._next(reader, last, self._marks)
            rest = text[last : head.start() if head is not None else len(text)]
            for item in self.ends:
                rest = rest.replace(item, "")
            if rest.strip():
                reader.content.add(rest)

    def _take_code(self, reader: Reader, name: str, start: int, position: int, end: int) -> None:
        """Add a call of the tool `python` with the code as its argument, if the tool has exactly one parameter."""
        properties = reader.schemas.get(name, {}).get("properties", {})
        code = reader.text[position:end]
        for item in self.ends:
            code = code.removesuffix(item)
        if len(properties) != 1:
            reader.add_error("code for an interpreter, not a call", start, end, name)
            return
        arguments = {next(iter(properties)): code}
        reader.add_call(Wanted(name, arguments, encode(arguments).decode()), start, end)

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        if found.marker == "<|python_tag|>":
            end = reader.find_first(self.ends, start)
            self._take_code(reader, "python", start, start + len(found.marker), end)
            return end
        head = _FUNCTION.match(text, start)
        if head is None:
            reader.content.add(found.marker)
            return start + len(found.marker)
        closers = (")>", "</function>") if text[head.end() - 1] == "(" else ("</function>",)
        return read_headed(reader, start, head.end(), head[1].strip(), closers, self.openers)

    def render(self, message: Message) -> str:
        """Return `message` as text in the format of v3.2."""
        parts = [f"all\n{message.content}"] if message.content or not message.tool_calls else []
        parts += [f"{call.name}\n{write_arguments(call)}" for call in message.tool_calls]
        return MARK.join(parts)
