"""The reader of figures in texts: numbers in digits and words, shares, ratios, money, dates, times of day, ranges.

It goes through a text once. At each digit, and at each word that `quantities.toml` has, it tries the forms that can
begin there. What is a part of a name, a version, a path or an identifier is no figure.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cached_property, lru_cache

from msgspec.structs import replace

from treadle.datagen.quality.figures.figure_dates import (
    DATE_FORM,
    DAY_AFTER,
    DAY_NUMBER,
    MONTHS,
    days_like,
    read_date,
    read_days,
    read_length,
    shift_date,
    to_date,
)
from treadle.datagen.quality.figures.figure_pairs import join_figures
from treadle.datagen.quality.figures.quantities import (
    CURRENCIES,
    NUMBERS,
    SCALES,
    UNITS,
    Quantity,
    QuantityKind,
    lexicon,
    shape,
    shapes,
)
from treadle.datagen.quality.languages import WORDS

NUMBER, TIME, DATE, SHARE = QuantityKind
_VULGAR = {sign: unicodedata.numeric(sign) for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_LETTERS: dict[str, float] = {**lexicon("letters"), "m": 1e6}
"""What letters behind digits multiply; `m` does only before a currency."""
_FRACTIONS: dict[str, float] = lexicon("fractions")
_SHARED = frozenset(lexicon("shared")["words"].split())
_PLACES = frozenset(lexicon("ordinals")["words"].split())
_FOREIGN = (WORDS["no"] | WORDS["de"]) - WORDS["en"]
_HOURS = {
    name: float(value)
    for name, _, value in [item.partition("=") for item in lexicon("clock")["words"].split()]
}
_INEXACT = {
    phrase.strip(): sort
    for sort in ("about", "under", "over")
    for line in lexicon("inexact")[sort].splitlines()
    for phrase in line.split("|")
    if phrase.strip()
}
_IDIOMS = frozenset(lexicon("idioms")["words"].split("|"))
_BETWEEN = frozenset(lexicon("inexact")["between"].split())
_BEFORE_SIGN = ("", *" \n\t([|:=`*\"'")
_TOO_LARGE = 1e300
"""The value of numbers that are beyond the range of floats."""


_STARTS = frozenset([*NUMBERS, *SCALES, *_FRACTIONS, *MONTHS, *_HOURS])
"""The words, in lower case, at which a figure can begin."""


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_CUT = "".join(_VULGAR)
_TOKEN = re.compile(rf"[^\W\d_]+|[0-9{_CUT}]|(?<![\w.])\.(?=[0-9])")
_FIRST_SIGNS = frozenset(f"0123456789.{_CUT}")
_NAME, _TIME, _SLASH, _CLOCK, _H_CLOCK = shapes("figure_forms", "name time slash clock h_clock")
_ROUNDED, _ADDS, _PATH_FROM, _MINUTES = shapes("figure_forms", "rounded adds path_from minutes")
_LENGTH_AFTER, _PHONE, _TIMES, _GAP, _NEXT = shapes("figure_forms", "length_after phone times gap next")
_AND_PART, _LAST_WORD = shapes("figure_forms", "and_part last_word")
_MONEY = [name for code, names in CURRENCIES.items() for name in (code, *names)]
_SIGNS = "".join([name for name in _MONEY if len(name) == 1])
_CODES = [name for name in _MONEY if 1 < len(name) < 5 and not (name.isalpha() and name.islower())]
_NAMES_OF_UNITS = _any(name for name in UNITS if ".coin" not in name and name not in _SIGNS)
_UNIT = (
    rf"(?P<u>(?:[{_SIGNS}]|%(?![\s-]?(?:points|pts))|(?:{_NAMES_OF_UNITS})(?!\w))"
    rf"(?:(?:\s?/\s?|\s(?:per|an?)\s)(?:{_NAMES_OF_UNITS})(?!\w))?)"
)
_DIGITS = re.compile(
    rf"""(?P<n>\.\d+|\d{{1,3}}(?:(?P<g>[\ ,.'’_\u00a0\u2009\u202f٬])\d{{3}}(?!\d)(?:(?P=g)\d{{3}}(?!\d))*)
            (?:(?!(?P=g))[.,·]\d+)?
        |\d+(?:[.,·]\d+)?|(?=[{_CUT}]))
    (?:\s?(?P<v>[{_CUT}])|[\ -](?P<f>[1-9]/[1-9]\d?)(?![\d/]))?
    (?:[eE](?P<e>[+-]?\d{{1,2}})\b|\s?[x×·]\s?10\^?(?P<e2>[\d⁰¹²³⁴-⁹]{{1,2}})(?!\w))?
    (?:\s?(?P<k>(?<!\s)(?:{_any(lexicon("letters"))})\b|k\b|[kM](?=[A-Z]{{3}}\b)|m(?=\s(?:{_any(CURRENCIES)}))\b)
        |\s?(?P<w>(?i:{_any(SCALES)}))s?\b\.?)?(?P<o>(?:st|nd|rd|th)\b)?(?:[x×]\b)?
    (?:,-|(?<=\d)\.-)?(?:[\s-]?{_UNIT})?""",
    re.VERBOSE,
)
_CURRENCY = re.compile(rf"(?:(?<!\w)(?P<c>{_any([*_CODES, 'kr', 'zł'])})|(?P<s>[{_SIGNS}]))[^\S\n]?\Z")
_NOTE = shape("clock", "notes")
_AT_HOUR = shape("clock", "near")
_DAY_BEFORE = shape("dates", "before")
_POINT = re.compile(rf"(?i)\s(?:point|komma)\s(?P<d>{_any(lexicon('numbers')['en'])})\b")
_OF_UNIT = re.compile(
    rf"(?i)(?:\s(?:of|av)\b)?(?:\s(?:an?|one|en|et))?[\s-](?:(?P<scale>{_any(SCALES)})\b"
    rf"|(?P<u>{_any(name for name in UNITS if len(name) > 1 and name[0].isalpha())})\b)"
)
_POINT_DIGITS = re.compile(rf"(?i:\s(?:point|komma)\s)(?P<d>\d+)(?:\s?{_UNIT})?")
_AND_HALF = re.compile(rf"(?i:\s(?:and|og|und)\s(?:an?|en|et|ein)\s(?:half|halv|halbe?)\b)(?:\s{_UNIT})?")
_BESIDE_UNIT = re.compile(rf"\s?[(\[]{_UNIT}[)\]]")
_WORD_UNIT = re.compile(rf"[\s-]?{_UNIT}")
_ONE_AND = re.compile(
    rf"(?i)\b(?:an?|one|en|et|eine)\s{_UNIT}\s(?:and|og|und)\s(?:an?\s|en\s|et\s|eine\s)?\Z"
)
_BEFORE, _HOUR, _AFTER = shape("clock", "before"), shape("clock", "hour"), shape("clock", "after")
_EARLY, _LATE, _TOWARDS = shape("clock", "early"), shape("clock", "late"), shape("clock", "towards")
_MORE = shape("inexact", "after")


@lru_cache(maxsize=8192)
def find_quantities(text: str) -> tuple[Quantity, ...]:
    """Return the figures in a text, in their order."""
    return tuple(join_figures(text, _Reader(text).read()))


def read_number(text: str) -> float | None:
    """Return the value of a text that is a number as people write it; `None` if it is something else."""
    found = find_quantities(text.strip())
    is_number = len(found) == 1 and found[0].kind is NUMBER
    return found[0].value if is_number and len(text.strip()) - found[0].end + found[0].start <= 1 else None


class _Reader:
    """The position in one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0

    def read(self) -> list[Quantity]:
        """Return the figures of the text, each by itself."""
        found: list[Quantity] = []
        for token in _TOKEN.finditer(self._text):
            start = token.start()
            if start < self._end:
                continue
            word = token[0]
            if word[0] in _FIRST_SIGNS:
                made = self._read_digits(start)
            elif (lower := word.casefold()) in _STARTS:
                made = self._read_word(lower, word, start, token.end())
            else:
                continue
            if made:
                found += made
                self._end = max(self._end, made[-1].end)
        return found

    @cached_property
    def _is_foreign(self) -> bool:
        return len({word.casefold() for word in _TOKEN.findall(self._text)} & _FOREIGN) > 1

    @cached_property
    def _has_letters(self) -> bool:
        return any(char.isalpha() or char in f"%{_SIGNS}" for char in self._text)

    def _read_digits(self, start: int) -> list[Quantity]:
        text = self._text
        before = text[start - 1 : start]
        is_inside = before.isalnum() or before == "_"
        is_times = before in ("x", "×") and not text[start - 2 : start - 1].isalnum()
        is_inside = is_inside and not (is_times and _TIMES.match(text, start))
        is_inside = is_inside and _CURRENCY.search(text, max(0, start - 5), start) is None
        if is_inside and not (before == "T" and not text[start - 2 : start - 1].isalpha()):
            self._end = _end_of_name(text, start)
            return list(read_length(text, start))
        if _PATH_FROM.match(text, start) is not None:
            self._end = _end_of_name(text, start)
            return []
        if (note := _NOTE.match(text, start)) is not None:
            self._end = note.end()
            return []
        if before in tuple(".-/@") and text[start - 2 : start - 1].isalpha():
            self._end = _end_of_name(text, start)
            return []
        if before == "+" and (phone := _PHONE.match(text, start)) is not None:
            self._end = phone.end()
            return []
        if (said := DATE_FORM.match(text, start)) is not None and (dates := list(read_date(said))):
            return [shift_date(text, dates[0]), *dates[1:]]
        if (day := self._read_numbered_day(start)) is not None:
            return [day]
        if (time := self._read_time(start)) is not None:
            return [time]
        if (left := _MINUTES.match(text, start)) is not None and (
            time := self._read_towards(float(left[0]), start, left.end(), is_number=True)
        ):
            return [time]
        slash = _SLASH.match(text, start)
        if slash is not None and (share := self._read_slash(slash)) is not None:
            return share
        number = self._read_number(start)
        return [number] if number is not None else []

    def _read_numbered_day(self, start: int) -> Quantity | None:
        """Read a week or a day of a year by its number, as in `2026-W07`, `week 7` and `day 44 of 2026`."""
        for found in DAY_NUMBER.finditer(self._text, max(0, start - 16), start + 16):
            name = next(name for name in ("week", "week2", "day", "day2") if found[name])
            if start in (found.start(name), found.start("y")):
                year = int(found["y"] or found["y2"] or found["y3"] or 0) or None
                value, unit = float(found[name]), name[:4].removesuffix("2")
                return Quantity(DATE, value, start, found.end(), value, value, unit, year=year)
        return None

    def _read_time(self, start: int) -> Quantity | None:
        if (found := _CLOCK.match(self._text, start)) is not None:
            return self._to_time(int(found["h"]), int(found["m"]), *found.span(), is_whole=True)
        if (found := _H_CLOCK.match(self._text, start)) is not None:
            return replace(
                self._to_time(int(found["h"]), int(found["m"]), *found.span(), is_whole=True), unit="h"
            )
        found = _TIME.match(self._text, start)
        if found is None:
            return None
        half = (found["half"] or "").casefold()
        is_clock = found["sep"] == ":" or bool(half)
        if not is_clock:
            is_clock = _HOUR.search(self._text, max(0, start - 9), start) is not None
            is_clock = is_clock or _AFTER.match(self._text, found.end()) is not None
        if not is_clock or self._text[found.end() : found.end() + 1] == "/":
            return None
        minutes = int(found["m"] or 0) + int(found["s"] or 0) / 60
        is_whole = int(found["h"]) > 12 or found["h"].startswith("0")
        time = self._to_time(int(found["h"]), minutes, found.start(), found.end(), half, is_whole=is_whole)
        length = _LENGTH_AFTER.match(self._text, found.end()) if found["sep"] and not half else None
        if length is None:
            return time
        return replace(time, end=length.end(), unit="h" if length["h"] else "min")

    def _to_time(
        self, hour: float, minutes: float, start: int, end: int, half: str = "", *, is_whole: bool = False
    ) -> Quantity:
        if not half and not is_whole:
            half = "a" if _EARLY.match(self._text, end) else "p" if _LATE.match(self._text, end) else ""
        if half:
            hour = hour % 12 + (12 if half == "p" else 0)
        value = (hour % 24 * 60 + minutes) % 1440
        is_about, is_word = bool(self._how_exact(start)), not self._text[start].isdigit()
        return Quantity(
            TIME, value, start, end, value, value, "", is_word, is_about, has_halves=is_whole or bool(half)
        )

    def _read_slash(self, found: re.Match[str]) -> list[Quantity] | None:
        """Read a fraction, a score or a ratio."""
        one, two = int(found["a"]), int(found["b"])
        is_day = found["s"] == "/" and 1 <= one <= 31 and 1 <= two <= 12
        if is_day and _DAY_BEFORE.search(self._text, max(0, found.start() - 14), found.start()):
            return [to_date(two * 100.0 + one, *found.span(), None)]
        if not two or (found["s"] == ":" and len(found["b"]) == 2 and two < 60 and one < 24):
            return None
        value, span = one / two, found.span()
        if found["s"] == ":" or (one < two <= 10 or two in (12, 16, 100)):
            sort = self._how_exact(span[0])
            low, high = _bounds(value, 0.02 * max(value, 0.5), sort, is_share=True)
            days = tuple(days_like(self._text, span[0]))
            return [Quantity(SHARE, value, *span, low, high, is_about=bool(sort), days=days)]
        first = Quantity(NUMBER, one, span[0], span[0] + len(found["a"]), one, one, whole=float(two))
        return [first, Quantity(NUMBER, two, span[1] - len(found["b"]), span[1], two, two, whole=float(two))]

    def _read_number(self, start: int) -> Quantity | None:
        text = self._text
        found = _DIGITS.match(text, start)
        assert found is not None
        if found["g"] == " " and not self._has_letters:
            found = _DIGITS.match(text, start, start + found["n"].index(" "))
            assert found is not None
        end = found.end()
        after = text[end : end + 2]
        if (after[:1].isalpha() or after[:1] == "_") and text[end - 1].isalnum():
            self._end = _end_of_name(text, start)
            return None
        if len(after) > 1 and (
            (after[0] in ".:" and after[1].isdigit())
            or (after[0] == "/" and after[1].isalnum() and not found["u"])
            or (after[0] in "@_" and after[1].isalnum())
        ):
            self._end = _end_of_name(text, start)
            return None
        money = _CURRENCY.search(text, max(0, start - 5), start)
        unit = found["u"] or (money["c"] or money["s"] if money else "")
        value, half, other = _read_size(found)
        if money and unit == "m":  # millions
            value, half, unit = value * 1e6, half * 1e6, money["c"] or money["s"]
        begin = money.start() if money else start
        is_signed = text[begin - 1 : begin] in tuple("-−–+") and text[begin - 2 : begin - 1] in _BEFORE_SIGN
        scale = _LETTERS.get(found["k"] or "", 1.0) * SCALES.get((found["w"] or "").casefold(), 1.0)
        if unit and half < 0.1 and scale == 1.0 and value == int(value):
            half = 0.5001
        is_negative = is_signed and text[begin - 1] != "+"
        if not unit and (point := _POINT_DIGITS.match(text, end)) is not None:
            value, half = value + int(point["d"]) / 10 ** len(point["d"]), 0.5001 / 10 ** len(point["d"])
            end, unit = point.end(), point["u"] or ""
        if not unit and (part := _AND_HALF.match(text, end)) is not None:
            value, half, end, unit = value + 0.5, 0.1, part.end(), part["u"] or ""
        if not unit and (beside := _BESIDE_UNIT.match(text, end)) is not None:
            end, unit = beside.end(), beside["u"]
        made = self._to_number(-value if is_negative else value, begin - is_signed, end, half, unit)
        if not found["n"] and not unit:
            low, high = _bounds(value, 0.02, self._how_exact(begin), is_share=True)
            return replace(made, kind=SHARE, low=low, high=high)
        is_clock = unit in ("", "h", "hrs") and found["n"].count(".") == 1
        clock = _TIME.match(text, start) if is_clock else None
        is_clock = clock is not None and text[clock.end() : end].strip() == unit
        minutes = int(clock["h"]) * 60.0 + int(clock["m"]) if clock and is_clock and clock["m"] else None
        if not unit and value <= 24 and _AT_HOUR.search(text, max(0, start - 16), start):
            minutes = value * 60
        if end - start == 4 and value == int(value) < 2400 and value % 100 < 60 and not unit:
            minutes = value // 100 * 60 + value % 100
        days = tuple(days_like(text, start)) if not unit else ()
        return replace(made, other=other, clock=minutes, is_ordinal=bool(found["o"]), days=days)

    def _to_number(
        self, value: float, start: int, end: int, half: float, unit: str, *,
        is_word: bool = False,
    ) -> Quantity:  # fmt: skip
        sort = self._how_exact(start)
        if (more := _MORE.match(self._text, end)) is not None:
            is_over = re.search(r"\+|(?:more|plus)\b(?! or )", more[0], re.IGNORECASE) is not None
            sort = sort or ("over" if is_over else "about")
        low, high = _bounds(abs(value), half, sort, is_share=False)
        named = UNITS.get(unit)
        unit = "%" if named == ("share", 1) else unit.removesuffix(".")
        return Quantity(NUMBER, value, start, end, low, high, unit, is_word, bool(sort))

    def _how_exact(self, start: int) -> str:
        """Return what the words before a figure say of its exactness; empty if they say nothing."""
        before = self._text[max(0, start - 36) : start]
        if before[-1:] in tuple("~≈<>≤≥"):
            return _INEXACT[before[-1]]
        words = [word.strip("([*`_“\"',:;") for word in _GAP.split(before.casefold()) if word]
        while words:
            for size in (4, 3, 2, 1):
                if sort := _INEXACT.get(" ".join(words[-size:])):
                    is_sum = words[-2:] == ["up", "to"] and _ADDS.match(" ".join(words[-3:])) is not None
                    return "" if is_sum else sort
            if words[-1] and words[-1] not in _BETWEEN and words[-1] not in "-−~$€£":
                break
            words.pop()
        return ""

    def _read_word(self, lower: str, word: str, start: int, end: int) -> list[Quantity]:
        text = self._text
        around = text[start - 1 : start], text[end : end + 1]
        if around[0] in tuple("_./@-\\") and text[start - 2 : start - 1].isalnum() and around[0] != "-":
            return []
        if around[1] == "_" or (around[1] in tuple("./@") and text[end + 1 : end + 2].isalnum()):
            return []
        if lower in _SHARED and not self._is_foreign and lower not in MONTHS:
            return []
        if lower in MONTHS and (found := DAY_AFTER.match(text, end)) and word != "may":
            return [shift_date(text, item) for item in read_days(MONTHS[lower], found, start)]
        if lower in _HOURS:
            return [self._to_time(0, _HOURS[lower], start, end, is_whole=True)]
        if lower in SCALES and len(lower) < 5:
            return []  # short names of scales need a number in digits before them
        if lower in NUMBERS or lower in SCALES:
            return self._read_number_words(lower, start, end)
        return self._read_fraction(lower, start, end) if lower in _FRACTIONS else []

    def _read_number_words(self, lower: str, start: int, end: int) -> list[Quantity]:
        text = self._text
        previous = _LAST_WORD.search(text, max(0, start - 12), start)
        lead = previous[1].casefold() if previous else ""
        if f"{lead} {lower}" in _IDIOMS:
            return []
        if lower not in NUMBERS and (
            lead in ("few", "several", "many", "some") or text[end : end + 1] == "-"
        ):
            return []
        value, end, scale = self._sum_words(lower, end)
        half = min(0.5 * scale, 0.05 * value) if scale > 1 and scale != 12 else 1e-6
        if (found := _POINT.match(text, end)) is not None:
            value, end = value + NUMBERS[found["d"].casefold()] / 10, found.end()
            value, end, half = self._scale(value, end, 0.05)
        elif (found := _AND_PART.match(text, end)) and (part := _part_of(found["w"])):
            times = {"two": 2, "three": 3}.get(found["n"].casefold(), 1)
            value, end, half = value + times * part, found.end(), 0.1
            value, end, half = self._scale(value, end, half)
        elif (
            value <= 20
            and (found := _NEXT.match(text, end))
            and (part := _part_of(found["w"]))
            and not found["and"]
            and (part != 0.5 or value == 1)
        ):
            return self._to_share(value * part, start, found.end())
        if value <= 30 and (clock := self._read_towards(value, start, end, is_number=True)):
            return [clock]
        if 1 <= value <= 12 and lower in NUMBERS and (found := _NEXT.match(text, end)) and not found["and"]:
            minutes, last, _ = (
                self._sum_words(found["w"].casefold(), found.end())
                if found["w"].casefold() in NUMBERS
                else (0.0, end, 1.0)
            )
            if 10 <= minutes < 60 and minutes == int(minutes):
                return [self._to_time(value, minutes, start, last)]
        is_hour = value <= 12 and (
            _AFTER.match(text, end) is not None
            or (_HOUR.search(text, max(0, start - 9), start) is not None and lower not in SCALES)
        )
        if is_hour:
            return [self._to_time(value, 0, start, end)]
        if lead == "minus":
            value, start = -value, start - len(previous[0] if previous else "")
        unit = _WORD_UNIT.match(text, end)
        return [
            self._to_number(
                value, start, unit.end() if unit else end, half, unit["u"] if unit else "", is_word=True
            )
        ]

    def _scale(self, value: float, end: int, half: float) -> tuple[float, int, float]:
        """Return a number with its end and half of its last place, times the scale that follows it."""
        found = _NEXT.match(self._text, end)
        size = SCALES.get(found["w"].casefold(), 1.0) if found and not found["and"] else 1.0
        return value * size, found.end() if found and size > 1 else end, half * size

    def _sum_words(self, lower: str, end: int) -> tuple[float, int, float]:
        """Return the value of number words, their end, and the last scale among them."""
        total, current, scale = 0.0, NUMBERS.get(lower), 1.0
        if current is None:
            current, scale = 1.0 * SCALES[lower], SCALES[lower]
        while (found := _NEXT.match(self._text, end)) is not None:
            word = found["w"].casefold()
            value = NUMBERS.get(word) if word not in _SHARED or self._is_foreign else None
            if word in SCALES and not found["and"]:
                scale = SCALES[word]
                total, current = (total, current * scale) if scale < 1000 else (total + current * scale, 0.0)
            elif (
                value is not None
                and value >= 1
                and (
                    (scale > 1 and value < scale and (found["and"] or value >= 10 or scale >= 1000))
                    or (current % 100 >= 20 and current % 10 == 0 and value < 10 and not found["and"])
                )
            ):
                current += value
                scale = 1.0
            else:
                break
            end = found.end()
        return total + current, end, scale

    def _read_fraction(self, lower: str, start: int, end: int) -> list[Quantity]:
        text = self._text
        if _ROUNDED.search(text, max(0, start - 24), start) is not None:
            return []
        if (clock := self._read_towards(60 * _FRACTIONS[lower], start, end, is_number=False)) is not None:
            return [clock]
        following = _NEXT.match(text, end)
        if lower in ("halv", "halb") and following and 1 <= NUMBERS.get(following["w"].casefold(), 0) <= 12:
            hour = NUMBERS[following["w"].casefold()]
            return [self._to_time(hour - 1, 30, start, following.end())]
        if (found := _ONE_AND.search(text, max(0, start - 30), start)) is not None:
            value = 1 + _FRACTIONS[lower]
            return [self._to_number(value, found.start(), end, 0.1, found["u"], is_word=True)]
        previous = _LAST_WORD.search(text, max(0, start - 12), start)
        lead = previous[1].casefold() if previous else ""
        if lower in _PLACES and lead not in ("a", "another"):
            return []
        if lead in ("first", "second", "other", "last", "this", "next", "latter"):
            return []
        begin = previous.start() if previous is not None and lead == "a" else start
        return self._to_share(_FRACTIONS[lower], begin, end)

    def _to_share(self, value: float, start: int, end: int) -> list[Quantity]:
        """Return a share, or a size such as `half an hour` and `a quarter million`."""
        found = _OF_UNIT.match(self._text, end)
        if found is not None and found["scale"]:
            value *= SCALES[found["scale"].casefold()]
            return [self._to_number(value, start, found.end(), 0.05 * value, "", is_word=True)]
        if found is not None:
            return [self._to_number(value, start, found.end(), 0.1 * value, found["u"], is_word=True)]
        sort = self._how_exact(start)
        low, high = _bounds(value, min(0.06, 0.3 * value), sort, is_share=True)
        return [Quantity(SHARE, value, start, end, low, high, is_word=True, is_about=bool(sort))]

    def _read_towards(self, minutes: float, start: int, end: int, *, is_number: bool) -> Quantity | None:
        """Read what is left of a time of day such as `quarter to three`."""
        found = _TOWARDS.match(self._text, end)
        if found is None:
            return None
        before = _BEFORE.search(self._text, max(0, start - 9), start)
        is_plain = is_number and not found["past"] and "minute" not in found[0]
        if is_plain and before is not None and before[0].casefold().startswith("from"):
            return None  # `from ten to five` is a span
        hour = float(found["hour"]) if found["hour"].isdigit() else NUMBERS.get(found["hour"].casefold(), 0)
        is_said = (
            not is_number
            or bool(found["past"])
            or "minute" in found[0]
            or before is not None
            or hour < minutes < 60
        )
        if not 1 <= hour <= 24 or not is_said or (is_number and minutes != int(minutes)):
            return None
        return self._to_time(hour, minutes if found["past"] else -minutes, start, found.end())


def _end_of_name(text: str, start: int) -> int:
    found = _NAME.match(text, start)
    return found.end() if found else start


def _part_of(word: str) -> float | None:
    word = word.casefold()
    return (
        _FRACTIONS.get(word)
        or _FRACTIONS.get(word.removesuffix("s"))
        or _FRACTIONS.get(word.removesuffix("er"))
    )


def _read_size(found: re.Match[str]) -> tuple[float, float, float | None]:
    """Return the value of a number in digits, half of its last place, and another reading."""
    digits, group = found["n"].replace("·", "."), found["g"]
    other: float | None = None
    places = 0
    if group:
        head, mark, tail = digits.rpartition(
            "," if "," in digits and group != "," else "." if "." in digits and group != "." else "\n"
        )
        plain = (head if mark else digits).replace(group, "")
        value = float(f"{plain}.{tail}") if mark else float(plain)
        places = len(tail) if mark else 0
        if group in ".," and digits.count(group) == 1 and not mark:
            fine = float(digits.replace(",", "."))
            value, other = (fine, value) if group == "." or digits[0] == "0" else (value, fine)
            places = 3 if value == fine else 0
    else:
        value = min(float(digits.replace(",", ".") or 0), _TOO_LARGE)
        places = len(digits.replace(",", ".").partition(".")[2])
    power = found["e2"] and "".join([str(unicodedata.digit(sign)) for sign in found["e2"]])
    scale = 10.0 ** int(found["e"] or power or 0)
    scale *= _LETTERS.get(found["k"] or "", 1.0) * SCALES.get((found["w"] or "").casefold(), 1.0)
    half = 0.5001 * 10.0**-places if places or scale > 1 else 1e-6
    if found["v"] or found["f"]:
        top, _, bottom = (found["f"] or "").partition("/")
        value, half = value + (_VULGAR[found["v"]] if found["v"] else int(top) / int(bottom)), 0.1
    half *= scale
    if scale > 1 and not places:
        half = min(half, 0.05 * value * scale) or 1e-6
    return min(value * scale, _TOO_LARGE), half, other


def _bounds(value: float, half: float, sort: str, *, is_share: bool) -> tuple[float, float]:
    """Return the sizes that can be written as a value, from how exact it is said to be."""
    half = max(half, 1e-6)
    if is_share:
        wide = min(0.1, 0.3 * value)
        return {
            "over": (value - 0.005, value + wide), "under": (value - wide, value + 0.005),
            "about": (value - max(half, wide / 2), value + max(half, wide / 2)),
        }.get(sort, (value - half, value + half))  # fmt: skip
    if not sort:
        return value - half, value + half
    digits = str(int(value))
    step = 10.0 ** (len(digits) - len(digits.rstrip("0") or "0")) if value == int(value) else 2 * half
    if sort == "about":
        near = max(half, value * 0.025, min(step * 0.5, value * 0.06), 0.5001 if value == int(value) else 0.0)
        return value - near, value + near
    wide = max(half, min(0.5 * step, 0.25 * value), 0.08 * value)
    half = min(half, 0.01 * value)
    return (value - half, value + wide) if sort == "over" else (value - wide, value + half)
