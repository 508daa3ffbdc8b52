"""How people write figures: numbers with separators, rounded or in words, times of 12 hours, dates in other forms,
shares and other units. Every form of a value is true."""

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

from treadle.core.texts.documents import read_data
from treadle.tasks.draws import Draw

FIGURES = read_data(__package__, "figures")
"""Number words, units, and what else is said of figures."""
_ABOUT = re.compile(r"(?:about|roughly|around|some|approximately|nearly) ([€$£]?)([\d,]+)( .+)?")


def plain(value: float) -> str:
    """Return a number without separators and without needless zeros."""
    return str(int(value)) if float(value).is_integer() else f"{value:.2f}".rstrip("0").rstrip(".")


def in_words(value: float) -> str:
    """Return a small whole number as a word, and any other number in digits."""
    if float(value).is_integer() and 0 <= value < len(FIGURES["numbers"]):
        return str(FIGURES["numbers"][int(value)])
    return plain(value)


def write_number(value: float, unit: str, draw: Draw, *, is_loose: bool = True) -> str:
    """Return a number with its unit in one of the usual forms. Only a loose form is rounded."""
    text = plain(value)
    size = abs(value)
    if unit in FIGURES["currencies"]:
        text = f"{value:,.2f}" if draw.chance(0.6) else text
    elif size >= 1000 and draw.chance(0.5):
        text = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
    elif not unit and draw.chance(0.25):
        text = in_words(value)
    if is_loose and draw.chance(0.18) and (rounded := _round(value, draw)):
        text = rounded
    return with_unit(text, unit, draw)


def with_unit(text: str, unit: str, draw: Draw) -> str:
    """Return a number with its unit where people write it."""
    if not unit:
        return text
    if unit in FIGURES["currencies"]:
        about, _, number = text.rpartition(" ")
        names = FIGURES["currencies"][unit]
        form = draw.below(4)
        shown = f"{unit}{number}" if form < 2 else f"{number} {names[form - 2]}"
        return f"{about} {shown}".strip()
    if unit == "%":
        return f"{text}{draw.pick(('%', ' %', ' percent'))}"
    long = FIGURES["long_units"]
    if unit in long and draw.chance(0.4):
        return f"{text} {long[unit]}"
    return f"{text} {unit}" if unit != "°C" or draw.chance(0.6) else f"{text}°C"


def _round(value: float, draw: Draw) -> str:
    """Return a rounded form of a large or broken number; empty if there is none."""
    about = draw.pick(("about", "roughly", "around", "some", "approximately", "nearly"))
    size = abs(value)
    if size >= 1000:
        step = 100 if size < 20000 else 1000
        near = round(value / step) * step
        about = "nearly" if near >= value and about == "nearly" else "about" if about == "nearly" else about
        return f"{about} {near:,}" if draw.chance(0.7) else f"{about} {near / 1000:g}k"
    if not float(value).is_integer():
        about = "about" if about == "nearly" else about
        return f"{about} {round(value)}" if size >= 3 else f"{about} {value:.1f}"
    return ""


def write_time(value: str, draw: Draw) -> str:
    """Return a time such as `14:05` in one of the usual forms."""
    hour, minute = int(value[:2]), value[3:]
    half, short = ("am" if hour < 12 else "pm"), hour % 12 or 12
    forms = (value, value, f"{short}:{minute} {half}", f"{short}:{minute} {half[0]}.m.", f"{value}h")
    if minute == "00":
        return draw.pick((*forms, f"{short} {half}", f"{hour} o'clock"))
    return draw.pick((*forms, f"{short}.{minute}{half}"))


def write_date(value: str, draw: Draw) -> str:
    """Return a date such as `2026-03-04` in one of the usual forms."""
    day = date.fromisoformat(value)
    ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}.get(day.day, "th")
    return str(draw.pick(FIGURES["forms"]["dates"])).format(value=value, day=day, ending=ending)


def write_share(part: int, whole: int, draw: Draw) -> str:
    """Return a share in one of the usual forms."""
    percent = 100 * part / whole
    words = [words for words, (one, other) in FIGURES["parts"].items() if one * whole == other * part]
    form = draw.pick([*FIGURES["forms"]["shares"], *words])
    return str(form).format(percent=percent, part=part, whole=whole)


