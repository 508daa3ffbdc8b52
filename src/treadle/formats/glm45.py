"""The format of GLM 4.5 to 4.7: a name, then pairs of keys and values, with values as plain text."""

import re

from treadle.core.types import Json, Message
from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.json_body import NoCall, Wanted, after_space
from treadle.formats.scanner.markers import FoundMarker, Reader, after_marks
from treadle.formats.scanner.values import encode, join_parts, read_value, types_of, write_parameters

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_CLOSE = "<arg_key>", "</arg_key>"
VALUE, VALUE_CLOSE = "<arg_value>", "</arg_value>"
_PAIR = re.compile(
    r"[ \t\r\n]*+<arg_key>([^<]++)</arg_key>[ \t\r\n]*+<arg_value>((?:[^<]++|<(?!/?arg_))*+)</arg_value>"
    r"(?=[ \t\r\n]*+<(?:arg_key|/tool_call)>)"
)
"""A pair of a key and a value without markup."""
_TAG = re.compile("</?(?:tool_call|arg_key|arg_value)>")


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
        text, start = reader.text, found.position
        position = after_marks(text, start + len(OPEN), (OPEN,))
        try:
            wanted, end = self._read(reader, position)
        except _Fault as fault:
            end = resync(reader, position, fault.position, (CLOSE,), (OPEN,))
            reader.add_error(fault.reason, start, end, fault.name)
            return end
        reader.add_call(wanted, start, end)
        return end

    def _read(self, reader: Reader, position: int) -> tuple[Wanted, int]:
        text = reader.text
        tag = _TAG.search(text, position)
        at = tag.start() if tag is not None else len(text)
        name = text[position:at].strip().removesuffix("\\n")
        if not name or any(char in name for char in '<>{}"\n '):
            raise _Fault("the call has no function name", at, None)
        if at == len(text):
            raise _Fault("the call is cut off", at, name)
        arguments: dict[str, Json] = {}
        while True:
            pair = _PAIR.match(text, at)
            if pair is not None and (key := pair[1].strip()) and key not in arguments:
                at = pair.end()
                arguments[key] = self._convert(reader, pair[2], name, key, at)
                continue
            at = self._skip(text, at)
            if text.startswith(CLOSE, at):
                return self._finish(name, arguments, at + len(CLOSE))
            if at == len(text) or (text.startswith(OPEN, at) and arguments):
                if not arguments:
                    raise _Fault("the call is cut off", at, name)
                return self._finish(name, arguments, at, is_closed=at < len(text))
            if not text.startswith(KEY, at):
                raise _Fault("the call contains something other than a key", at, name)
            key_end = reader.find(KEY_CLOSE, at)
            if key_end == -1:
                raise _Fault("a key is cut off", len(text), name)
            key = text[at + len(KEY) : key_end].strip()
            if not key or "<" in key:
                raise _Fault(f"{key[:40]!r} is not a key", at + len(KEY), name)
            at = key_end + len(KEY_CLOSE)
            while text.startswith(KEY_CLOSE, after_space(text, at)):
                at = after_space(text, at) + len(KEY_CLOSE)
            value_start = self._skip(text, at)
            has_opener = text.startswith(VALUE, value_start)
            value_start = value_start + len(VALUE) if has_opener else at
            value_end, at = self._find_end(reader, value_start, name, key)
            value = text[value_start:value_end]
            if not has_opener:
                value = value.strip("\n")
            if key in arguments:
                raise _Fault(f"the key {key!r} occurs twice", at, name)
            arguments[key] = self._convert(reader, value, name, key, at)

    def _convert(self, reader: Reader, value: str, name: str, key: str, at: int) -> Json:
        try:
            return read_value(value, types_of(reader.schemas, name, key), name, key)
        except NoCall as error:
            raise _Fault(error.reason, at, name) from None

    def _skip(self, text: str, position: int) -> int:
        """Skip white space, including a newline that is written as a backslash and an `n`."""
        position = after_space(text, position)
        while text.startswith("\\n", position):
            position = after_space(text, position + 2)
        return position

    def _find_end(self, reader: Reader, start: int, name: str, key: str) -> tuple[int, int]:
        """Return where a value ends and where to continue.

        A closing tag counts only if another key or the end of the call follows.
        """
        text, at = reader.text, start
        while True:
            close = reader.find(VALUE_CLOSE, at)
            if close == -1:
                ends = [found for tag in (KEY, CLOSE) if (found := reader.find(tag, start)) != -1]
                if not ends:
                    raise _Fault(f"the value of {key!r} is cut off", len(text), name)
                return min(ends), min(ends)
            after = close + len(VALUE_CLOSE)
            behind = self._skip(text, after)
            if behind == len(text) or text.startswith((KEY, CLOSE, OPEN), behind):
                call = self._call_around(reader, start, close)
                if call is not None:
                    if not self._is_quoted(reader, call):
                        raise _Fault(f"the value of {key!r} is cut off", call, name)
                    at = after
                    continue
                inner = reader.find(KEY, start)
                if inner != -1 and inner < close and self._is_dropped(reader, start, inner, close):
                    return inner, inner
                return close, after
            at = after

    def _call_around(self, reader: Reader, start: int, close: int) -> int | None:
        """Return where the call begins to which the closing tag at `close` belongs, if it begins within the
        value."""
        text = reader.text
        begin = reader.find(OPEN, start)
        if begin == -1 or begin > close or text.find(KEY, begin, close) == -1:
            return None
        reader.steps_left -= (close - begin) >> 8
        is_open = text.count(OPEN, begin, close) > text.count(CLOSE, begin, close)
        return begin if is_open and reader.steps_left > 0 else None

    def _is_quoted(self, reader: Reader, begin: int) -> bool:
        """Return whether the call at `begin` ends before a call that encloses it."""
        text = reader.text
        reader.steps_left -= (len(text) - begin) >> 8
        return text.count(CLOSE, begin) > text.count(OPEN, begin)

    def _is_dropped(self, reader: Reader, start: int, inner: int, close: int) -> bool:
        """Return whether the value has no closing tag, so that there are more opening than closing tags up to
        `close`."""
        text = reader.text
        # Limits the work if many keys share one closing tag.
        reader.steps_left -= (close - start) >> 8
        if text[inner - 1 : inner] != "\n" or reader.steps_left < 0:
            return False
        return text.count(VALUE, start, close) > text.count(VALUE_CLOSE, start, close)

    def _finish(
        self, name: str, arguments: dict[str, Json], end: int, *, is_closed: bool = True
    ) -> tuple[Wanted, int]:
        return Wanted(name, arguments, encode(arguments).decode(), None, is_closed), end

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = []
        for call in message.tool_calls:
            pairs = write_parameters(call, f"{KEY}{{key}}{KEY_CLOSE}\n{VALUE}{{value}}{VALUE_CLOSE}\n")
            calls.append(f"{OPEN}{call.name}\n{pairs}{CLOSE}")
        return join_parts(message, "\n".join(calls))


class _Fault(Exception):  # noqa: N818
    def __init__(self, reason: str, position: int, name: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.name = name
