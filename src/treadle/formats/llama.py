"""The formats of Llama: JSON objects (3.1 to 3.3, 4), or a list of Python calls (small models of 3.2, 4)."""

import re

from treadle.core.types import Message
from treadle.formats.scanner import literals
from treadle.formats.scanner.base import TaggedFormat, read_headed, resync, skip_space
from treadle.formats.scanner.json_body import BadValue, Wanted, after_space, name_of
from treadle.formats.scanner.markers import FoundMarker, Reader, Steps, wait_for_all
from treadle.formats.scanner.values import arguments_of, encode

TAG = "<|python_tag|>"
_FUNCTION = re.compile(r"<function=([^<>\n]++)>")


class Llama3Json(TaggedFormat):
    """The JSON format: objects with `name` and `parameters`, at the beginning of the text or behind a tag."""

    name = "llama3_json"

    def read(self, reader: Reader) -> Steps:
        """Read the whole text."""
        position = yield from self._read_thinking(reader)
        start = yield from skip_space(reader, position)
        if reader.text[start : start + 1] == "{":
            yield from wait_for_all(reader)
            position = self._take_chain(reader, start, start, is_bare=True) or position
        yield from self._read_content(reader, position)

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        if found.marker != TAG:
            head = _FUNCTION.match(text, start)
            if head is None:
                reader.content.add(found.marker)
                return start + len(found.marker)
            return read_headed(reader, start, head.end(), head[1].strip(), ("</function>",), self.openers)
        position = after_space(text, start + len(TAG))
        if text[position : position + 1] == "{":
            return self._take_chain(reader, start, position, is_bare=False)
        return self._take_builtin(reader, start, position)

    def _take_chain(self, reader: Reader, start: int, position: int, *, is_bare: bool) -> int:
        """Read a series of objects. Return the position after it; without a tag, 0 if the first is not a call."""
        text = reader.text
        begin, at, count = start, position, 0
        while True:
            try:
                end, value = reader.read_json(at)
            except BadValue as error:
                if not count and is_bare and not _looks_like_call(text[at : at + 2000].replace("'", '"')):
                    return 0
                end = resync(reader, at, error.position, (), (TAG,))
                semicolon = reader.find(";", error.position)
                if -1 < semicolon < end and text.startswith("{", after_space(text, semicolon + 1)):
                    end = semicolon
                reader.add_error(f"not valid JSON: {error}", begin, end, name_of(text[at:end]))
            else:
                if not count and is_bare and not _is_call(value):
                    return 0
                reader.add_calls(text[at:end], value, begin, end)
            count += 1
            after = after_space(text, end)
            if text[after : after + 1] in (";", ","):
                after = after_space(text, after + 1)
            if text.startswith(TAG, after):
                return after
            if text[after : after + 1] != "{" or (
                is_bare and not _looks_like_call(text[after : after + 2000])
            ):
                return end
            begin = at = after

    def _take_builtin(self, reader: Reader, start: int, position: int) -> int:
        """Read a built-in call such as `brave_search.call(query="...")`. Any other code is an error."""
        text = reader.text
        try:
            name, arguments, end = literals.read_call(text, position)
            if not name.endswith(".call"):
                raise BadValue("code", position)
        except BadValue:
            end = reader.find_first((*self.ends, TAG), position)
            reader.add_error("code for an interpreter, not a call", start, end)
            return end
        words = encode(arguments).decode()
        reader.add_call(Wanted(name.removesuffix(".call"), arguments, words), start, end)
        return end


def _looks_like_call(text: str) -> bool:
    return '"name"' in text and ('"parameters"' in text or '"arguments"' in text)


def _is_call(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("function"), dict) and "name" not in value:
        return _is_call(value["function"])
    name = value.get("name")
    return isinstance(name, str) and bool(name) and ("parameters" in value or "arguments" in value)


