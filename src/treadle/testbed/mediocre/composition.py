"""The composition of an answer: which remarks it has, in whose style, and which of them is a lie."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from treadle.core.documents import read_data
from treadle.tasks.draws import Draw
from treadle.testbed.mediocre.falsehoods import EXTRA_LIES, Falsehood
from treadle.testbed.mediocre.observations import Observed
from treadle.testbed.mediocre.remarks import Remark, Twist, other_name, other_path, remarks_of
from treadle.testbed.roles.speakers import upper_first
from treadle.testbed.roles.words import split as split_words

STYLES = ("terse", "chatty", "tabular", "report", "engineer", "nonnative")
_LENGTHS: Mapping[str, tuple[int, int]] = {
    "terse": (1, 2),
    "chatty": (2, 4),
    "tabular": (2, 6),
    "report": (3, 6),
    "engineer": (2, 4),
    "nonnative": (2, 4),
}
"""How many remarks an answer of each style has."""
_FIELD = re.compile(r"\{([\w ]+)\}")


class Composed(Struct, frozen=True):
    """An answer, and what is untrue in it."""

    text: str
    falsehood: Falsehood | None = None


@cache
def load_phrases(split: str) -> dict[str, Any]:
    """Return the phrases of a split."""
    return read_data(__package__, f"phrases_{split}")


class _Line(Struct, frozen=True):
    """A remark in words."""

    text: str
    label: str = ""
    value: str = ""


def compose(seen: Observed, split: str, focus: Sequence[str], kinds: Sequence[str], draw: Draw) -> Composed:
    """Return an answer about what was seen.

    `kinds` are the kinds of lie to try, the most wanted first; the answer is honest if it is empty, or if the
    results allow none of them.
    """
    style = draw.pick(STYLES)
    phrases = load_phrases(split)
    low, high = _LENGTHS[style]
    found = remarks_of(seen, draw)
    chosen = _choose(found, focus, draw.between(low, high))
    lie = _lie(found, chosen, kinds, seen, phrases, draw)
    lines = [_say(remark, style, phrases, draw) for remark in lie.remarks]
    if lie.sentence:
        lines.append(_Line(lie.sentence))
    text = _lay_out(lines, style, phrases, draw)
    if not lie.kind:
        return Composed(text)
    line = lines[lie.position]
    sentence = line.text if line.text in text else next(row for row in text.splitlines() if line.value in row)
    return Composed(text, Falsehood(lie.kind, sentence, lie.truth))


class _Lie(Struct, frozen=True):
    """The remarks of an answer with the lie in them."""

    remarks: Sequence[Remark]
    kind: str = ""
    position: int = -1
    truth: str = ""
    sentence: str = ""
    """The lie if it is a sentence of its own, at the end."""


def _choose(found: Sequence[Remark], focus: Sequence[str], count: int) -> list[Remark]:
    """Return the remarks that are about the focus, and others."""
    first = [next((item for item in found if _is_about(item, text)), None) for text in focus]
    chosen = [item for item in first if item is not None] or list(found[:1])
    for item in found:
        known = {
            (other.sort, other.values.get("label", ""), other.values.get("owner", "")) for other in chosen
        }
        if len(chosen) >= count:
            break
        if (item.sort, item.values.get("label", ""), item.values.get("owner", "")) not in known:
            chosen.append(item)
    return chosen


_SORTS = {"sum": "total", "max": "extreme"}


def _is_about(remark: Remark, focus: str) -> bool:
    """Return whether a remark is about a focus such as `price_eur`, `items` or `sum price_eur`."""
    sort, _, field = focus.rpartition(" ")
    if sort in _SORTS:
        return remark.focus == field and remark.sort == _SORTS[sort]
    return field in (remark.focus, remark.values.get("things"))


def _lie(
    found: Sequence[Remark],
    chosen: Sequence[Remark],
    kinds: Sequence[str],
    seen: Observed,
    phrases: Mapping[str, Any],
    draw: Draw,
) -> _Lie:
    """Return the chosen remarks with the first possible lie among them."""
    for kind in kinds:
        if kind == "false_absence" and len(found) < len(chosen) + 3:
            continue  # it may be true
        if kind in EXTRA_LIES:
            fields = {
                "name": other_name(seen.said, draw),
                "path": other_path(seen.said, draw),
                "percent": str(draw.between(4, 60)),
                "number": str(draw.between(1000, 9000)),
            }
            return _Lie(chosen, kind, sentence=draw.pick(phrases["lies"][kind]).format_map(fields))
        for remark in [*chosen, *found]:
            fitting = [twist for twist in remark.twists if twist.kind == kind]
            if fitting:
                false = _twist(remark, draw.pick(fitting))
                position = chosen.index(remark) if remark in chosen else len(chosen) - 1
                said = [*chosen[:position], false, *chosen[position + 1 :]]
                return _Lie(said, kind, position, remark.truth)
    return _Lie(chosen)


def _twist(remark: Remark, twist: Twist) -> Remark:
    return Remark(remark.sort, {**remark.values, **twist.changed}, remark.truth, remark.focus, (twist,))


def _say(remark: Remark, style: str, phrases: Mapping[str, Any], draw: Draw) -> _Line:
    entry = phrases["remarks"][remark.sort]
    own = entry.get(style, [])
    wording = draw.pick(own if own and draw.chance(0.4) else entry["all"])
    false = remark.twists[0].changed if len(remark.twists) == 1 else {}
    # A wording must show the value that is false.
    if not all([f"{{{name}" in wording.lower() for name in false]):
        wording = next(
            (text for text in entry["all"] if all([f"{{{name}" in text.lower() for name in false])), wording
        )
    mark = draw.pick(("", "", "", "**", "`" if style == "engineer" else "")) if style != "terse" else ""
    values = {
        name: f"{mark}{value}{mark}" if name in ("value", "item", "path") else value
        for name, value in remark.values.items()
    }
    text = upper_first(_FIELD.sub(lambda field: _fill(field[1], values), wording))
    main = next(
        (name for name in ("value", "share", "count", "items", "path", "quote") if name in values), ""
    )
    label = values.get("label") or values.get("things") or remark.sort.replace("_", " ")
    return _Line(text, label, values.get(main, ""))


def _fill(field: str, values: Mapping[str, str]) -> str:
    """Return the value of a field; `The owner` and `a label` have an article, and `Label` a capital letter."""
    if field == "The owner":
        owner = values["owner"]
        return owner if _is_name(owner) else f"The {owner}"
    if field == "a label":
        article = "an" if values["label"][:1] in "aeiou" else "a"
        return f"{article} {values['label']}"
    if field[0].isupper():
        return upper_first(values[field.lower()])
    return values[field]


def _is_name(owner: str) -> bool:
    return True if not owner else "." in owner or " " in owner or any([sign.isdigit() for sign in owner])


def _lay_out(lines: Sequence[_Line], style: str, phrases: Mapping[str, Any], draw: Draw) -> str:
    opener = draw.pick(split_words(phrases["openers"][style]))
    closer = draw.pick(split_words(phrases["closers"][style]))
    advice = draw.pick(phrases["advice"]["all"]) if draw.chance(0.35) and style != "terse" else ""
    heading = draw.pick(split_words(phrases["headings"]["all"]))
    texts = [line.text for line in lines]
    if style == "tabular":
        body = _table(lines, phrases, draw)
    elif style == "report":
        sign = draw.pick(("- ", "* ", "1. "))
        items = [
            f"{number}. {text}" if sign == "1. " else sign + text for number, text in enumerate(texts, 1)
        ]
        title = draw.pick((f"## {heading}\n\n", f"**{heading}**\n\n", f"{heading}:\n"))
        body = title + "\n".join(items)
    elif style == "engineer" and draw.chance(0.4):
        body = "\n".join([f"- {text}" for text in texts])
    else:
        body = " ".join(texts)
    gap = "\n\n" if style in ("tabular", "report", "engineer") or draw.chance(0.4) else " "
    return gap.join([part for part in (opener, body, advice, closer) if part])


def _table(lines: Sequence[_Line], phrases: Mapping[str, Any], draw: Draw) -> str:
    """Return a table of the remarks that have a value; the others follow as sentences."""
    columns = draw.pick(split_words(phrases["headings"]["columns"])).split(" / ")
    rows = [line for line in lines if line.value and "\n" not in line.value]
    rest = [line.text for line in lines if line not in rows]
    made = [f"| {columns[0]} | {columns[1]} |", "| --- | --- |"]
    made += [f"| {upper_first(line.label)} | {line.value} |" for line in rows]
    return "\n\n".join(["\n".join(made), *rest]) if rows else " ".join(rest)
