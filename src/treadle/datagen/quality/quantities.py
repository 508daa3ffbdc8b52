"""Figures as values: what a number, share, date or time of day in a text says, and how exact it is.

`figure_reader` is the only reader of them, for answers and results alike, so that `2:05 pm` is `14:05:09` without
its seconds, and 1.2 MB is 1234567 bytes, rounded.
"""

from datetime import date
from enum import StrEnum
from functools import cache
from typing import Any

from msgspec import Struct

from treadle.core.documents import read_data


@cache
def lexicon(section: str) -> dict[str, Any]:
    """Return a section of `grounding.toml` or `quantities.toml`."""
    data = read_data(__package__, "quantities") | read_data(__package__, "grounding")
    found: dict[str, Any] = data[section]
    return found


class QuantityKind(StrEnum):
    """What a quantity measures."""

    NUMBER = "number"
    TIME = "time"
    """Minutes after midnight."""
    DATE = "date"
    """The day of the year, as 100 times the month plus the day."""
    SHARE = "share"
    """A fraction or a ratio, such as `two thirds`, `1/4` or `3:1`."""


class Quantity(Struct, frozen=True):
    """A value that a text has."""

    kind: QuantityKind
    value: float
    start: int
    end: int
    low: float = 0.0
    """The smallest size, without the sign, that can be written so."""
    high: float = 0.0
    """The largest size that can be written so."""
    unit: str = ""
    """The unit as written, or `%`; for a time of day, `h` if it can also be a number of hours, as `2:05 h`."""
    is_word: bool = False
    """True if the number is a word."""
    is_about: bool = False
    """True if the text says that it is not exact."""
    is_ordinal: bool = False
    """True if it is a place in an order, such as `3rd`."""
    other: float | None = None
    """Another reading: of a date whose day and month can be confused, or of a comma or point that separates
    thousands or decimals."""
    clock: float | None = None
    """The reading of a number such as `6.40` as a time of day."""
    year: int | None = None
    """The year of a date; `None` if the date has none."""
    has_halves: bool = True
    """False for a time of day on a clock of twelve hours without am or pm."""
    whole: float | None = None
    """What the number is a part of, as 8 in `3 of 8`; equal to the value for the whole itself."""
    spread: tuple[float, float] | None = None
    """The bounds of the range that the number is an end of."""


UNITS: dict[str, tuple[str, float]] = {
    name: (dimension, factor)
    for dimension, units in lexicon("units").items()
    for name, factor in units.items()
}
_UNITS_IN_LABELS = {name.lower(): unit for name, unit in reversed(UNITS.items())}


def unit_of(name: str) -> tuple[str, float] | None:
    """Return the dimension of a unit and its size; `None` if the unit is not known."""
    if not name or name == "%":
        return None
    return UNITS.get(name) or _UNITS_IN_LABELS.get(name.lower())


def day_number(found: Quantity) -> int | None:
    """Return the number of a date among all days; `None` if the date has no year, or does not exist."""
    try:
        return date(found.year or 0, int(found.value) // 100, int(found.value) % 100).toordinal()
    except ValueError:
        return None
