"""Figures as values: what a number, share, date or time of day in a text says, and how exact it is.

`figure_reader` is the only reader of them, for answers and results alike, so that `2:05 pm` is `14:05:09` without
its seconds, and 1.2 MB is 1234567 bytes, rounded.
"""

import re
from collections.abc import Iterator
from datetime import date
from enum import StrEnum
from functools import cache
from typing import Any

from msgspec import Struct

from treadle.core.texts.documents import read_data


@cache
def lexicon(section: str) -> dict[str, Any]:
    """Return a section of `quantities.toml`, `grounding.toml` or `forms.toml`."""
    files = [read_data(__package__, name) for name in ("quantities", "grounding", "forms")]
    return next(data[section] for data in files if section in data)


@cache
def shape(section: str, name: str) -> re.Pattern[str]:
    """Return a pattern of a section."""
    return re.compile(lexicon(section)[name])


def shapes(section: str, names: str) -> list[re.Pattern[str]]:
    """Return the patterns of a section with these names, which spaces separate."""
    return [shape(section, name) for name in names.split()]


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
    """The unit as written, or `%`; for a time of day, `h` or `min` if it is rather a number of these, as
    `2:05 h`; for a date, `week` or `day` if the value is the number of one in its year."""
    is_word: bool = False
    """True if the number is a word."""
    is_about: bool = False
    """True if the text says that it is not exact."""
    is_ordinal: bool = False
    """True if it is a place in an order, such as `3rd`."""
    other: float | None = None
    """Another reading: of a date or a separator that can be read in two ways."""
    clock: float | None = None
    """The reading of a number such as `6.40` as a time of day."""
    days: tuple[float, ...] = ()
    """The readings of a number as a day of the year."""
    portion: float | None = None
    """Which share the number and its whole are, as 0.375 for both in `3 of 8`."""
    year: int | None = None
    """The year of a date; `None` if the date has none."""
    has_halves: bool = True
    """False for a time of day on a clock of twelve hours without am or pm."""
    whole: float | None = None
    """What the number is a part of, as 8 in `3 of 8`; equal to the value for the whole itself."""
    spread: tuple[float, float] | None = None
    """The bounds of the range that the number is an end of."""


CURRENCIES: dict[str, list[str]] = {code: names.split("|") for code, names in lexicon("currencies").items()}
"""The signs and names of each currency."""
_PER = re.compile(r"\s?/\s?|\s(?:per|an?|i|pro)\s")


def _units() -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield the units with a prefix, those that are listed, and currencies with their coins."""
    listed = {
        name: (dimension, float(size))
        for dimension, units in lexicon("units").items()
        for names, size in units.items()
        for name in names.split("|")
    }
    sizes = {sign: item.split() for sign, item in lexicon("prefixes")["sizes"].items()}
    for units, signs in lexicon("prefixes").items():
        for unit in units.split() if isinstance(signs, str) else ():
            dimension, whole = listed[unit]
            is_word = len(unit) > 2 and unit.islower()
            for sign in signs.split():
                size, name = sizes[sign]
                yield f"{name if is_word else sign}{unit}", (dimension, float(size) * whole)
    yield from listed.items()
    for code, names in CURRENCIES.items():
        yield from [(name, (code, 1.0)) for name in (code, *names)]
        coins = lexicon("coins").get(code, "").split("|")
        yield from [(name, (code, 0.01)) for name in (f"{code}.coin", *coins) if name]


UNITS: dict[str, tuple[str, float]] = dict(_units())
SIZES: dict[str, frozenset[float]] = {
    dimension: frozenset([size for other, size in UNITS.values() if other == dimension])
    for dimension in {name for name, _ in UNITS.values()}
}
"""The sizes of the units of each dimension."""
_UNITS_IN_LABELS = {
    name.lower(): unit for name, unit in reversed(UNITS.items()) if len(name) > 1 or not name.isupper()
}


@cache
def unit_of(name: str) -> tuple[str, float] | None:
    """Return the dimension of a unit, such as `volume/time`, and its size; `None` if it is not known."""
    if not name or name == "%":
        return None
    if (known := UNITS.get(name) or _UNITS_IN_LABELS.get(name.lower())) is not None:
        return known
    one, *rest = [UNITS.get(part) for part in _PER.split(name)]
    if one is None or len(rest) != 1 or rest[0] is None:
        return None
    return f"{one[0]}/{rest[0][0]}", one[1] / rest[0][1]


def day_of(found: Quantity) -> date | None:
    """Return a date as a day; `None` if the date has no year, or does not exist."""
    try:
        return date(found.year or 0, int(found.value) // 100, int(found.value) % 100)
    except ValueError:
        return None


SCALES: dict[str, float] = lexicon("scales")
"""What the words after a number multiply it by."""


def _compounds() -> Iterator[tuple[str, float]]:
    """Yield the numbers that Norwegian and German write as one word."""
    for language, joint in (("no", ""), ("de", "und")):
        names: dict[str, float] = lexicon("numbers")[language]
        whole = [(name, value) for name, value in names.items() if value == int(value) and value]
        ones = [*[pair for pair in whole if pair[1] < 10], ("ein" if joint else "en", 1.0)]
        for name, value in whole:
            if joint:
                yield f"{name}einhalb", value + 0.5
            for one, size in ones if value >= 20 else ():
                yield f"{one}{joint}{name}" if joint else f"{name}{one}", value + size
        for scale in ("hundert", "tausend") if joint else ("hundre", "tusen"):
            yield from ((f"{name}{scale}", value * SCALES[scale]) for name, value in [*whole, *ones])


NUMBERS: dict[str, float] = dict(_compounds())
"""The values of the words for numbers, in lower case."""
for _language in ("de", "no", "en"):
    NUMBERS |= lexicon("numbers")[_language]
