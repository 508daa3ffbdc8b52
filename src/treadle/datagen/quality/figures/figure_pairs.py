"""Figures that stand side by side: `2 h 5 min`, `5-7 kg`, `24 euros 50`, `3 of 8`, `1 in 400`, `2-3 pm`."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from treadle.datagen.quality.figures.quantities import (
    CURRENCIES,
    Quantity,
    QuantityKind,
    lexicon,
    shapes,
    unit_of,
)

_RANGE, _BOTH, _BOUNDS, _PART, _ONE_IN, _JOINT = shapes("pairs", "range both bounds part one_in joint")
_MARGIN, _CHANGE = shapes("pairs", "margin change")
_SUMMED = ("time", "mass", "length", "data", "volume")
_MOMENTS = ("", "sec", "second", "min", "minute")
"""The units with which `one` is no figure."""
_ONE_HOUR = re.compile(r"(?i)\ban\shour\s(?:and\s)?\Z")
_SIGNS = frozenset([name for names in CURRENCIES.values() for name in names if len(name) == 1])
_MAX_GAP = 24
_Pair = tuple[Quantity | None, Quantity]
"""Two neighbours with what they say about each other; `None` for the first if the second includes it."""


def join_figures(text: str, items: list[Quantity]) -> Iterator[Quantity]:
    """Yield the figures of a text, after those that say something about each other were put together."""
    last: Quantity | None = None
    for item in items:
        unit, lead = unit_of(item.unit), _ONE_HOUR.search(text, max(0, item.start - 24), item.start)
        if lead is not None and unit is not None and unit[0] == "time" and unit[1] < 3600:
            hour = replace(item, value=1.0, start=lead.start(), unit="hour")
            item = _to_sum(hour, item, unit[1] / 3600)[1]
        if last is not None and 0 <= item.start - last.end <= _MAX_GAP:
            last, item = _pair(text, last, item)
        if last is not None and not _is_moment(last):
            yield last
        last = item
    if last is not None and not _is_moment(last):
        yield last


def _is_moment(item: Quantity) -> bool:
    """Return whether a figure is only the word `one`, as in `one moment`."""
    is_one = item.value == 1 and item.is_word and item.kind is QuantityKind.NUMBER
    return is_one and item.whole is None and item.unit in _MOMENTS


def _pair(text: str, one: Quantity, two: Quantity) -> _Pair:
    gap = text[one.end : two.start]
    if two.kind is QuantityKind.TIME:
        return (_to_times(one, two), two) if _RANGE.fullmatch(gap) else (one, two)
    kinds = {one.kind, two.kind}
    if kinds != {QuantityKind.NUMBER} or one.is_ordinal or two.is_ordinal:
        return one, two
    first, second = unit_of(one.unit), unit_of(two.unit)
    is_minute = two.unit == "m" or (
        two.unit == "" and gap == " " and one.unit in ("h", "hr") and two.value < 60
    )
    if first == ("time", 3600) and is_minute and _JOINT.fullmatch(gap):
        two, second = replace(two, unit="min"), ("time", 60.0)
    if one.unit == "m" and second == ("time", 1) and _JOINT.fullmatch(gap):
        one, first = replace(one, unit="min"), ("time", 60.0)
    is_rest = not two.unit and gap == " " and one.value == int(one.value) and 10 <= two.value < 60
    if is_rest and first == ("time", 60) and one.unit != "min":
        two, second = replace(two, unit="s"), ("time", 1.0)
    if not two.unit and gap == " " and one.unit == "m" and one.value < 3 and 10 <= two.value < 100:
        two, second = replace(two, unit="cm"), ("length", 0.01)
    if _MARGIN.fullmatch(gap):
        low, high = abs(one.value) - two.value, abs(one.value) + two.value
        return None, replace(one, end=two.end, unit=one.unit or two.unit, low=low, high=high, is_about=True)
    if _is_money(one) and one.value == int(one.value) and two.value in range(1, 100):
        is_coin = second is not None and second[0] in CURRENCIES and second[1] < 1
        is_joint = not two.unit and two.value >= 10 and (gap == " " or (gap == "-" and one.unit in _SIGNS))
        if is_joint or (is_coin and _JOINT.fullmatch(gap)):
            return _to_sum(one, replace(two, unit=""), 0.01)
    if first and second and first[0] == second[0] and first[1] > second[1]:
        is_part = two.value * second[1] < first[1]  # else it is the same in another unit
        is_part = is_part and ((gap == ", " and first[0] == "time") or _JOINT.fullmatch(gap) is not None)
        is_sum = first[0] in _SUMMED and one.value == int(one.value) and is_part
        return _to_sum(one, two, second[1] / first[1]) if is_sum else (one, two)
    is_range = _RANGE.fullmatch(gap) is not None or (
        _BOTH.fullmatch(gap) is not None
        and _BOUNDS.search(text, max(0, one.start - 20), one.start) is not None
    )
    if is_range and abs(one.value) < abs(two.value) and one.unit in ("", two.unit, two.unit or one.unit):
        is_change = "up" not in gap and _CHANGE.search(text, max(0, one.start - 64), one.start) is not None
        return _to_range(one, two, is_change=is_change)
    if one.unit not in ("", two.unit) or not 0 <= one.value <= two.value:
        return one, two
    if one.value == 1 < two.value and _ONE_IN.fullmatch(gap) and not 1900 <= two.value <= 2100:
        share, near = 1 / two.value, 1.05 * two.high / two.value
        return None, Quantity(
            QuantityKind.SHARE, share, one.start, two.end, share / near, share * near, is_word=one.is_word
        )
    if 1 < one.value < two.value <= 100 and _ONE_IN.fullmatch(gap):
        portion: float | None = one.value / two.value
        return replace(one, portion=portion), replace(two, portion=portion)
    if _PART.fullmatch(gap):
        portion = one.value / two.value if two.value else None
        return replace(one, whole=two.value, portion=portion), replace(two, whole=two.value, portion=portion)
    return one, two


def _is_money(item: Quantity) -> bool:
    names = (item.unit, *lexicon("readings").get(item.unit, "").split())
    return any((unit := unit_of(name)) is not None and unit[0] in CURRENCIES for name in names)


def _to_times(one: Quantity, two: Quantity) -> Quantity:
    """Return the beginning of a span of which the end is a time of day, as in `2-3 pm`."""
    if one.kind is QuantityKind.TIME and (one.has_halves or not two.has_halves):
        return one
    value = one.value if one.kind is QuantityKind.TIME else one.value * 60
    if value > 720 or one.kind not in (QuantityKind.TIME, QuantityKind.NUMBER):
        return one
    value += 720 if two.has_halves and value + 720 <= two.value else 0
    return replace(one, kind=QuantityKind.TIME, value=value, low=value, high=value, has_halves=two.has_halves)


def _to_sum(one: Quantity, two: Quantity, rate: float) -> _Pair:
    value, half = one.value + two.value * rate, 0.5 * rate
    return None, replace(one, value=value, end=two.end, low=value - half, high=value + half)


def _to_range(one: Quantity, two: Quantity, *, is_change: bool) -> _Pair:
    unit = two.unit or one.unit
    if is_change:
        return replace(one, unit=unit), replace(two, unit=unit)
    ends = [
        replace(
            end,
            unit=unit,
            spread=(abs(one.value), abs(two.value)),
            low=min(end.low, abs(end.value) - 0.5) if end.value == int(end.value) else end.low,
            high=max(end.high, abs(end.value) + 0.5) if end.value == int(end.value) else end.high,
        )
        for end in (one, two)
    ]
    return ends[0], ends[1]
