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
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def decode_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises: `msgspec.DecodeError` if it is not JSON, is not Unicode, or is nested more than `MAX_DEPTH` levels deep.
    """
    if is_deep(text):
        raise msgspec.DecodeError(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        return msgspec.json.decode(text)
    except UnicodeError as error:
        raise msgspec.DecodeError(f"it is not Unicode: {error}") from None


def is_deep(text: str | bytes) -> bool:
    """Return whether a JSON text is nested more than `MAX_DEPTH` levels deep."""
    opened = (
        text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    )
    if opened <= MAX_DEPTH:
        return False
    depth = 0
    for mark in _MARKS.finditer(text.encode(errors="replace") if isinstance(text, str) else text):
        depth += 1 if mark[0] in (b"[", b"{") else -1 if mark[0] in (b"]", b"}") else 0
        if depth > MAX_DEPTH:
            return True
    return False
