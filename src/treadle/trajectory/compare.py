"""The comparison of two results of one tool call, except for parts that may differ according to the tool."""

import json
import re
from collections.abc import Sequence
from functools import cache

from treadle.core.types import Json, ToolResult

_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)?,? ?(?:\d{1,2} )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    r" (?:\d{1,2},? )?(?:\d{4} )?\d\d:\d\d(?::\d\d)?(?: \d{4})?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b1[0-9]{9}(?:\.\d+|[0-9]{3}|[0-9]{6}|[0-9]{9})?\b"
)
"""A pattern for dates and times: ISO 8601, the formats of `date` and of mail, times of day, and seconds,
milliseconds, microseconds or nanoseconds since 1970."""


def is_same(recorded: ToolResult, found: ToolResult, may_differ: Sequence[str] = ()) -> bool:
    """Return whether `found` equals `recorded`, except for differences that `ToolSpec.may_differ` allows."""
    if recorded.is_error != found.is_error:
        return False
    if not may_differ:
        return recorded.content == found.content and recorded.artifacts == found.artifacts
    return normalize(recorded.content, may_differ) == normalize(found.content, may_differ)


def normalize(text: str, may_differ: Sequence[str]) -> str:
    """Return `text` with every part that may differ replaced by a fixed text."""
    is_ordered = True
    for rule in may_differ:
        if rule == "order":
            is_ordered = False
        else:
            text = (_TIMESTAMP if rule == "timestamps" else _compile(rule)).sub("…", text)
    return text if is_ordered else _sort(text)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _sort(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list | dict):
        return json.dumps(_sort_json(value), sort_keys=True)
    return "\n".join(sorted(text.splitlines()))


def _sort_json(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _sort_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_sort_json(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value
