"""Dates among the figures of a text: in digits and words, by the week or day of the year, and by the distance from
another date; and lengths of time as ISO 8601 writes them."""

import re
from collections.abc import Iterator
from datetime import date, timedelta

from msgspec.structs import replace

from treadle.datagen.quality.figures.quantities import NUMBERS, Quantity, QuantityKind, lexicon, shape, shapes

MONTHS = {name: month for month, names in enumerate(lexicon("dates")["months"], 1) for name in names.split()}
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_TO = rf"(?:\s?[-–—]\s?|\s(?:{'|'.join(lexicon('dates')['ranges'].split())})\s)"
DATE_FORM = re.compile(
    rf"""(?P<y>[12]\d{{3}})(?P<s>[-/.])(?P<m>0?[1-9]|1[0-2])(?P=s)(?P<d>{_DAY})(?!\d)
    | (?:(?P<from>{_DAY})(?:st|nd|rd|th|\.)?{_TO})?(?P<d2>{_DAY})(?:st|nd|rd|th|\.)?(?:\s+|[-/])(?:of\s+)?
        (?P<M>{"|".join(sorted(MONTHS, key=len, reverse=True))})\b\.?
        (?:(?:,?\s+|[-/])(?P<y2>[12]\d{{3}}|['’]\d\d)\b)?
    | (?P<a>{_DAY})(?P<s2>[./-])(?P<b>{_DAY})(?P=s2)(?P<y4>[12]\d{{3}}|\d\d)(?![\d:]|[.-]\d)""",
    re.IGNORECASE | re.VERBOSE,
)
_DAYS_FROM, _LENGTH, _DAY_LIKE, _COMPACT = shapes("date_forms", "days_from length day_like compact")
DAY_AFTER = re.compile(
    rf"\.?\s+(?:the\s+)?(?P<d>{_DAY})(?:st|nd|rd|th)?\b(?![:.,]?\d)"
    rf"(?:{_TO}(?P<to>{_DAY})(?:st|nd|rd|th)?\b(?![:.,]?\d))?(?:,?\s+(?P<y>[12]\d{{3}}|['’]\d\d)\b)?"
)
DAY_NUMBER = shape("dates", "numbered")


def read_date(found: re.Match[str]) -> Iterator[Quantity]:
    start, end = found.span()
    year = next((int(found[name].strip("'’")) for name in ("y", "y2", "y4") if found[name]), None)
    if year is not None and year < 100:
        year += 2000
    if found["a"]:
        one, two = int(found["a"]), int(found["b"])
        orders = ((one, two),) if found["s2"] == "." and two <= 12 else ((one, two), (two, one))
        readings = sorted({month * 100.0 + day for day, month in orders if month <= 12})
    elif found["m"]:
        readings = [int(found["m"]) * 100.0 + int(found["d"])]
    else:
        if found["M"] == "may":
            return  # 3 may be
        month = MONTHS[found["M"].casefold()] * 100.0
        if found["from"]:
            yield to_date(month + int(found["from"]), start, found.end("from"), year)
            start = found.start("d2")
        readings = [month + int(found["d2"])]
    if readings:
        yield replace(to_date(readings[0], start, end, year), other=readings[-1])


def read_days(month: int, found: re.Match[str], start: int) -> Iterator[Quantity]:
    year = int(found["y"].strip("'’")) if found["y"] else None
    year = year + 2000 if year is not None and year < 100 else year
    yield to_date(
        month * 100.0 + int(found["d"]), start, found.end("d") if found["to"] else found.end(), year
    )
    if found["to"]:
        yield to_date(month * 100.0 + int(found["to"]), found.start("to"), found.end(), year)


def read_length(text: str, start: int) -> Iterator[Quantity]:
    """Yield the length of time whose first digit is at `start`, as in `PT1H20M`, in minutes."""
    if start > 1 and (found := _LENGTH.match(text, start - 2)) is not None:
        minutes = sum([float(found[name] or 0) * size for name, size in (("h", 60), ("m", 1), ("s", 1 / 60))])
        yield Quantity(QuantityKind.NUMBER, minutes, start, found.end(), minutes, minutes, "min")


def shift_date(text: str, item: Quantity) -> Quantity:
    """Return a date with the day that is meant as another reading, as in `two days before 9 May`."""
    found = _DAYS_FROM.search(text, max(0, item.start - 28), item.start)
    if found is None:
        return item
    word = found["n"].casefold()
    days = (int(word) if word.isdecimal() else int(NUMBERS.get(word, 1))) * (7 if found["w"] else 1)
    try:
        day = date(item.year or 2023, int(item.value) // 100, int(item.value) % 100)
    except ValueError:
        return item
    day += timedelta(days if found["after"] else -days)
    return replace(item, other=day.month * 100.0 + day.day)


def to_date(value: float, start: int, end: int, year: int | None) -> Quantity:
    return Quantity(QuantityKind.DATE, value, start, end, value, value, year=year, other=value)


def days_like(text: str, start: int) -> Iterator[float]:
    """Yield the days as which a number such as `20260307`, `7.3` or `7/3` can be read."""
    if (found := _COMPACT.match(text, start)) is not None:
        yield int(found["m"]) * 100.0 + int(found["d"])
    elif (found := _DAY_LIKE.match(text, start)) is not None:
        one, two = int(found["a"]), int(found["b"])
        for day, month in ((one, two), (two, one)) if found["s"] == "/" else ((one, two),):
            if 1 <= day <= 31 and 1 <= month <= 12:
                yield month * 100.0 + day
