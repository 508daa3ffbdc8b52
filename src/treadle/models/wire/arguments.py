"""Tool calls for servers that are stricter than chat completions: arguments as objects, ids in few characters."""

import hashlib

import msgspec

from treadle.core.types import Json

INVALID_KEY = "INVALID_JSON"
"""The key for arguments that are not an object, if the wire format requires an object.

Source: Anthropic's documentation of fine-grained tool streaming.
"""

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def object_of(arguments: str) -> msgspec.Raw:
    """Return `arguments` unchanged if they are an object, else an object that contains their text."""
    encoded = arguments.encode(errors="replace")
    try:
        _decode_object(encoded)
    except (msgspec.DecodeError, RecursionError):
        encoded = msgspec.json.encode({INVALID_KEY: encoded.decode()}) if encoded.strip() else b"{}"
    return msgspec.Raw(encoded)


def text_of(arguments: msgspec.Raw) -> str:
    """Return arguments as JSON text, given their raw value. A string already is that text."""
    encoded = bytes(arguments)
    if encoded.startswith(b'"'):
        return str(msgspec.json.decode(encoded))
    return "" if encoded in (b"", b"null") else encoded.decode()


def text_of_value(value: Json) -> str:
    """Return a decoded value as JSON text. A string is returned unchanged, `None` as an empty text."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def fit_id(call_id: str) -> str:
    """Return the id if it has only ASCII letters, digits, `_` and `-`, else one derived from it."""
    if call_id and call_id.isascii() and call_id.replace("_", "a").replace("-", "a").isalnum():
        return call_id
    return f"call_{hashlib.sha256(call_id.encode(errors='replace')).hexdigest()[:24]}"
