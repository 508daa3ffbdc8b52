"""Where a figure was seen: with the roundings and units in which people say it, and in all its readings."""

from collections.abc import Iterator

from msgspec.structs import replace

from treadle.datagen.quality.doubts import word_list
from treadle.datagen.quality.evidence import Evidence, Occurrence
from treadle.datagen.quality.quantities import UNITS, Quantity, QuantityKind, lexicon, unit_of


def find_sightings(seen: Evidence, item: Quantity, *, is_told: bool) -> Iterator[Occurrence]:
    """Yield where a quantity was seen, with the roundings and units in which people say it."""
    low, high = item.low, item.high + 1e-9
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
        theirs = unit_of(place.quantity.unit) or unit_of(place.cell.unit)
        if unit in (None, theirs) or theirs is None or item.unit.replace("/", "") == place.cell.unit:
            yield place
    if unit is not None:
        yield from _converted(seen, item, unit, is_told=is_told)
    if item.unit == "%":
        yield from seen.sightings(QuantityKind.NUMBER, low / 100, high / 100, is_told=is_told)
    if item.value == int(item.value) and 1900 <= item.value <= 2100 and str(int(item.value)) in seen.text:
        yield from [
            Occurrence(other, record, cell)
            for record in (seen.told_records if is_told else seen.records)
            for cell in record.cells
            for other in cell.quantities
            if other.year == int(item.value)
        ]


def _converted(
    seen: Evidence, item: Quantity, unit: tuple[str, float], *, is_told: bool
) -> Iterator[Occurrence]:
    """Yield the sightings of a value in another unit of the same dimension."""
    dimension, factor = unit
    value = abs(item.value)
    near = 1.0 if item.is_about else 0.03
    low, high = max(item.low, value * (1 - near)), min(item.high, value * (1 + near))
    if dimension in ("celsius", "fahrenheit"):
        ends = [(one - 32) / 1.8 if dimension == "fahrenheit" else one * 1.8 + 32 for one in (low, high)]
        low, high = sorted(map(abs, ends)) if ends[0] * ends[1] > 0 else (0.0, max(map(abs, ends)))
        for place in seen.sightings(QuantityKind.NUMBER, low - 0.3, high + 0.3, is_told=is_told):
            theirs = unit_of(place.quantity.unit) or unit_of(place.cell.unit)
            if theirs is not None and theirs[0] in ("celsius", "fahrenheit") and theirs != unit:
                yield place
        return
    sizes = {size for other, size in UNITS.values() if other == dimension} - {factor}
    scales = {(factor / size, size) for size in sizes}
    if dimension == "data" and factor % 1024:  # GB for GiB
        powers = {1.0: 0, 1e3: 1, 1e6: 2, 1e9: 3, 1e12: 4}
        scales |= {(1024.0 ** (powers[factor] - powers[size]), size) for size in sizes & powers.keys()}
    for scale, size in scales:
        ends = [low * scale * (1 - 1e-3), high * scale * (1 + 1e-3)]
        for place in seen.sightings(QuantityKind.NUMBER, *ends, is_told=is_told):
            theirs = unit_of(place.quantity.unit) or unit_of(place.cell.unit)
            if (
                theirs == (dimension, size)
                or (theirs is None and dimension != "time")
                or dimension == "speed"
            ):
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
    if item.kind is QuantityKind.TIME and item.unit:
        hours = item.value / 60
        yield replace(item, kind=QuantityKind.NUMBER, value=hours, low=hours - 0.0084, high=hours + 0.0084)
    if item.spread is not None and item.spread[1] <= 1.6 * item.spread[0]:
        yield replace(item, low=item.spread[0], high=item.spread[1], is_about=True)
