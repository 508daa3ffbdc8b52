"""JSON texts that somebody else wrote, with one limit of nesting.

Without a limit, it would depend on the stack of the caller whether a text can be decoded and its value be walked
through, so that a replay could differ from its run.
"""

import re
from typing import Any

import msgspec

MAX_DEPTH = 100
"""The deepest nesting of objects and lists in a text that counts as JSON. A function that walks through a value
takes up to six frames a level, and Python allows 1,000 in all."""
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*+"?')
_LISTS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))


def decode_json(text: str | bytes, *, around: int = 0) -> Any:
    """Return the value of a JSON text. `around` is how many levels stand around the values that the limit is for.

    Raises: `msgspec.DecodeError` if it is not JSON, is not Unicode, or is nested more than `MAX_DEPTH` levels deep.
    """
    if is_deep(text, around=around):
        raise msgspec.DecodeError(f"it is nested more than {MAX_DEPTH + around} levels deep")
    try:
        return msgspec.json.decode(text)
    except UnicodeError as error:
        raise msgspec.DecodeError(f"it is not Unicode: {error}") from None


def is_deep(text: str | bytes, *, around: int = 0) -> bool:
    """Return whether a JSON text is nested more than `MAX_DEPTH` levels deep, besides those `around`."""
    most = MAX_DEPTH + around
    opened = (
        text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    )
    if opened <= most:
        return False
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if b"\\" in data:
        data = _ESCAPED.sub(b"", data)
    marks = _STRING.sub(b"", data.translate(_LISTS, _OTHERS))
    # Each round takes the innermost level away. What is left of a text that is cut off was never closed.
    for _ in range(most):
        if b"[]" not in marks:
            break
        marks = marks.replace(b"[]", b"")
    return b"[]" in marks or marks.count(b"[") > most
