"""The decoding of JSON with small damage, in a way that keeps everything else.

The damage is a byte order mark, bytes that are not UTF-8, or surrogates: JSON can escape the halves of a character
separately, and a server that cuts its text into pieces may cut between them.
"""

import json
import re
from collections.abc import Callable
from typing import NoReturn

import msgspec

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Json
from treadle.http.sse import BOM

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_decode = msgspec.json.Decoder().decode


def decode_damaged(body: bytes) -> Json:
    """Return the value of JSON that the strict decoder refused. Its strings may contain surrogates.

    Raises: `msgspec.DecodeError` if it is not JSON.
    """
    # Bytes that are not UTF-8 become replacement characters, as in a browser.
    body = body.removeprefix(BOM).decode(errors="replace").encode()
    try:
        return _decode(body)
    except msgspec.DecodeError:
        if _SURROGATE.search(body) is None:
            raise
        try:
            return json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass
        raise


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def mend(value: Json) -> Json:
    """Return `value` with the surrogates in its strings mended as by `mend_text`.

    Raises: `ValueError` or `RecursionError` for a value that is not JSON.
    """
    return _decode(mend_text(json.dumps(value, ensure_ascii=False)))


def mend_text(text: str) -> str:
    """Return `text` with surrogates joined to characters, or replaced if their other half is missing."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class WholeDeltas:
    """A function that passes deltas on, and keeps the first half of a character until the second one arrives."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._halves: dict[tuple[type[Delta], int], Delta] = {}

    def __call__(self, delta: Delta) -> None:
        """Pass `delta` on, without surrogates."""
        key = (type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0)
        before = self._halves.pop(key, None)
        text = ("" if before is None else _text_of(before)) + _text_of(delta)
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[key] = _with_text(delta, text[-1])
            text = text[:-1]
        if text or not _text_of(delta):
            self._on_delta(_with_text(delta, mend_text(text)))

    def end(self) -> None:
        """Pass on a replacement for each half whose other half never arrived."""
        for delta in self._halves.values():
            self._on_delta(_with_text(delta, mend_text(_text_of(delta))))
        self._halves.clear()


def _text_of(delta: Delta) -> str:
    if isinstance(delta, TextDelta | ReasoningDelta):
        return delta.text
    return delta.arguments if isinstance(delta, ToolCallDelta) else ""


def _with_text(delta: Delta, text: str) -> Delta:
    field = "arguments" if isinstance(delta, ToolCallDelta) else "text"
    return msgspec.structs.replace(delta, **{field: text}) if hasattr(delta, field) else delta
