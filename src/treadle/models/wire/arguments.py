"""Tool calls for servers that are stricter than chat completions: arguments as objects, ids of certain letters."""

import hashlib

import msgspec

INVALID_KEY = "INVALID_JSON"
"""Holds arguments that are no object, where the wire has room for nothing else. Source: Anthropic's documentation
of fine-grained tool streaming."""

_IS_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def object_of(arguments: str) -> msgspec.Raw:
    """`arguments` as they are, for a wire that wants an object; what is none is held by one, as its text."""
    encoded = arguments.encode(errors="replace")
    try:
        _IS_OBJECT.decode(encoded)
    except (msgspec.DecodeError, RecursionError):
        encoded = msgspec.json.encode({INVALID_KEY: encoded.decode()}) if encoded.strip() else b"{}"
    return msgspec.Raw(encoded)


def text_of(arguments: msgspec.Raw) -> str:
    """The exact text of arguments that came as a value; none is an empty text, and a string is what it holds."""
    encoded = bytes(arguments)
    if encoded.startswith(b'"'):
        return str(msgspec.json.decode(encoded))
    return "" if encoded in (b"", b"null") else encoded.decode()


def fit_id(call_id: str) -> str:
    """The id, if it has only ASCII letters, digits, `_` and `-`; else one that stands for it."""
    if call_id and call_id.isascii() and call_id.replace("_", "a").replace("-", "a").isalnum():
        return call_id
    return f"call_{hashlib.sha256(call_id.encode(errors='replace')).hexdigest()[:24]}"
