"""Find and decode JSON values within a text.

The end of a value is found in linear time from the characters of the value alone, not from the text after it.
JSON means RFC 8259: NaN, unescaped control characters and lone surrogates are errors. A key that occurs twice
in an object is an error too, because one of its values would be lost.
"""

import json
import math
import re
from typing import Any, NoReturn

import msgspec

from treadle.core.types import Json

MAX_DEPTH = 512
"""The greatest allowed nesting depth of objects and arrays."""
_WORDS = re.compile(r"[ \t\r\n0-9+\-.:,truefalsnE]*+")
_STRING = re.compile(r"[^\"\\\x00-\x1f]*+(?:\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})[^\"\\\x00-\x1f]*+)*+")
_SHARED_ESCAPES = re.compile(r"[^\\]*+(?:\\[ntr\\\"][^\\]*+)*+")
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
SPACE = re.compile(r"[ \t\r\n]*+")
_BLANKS = frozenset(" \t\r\n")


class BadJson(Exception):  # noqa: N818
    """Raised when a value is not valid JSON, with the reason and the position."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class JsonScan:
    """A search for the end of the object or array at `start`. Text may be added between calls of `run`."""

    __slots__ = ("_depth", "_is_in_string", "position")

    def __init__(self, start: int) -> None:
        self.position = start
        self._depth = 0
        self._is_in_string = False

    def run(self, text: str, *, is_whole: bool) -> int | None:
        """Return the position after the value, or `None` if more text is needed.

        Raises: `BadJson` at the first character that is not allowed there.
        """
        position, depth, size = self.position, self._depth, len(text)
        while True:
            if self._is_in_string:
                match = _STRING.match(text, position)
                assert match is not None
                position = match.end()
                if position < size and text[position] == '"':
                    self._is_in_string = False
                    position += 1
                    continue
                if not is_whole and (position == size or _HALF_ESCAPE.match(text, position)):
                    break
                raise BadJson(_explain_string(text, position), position)
            match = _WORDS.match(text, position)
            assert match is not None
            position = match.end()
            if position == size:
                if is_whole:
                    raise BadJson("the value is cut off", position)
                break
            char = text[position]
            position += 1
            if char == '"':
                self._is_in_string = True
            elif char in "{[":
                depth += 1
                if depth > MAX_DEPTH:
                    raise BadJson(f"the value is nested more than {MAX_DEPTH} levels deep", position - 1)
            elif char in "}]":
                depth -= 1
                if depth <= 0:
                    return position
            else:
                raise BadJson(f"{char!r} is not allowed there", position - 1)
        self.position, self._depth = position, depth
        return None


def _explain_string(text: str, position: int) -> str:
    if position == len(text):
        return "the text ends within a string"
    if text[position] == "\\":
        return f"{text[position : position + 2]!r} is not an escape sequence"
    return f"{text[position]!r} must be escaped within a string"


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return built


def to_float(text: str) -> float:
    """Convert `text` to a float. Raises: `ValueError` if the number is too large for a float."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_build, parse_constant=_refuse_constant, parse_float=to_float)
_scan_once = _decoder.scan_once  # type: ignore[attr-defined]

UNREAD: Json = object()
"""A marker for a value that has not been decoded, probably because it is invalid."""


def scan(text: str, start: int) -> tuple[int, Json] | None:
    """Return the end of the object or array at `start` and its value, or `None` if it is invalid.

    An invalid value costs time in proportion to the text before it, because the decoder's errors count lines.
    """
    try:
        value, end = _scan_once(text, start)
    except (ValueError, StopIteration, RecursionError):
        return None
    if end - start > MAX_DEPTH and text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH:
        return None
    # The first search is the fastest, and usually the only one needed.
    if (
        text.find("\\", start, end) != -1
        and text.find("\\u", start, end) != -1
        and _SURROGATE.search(text, start, end)
    ):
        return None
    return end, value


def scan_string(token: str) -> str | None:
    """Return the value of a string token, or `None` if it has escapes that Python and JSON read differently."""
    if _SHARED_ESCAPES.fullmatch(token) is None:
        return None
    try:
        value, end = _scan_once(token, 0)
    except (ValueError, StopIteration):
        return None
    return value if end == len(token) else None


def after_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space, or the length of the text."""
    if text[position : position + 1] not in _BLANKS:
        return position
    return SPACE.match(text, position).end()  # type: ignore[union-attr]


def end_of_json(text: str, start: int) -> int:
    """Return the end of the JSON object or array at `start`. Raises: `BadJson`."""
    end = JsonScan(start).run(text, is_whole=True)
    assert end is not None
    return end


def decode(body: str) -> Json:
    """Return the value of a complete JSON text. Raises: `ValueError` with the reason."""
    found = scan(body, 0)
    if found is not None and found[0] == len(body):
        return found[1]
    if len(body) > MAX_DEPTH and body.count("{") + body.count("[") > MAX_DEPTH:
        start = SPACE.match(body).end()  # type: ignore[union-attr]
        try:
            JsonScan(start).run(body, is_whole=True)
        except BadJson as error:
            raise ValueError(error.reason) from None
    try:
        value = _decoder.decode(body)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg[0].lower()}{error.msg[1:]} at character {error.pos}") from None
    except RecursionError:
        raise ValueError(f"the value is nested more than {MAX_DEPTH} levels deep") from None
    if _SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair is not a character") from None
    return value


def raw_fields(body: str) -> dict[str, str]:
    """Return the text of each value in an object that `decode` accepted, by key."""
    return {
        key: bytes(value).decode()
        for key, value in msgspec.json.decode(body.encode(), type=dict[str, msgspec.Raw]).items()
    }


def raw_items(body: str) -> list[str]:
    """Return the text of each item in a list that `decode` accepted."""
    return [bytes(value).decode() for value in msgspec.json.decode(body.encode(), type=list[msgspec.Raw])]


def name_of(raw: str) -> str | None:
    """Return the tool name in the text of a call that is not valid JSON, or `None` if none is found."""
    at = raw.find('"name"')
    if at == -1:
        return None
    rest = raw[at + 6 : at + 200].lstrip(" \t\r\n:")
    name = rest[1:].partition('"')[0] if rest.startswith('"') else ""
    return name or None
