"""Names, ids and arguments of tool calls, and JSON Schemas, in the forms that servers accept.

A model may write any name, id and arguments. The journal keeps them, but a server that checks its requests refuses
the whole history because of them.
"""

import hashlib
import re
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from treadle.core.texts.documents import UNREADABLE, read_data
from treadle.core.texts.json_text import is_deep
from treadle.core.types import Json

INVALID_KEY = "INVALID_JSON"
"""The key for arguments that are not an object, if the wire format requires an object.

Source: Anthropic's documentation of fine-grained tool streaming.
"""

_NAMED = ("properties", "$defs", "definitions")
"""The keys of a schema with schemas by name."""
_VALUES = ("enum", "const", "default", "examples", "required")
"""The keys of a schema with values, in which nothing is a schema."""
_BOUNDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)
_MAX_NAME_CHARS = 64
_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode


def object_of(arguments: str) -> msgspec.Raw:
    """Return `arguments` unchanged if they are an object, else an object that contains their text."""
    encoded = arguments.encode(errors="replace")
    if not is_deep(encoded):
        with suppress(*UNREADABLE):
            _decode_object(encoded)
            return msgspec.Raw(encoded)
    return msgspec.Raw(msgspec.json.encode({INVALID_KEY: encoded.decode()}) if encoded.strip() else b"{}")


def kept_in(opaque: dict[str, Json] | None, key: str) -> dict[str, Json]:
    """Return what the dialect with this key has kept in opaque data; empty if it has kept nothing."""
    found = (opaque or {}).get(key)
    return found if isinstance(found, dict) else {}


def text_of(arguments: msgspec.Raw) -> str:
    """Return arguments as JSON text, given their raw value. A string already is that text."""
    encoded = bytes(arguments)
    if encoded.startswith(b'"'):
        return str(msgspec.json.decode(encoded))
    return "" if encoded in (b"", b"null") else encoded.decode()


def exact_text(
    *path: str, mark: bytes, applies: Callable[[dict[str, Json]], bool] = lambda _: True
) -> Callable[[Json, bytes], Json]:
    """Return a function that puts the exact text of what stands at a path into a value, given the body that the
    value was decoded from, and returns the value.

    `*` in a path stands for each element of a list. A value in which the path makes no sense is left as it is.
    Without `mark`, a body has nothing there. `applies` says whether the path is for the object that holds its end.
    """
    # The decoder skips everything else, and finds only where the text begins and ends.
    kind: Any = msgspec.defstruct("Exact", [(path[-1], msgspec.Raw, msgspec.Raw())])
    for name in reversed(path[:-1]):
        kind = list[kind] if name == "*" else msgspec.defstruct("Exact", [(name, kind | None, None)])
    decode, keep = msgspec.json.Decoder(kind).decode, _keeper(path, applies)

    def put(value: Json, body: bytes) -> Json:
        if mark in body:
            try:
                keep(value, decode(body))
            except (TypeError, LookupError, AttributeError, ValueError, msgspec.DecodeError):
                return value  # Reading it will tell.
        return value

    return put


def _keeper(path: tuple[str, ...], applies: Callable[[dict[str, Json]], bool]) -> Callable[[Json, Any], None]:
    name = path[0]
    inner = _keeper(path[1:], applies) if path[1:] else None

    def keep_each(value: Json, exact: Any) -> None:
        for item, other in zip(value, exact, strict=True):
            inner(item, other)  # type: ignore[misc]

    def keep(value: Json, exact: Any) -> None:
        found = getattr(exact, name)
        if found is None or name not in value:
            return
        if inner is not None:
            inner(value[name], found)
        elif applies(value):
            value[name] = text_of(found)

    return keep_each if name == "*" else keep


def text_of_value(value: Json) -> str:
    """Return a decoded value as JSON text. A string is returned unchanged, `None` as an empty text."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def text_or_none(value: Json) -> str | None:
    """Return a name or an id as a text; `None` if there is none."""
    return value if value is None or type(value) is str else str(value)


def fields_of(dialect: str) -> dict[str, frozenset[str]]:
    """Return the fields of a dialect's answers that Treadle has a place for, by what they are fields of."""
    return {
        name: frozenset(fields)
        for name, fields in read_data(__package__, "answers")["fields"][dialect].items()
    }


def rest_of(raw: dict[str, Json], known: Container[str]) -> dict[str, Json]:
    """Return the fields of an object that are not `known` and not empty, which a message keeps opaque."""
    return {
        key: value
        for key, value in raw.items()
        if key not in known and (value or value is False or value == 0)
    }


def fit_arguments(arguments: str) -> str:
    """Return `arguments` unchanged if they are an object, else the text of an object that contains them.

    Source: vLLM 0.11 and llama.cpp decode the arguments of earlier calls, and fail if they are not JSON.
    """
    if arguments.startswith("{") and not is_deep(arguments):
        try:
            _decode_any(arguments)
        except UNREADABLE:
            pass
        else:
            return arguments
    return bytes(object_of(arguments)).decode()


@lru_cache(maxsize=4096)
def fit_name(name: str) -> str:
    """Return the name of a tool if it has at most 64 ASCII letters, digits, `_` and `-`, else one like it.

    All tools that are offered have such names; others are made up, such as `multi_tool_use.parallel`. Source:
    OpenAI, `^[a-zA-Z0-9_-]{1,64}$`; Anthropic and Gemini also accept longer ones.
    """
    return _UNSAFE.sub("_", name)[:_MAX_NAME_CHARS] or "tool"


def fit_id(call_id: str, max_chars: int = 64) -> str:
    """Return the id if it has at most `max_chars` ASCII letters, digits, `_` and `-`; else one made from it."""
    plain = call_id.replace("_", "a").replace("-", "a")
    if len(call_id) <= max_chars and plain.isascii() and plain.isalnum():
        return call_id
    return f"call_{hashlib.sha256(call_id.encode(errors='replace')).hexdigest()[:24]}"


def is_strict(schema: Json) -> bool:
    """Return whether OpenAI accepts `schema` with `strict`: objects are closed, and all properties required."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    for item in _subschemas(schema):
        if item.get("type") == "object" or "properties" in item:
            properties = item.get("properties", {})
            if item.get("additionalProperties") is not False:
                return False
            if set(item.get("required", ())) != set(properties):
                return False
    return True


def is_closed(schema: Json) -> bool:
    """Return whether every object in `schema` forbids properties other than those named."""
    return all(
        item.get("additionalProperties") is False
        for item in _subschemas(schema)
        if item.get("type") == "object" or "properties" in item
    )


def without_bounds(schema: Json) -> Json:
    """Return `schema` without the bounds of numbers, texts and lists, within which not every server can decode."""
    if isinstance(schema, list):
        return [without_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: without_bounds(item) for name, item in value.items()}
        if key in _NAMED and isinstance(value, dict)
        else value
        if key in _VALUES
        else without_bounds(value)
        for key, value in schema.items()
        if key not in _BOUNDS
    }


def _subschemas(schema: Json) -> Iterator[dict[str, Json]]:
    """Yield every object in `schema` that may be a schema, itself first."""
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in _NAMED and isinstance(value, dict):
                for item in value.values():
                    yield from _subschemas(item)
            elif key not in _VALUES:
                yield from _subschemas(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _subschemas(item)