def convert(value: float, unit: str) -> tuple[float, str] | None:
    """Return a value in another unit; `None` if people do not convert it.

    It has one digit after the point, or two significant digits if one digit would be too far off.
    """
    if unit == "°C":
        return round(value * 9 / 5 + 32, 1), "°F"
    if unit not in (factors := FIGURES["conversions"]):
        return None
    scale, other = factors[unit]
    exact = value * scale
    near = round(exact, 1)
    return near if abs(near - exact) <= 0.05 * abs(exact) else float(f"{exact:.2g}"), other


def spell(text: str) -> str:
    """Return a whole number below a million, such as `1,250`, in words."""
    number = int(text.replace(",", ""))
    if number < len(FIGURES["numbers"]):
        return str(FIGURES["numbers"][number])
    if number < 100:
        ten, one = divmod(number, 10)
        return f"{FIGURES['tens'][ten - 2]}{f'-{spell(str(one))}' if one else ''}"
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, size)
    end = f"{' and' if rest < 100 else ''} {spell(str(rest))}" if rest else ""
    return f"{spell(str(many))} {name}{end}"


def _speak_time(text: str) -> str:
    """Return a time such as `14:05` as people say it."""
    hour, minute = int(text[:2]), int(text[3:])
    part = next(name for end, name in FIGURES["day_parts"] if hour < end)
    numbers = FIGURES["numbers"]
    if not minute:
        return f"{numbers[hour % 12 or 12]} o'clock {part}"
    # A few minutes before midnight are still in the evening.
    side, away, hour = ("past", minute, hour) if minute <= 30 else ("to", 60 - minute, hour + 1)
    named = {15: "a quarter", 30: "half"} | {number: numbers[number] for number in (5, 10, 20)}
    length = named.get(away, f"{away} minute{'s' if away > 1 else ''}")
    return f"{length} {side} {numbers[hour % 12 or 12]} {part}"


def _shift(days: int) -> Callable[[str], date]:
    """Return a reader of a date that lies some days after the one in a text."""
    return lambda text: date.fromisoformat(text) + timedelta(days)


def _find_nth_weekday(text: str) -> tuple[str, date]:
    """Return a date, and which of the days of its month with the same name it is, such as `second`."""
    day = date.fromisoformat(text)
    return ("first", "second", "third", "fourth", "fifth")[(day.day - 1) // 7], day


_READERS: Mapping[str, Callable[[str], object]] = {
    "words": spell,
    "clock": _speak_time,
    "date": date.fromisoformat,
    "day_before": _shift(-1),
    "day_after": _shift(1),
    "week_before": _shift(-7),
    "nth_weekday": _find_nth_weekday,
    "sixties": lambda text: divmod(int(text), 60),
}
"""What a rule `as` reads from the text that its pattern finds; its forms are then those of `str.format`."""


def rewrite(text: str, sort: str, styles: Mapping[str, Any], draw: Draw, field: str = "") -> str:
    """Return a figure of a remark of some sort in another form; `styles` are the rules of a split for this.

    A rounded number may become a range, which is no wider than the rounding on either side allows. `field` is the
    field of the wording if it is not a figure.
    """
    found = None if field else _ABOUT.fullmatch(text)
    if found is not None and draw.chance(0.4):
        return _to_range(found[1], int(found[2].replace(",", "")), found[3] or "", styles, draw)
    for rule in styles["rewrites"]:
        if sort not in rule.get("sorts", sort).split() or field not in rule.get("fields", "").split(" "):
            continue
        form = draw.pick(rule["forms"])
        if draw.chance(rule["share"]):
            text = _apply(rule, form, text)
    return text


def _apply(rule: Mapping[str, Any], form: str, text: str) -> str:
    """Return a text with a form in the place of what the pattern of a rule finds."""
    if "as" not in rule:
        return re.sub(rule["pattern"], form, text)
    read = _READERS[rule["as"]]
    return re.sub(rule["pattern"], lambda found: form.format(read(found[found.lastindex or 0])), text)


def _to_range(sign: str, about: int, unit: str, styles: Mapping[str, Any], draw: Draw) -> str:
    """Return the range of a number that was rounded."""
    step = 1 if about < 1000 else 100 if about < 20000 else 1000
    low, high = [f"{sign}{edge:,}" for edge in (about - step, about + step)]
    return (
        str(draw.pick(styles["ranges"])).format(low=low, high=high, about=f"{sign}{about:,}", step=step)
        + unit
    )
