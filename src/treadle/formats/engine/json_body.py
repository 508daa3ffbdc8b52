"""JSON within a text: where a value ends, and what it is.

The end is found by the grammar of JSON's words and strings, in linear time, and never by looking for what comes
after. JSON means RFC 8259: no NaN, no bare control characters, no lone surrogates; two equal
keys are a fault, since one of them would be lost.
"""

import json
import math
import re
from typing import Any, NoReturn

import msgspec

from treadle.core.types import Json

MAX_DEPTH = 512
"""Objects and arrays within each other; what is deeper is a fault."""
_WORDS = re.compile(r"[ \t\r\n0-9+\-.:,truefalsnE]*+")
_STRING = re.compile(r"[^\"\\\x00-\x1f]*+(?:\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})[^\"\\\x00-\x1f]*+)*+")
_SHARED_ESCAPES = re.compile(r"[^\\]*+(?:\\[ntr\\\"][^\\]*+)*+")
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
SPACE = re.compile(r"[ \t\r\n]*+")
_BLANKS = frozenset(" \t\r\n")


class BadJson(Exception):  # noqa: N818
    """What is wrong with a value, and where."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class JsonScan:
    """Finds the end of the object or array that begins at `start`. Text may be added between the calls of `run`."""

    __slots__ = ("_depth", "_is_in_string", "position")

    def __init__(self, start: int) -> None:
        self.position = start
        self._depth = 0
        self._is_in_string = False

    def run(self, text: str, *, is_whole: bool) -> int | None:
        """The position after the value; `None` if more text is needed.

        Raises: `BadJson` at the first character that no JSON can have there.
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
                    raise BadJson("it ends in the middle", position)
                break
            char = text[position]
            position += 1
            if char == '"':
                self._is_in_string = True
            elif char in "{[":
                depth += 1
                if depth > MAX_DEPTH:
                    raise BadJson(f"it is nested more than {MAX_DEPTH} deep", position - 1)
            elif char in "}]":
                depth -= 1
                if depth <= 0:
                    return position
            else:
                raise BadJson(f"{char!r} cannot stand there", position - 1)
        self.position, self._depth = position, depth
        return None


def _explain_string(text: str, position: int) -> str:
    if position == len(text):
        return "it ends within a string"
    if text[position] == "\\":
        return f"{text[position : position + 2]!r} is no escape"
    return f"{text[position]!r} must be escaped within a string"


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return built


def to_float(text: str) -> float:
    """Raises: `ValueError` for what a float can only say as infinite, which no JSON can say at all."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_build, parse_constant=_refuse_constant, parse_float=to_float)
_scan_once = _decoder.scan_once  # type: ignore[attr-defined]

UNREAD: Json = object()
"""Stands for a value that `decode` has still to read, and most likely refuses."""


def scan(text: str, start: int) -> tuple[int, Json] | None:
    """Where the object or array that begins at `start` ends, and what it is, if nothing is wrong with it.

    Where something is, this takes as long as the text before it is, since the decoder's errors count lines.
    """
    try:
        value, end = _scan_once(text, start)
    except (ValueError, StopIteration, RecursionError):
        return None
    if end - start > MAX_DEPTH and text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH:
        return None
    # The first look is by far the fastest, and most often all.
    if (
        text.find("\\", start, end) != -1
        and text.find("\\u", start, end) != -1
        and _SURROGATE.search(text, start, end)
    ):
        return None
    return end, value


def scan_string(token: str) -> str | None:
    """What a string says whose escapes mean the same in Python and in JSON; `None` for any other."""
    if _SHARED_ESCAPES.fullmatch(token) is None:
        return None
    try:
        value, end = _scan_once(token, 0)
    except (ValueError, StopIteration):
        return None
    return value if end == len(token) else None


def after_space(text: str, position: int) -> int:
    """The next character that is no white space, or the end."""
    if text[position : position + 1] not in _BLANKS:
        return position
    return SPACE.match(text, position).end()  # type: ignore[union-attr]


def end_of_json(text: str, start: int) -> int:
    """The end of the JSON object or array that begins at `start`. Raises: `BadJson`."""
    end = JsonScan(start).run(text, is_whole=True)
    assert end is not None
    return end


def decode(body: str) -> Json:
    """The value of a whole body. Raises: `ValueError` that says what is wrong."""
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
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None
    if _SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair is no character") from None
    return value


def raw_fields(body: str) -> dict[str, str]:
    """The fields of an object that `decode` took, as the text of each value."""
    return {
        key: bytes(value).decode()
        for key, value in msgspec.json.decode(body.encode(), type=dict[str, msgspec.Raw]).items()
    }


def raw_items(body: str) -> list[str]:
    """The same for the items of a list."""
    return [bytes(value).decode() for value in msgspec.json.decode(body.encode(), type=list[msgspec.Raw])]


def name_of(raw: str) -> str | None:
    """Return the tool name in the text of a call that is not valid JSON, or `None` if none is found."""
    at = raw.find('"name"')
    if at == -1:
        return None
    rest = raw[at + 6 : at + 200].lstrip(" \t\r\n:")
    name = rest[1:].partition('"')[0] if rest.startswith('"') else ""
    return name or None
