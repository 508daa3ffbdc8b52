"""Convert JSON values to tool calls."""

import re

from msgspec import Struct

from treadle.core.types import Json
from treadle.formats.scanner.json_body import UNREAD, decode, raw_fields

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


def read_arguments(body: str, name: str | None = None, value: Json = UNREAD) -> tuple[dict[str, Json], str]:
    """Return the arguments in `body`, and their text. A JSON string that contains an object is decoded too.

    `value` is the decoded `body`, if it is known. Raises: `NoCall`.
    """
    text = body.strip()
    try:
        if value is UNREAD:
            value = decode(text)
        if isinstance(value, str):
            text = value.strip()
            value = decode(text)
    except ValueError as error:
        raise NoCall(f"the arguments are not valid JSON: {error}", name) from None
    if not isinstance(value, dict):
        raise NoCall(f"the arguments are not an object but {_kind(value)}", name)
    return value, text


def read_call(body: str, value: Json = UNREAD) -> Wanted:
    """Return the call in an object with a name and `arguments` or `parameters`. Raises: `NoCall`."""
    try:
        if value is UNREAD:
            value = decode(body)
    except ValueError as error:
        raise NoCall(f"not valid JSON: {error}") from None
    return to_call(value, body)


def to_call(value: Json, body: str) -> Wanted:
    """Return the call in `value`, which is the decoded `body`. Raises: `NoCall`."""
    if type(value) is dict and len(value) == 2 and (head := _HEAD.match(body)) is not None:
        name, arguments = value.values()
        if name and type(arguments) is dict:
            # The object has only two fields, so the arguments are the rest of its text.
            return Wanted(name, arguments, body[head.end() : body.rindex("}")].strip(_SPACE))
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
