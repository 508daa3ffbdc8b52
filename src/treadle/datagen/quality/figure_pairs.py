"""Figures that stand side by side: `2 h 5 min`, `5-7 kg`, `24 euros 50`, `3 of 8`, `1 in 400`, `2-3 pm`."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from treadle.datagen.quality.quantities import Quantity, QuantityKind, lexicon, unit_of

_RANGE, _BOTH, _BOUNDS, _PART, _ONE_IN, _JOINT = [
    re.compile(lexicon("pairs")[name]) for name in ("range", "both", "bounds", "part", "one_in", "joint")
]
_MARGIN = re.compile(lexicon("pairs")["margin"])
_CHANGE = re.compile(lexicon("pairs")["change"])
_COINS = ("euros", "dollars", "kroner", "sterling")
_COIN = re.compile(r"\s?(?:cents?|øre|pence|p|Cent)\b")
_SUMMED = ("time", "mass", "length", "data", "volume")
_MOMENTS = ("", "sec", "second", "min", "minute")
"""The units with which `one` is no figure."""
_MAX_GAP = 24
_Pair = tuple[Quantity | None, Quantity]
"""Two neighbours with what they say about each other; `None` for the first if the second includes it."""


def join_figures(text: str, items: list[Quantity]) -> Iterator[Quantity]:
    """Yield the figures of a text, after those that say something about each other were put together."""
    last: Quantity | None = None
    for item in items:
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
    is_minute = two.unit == "m" or (two.unit == "" and gap == " " and one.unit == "h" and two.value < 60)
    if first == ("time", 3600) and is_minute and _JOINT.fullmatch(gap):
        two, second = replace(two, unit="min"), ("time", 60.0)
    if _MARGIN.fullmatch(gap):
        low, high = abs(one.value) - two.value, abs(one.value) + two.value
        return None, replace(one, end=two.end, unit=one.unit or two.unit, low=low, high=high, is_about=True)
    if first and second and first[0] == second[0] and first[1] > second[1]:
        is_sum = first[0] in _SUMMED and one.value == int(one.value) and _JOINT.fullmatch(gap)
        return _to_sum(one, two, second[1] / first[1]) if is_sum else (one, two)
    is_coin = _COIN.match(text, two.end) is not None
    gaps = (" ", " and ", " og ", " und ") if is_coin else (" ",)
    if (
        first
        and first[0] in _COINS
        and gap in gaps
        and not two.unit
        and two.value in range(1 if is_coin else 10, 100)
    ):
        return _to_sum(one, two, 0.01)
    is_range = _RANGE.fullmatch(gap) is not None or (
        _BOTH.fullmatch(gap) is not None
        and _BOUNDS.search(text, max(0, one.start - 20), one.start) is not None
    )
    if is_range and abs(one.value) < abs(two.value) and one.unit in ("", two.unit, two.unit or one.unit):
        is_change = "up" not in gap and _CHANGE.search(text, max(0, one.start - 12), one.start) is not None
        return _to_range(one, two, is_change=is_change)
    if one.unit not in ("", two.unit) or not 0 <= one.value <= two.value:
        return one, two
    if one.value == 1 < two.value and _ONE_IN.fullmatch(gap) and not 1900 <= two.value <= 2100:
        share, near = 1 / two.value, 1.05 * two.high / two.value
        return None, Quantity(
            QuantityKind.SHARE, share, one.start, two.end, share / near, share * near, is_word=one.is_word
        )
    if _PART.fullmatch(gap):
        return replace(one, whole=two.value), replace(two, whole=two.value)
    return one, two


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
