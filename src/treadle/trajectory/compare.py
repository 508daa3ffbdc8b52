"""The comparison of two results of one tool call, except for parts that may differ according to the tool."""

import calendar
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate
from functools import cache
from time import gmtime

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
_CLOCK_SLACK = 1.5
"""By how many seconds the clock of a tool's server may differ, and how coarse its times may be."""


def is_same(recorded: ToolResult, found: ToolResult, may_differ: Sequence[str] = ()) -> bool:
    """Return whether `found` equals `recorded`, except for differences that `ToolSpec.may_differ` allows."""
    if recorded.is_error != found.is_error:
        return False
    if not may_differ:
        return recorded.content == found.content and recorded.artifacts == found.artifacts
    return normalize(recorded.content, may_differ) == normalize(found.content, may_differ)


def shows_clock(text: str, begin: float, end: float) -> bool:
    """Return whether `text` has a date with a time of day between `begin` and `end`, in seconds since the epoch.

    Such a result is equal to a later one only if both were made in the same second. A date without an offset may be
    in any time zone. A time of day without a date does not count, because many texts have such a time by chance.
    """
    begin, end = begin - _CLOCK_SLACK, end + _CLOCK_SLACK
    for found in _TIMESTAMP.finditer(text):
        time = _read_time(found[0], gmtime(begin).tm_year)
        if time is None:
            continue
        at, is_local = time
        if begin <= at <= end:
            return True
        # All offsets of time zones are multiples of 15 minutes, up to 14 hours.
        shift = round((at - begin) / 900) * 900
        if is_local and abs(shift) <= 14 * 3600 and begin <= at - shift <= end:
            return True
    return False


def _read_time(text: str, year: int) -> tuple[float, bool] | None:
    """Return a time in seconds since the epoch, and whether its offset is unknown; `None` if it has no time of day.

    `year` is the year of a date that has none.
    """
    if text.isdigit() or text.replace(".", "", 1).isdigit():
        whole = text.partition(".")[0]
        return float(text) / 10 ** (len(whole) - 10), False
    if len(text) < len("Jan 01 00:00:00"):
        return None
    try:
        found = datetime.fromisoformat(text.replace(" UTC", "Z").replace(" GMT", "Z").replace(",", "."))
    except ValueError:
        parts = parsedate(text) or parsedate(f"{text} {year}")
        return None if parts is None else (calendar.timegm(parts), True)
    is_local = found.tzinfo is None
    return (found.replace(tzinfo=UTC) if is_local else found).timestamp(), is_local


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