START, END = "<|python_start|>", "<|python_end|>"
LINES = "<function_calls>"
_GATE = re.compile(r"\[\s*+[A-Za-z_][\w.\-]*+\s*+\(")
_BLANKS = re.compile(r"[ \t]*+")
_CALL = re.compile(r"[A-Za-z_][\w.\-]*+\s*+\(")
_NEXT = re.compile(r"\)\s*+,\s*+(?=[A-Za-z_][\w.\-]*+\s*+\()")


class Llama3Pythonic(TaggedFormat):
    """The Python format: a list of calls with literals as arguments."""

    name = "llama3_pythonic"

    def __init__(self) -> None:
        super().__init__()
        self._marks = (*self.noise, *self.openers, *self.ends)
        """Strings that end a call, even one that is incomplete."""

    def read(self, reader: Reader) -> Steps:
        """Read the whole text."""
        position = yield from self._read_thinking(reader)
        start = yield from skip_space(reader, position)
        if reader.text[start : start + 1] == "[":
            yield from wait_for_all(reader)
            # Some models write one list for each call.
            while _GATE.match(reader.text, start):
                position = self._take_list(reader, start, start)
                start = after_space(reader.text, position)
        yield from self._read_content(reader, position)

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_space(text, start + len(found.marker))
        if found.marker == LINES and _CALL.match(text, position):
            return self._take_lines(reader, start, position)
        if not _GATE.match(text, position):
            end = reader.find_first(self._marks, position)
            reader.add_error("there is no list of calls between the tags", start, end)
            return end
        return self._take_list(reader, start, position)

    def _take_list(self, reader: Reader, start: int, position: int) -> int:
        text = reader.text
        begin, at = start, after_space(text, position + 1)
        while True:
            try:
                name, arguments, end = literals.read_call(text, at)
                after = after_space(text, end)
                if after < len(text) and text[after] not in ",]":
                    raise BadValue(f"{text[after]!r} is not allowed there", after)
            except BadValue as error:
                stop = reader.find_first((*self.noise, *self.openers), at)
                match = _NEXT.search(text, max(error.position - 1, at), stop)
                if match is None:
                    reader.add_error(error.reason, begin, stop, _name_at(text, at))
                    return stop
                reader.add_error(error.reason, begin, match.end(), _name_at(text, at))
                begin = at = match.end()
                continue
            if text[after : after + 1] == "]":
                end = after + 1
            reader.add_call(Wanted(name, arguments, encode(arguments).decode()), begin, end)
            if text[after : after + 1] != ",":
                return end
            begin = at = after_space(text, after + 1)
            if text[at : at + 1] == "]":
                return at + 1
            if at == len(text) or text.startswith(self._marks, at):
                # The text ends behind a comma, before the next call.
                return at

    def _take_lines(self, reader: Reader, start: int, position: int) -> int:
        text, marks = reader.text, self._marks
        begin, at = start, position
        while at < len(text) and not text.startswith(marks, at):
            try:
                name, arguments, end = literals.read_call(text, at)
                after = _BLANKS.match(text, end).end()  # type: ignore[union-attr]
                if after < len(text) and text[after] not in "\r\n" and not text.startswith(marks, after):
                    raise BadValue(f"{text[after]!r} is not allowed there", after)
            except BadValue as error:
                end = reader.find_first(("\n", *marks), error.position)
                reader.add_error(error.reason, begin, end, _name_at(text, at))
            else:
                reader.add_call(Wanted(name, arguments, encode(arguments).decode()), begin, end)
            begin = at = after_space(text, end)
        return at

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for call in message.tool_calls:
            pairs = ", ".join(f"{key}={value!r}" for key, value in arguments_of(call).items())
            calls.append(f"{call.name}({pairs})")
        if not calls:
            return self.think(message) + message.content
        listed = f"[{', '.join(calls)}]"
        return self.think(message) + (f"{message.content}{START}{listed}{END}" if message.content else listed)


def _name_at(text: str, position: int) -> str | None:
    match = literals.NAME.match(text, position)
    return match[0] if match else None
