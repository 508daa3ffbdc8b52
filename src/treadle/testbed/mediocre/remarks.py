"""Remarks, true things to say about results, with values for a wording, and twists that make them lies."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any

from msgspec import Struct

from treadle.tasks.draws import Draw
from treadle.tasks.draws import split as split_words
from treadle.tasks.files.materials import COMPANIES, FIRST_NAMES, LAST_NAMES
from treadle.testbed.mediocre import figures as f
from treadle.testbed.mediocre.mock_world import rules_of
from treadle.testbed.mediocre.observations import Grid, Observed, Sighting, is_number, read_label, unit_of


class Twist(Struct, frozen=True):
    """A way in which a remark becomes untrue."""

    kind: str
    changed: dict[str, str]
    """The values that are false."""


class Remark(Struct, frozen=True):
    """One thing that can be said."""

    sort: str
    """The name of its wordings."""
    values: dict[str, str]
    truth: str
    """The value that a twist falsifies."""
    focus: str = ""
    """The field that it is about."""
    twists: tuple[Twist, ...] = ()
    is_false: bool = False
    """True if the values are those of the only twist."""

    def twist(self, twist: Twist) -> "Remark":
        """Return the remark as a lie."""
        values = {**self.values, **twist.changed}
        return Remark(self.sort, values, self.truth, self.focus, (twist,), is_false=True)


def remarks_of(seen: Observed, phrases: Mapping[str, Any], draw: Draw) -> list[Remark]:
    """Return what can be said about the results, in a random order."""
    taken = _numbers_in(seen.said)
    found = [
        *[_of_fact(fact, seen, taken, phrases, draw) for fact in seen.facts],
        *[remark for grid in seen.grids for remark in _of_grid(grid, seen, taken, phrases, draw)],
        *_of_texts(seen, phrases, draw),
        *_of_paths(seen, phrases, draw),
        *_of_conversions(seen, draw),
        *_of_pairs(seen, draw),
        *_of_absence(seen, phrases, draw),
    ]
    if "span" in phrases["remarks"]:
        found += _of_spans(seen, draw)
    found = draw.shuffled(found)
    if "failed" in phrases["remarks"] and found and seen.failures and "\n" not in seen.failures[-1]:
        # An answer does not begin with it, so that the shortest ones still tell a result.
        failed = Remark("failed", {"reason": seen.failures[-1]}, seen.failures[-1], "failed")
        found.insert(draw.between(1, len(found)), failed)
    return found


def _numbers_in(text: str) -> set[str]:
    cleaned = "".join([sign if sign.isdigit() or sign == "." else " " for sign in text])
    return {part.strip(".") for part in cleaned.split()}


def other_number(value: float, taken: set[str], draw: Draw) -> float:
    """Return a number of the size and sign of `value` that is nowhere in the results and does not round to it."""
    for _ in range(60):
        factor = draw.pick((0.45, 0.6, 0.72, 0.83, 1.21, 1.37, 1.6, 2.1))
        made = value * factor + draw.between(-3, 3) if value else draw.between(3, 40)
        made = round(made) if float(value).is_integer() else round(made, 2)
        is_far = abs(made - value) > max(0.08 * abs(value), 1)
        if f.plain(made) not in taken and is_far and (made >= 0 or value < 0):
            return made
    return value * 3 + 7


def _of_fact(
    fact: Sighting, seen: Observed, taken: set[str], phrases: Mapping[str, Any], draw: Draw
) -> Remark:
    shown = show(fact, draw)
    values = {"label": fact.label, "owner": fact.owner, "value": shown}
    sort = {"number": "value", "time": "moment", "date": "moment"}.get(fact.sort, "state")
    if not fact.owner:
        sort = "result"
    twists = _twists_of_text(fact, seen.world) if fact.sort == "text" else []
    for item in seen.facts:
        if item.field == fact.field and item.owner != fact.owner and not _is_near(item, fact):
            twists.append(Twist("wrong_owner", {"owner": item.owner}))
    same = [item for item in seen.facts if item.sort == fact.sort and item.value != fact.value]
    if fact.sort != "text" and (others := [item for item in same if item.unit == fact.unit]):
        twists.append(Twist("swapped_value", {"value": show(draw.pick(others), draw, is_loose=False)}))
    if fact.sort == "number" and is_number(fact.value):
        number = float(fact.value)
        wrong = other_number(number, taken, draw)
        twists.append(
            Twist("made_up_value", {"value": f.write_number(wrong, fact.unit, draw, is_loose=False)})
        )
        if number and fact.unit in f.FIGURES["other_units"]:
            false = f.with_unit(f.plain(number), f.FIGURES["other_units"][fact.unit], draw)
            twists.append(Twist("wrong_unit", {"value": false}))
        if abs(number) >= 10:
            far = round(number * draw.pick((0.7, 1.3, 1.45)), -1)
            rounded = f"about {f.with_unit(f.plain(far), fact.unit, draw)}"
            if abs(far - number) > 0.15 * abs(number):
                twists.append(Twist("wrong_rounding", {"value": rounded}))
        if number.is_integer() and 1 <= number <= 18:
            small = int(number) + draw.pick((-1, 1, 2))
            twists.append(
                Twist("number_in_words", {"value": f.with_unit(f.in_words(small), fact.unit, draw)})
            )
    elif fact.sort == "time":
        hour = (int(str(fact.value)[:2]) + draw.between(2, 10)) % 24
        twists.append(Twist("wrong_time", {"value": f.write_time(f"{hour:02d}:{str(fact.value)[3:]}", draw)}))
    elif fact.sort == "date":
        twists.append(Twist("wrong_date", {"value": f.write_date(_other_date(str(fact.value), draw), draw)}))
    elif " " in str(fact.value) and str(fact.value).istitle():
        known = [name for name in COMPANIES if fact.value in COMPANIES and name not in seen.said]
        made = draw.pick(known) if "made_up" in phrases and known else other_name(seen.said, draw)
        twists.append(Twist("made_up_name", {"value": made}))
    return Remark(sort, values, str(fact.value), fact.field, tuple(twists))


def _is_near(one: Sighting, other: Sighting) -> bool:
    """Return whether two values are the same, or may be when they are rounded."""
    if not is_number(one.value) or not is_number(other.value):
        return one.value == other.value
    first, second = float(one.value), float(other.value)
    is_small = first.is_integer() and second.is_integer() and max(abs(first), abs(second)) < 1000
    return first == second if is_small else abs(first - second) <= max(0.1 * abs(second), 1)


def _twists_of_text(fact: Sighting, world: Mapping[str, Any]) -> list[Twist]:
    """Return twists with the other values that a field can have."""
    tools = world.get("tools", {}).values()
    rules = [rule for tool in tools for rule in rules_of(tool["record"], fact.field)]
    others = [
        text for rule in rules for text in rule.removeprefix("choice ").split("|") if text != fact.value
    ]
    return [Twist("wrong_state", {"value": text}) for text in others if str(fact.value) in " ".join(rules)]


def show(fact: Sighting, draw: Draw, *, is_loose: bool = True) -> str:
    """Return the value of a fact in one of the usual forms."""
    if is_number(fact.value):
        return f.write_number(float(fact.value), fact.unit, draw, is_loose=is_loose)
    write = {"time": f.write_time, "date": f.write_date}.get(fact.sort)
    return write(str(fact.value), draw) if write is not None else str(fact.value)


def _other_date(value: str, draw: Draw) -> str:
    month, day = int(value[5:7]), int(value[8:])
    return (
        f"{value[:4]}-{(month + draw.between(1, 10)) % 12 + 1:02d}-{(day + draw.between(3, 20)) % 28 + 1:02d}"
    )


def other_name(said: str, draw: Draw) -> str:
    """Return the name of a person who is nowhere in the results."""
    names = [f"{draw.pick(FIRST_NAMES)} {draw.pick(LAST_NAMES)}" for _ in range(40)]
    return next((name for name in names if not any([part in said for part in name.split()])), names[0])


def _of_grid(
    grid: Grid, seen: Observed, taken: set[str], phrases: Mapping[str, Any], draw: Draw
) -> Iterator[Remark]:
    count = len(grid.rows)
    base = {"owner": grid.owner, "things": grid.things}
    wrong = count + draw.pick((-1, 1, 2)) if count > 1 else count + 2
    twists = (
        Twist("small_number", {"count": str(wrong)}),
        Twist("number_in_words", {"count": f.in_words(wrong)}),
    )
    shown = str(count) if draw.chance(0.5) else f.in_words(count)
    yield Remark("count", {**base, "count": shown}, str(count), "count", twists)
    for name in grid.numbers:
        yield from _of_column(grid, name, base, taken, draw)
    for name in grid.choices:
        yield from _of_choices(grid, name, base, phrases, draw)
    if grid.names:
        yield _of_names(grid, base, seen, phrases, draw)


def _of_choices(
    grid: Grid, name: str, base: dict[str, str], phrases: Mapping[str, Any], draw: Draw
) -> Iterator[Remark]:
    """Say which share of the rows has one of the texts, in numbers and in words."""
    texts, count = [str(row[name]) for row in grid.rows], len(grid.rows)
    chosen = draw.pick(sorted(set(texts)))
    part = texts.count(chosen)
    values = {**base, "label": read_label(name, grid.labels), "state": chosen}
    percent = 100 * part / count
    lies = [
        Twist("wrong_share", {"share": f"{step} %"})
        for step in (15, 85, 40, 60, 95)
        if abs(step - percent) > 12
    ]
    other = (part + draw.between(1, count - 1)) % count or count
    if other != part:
        lies.append(Twist("wrong_share", {"share": f.write_share(other, count, draw)}))
    truth = f"{part} of {count}"
    yield Remark("share", {**values, "share": f.write_share(part, count, draw)}, truth, name, tuple(lies))
    words = phrases["quantifiers"]
    right = "most" if 2 * part > count else "half" if 2 * part == count else "minority"
    wrong = [sort for sort in ("all", "none", "most", "minority") if sort != right]
    twists = [
        Twist("wrong_quantifier", {"quantifier": draw.pick(split_words(words[sort]))}) for sort in wrong
    ]
    shown = {**values, "quantifier": draw.pick((*split_words(words[right]), *split_words(words["true"])))}
    yield Remark("quantifier", shown, truth, name, tuple(twists))


def _of_column(grid: Grid, name: str, base: dict[str, str], taken: set[str], draw: Draw) -> Iterator[Remark]:
    numbers = [float(row[name]) for row in grid.rows]
    unit, label = unit_of(name), read_label(name, grid.labels)
    total = round(sum(numbers), 2)
    wrong = other_number(total, taken, draw)
    twists = (Twist("wrong_sum", {"value": f.write_number(wrong, unit, draw, is_loose=False)}),)
    if len(numbers) > 1:
        values = {**base, "label": label, "value": f.write_number(total, unit, draw)}
        yield Remark("total", values, f.plain(total), name, twists)
        mean = round(fmean(numbers), 1)
        far = other_number(mean, taken, draw)
        lies = (Twist("wrong_sum", {"value": f.write_number(far, unit, draw, is_loose=False)}),)
        values = {**base, "label": label, "value": f.with_unit(f.plain(mean), unit, draw)}
        yield Remark("mean", values, f.plain(mean), name, lies)
    if grid.names and len(set(numbers)) > 1:
        yield _extreme(grid, name, base, draw)


def _extreme(grid: Grid, name: str, base: dict[str, str], draw: Draw) -> Remark:
    is_high = draw.chance(0.7)
    best = (max if is_high else min)(grid.rows, key=lambda row: row[name])
    # Rows can have the same name, or the same value.
    winners = {row[grid.names] for row in grid.rows if row[name] == best[name]}
    losers = [row for row in grid.rows if row[grid.names] not in winners]
    values = {
        **base,
        "label": read_label(name, grid.labels),
        "item": str(best[grid.names]),
        "value": f.write_number(float(best[name]), unit_of(name), draw, is_loose=False),
        "most": "highest" if is_high else "lowest",
    }
    twists: tuple[Twist, ...] = ()
    if losers:
        twists = (Twist("wrong_order", {"item": str(draw.pick(losers)[grid.names])}),)
    return Remark("extreme", values, str(best[grid.names]), name, twists)


def _of_names(
    grid: Grid, base: dict[str, str], seen: Observed, phrases: Mapping[str, Any], draw: Draw
) -> Remark:
    found = list(dict.fromkeys([str(row[grid.names]) for row in grid.rows]))
    names = found[:6]
    is_all = len(names) == len(found)
    false = [*names]
    known = _absent_name(found, grid.names, seen.world, draw) if "made_up" in phrases else ""
    made = known or other_name(" ".join(found), draw)
    false[draw.below(len(false))] = made
    values = {**base, "items": join(names, draw), "all": "" if is_all else "among others "}
    twist = Twist("made_up_name", {"items": join(false, draw)})
    return Remark("names", values, join(names, draw), grid.names, (twist,))


def _absent_name(names: Sequence[str], field: str, world: Mapping[str, Any], draw: Draw) -> str:
    """Return another name that the rows could have; empty if none is known."""
    if not world:
        return ""
    records = [*[tool["record"] for tool in world["tools"].values()], *world["documents"]["tables"].values()]
    rules = [rule for record in records for rule in rules_of(record, field)]
    texts = [text for rule in rules for text in rule.removeprefix("choice ").split("|")]
    return draw.pick([text for text in texts if text not in names] or [""])


def join(items: Sequence[str], draw: Draw) -> str:
    """Return a list as people write it."""
    if len(items) < 2:
        return "".join(items)
    last = draw.pick((" and ", " and ", ", and ", " & "))
    return f"{', '.join(items[:-1])}{last}{items[-1]}"


def _of_texts(seen: Observed, phrases: Mapping[str, Any], draw: Draw) -> Iterator[Remark]:
    for path, lines in seen.texts.items():
        count, base = len(lines), {"owner": path}
        wrong = count + draw.pick((-2, -1, 1, 3))
        # A table has one line more than rows, and who leaves out the heading does not lie.
        wrong = count + 2 if wrong == count - 1 and path.endswith(".csv") else wrong
        twists = [Twist("small_number", {"count": str(max(wrong, count + 1) if wrong < 1 else wrong)})]
        yield Remark("lines", {**base, "count": _show_count(count, draw)}, str(count), "lines", tuple(twists))
        texts = [line.strip() for line in lines if 8 < len(line.strip()) < 120]
        if texts and "," not in texts[0]:
            quoted = draw.pick(texts)
            where = "The first line" if quoted == lines[0].strip() else "One line"
            yield Remark(
                "quote",
                {**base, "quote": quoted, "where": where},
                quoted,
                "quote",
                _misquote(seen, phrases, draw),
            )


def _misquote(seen: Observed, phrases: Mapping[str, Any], draw: Draw) -> tuple[Twist, ...]:
    lines = phrases.get("made_up", f.FIGURES)["false_lines"]
    made = draw.pick([line for line in lines if line not in seen.said])
    return (Twist("invented_quote", {"quote": made}),)


def _show_count(count: int, draw: Draw) -> str:
    return f.in_words(count) if draw.chance(0.3) else str(count)


def _of_paths(seen: Observed, phrases: Mapping[str, Any], draw: Draw) -> Iterator[Remark]:
    if seen.paths:
        count = len(seen.paths)
        wrong = count + draw.pick((-1, 1, 2))
        twists = (
            Twist("small_number", {"count": str(wrong)}),
            Twist("number_in_words", {"count": f.in_words(wrong)}),
        )
        yield Remark("files", {"count": _show_count(count, draw)}, str(count), "files", twists)
        some = draw.sample(seen.paths, min(4, count))
        false = [*some]
        false[draw.below(len(false))] = other_path(seen.said, draw, phrases)
        twist = Twist("made_up_path", {"items": join(false, draw)})
        yield Remark("some_files", {"items": join(some, draw)}, join(some, draw), "paths", (twist,))
    for verb, path in seen.deeds:
        twist = Twist("made_up_path", {"path": other_path(seen.said, draw, phrases)})
        yield Remark(f"deed_{verb}", {"path": path}, path, "deed", (twist,))
    for path, count in seen.hits.items():
        twist = Twist("small_number", {"count": str(count + draw.pick((1, 2, 3)))})
        yield Remark("hits", {"owner": path, "count": str(count)}, str(count), "hits", (twist,))


def other_path(said: str, draw: Draw, phrases: Mapping[str, Any]) -> str:
    """Return the path of a file that is nowhere in the results."""
    stems, endings = phrases.get("made_up", f.FIGURES)["stems"], ("csv", "txt", "json", "md")
    paths = [f"{draw.pick(stems)}.{draw.pick(endings)}" for _ in range(40)]
    return next((path for path in paths if path.partition(".")[0] not in said), "unknown_file.bin")


def _of_conversions(seen: Observed, draw: Draw) -> Iterator[Remark]:
    for fact in seen.facts:
        if (
            not is_number(fact.value)
            or (other := f.convert(float(fact.value), fact.unit)) is None
            or not fact.owner
        ):
            continue
        value, unit = other
        far = round(value * draw.pick((0.6, 1.4, 1.8)) + 2, 1)
        if abs(far - value) < 0.15 * abs(value) + 0.5:
            far = round(value * 2 + 20, 1)
        values = {
            "owner": fact.owner,
            "label": fact.label,
            "value": f.with_unit(f.plain(float(fact.value)), fact.unit, draw),
            "other": f"{value:.6g} {unit}",
        }
        twist = Twist("wrong_conversion", {"other": f"{f.plain(far)} {unit}"})
        yield Remark("converted", values, f"{value:.6g} {unit}", fact.field, (twist,))


def _of_pairs(seen: Observed, draw: Draw) -> Iterator[Remark]:
    """Compare the same field of two records, and two tables."""
    for index, one in enumerate(seen.facts):
        for other in seen.facts[index + 1 :]:
            if one.field != other.field or one.owner == other.owner or not is_number(one.value):
                continue
            gap = round(float(one.value) - float(other.value), 2)
            if gap:
                yield _gap(one.label, one.owner, other.owner, gap, one.unit, draw)
    for first, second in zip(seen.grids, seen.grids[1:], strict=False):
        gap = len(first.rows) - len(second.rows)
        if gap and first.owner != second.owner and first.things == second.things:
            yield _gap(f"number of {first.things}", first.owner, second.owner, gap, "", draw)


def _of_spans(seen: Observed, draw: Draw) -> Iterator[Remark]:
    """Say how far two dates, or two times, of one thing are apart."""
    for one in seen.facts:
        for other in seen.facts:
            if one.sort not in ("date", "time") or (one.owner, one.sort) != (other.owner, other.sort):
                continue
            span = _read_moment(str(other.value)) - _read_moment(str(one.value))
            length, unit = (span.days, "days") if one.sort == "date" else (span.seconds // 60, "min")
            if span.days < 0 or not length:
                continue
            shown, far = f"{length} {unit}", round(length * draw.pick((0.4, 0.6, 1.5, 1.9))) + 3
            values = {"owner": one.owner, "first": one.label, "last": other.label, "value": shown}
            twists = [Twist("wrong_order", {"first": other.label, "last": one.label})]
            if far != length:
                twists.append(Twist(f"wrong_{one.sort}", {"value": f"{far} {unit}"}))
            yield Remark("span", values, f"{other.label} {shown} after {one.label}", "span", tuple(twists))


def _read_moment(value: str) -> datetime:
    return datetime.fromisoformat(value if "-" in value else f"2026-01-01 {value}")


def _gap(label: str, one: str, other: str, gap: float, unit: str, draw: Draw) -> Remark:
    high, low = (one, other) if gap > 0 else (other, one)
    shown = f.write_number(abs(gap), unit, draw, is_loose=False)
    far = f.write_number(round(abs(gap) * 2 + 3, 2), unit, draw, is_loose=False)
    twists = (Twist("wrong_order", {"high": low, "low": high}), Twist("wrong_sum", {"value": far}))
    return Remark(
        "gap", {"label": label, "high": high, "low": low, "value": shown}, f"{high} by {shown}", "gap", twists
    )


def _of_absence(seen: Observed, phrases: Mapping[str, Any], draw: Draw) -> Iterator[Remark]:
    """Say what the results do not have. The lie is to say it of something that they have."""
    owners = {fact.owner: fact.label for fact in seen.facts if fact.owner}
    owners |= {grid.owner: grid.names for grid in seen.grids if grid.names}
    said = seen.said.casefold()
    free = [thing for thing in split_words(phrases["absent"]["things"]) if thing not in said]
    for owner, label in owners.items():
        if free:
            twist = Twist("false_absence", {"thing": label})
            yield Remark("absent", {"thing": draw.pick(free), "owner": owner}, label, "absent", (twist,))
