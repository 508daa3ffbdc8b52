"""Values in texts, in one form: numbers with their unit and rounding, times of day, dates, fractions.

The same reader serves answers and results, so that `2:05 pm` is `14:05:09` without its seconds, and 1.2 MB is
1234567 bytes, rounded.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from enum import StrEnum
from functools import cache
from typing import Any

from msgspec import Struct

from treadle.core.documents import read_data


@cache
def lexicon(section: str) -> dict[str, Any]:
    """Return a section of `grounding.toml`."""
    found: dict[str, Any] = read_data(__package__, "grounding")[section]
    return found


class QuantityKind(StrEnum):
    """What a quantity measures."""

    NUMBER = "number"
    TIME = "time"
    """Minutes after midnight."""
    DATE = "date"
    """The day of the year, as 100 times the month plus the day."""
    SHARE = "share"
    """A fraction in words, from 0 to 1."""


class Quantity(Struct, frozen=True):
    """A value that a text has."""

    kind: QuantityKind
    value: float
    start: int
    end: int
    slack: float = 1e-9
    """How far a value may be away that was rounded to this one."""
    unit: str = ""
    """The unit or `%`, as written."""
    is_word: bool = False
    """True if the number is a word."""
    year: int | None = None
    """The year of a date; `None` if the date has none."""
    other: float | None = None
    """Another reading of a date whose day and month can be confused."""
    has_halves: bool = True
    """False for a time of day on a clock of twelve hours without am or pm."""


_UNITS: dict[str, tuple[str, float]] = {
    name: (dimension, factor)
    for dimension, units in lexicon("units").items()
    for name, factor in units.items()
}
_UNITS_IN_LABELS = {name.lower(): unit for name, unit in reversed(_UNITS.items())}
_UNIT_NAMES = "|".join(
    sorted((re.escape(name) for name in _UNITS if name[0] not in "°€$£"), key=len, reverse=True)
)
_NUMBER_WORDS: dict[str, float] = lexicon("numbers")
_FRACTIONS: dict[str, float] = lexicon("fractions")


def _first_of(words: Iterable[str]) -> str:
    """Return a pattern that looks ahead for the first letter of one of some words: a position where none of them
    begins is left at once."""
    return f"(?=[{''.join(sorted({word[0] for word in words}))}])"


_MONTHS = [re.compile(text, re.IGNORECASE) for text in lexicon("dates")["months"]]
_MONTH = "(?:" + "|".join(lexicon("dates")["months"]) + r")\b\.?"
_DATE = re.compile(
    rf"""(?=[\d{"".join(sorted({name[0] for name in lexicon("dates")["months"]}))}])(?:
    \b(?P<y>[12]\d{{3}})[-/](?P<m>0?[1-9]|1[0-2])[-/](?P<d>0?[1-9]|[12]\d|3[01])(?!\d)
    | \b(?P<d2>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th|\.)?\s+(?:of\s+)?(?P<M2>{_MONTH})(?:,?\s+(?P<y2>[12]\d{{3}})\b)?
    | \b(?P<M3>{_MONTH})\s+(?P<d3>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?\b(?![:.,]?\d)(?:,?\s+(?P<y3>[12]\d{{3}})\b)?
    | (?<![\d./])(?P<a>0?[1-9]|[12]\d|3[01])(?P<sep>[./])(?P<b>0?[1-9]|[12]\d|3[01])(?P=sep)(?P<y4>[12]\d{{3}})\b)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_TIME = re.compile(
    r"""(?<![\d:.,])(?P<h>[01]?\d|2[0-4])[:.](?P<m>[0-5]\d)(?::(?P<s>[0-5]\d)(?:[.,]\d+)?)?
        (?:\s?(?P<half>[ap])\.?m\b\.?)?(?![\d:]|\.\d)(?<=[\dm.])
    | (?<![\d:.,])(?P<h2>1[0-2]|0?[1-9])(?:\s*(?:-|–|to|until|and)\s*(?P<h3>1[0-2]|0?[1-9])(?::(?P<m3>[0-5]\d))?)?
        \s?(?P<half2>[ap])\.?m\b\.?
    | \bhalf\ past\ (?P<past>\w+)""",
    re.IGNORECASE | re.VERBOSE,
)
_NUMBER = re.compile(
    r"(?<![\w.])(?<![^\W\d]-)[-−+]?(?P<c>[$€£])?\s?"
    r"(?P<n>\d{1,3}(?:[, '’_\u00a0\u202f]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?)"
    r"(?P<k>[kKM]\b|\s?(?:hundred|thousand|million|billion)\b)?(?:(?:st|nd|rd|th)\b)?(?![\w@]*@\w)(?!/\w)"
    rf"(?:\s?(?P<u>%|[$€£]|per ?cent\b|prosent\b|°[CF]\b|m/s\b|km/h\b|-?(?:{_UNIT_NAMES})\b"
    r"|(?<=\d)[A-Za-z]\w*))?(?!\d)"
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TIMES = ("a", "one", "two", "three", "four")
_WORD = re.compile(
    rf"\b{_first_of([*_NUMBER_WORDS, *_TENS])}(?:(?P<tens>{'|'.join(_TENS)})[- ]"
    r"(?P<ones>one|two|three|four|five|six|seven|eight|nine)"
    rf"|(?P<word>{'|'.join(_NUMBER_WORDS)}))\b(?:\s+(?P<scale>hundred|thousand|million))?"
    rf"(?P<half> and a half)?(?:[\s-](?P<u>{_UNIT_NAMES})\b)?",
    re.IGNORECASE,
)
_FRACTION = re.compile(
    rf"\b{_first_of([*_TIMES, *_FRACTIONS])}(?:(?P<times>{'|'.join(_TIMES)})[- ])?"
    rf"(?P<part>{'|'.join(_FRACTIONS)})s?\b"
    r"(?!\s+(?:past|an? hour|hour|of an hour|of the year|time))",
    re.IGNORECASE,
)
_TOO_LARGE = 1e300
"""The value of numbers that are beyond the range of floats."""
_DIGIT = re.compile(r"\d")
_DATE_SIGN = re.compile(r"\d[-/.]\d|\d(?:st|nd|rd|th|\.)?\s+[^\W\d]|[^\W\d]\.?\s+\d", re.IGNORECASE)
"""What each date has: digits beside a separator, a day before a word, or a word before a day."""
_PLAIN_NUMBER = re.compile(r"[-+]?(?P<n>\d{1,12})")
_TIME_SIGN = re.compile(r"\d:\d|\d\s?[aApP]\.?[mM]\b|half past")
_DECIMAL_COMMA = re.compile(
    r"\A(?:[-+]?[$€£]?\d+,\d{1,2}|[-+]?\d+,\d{4,}|[-+]?\d{1,3}(?:[ .\u00a0]\d{3})+,\d+)\Z"
)
_MARKS = re.compile(r"[$€£,'’_%\s\u00a0\u202f]")
_SPEEDS = {"m/s": "mps", "km/h": "kmh"}


def read_number(text: str) -> float | None:
    """Return the value of a number as people write it; `None` if it is not a number, or too large."""
    text = text.strip().replace("−", "-")
    if _DECIMAL_COMMA.match(text):
        text = text.replace(".", "").replace(",", ".")  # a decimal comma
    if text.isdecimal() and len(text) < 300:
        return float(text)
    try:
        value = float(_MARKS.sub("", text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def unit_of(name: str) -> tuple[str, float] | None:
    """Return the dimension of a unit and its size; `None` if the unit is not known."""
    name = _SPEEDS.get(name, name)
    return _UNITS.get(name) or _UNITS_IN_LABELS.get(name.lower())


def find_quantities(text: str, *, has_words: bool = True) -> list[Quantity]:
    """Return the values in a text, in their order. `has_words`: numbers and fractions in words count too."""
    found: list[Quantity] = []
    has_digits = _DIGIT.search(text) is not None
    if not has_digits and not has_words:
        return found
    if has_digits and (plain := _PLAIN_NUMBER.fullmatch(text)) is not None:
        value = float(plain["n"])
        return [Quantity(QuantityKind.NUMBER, -value if text[0] == "-" else value, 0, len(text), 1e-6)]
    rest = text
    if has_digits and _DATE_SIGN.search(text):
        rest = _take(_DATE, _read_date, rest, found)
    if (has_digits and _TIME_SIGN.search(rest)) or (has_words and "half past" in rest):
        rest = _take(_TIME, _read_time, rest, found)
    if has_words:
        rest = _take(_FRACTION, _read_fraction, rest, found)
        rest = _take(_WORD, _read_word, rest, found)
    if has_digits:
        for match in _NUMBER.finditer(rest):
            found += _read_number(match)
    found.sort(key=_start)
    return found


def _start(item: Quantity) -> int:
    return item.start


def _take(
    shape: re.Pattern[str],
    read: Callable[[re.Match[str]], Iterator[Quantity]],
    rest: str,
    found: list[Quantity],
) -> str:
    """Add what a pattern finds, and return the text without it."""
    for match in [*shape.finditer(rest)]:
        if values := list(read(match)):
            found += values
            rest = f"{rest[: match.start()]}{'¤' * len(match[0])}{rest[match.end() :]}"
    return rest


def _read_date(match: re.Match[str]) -> Iterator[Quantity]:
    part = match.groupdict()
    start, end = match.span()
    year = next((int(part[name]) for name in ("y", "y2", "y3", "y4") if part[name]), None)
    if part["a"]:
        one, two = int(part["a"]), int(part["b"])
        readings = sorted({month * 100.0 + day for day, month in ((one, two), (two, one)) if month <= 12})
    elif part["m"]:
        readings = [int(part["m"]) * 100.0 + int(part["d"])]
    else:
        name = part["M2"] or part["M3"]
        month = next(index for index, shape in enumerate(_MONTHS, 1) if shape.match(name))
        readings = [month * 100.0 + int(part["d2"] or part["d3"])]
    if readings:
        yield Quantity(QuantityKind.DATE, readings[0], start, end, 0.0, year=year, other=readings[-1])


def _read_time(match: re.Match[str]) -> Iterator[Quantity]:
    part = match.groupdict()
    half = (part["half"] or part["half2"] or "").lower()
    times: list[tuple[int, int]] = []
    if part["past"]:
        hour = _NUMBER_WORDS.get(part["past"].lower())
        times += [] if hour is None else [(int(hour), 30)]
    elif part["h"]:
        if not half and "." in match[0]:
            return  # 9.15 is a number
        times.append((int(part["h"]), int(part["m"])))
    else:
        times.append((int(part["h2"]), 0))
        if part["h3"]:
            times.append((int(part["h3"]), int(part["m3"] or 0)))
    for hour, minute in times:
        if half:
            hour = hour % 12 + (12 if half == "p" else 0)
        value = hour % 24 * 60 + minute + int(part["s"] or 0) / 60
        is_whole = bool(half) or hour > 12 or (part["h"] or "").startswith("0")
        yield Quantity(QuantityKind.TIME, value, *match.span(), 1.0, has_halves=is_whole)


def _read_fraction(match: re.Match[str]) -> Iterator[Quantity]:
    part = match["part"].lower()
    if (
        part in ("second", "third", "fifth", "tenth", "quarter")
        and not match["times"]
        and not match[0].endswith("s")
    ):
        return  # the third order
    times = {"two": 2, "three": 3, "four": 4}.get((match["times"] or "").lower(), 1)
    yield Quantity(QuantityKind.SHARE, times * _FRACTIONS[part], *match.span(), 0.06, is_word=True)


def _read_word(match: re.Match[str]) -> Iterator[Quantity]:
    if match["tens"]:
        value = _NUMBER_WORDS[match["tens"].lower()] + _NUMBER_WORDS.get(match["ones"].lower(), 1)
    else:
        value = _NUMBER_WORDS[match["word"].lower()]
    value *= lexicon("scales").get((match["scale"] or "").lower(), 1)
    value += 0.5 if match["half"] else 0.0
    yield Quantity(QuantityKind.NUMBER, value, *match.span(), 1e-9, match["u"] or "", is_word=True)


def _read_number(match: re.Match[str]) -> Iterator[Quantity]:
    digits = match["n"]
    value = read_number(digits)
    if value is None:
        value = _TOO_LARGE
    scale = lexicon("scales").get((match["k"] or "").strip().lower() if match["k"] != "M" else "M", 1.0)
    unit = (match["u"] or match["c"] or "").lstrip("-")
    if unit and unit != "%" and not unit.startswith("per") and unit != "prosent" and unit_of(unit) is None:
        return  # a part of an identifier
    decimals = re.search(r"[.,](\d+)$", digits)
    places = len(decimals[1]) if decimals and (len(decimals[1]) != 3 or "." in decimals[0]) else 0
    slack = 0.5001 * 10.0**-places * scale if places or scale > 1 else 1e-6
    unit = "%" if unit.startswith("per") or unit == "prosent" else unit
    value = -value if match[0][0] in "-−" else value
    yield Quantity(QuantityKind.NUMBER, value * scale, *match.span(), slack, unit)


def day_number(found: Quantity) -> int | None:
    """Return the number of a date among all days; `None` if the date has no year, or does not exist."""
    try:
        return date(found.year or 0, int(found.value) // 100, int(found.value) % 100).toordinal()
    except ValueError:
        return None
