"""Where a figure was seen: with the roundings and units in which people say it, and in all its readings."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from treadle.datagen.quality.figures.quantities import (
    SIZES,
    Quantity,
    QuantityKind,
    day_of,
    lexicon,
    shape,
    unit_of,
)
from treadle.datagen.quality.statements.doubts import (
    Doubt,
    DoubtKind,
    find_anchors,
    find_labels,
    find_rivals,
)
from treadle.datagen.quality.statements.evidence import Evidence, Occurrence, plain_label, word_list, words_of
from treadle.datagen.quality.statements.result_records import Cell, Labels, stems_of
from treadle.datagen.quality.statements.statements import AnswerStatement


def find_sightings(seen: Evidence, item: Quantity, *, is_told: bool) -> Iterator[Occurrence]:
    """Yield where a quantity was seen, with the roundings and units in which people say it."""
    low, high = item.low, item.high + 1e-9
    if item.kind is QuantityKind.DATE and item.unit:
        yield from _numbered(seen, item, is_told=is_told)
        return
    if item.kind is QuantityKind.DATE:
        for reading in {item.value, item.other or item.value}:
            for place in seen.sightings(item.kind, reading, reading + 0.5, is_told=is_told):
                years = place.quantity.year, item.year
                if None in years or years[0] == years[1]:
                    yield place
        return
    if item.kind is QuantityKind.TIME:
        before, after = (20.0, 20.0) if item.is_about else (3.0, 3.0) if item.is_word else (0.0, 0.999)
        for clock in (low,) if item.has_halves else (low, (low + 720) % 1440):
            yield from seen.sightings(item.kind, clock - before, clock + after, is_told=is_told)
        return
    if item.kind is QuantityKind.SHARE:
        for place in seen.sightings(QuantityKind.NUMBER, low, high, is_told=is_told):
            if place.quantity.kind is item.kind or abs(abs(place.quantity.value) - item.value) < 0.005:
                yield place
        for place in seen.sightings(QuantityKind.NUMBER, low * 100, high * 100, is_told=is_told):
            if place.quantity.unit == "%" or place.cell.label & word_list("causes", "shares"):
                yield place
        return
    unit = unit_of(item.unit)
    for place in seen.sightings(QuantityKind.NUMBER, low, high, is_told=is_told):
        is_same = unit is None or place.unit in (None, unit)
        if is_same or item.unit.replace("/", "").lower() == place.cell.unit.lower():
            yield place
    if unit is not None:
        yield from _converted(seen, item, unit, is_told=is_told)
    if item.unit == "%":
        for place in seen.sightings(QuantityKind.NUMBER, low / 100, high / 100, is_told=is_told):
            is_whole = place.quantity.kind is QuantityKind.NUMBER and place.quantity.value == int(
                place.quantity.value
            )
            if not is_whole or place.cell.label & word_list("causes", "shares"):
                yield place  # a count of 1 is not 100 %
    elif not item.unit and 0 < item.value < 1:
        for place in seen.sightings(QuantityKind.NUMBER, low * 100, high * 100, is_told=is_told):
            if place.quantity.unit == "%" or place.cell.label & word_list("causes", "shares"):
                yield place
    if item.value == int(item.value) and 1900 <= item.value <= 2100 and str(int(item.value)) in seen.text:
        yield from [
            Occurrence(other, record, cell)
            for record in (seen.told_records if is_told else seen.records)
            for cell in record.cells
            for other in cell.quantities
            if other.year == int(item.value)
        ]


def _numbered(seen: Evidence, item: Quantity, *, is_told: bool) -> Iterator[Occurrence]:
    """Yield where the number of a week or day was seen: as such, in a column of these, or in a date."""
    for place in seen.sightings(QuantityKind.DATE, 0.0, 1300.0, is_told=is_told):
        other, day = place.quantity, day_of(place.quantity)
        number = other.value if other.unit == item.unit else None
        if day is not None and not other.unit:
            number = day.isocalendar().week if item.unit == "week" else day.timetuple().tm_yday
        if number == item.value and (item.year in (None, other.year) or (other.unit and other.year is None)):
            yield place
    for place in seen.sightings(QuantityKind.NUMBER, item.value, item.value + 1e-9, is_told=is_told):
        if any(unit_of(word) == unit_of(item.unit) for word in place.cell.label):
            yield place


_ZEROS = {"celsius": (0.0, 1.0), "fahrenheit": (32.0, 1.8), "kelvin": (273.15, 1.0)}
"""The freezing point of water in each unit of temperature, and how many of the unit a degree Celsius is."""


def _to_celsius(value: float, dimension: str) -> float:
    zero, size = _ZEROS[dimension]
    return (value - zero) / size


def _converted(
    seen: Evidence, item: Quantity, unit: tuple[str, float], *, is_told: bool
) -> Iterator[Occurrence]:
    """Yield the sightings of a value in another unit of the same dimension."""
    dimension, factor = unit
    value = abs(item.value)
    near = 1.0 if item.is_about else 0.04
    low, high = max(item.low, value * (1 - near)), min(item.high, value * (1 + near))
    if dimension in _ZEROS:
        ends = sorted([_to_celsius(end if item.value >= 0 else -end, dimension) for end in (low, high)])
        for place in seen.sightings(QuantityKind.NUMBER, 0.0, 1e4, is_told=is_told):
            theirs = place.unit
            if theirs is None or theirs[0] not in _ZEROS or theirs == unit:
                continue
            if ends[0] - 0.3 <= _to_celsius(place.quantity.value, theirs[0]) <= ends[1] + 0.3:
                yield place
        return
    own = {size for units in seen.units.values() for other, size in units if other == dimension}
    sizes = (own | SIZES.get(dimension, frozenset())) - {factor}
    scales = {(factor / size, size) for size in sizes}
    powers = {1.0: 0, 1e3: 1, 1e6: 2, 1e9: 3, 1e12: 4}
    if dimension == "data" and factor in powers:  # GB for GiB
        scales |= {(1024.0 ** (powers[factor] - powers[size]), size) for size in sizes & powers.keys()}
    for scale, size in scales:
        ends = [low * scale * (1 - 1e-3), high * scale * (1 + 1e-3)]
        for place in seen.sightings(QuantityKind.NUMBER, *ends, is_told=is_told):
            is_unnamed = place.unit is None and dimension != "time"
            if place.unit == (dimension, size) or is_unnamed or dimension == "speed":
                yield place


def other_readings(item: Quantity) -> Iterator[Quantity]:
    """Yield the other readings of a figure."""
    if item.kind is QuantityKind.NUMBER and item.other is not None:
        half = 0.0005 if item.other < abs(item.value) else 1e-6
        yield replace(item, value=item.other, low=item.other - half, high=item.other + half, other=None)
    yield from [replace(item, unit=unit) for unit in lexicon("readings").get(item.unit, "").split()]
    if item.clock is not None:
        yield replace(
            item, kind=QuantityKind.TIME, value=item.clock, low=item.clock, high=item.clock, has_halves=False
        )
    if item.kind is QuantityKind.TIME:
        for unit in (item.unit,) if item.unit else ("h", "min"):
            length = item.value / 60
            yield replace(
                item,
                kind=QuantityKind.NUMBER,
                value=length,
                low=length - 0.0084,
                high=length + 0.0084,
                unit=unit,
            )
    for day in item.days:
        yield replace(item, kind=QuantityKind.DATE, value=day, other=day)
    if item.portion is not None:
        low, high = item.portion - 0.005, item.portion + 0.005
        yield replace(item, kind=QuantityKind.SHARE, value=item.portion, low=low, high=high, whole=None)
    if " " in item.unit or "/" in item.unit:
        yield replace(item, unit=re.split(r"\s?/|\s(?:per|an?)\s", item.unit)[0])
    if item.spread is not None and item.spread[1] <= 1.6 * item.spread[0]:
        for unit in (item.unit, *lexicon("readings").get(item.unit, "").split()):
            yield replace(item, low=item.spread[0], high=item.spread[1], is_about=True, unit=unit)


def is_at(place: Occurrence, anchors: frozenset[str], places: frozenset[str]) -> bool:
    """Return whether a value was seen where the words of a statement say."""
    record = place.record
    if places and not places & (record.context | record.stems):
        places -= frozenset().union(*record.labels)
        if places:
            return False
    left = anchors - record.context
    return not left or bool(left & record.stems)


def has_label(place: Occurrence, labels: Labels) -> bool:
    """Return whether a value was seen in one of some columns, or in none that has a name."""
    return not labels or not place.cell.label or place.cell.label in labels


def doubt_rival(seen: Evidence, statement: AnswerStatement, doubt: Doubt) -> Doubt:
    """Return the doubt about a quantity, or another one if what its sentence names in full has one value, and this
    is another."""
    item = statement.quantity
    labels, is_alone = find_labels(seen, statement)
    if item is None or not is_alone or item.whole is not None or item.spread is not None:
        return doubt
    words = words_of(statement.sentence, item.kind)
    full = frozenset([label for label in labels if plain_label(label) <= words])
    rivals = find_rivals(seen, full, *find_anchors(seen, statement)) if full else []
    texts = {cell.text for cell in rivals}
    is_part = item.unit == "%" and not any(map(_is_share, rivals))
    if (
        len(texts) != 1
        or is_part
        or any(
            place.cell.text in texts and place.cell.label in full
            for reading in (item, *other_readings(item))
            for place in find_sightings(seen, reading, is_told=False)
        )
    ):
        return doubt
    return Doubt(DoubtKind.UNLIKE, f"is another value than {min(texts)!r}", doubt.way or doubt.kind)


def _is_share(cell: Cell) -> bool:
    """Return whether the quantities of a cell are parts of a whole."""
    is_percent = any(item.unit == "%" for item in cell.quantities)
    return is_percent or not cell.label.isdisjoint(word_list("causes", "shares"))


def is_reversed(seen: Evidence, statement: AnswerStatement) -> bool:
    """Return whether a sentence puts two moments in the wrong order: `from the end until the start`."""
    found = shape("answers", "order_of_moments").search(statement.sentence)
    if found is None:
        return False
    ends = (found["first"] or found["start"], found["last"] or found["end"])
    ends = (found["earlier"], statement.sentence[: found.start()]) if found["earlier"] else ends
    return any(_is_backwards(seen, statement, ends, kind) for kind in (QuantityKind.TIME, QuantityKind.DATE))


def _is_backwards(
    seen: Evidence, statement: AnswerStatement, ends: tuple[str, str], kind: QuantityKind
) -> bool:
    """Return whether the first of two moments lies after the second. Where a column is named for one of them alone,
    the other one is the moment at the distance that a sentence gives."""
    places = stems_of(statement.sentence) & seen.places
    cells = [
        (cell.label, item.value if day is None else float(day.toordinal()))
        for record in seen.records
        if not places or places & (record.context | record.stems)
        for cell in record.cells
        for item in cell.quantities
        for day in (day_of(item) if kind is QuantityKind.DATE else None,)
        if item.kind is kind and (day is not None or kind is QuantityKind.TIME)
    ]
    named = [seen.named_labels(text, kind) for text in ends]
    first, last = [{moment for label, moment in cells if label in labels} for labels in named]
    first, last = (first - last if len(first) > 1 else first), (last - first if len(last) > 1 else last)
    item = statement.quantity
    unit = unit_of(item.unit) if item is not None else None
    if item is not None and unit is not None and unit[0] == "time" and {len(first), len(last)} == {0, 1}:
        known = next(iter(first | last))
        distance = abs(item.value) * unit[1] / (60 if kind is QuantityKind.TIME else 86400)
        near = {moment for _, moment in cells if abs(abs(moment - known) - distance) < 0.5}
        first, last = first or near, last or near
    return min(len(first), len(last)) == 1 and min(first) > max(last)
