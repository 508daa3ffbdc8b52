"""Find and decode JSON values within a text, and read calls that are JSON objects.

The end of a value is found in linear time from the characters of the value alone, not from the text after it.
JSON means RFC 8259: NaN, unescaped control characters and lone surrogates are errors. A key that occurs twice
in an object is an error too, because one of its values would be lost.
"""

import json
import math
import re
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from treadle.core.texts.json_text import MAX_DEPTH
from treadle.core.types import Json

_WORDS = re.compile(r"[ \t\r\n0-9+\-.:,truefalsnE]*+")
_STRING = re.compile(r"[^\"\\\x00-\x1f]*+(?:\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})[^\"\\\x00-\x1f]*+)*+")
_SHARED_ESCAPES = re.compile(r"[^\\]*+(?:\\[ntr\\\"][^\\]*+)*+")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
SPACE = re.compile(r"[ \t\r\n]*+")
_BLANKS = frozenset(" \t\r\n")


class BadValue(Exception):  # noqa: N818
    """Raised when a text is not a value, in JSON or as a Python literal, with the reason and the position."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


_DEEP = "the value is nested more than {} levels deep"
AROUND = 3
"""How many levels stand around the arguments of a call at most: a list, an object, and its field `function`."""


def end_of_json(text: str, start: int, around: int = 0) -> int:
    """Return the end of the JSON object or array at `start`, which may have `around` levels more than others.

    Raises: `BadValue` at the first character that is not allowed there.
    """
    position, depth, most = start, 0, MAX_DEPTH + around
    while True:
        position = _WORDS.match(text, position).end()  # type: ignore[union-attr]
        char = text[position : position + 1]
        position += 1
        if char == '"':
            position = _STRING.match(text, position).end() + 1  # type: ignore[union-attr]
            if text[position - 1 : position] != '"':
                raise BadValue(_explain_string(text, position - 1), position - 1)
        elif char in ("{", "["):
            depth += 1
            if depth > most:
                raise BadValue(_DEEP.format(most), position - 1)
        elif char in ("}", "]"):
            depth -= 1
            if depth <= 0:
                return position
        else:
            raise BadValue(f"{char!r} is not allowed there" if char else "the value is cut off", position - 1)


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


def scan(text: str, start: int, around: int = 0) -> tuple[int, Json] | None:
    """Return the end of the object or array at `start` and its value; see `end_of_json`. `None` if it is invalid.

    An invalid value costs time in proportion to the text before it, because the decoder's errors count lines.
    """
    try:
        value, end = _scan_once(text, start)
    except (ValueError, StopIteration, RecursionError):
        return None
    most = MAX_DEPTH + around
    if end - start > most and text.count("{", start, end) + text.count("[", start, end) > most:
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


def decode(body: str, around: int = 0) -> Json:
    """Return the value of a complete JSON text; see `end_of_json`. Raises: `ValueError` with the reason."""
    found, most = scan(body, 0, around), MAX_DEPTH + around
    if found is not None and found[0] == len(body):
        return found[1]
    if len(body) > most and body.count("{") + body.count("[") > most:
        try:
            end_of_json(body, after_space(body, 0), around)
        except BadValue as error:
            raise ValueError(error.reason) from None
    try:
        value = _decoder.decode(body)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg[0].lower()}{error.msg[1:]} at character {error.pos}") from None
    except RecursionError:
        raise ValueError(_DEEP.format(most)) from None
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


_SPACE = " \t\r\n"
_HEAD = re.compile(
    r'[ \t\r\n]*+\{[ \t\r\n]*+"name"[ \t\r\n]*+:[ \t\r\n]*+"[^"\\]*+"[ \t\r\n]*+,[ \t\r\n]*+'
    r'"(?:arguments|parameters)"[ \t\r\n]*+:'
)


class Wanted(Struct, frozen=True):
    """A call whose position in the text is not known yet."""

    name: str
    arguments: dict[str, Json]
    text: str
    """The arguments as the model wrote them."""
    call_id: str | None = None
    is_closed: bool = True


class NoCall(Exception):  # noqa: N818
    """Raised when a value is not a tool call."""

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.name = name


def read_arguments(body: str, name: str | None = None, value: Json = None) -> tuple[dict[str, Json], str]:
    """Return the arguments in `body`, and their text. A JSON string that contains an object is decoded too.

    `value` is the decoded `body`; `None` if it is not known. Raises: `NoCall`.
    """
    text = body.strip()
    try:
        if value is None:
            value = decode(text)
        if isinstance(value, str):
            text = value.strip()
            value = decode(text)
    except ValueError as error:
        raise NoCall(f"the arguments are not valid JSON: {error}", name) from None
    if not isinstance(value, dict):
        raise NoCall(f"the arguments are not an object but {_kind(value)}", name)
    return value, text


def to_call(value: Json, body: str) -> Wanted:
    """Return the call in `value`, which is the decoded `body`. Raises: `NoCall`."""
    if type(value) is dict and len(value) == 2 and (head := _HEAD.match(body)) is not None:
        name, arguments = value.values()
        if name and type(arguments) is dict:
            # The object has only two fields, so the arguments are the rest of its text.
            text = body[head.end() : body.rindex("}")].strip(_SPACE)
            return Wanted(name, arguments, text)
    if not isinstance(value, dict):
        raise NoCall(f"a call must be an object, but this is {_kind(value)}")
    inner = value.get("function")
    if isinstance(inner, dict) and "name" not in value:
        wanted = to_call(inner, raw_fields(body)["function"])
        return Wanted(wanted.name, wanted.arguments, wanted.text, _id_of(value))
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise NoCall("the call has no name")
    keys = [key for key in ("arguments", "parameters") if key in value]
    if not keys:
        raise NoCall("the call has no arguments", name)
    if len(keys) > 1 and value[keys[0]] != value[keys[1]]:
        raise NoCall("the call has both arguments and parameters, and they differ", name)
    arguments, text = read_arguments(raw_fields(body)[keys[0]], name, value[keys[0]])
    return Wanted(name, arguments, text, _id_of(value))


def _id_of(value: dict[str, Json]) -> str | None:
    call_id = value.get("id")
    return call_id if isinstance(call_id, str) and call_id else None


def _kind(value: Json) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")
