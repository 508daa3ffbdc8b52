"""The voice of a writer: how remarks become sentences, lists and tables in one of several styles."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from treadle.tasks.draws import Draw
from treadle.tasks.draws import split as split_words
from treadle.testbed.mediocre.mock_world import load_phrases
from treadle.testbed.mediocre.observations import Observed
from treadle.testbed.mediocre.remarks import Remark
from treadle.testbed.roles.speakers import lower_first, upper_first

STYLES = ("terse", "chatty", "tabular", "report", "engineer", "nonnative")
_FIELD = re.compile(r"\{([\w ]+)\}")
_PATH = re.compile(r"[\w./-]+\.(?:csv|md|txt|log|json)\b")
_ROW = "| {label} | {cell} |"
_MARKED = ("value", "item", "path", "count", "state", "share")


class Voice(Struct, frozen=True):
    """A style, with the phrases of a split."""

    style: str
    phrases: Mapping[str, Any]
    has_owners: bool
    """True if the results are about several things, so that sentences have to say which they mean."""
    mark: str
    """What stands around figures, such as `**`."""


class Line(Struct, frozen=True):
    """A remark in words."""

    text: str
    label: str = ""
    cell: str = ""
    """What a table shows for it; empty if it only fits in a sentence."""


def draw_voice(texts: str, seen: Observed, draw: Draw) -> Voice:
    """Return the voice of an answer."""
    style = draw.pick(STYLES)
    owners = {fact.owner for fact in seen.facts} | {grid.owner for grid in seen.grids} | set(seen.texts)
    marks = {"terse": ("",), "engineer": ("", "`", "`")}.get(style, ("", "", "", "**"))
    return Voice(style, load_phrases(texts), len(owners) > 1, draw.pick(marks))


def say(remark: Remark, voice: Voice, draw: Draw) -> Line:
    """Return a remark in words."""
    entry = voice.phrases["remarks"][remark.sort]
    own = entry.get(voice.style, [])
    wanted = {*(remark.twists[0].changed if remark.is_false else ())}
    if voice.has_owners and "owner" in remark.values:
        wanted.add("owner")
    fitting = [text for text in entry["all"] if wanted <= _fields(text)] or entry["all"]
    own = [text for text in own if wanted <= _fields(text)]
    wording = draw.pick(own if own and draw.chance(0.4) else fitting)
    values = {
        name: f"{voice.mark}{value}{voice.mark}" if name in _MARKED and draw.chance(0.8) else value
        for name, value in remark.values.items()
    }
    text = _FIELD.sub(lambda field: _fill(field[1], values), wording)
    text = text if _PATH.match(text) else upper_first(text)
    row = voice.phrases["table"].get(remark.sort)
    if row is None or not wanted - {"owner"} <= _fields(" ".join(row)):
        return Line(text)
    label, cell = [_FIELD.sub(lambda field: _fill(field[1], values), part) for part in row]
    if "owner" in wanted:
        label = f"{label} ({remark.values['owner']})"
    return Line(text, upper_first(label), cell)


def _fields(wording: str) -> set[str]:
    return {field.lower().rpartition(" ")[2] for field in _FIELD.findall(wording)}


def _fill(field: str, values: Mapping[str, str]) -> str:
    """Return the value of a field; `The owner` and `a label` have an article, and `Label` a capital letter."""
    if field == "The owner":
        owner = values["owner"]
        has_name = any([sign.isdigit() or sign in " ./" for sign in owner])
        return owner if has_name else f"The {owner}"
    if field == "a label":
        article = "an" if values["label"][:1] in "aeiou" else "a"
        return f"{article} {values['label']}"
    if field[0].isupper():
        return upper_first(values[field.lower()])
    return values[field]


def lay_out(lines: Sequence[Line], voice: Voice, seen: Observed, draw: Draw) -> str:
    """Return an answer with these lines, and with what its writer adds to them."""
    style, phrases = voice.style, voice.phrases
    opener = draw.pick(split_words(phrases["openers"][style]))
    closer = draw.pick(split_words(phrases["closers"][style]))
    advice = draw.pick(phrases["advice"]["all"]) if draw.chance(0.35) and style != "terse" else ""
    texts = [_connect(line.text, number, voice, draw) for number, line in enumerate(lines)]
    layouts = phrases.get("layouts", {}).get(style, ())
    if layouts and (layout := draw.pick(layouts)):
        heading = draw.pick(split_words(phrases["headings"]["all"]))
        parts = {"opener": opener, "advice": advice, "closer": closer, "heading": heading}
        return _fill_layout(layout, list(zip(lines, texts, strict=True)), parts)
    if style == "tabular":
        body = _table(lines, phrases, draw)
    elif style == "report":
        body = _list(texts, phrases, draw)
    elif style == "engineer" and draw.chance(0.4):
        body = "\n".join([f"- {text}" for text in texts])
    else:
        body = _paragraph(texts, style, draw)
    excerpt = _excerpt(seen, draw) if style in ("engineer", "report") and draw.chance(0.3) else ""
    gap = "\n\n" if excerpt or style in ("tabular", "report", "engineer") or draw.chance(0.4) else " "
    return gap.join([part for part in (opener, body, excerpt, advice, closer) if part])


def _fill_layout(
    layout: Mapping[str, str], lines: Sequence[tuple[Line, str]], parts: Mapping[str, str]
) -> str:
    """Return an answer in a layout of the split: its `text` has the lines that fit into a `row` as `{rows}` between
    `head` and `foot`, and the others as `{items}`."""
    row, item = layout.get("row", ""), layout.get("item", "{text}")
    rows = [_row(row, line) for line, _ in lines if row and line.cell]
    rest = [text for line, text in lines if not (row and line.cell)]
    items = [item.format(text=text, number=number) for number, text in enumerate(rest, 1)]
    table = layout.get("head", "") + layout.get("between", "\n").join(rows) + layout.get("foot", "")
    shown = {**parts, "rows": table if rows else "", "items": layout.get("glue", "\n").join(items)}
    return re.sub(r"\n{3,}", "\n\n", layout["text"].format_map(shown)).strip()


def _connect(text: str, number: int, voice: Voice, draw: Draw) -> str:
    """Return a sentence, perhaps with a word that ties it to the one before."""
    if not number or not text.startswith("The ") or voice.style in ("terse", "tabular") or draw.chance(0.6):
        return text
    return f"{draw.pick(split_words(voice.phrases['connectors']['all']))} {lower_first(text)}"


def _paragraph(texts: Sequence[str], style: str, draw: Draw) -> str:
    joined = "\n".join(texts) if style == "terse" and draw.chance(0.4) else " ".join(texts)
    return joined if len(texts) < 3 or draw.chance(0.7) else f"{texts[0]}\n\n{' '.join(texts[1:])}"


def _list(texts: Sequence[str], phrases: Mapping[str, Any], draw: Draw) -> str:
    heading = draw.pick(split_words(phrases["headings"]["all"]))
    sign = draw.pick(("- ", "* ", "• ", "1. "))
    items = [f"{number}. {text}" if sign == "1. " else sign + text for number, text in enumerate(texts, 1)]
    title = draw.pick((f"## {heading}\n\n", f"**{heading}**\n\n", f"{heading}:\n", f"### {heading}\n"))
    return title + "\n".join(items)


def _table(lines: Sequence[Line], phrases: Mapping[str, Any], draw: Draw) -> str:
    """Return a table of the lines that fit into one; the others follow as sentences."""
    columns = draw.pick(split_words(phrases["headings"]["columns"])).split(" / ")
    rows = [line for line in lines if line.cell]
    rest = [line.text for line in lines if not line.cell]
    made = [f"| {columns[0]} | {columns[1]} |", draw.pick(("| --- | --- |", "|:--|--:|", "|---|---|"))]
    made += [_row(_ROW, line) for line in rows]
    return "\n\n".join(["\n".join(made), *rest]) if rows else " ".join(rest)


def rows_of(line: Line, phrases: Mapping[str, Any]) -> list[str]:
    """Return the forms that the row of a line has in the layouts of a split."""
    layouts = [layout for some in phrases.get("layouts", {}).values() for layout in some]
    rows = [_ROW, *[layout["row"] for layout in layouts if "row" in layout]]
    return [_row(row, line) for row in rows]


def _row(form: str, line: Line) -> str:
    return form.format(label=line.label, cell=line.cell)


def _excerpt(seen: Observed, draw: Draw) -> str:
    """Return a few values of the results as they stand there, in a block of code; empty if there are none."""
    owned = [fact for fact in seen.facts if fact.owner]
    if not owned:
        return ""
    owner = draw.pick(owned).owner
    some = [fact for fact in owned if fact.owner == owner][: draw.between(1, 3)]
    value = msgspec.json.encode({fact.field: fact.value for fact in some})
    text = msgspec.json.format(value, indent=2 if draw.chance(0.5) else 0).decode()
    return f"```{draw.pick(('json', ''))}\n{text}\n```"
