"""The reading of results as records: rows of tables, objects of JSON, blocks of settings, lines of text."""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from html import unescape
from itertools import chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.texts.json_text import is_deep
from treadle.core.types import Json
from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.figures.quantities import Quantity, shapes

_WORD, _PART, _CAMEL, _ENDING, _FIELD, _NAME = shapes("record_forms", "word part camel ending field name")
_INLINE, _HEADING, _TAG, _WORD_END = shapes("record_forms", "inline heading tag word_end")
Labels = frozenset[frozenset[str]]
_BOX = {"[ ]": "open", "[x]": "done", "[X]": "done"}
_LINES: msgspec.json.Decoder[Json] = msgspec.json.Decoder()
_MAX_LINES = 2000
"""The largest number of lines that are read as records. Of longer results only the words are known."""
_MAX_KEPT = 400
"""The length of the longest texts whose stems are kept."""


class Cell(Struct, frozen=True):
    """One value of a record, with the stems of its label."""

    label: frozenset[str]
    text: str
    quantities: tuple[Quantity, ...] = ()
    unit: str = ""
    """The unit that the label names, such as `kg` of `weight_kg` and `kg per day` of `gain_kg_per_day`."""
    stems: frozenset[str] = frozenset()
    """The stems of the words of the text."""


class Record(Struct, frozen=True, eq=False):
    """A row, an object, a block or a line of a result."""

    source: int
    cells: tuple[Cell, ...]
    stems: frozenset[str]
    """The stems of the words of its values."""
    context: frozenset[str] = frozenset()
    """The stems of headings above it, and of the call that gave it."""
    columns: Labels = frozenset()
    """The labels of the table or list that it is a part of, also of cells that it leaves empty."""

    @property
    def labels(self) -> Labels:
        return frozenset([cell.label for cell in self.cells])


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Return a word in lower case without its ending."""
    if len(word) < 4 or not word[-1].isalpha():
        return word.removesuffix("'s")
    if word.endswith("ss"):
        return word
    cut = _ENDING.sub(lambda found: "y" if found[0] == "ies" else "", word)
    if len(cut) > 3 and cut[-1] == cut[-2] in "bdgmnpt" and word.endswith(("ed", "ing")):
        return cut[:-1]
    cut = cut.removesuffix("e") if len(cut) > 3 else cut
    return cut if len(cut) >= 3 else word


@lru_cache(maxsize=16384)
def _word_stems(word: str) -> tuple[str, ...]:
    if word.isalnum():
        return (stem(word),)
    return (stem(word), *[stem(part) for part in _PART.split(word) if len(part) > 1])


def stems_of(text: str) -> frozenset[str]:
    """Return the stems of the words in a text; words with hyphens and dots also by their parts."""
    return _read_stems(text) if len(text) > _MAX_KEPT else _keep_stems(text)


def _read_stems(text: str) -> frozenset[str]:
    lower = text.lower()
    if lower.isalnum():
        return frozenset((stem(lower),))
    return frozenset(chain.from_iterable(map(_word_stems, _WORD.findall(lower))))


_keep_stems = lru_cache(maxsize=4096)(_read_stems)
"""The stems of a sentence or a part of it. Several rules ask for them."""


@lru_cache(maxsize=4096)
def label_stems(text: str) -> frozenset[str]:
    return stems_of(_CAMEL.sub(" ", text))


@lru_cache(maxsize=16384)
def _cell(label: str, text: str) -> Cell:
    words = _WORD_END.split(label.strip(" )"))
    unit = " ".join(words[-3:] if words[-2:-1] == ["per"] else words[-1:])
    found = find_quantities(text.replace(",", ", ") if text[:1] == "[" else text)
    return Cell(label_stems(label), text, found, unit, stems_of(text))


_NOTHING: frozenset[str] = frozenset()


def _record(cells: Sequence[Cell], context: frozenset[str] = _NOTHING) -> Record:
    stems = cells[0].stems if len(cells) == 1 else frozenset().union(*[cell.stems for cell in cells])
    return Record(-1, tuple(cells), stems, context)


def _read_json(value: Json, context: frozenset[str] = _NOTHING, path: str = "") -> Iterator[Record]:
    """Yield a record for each object of a JSON value, with the scalars of the objects in it."""
    if isinstance(value, dict):
        cells: list[Cell] = []
        inner: list[tuple[str, Json]] = []
        for key, item in _scalars(value, path):
            if isinstance(item, list) and not any(isinstance(one, dict | list) for one in item):
                cells.append(_cell(key, _write(item)))
            elif isinstance(item, list):
                inner.append((key, item))
            else:
                cells.append(_cell(key, _write(item)))
        if cells:
            yield _record(cells, context)
        above = context | frozenset([name for cell in cells[:6] for name in cell.stems])
        for key, item in inner:
            yield from _read_json(item, above | label_stems(key), key)
    elif isinstance(value, list):
        items = [_read_json(item, context, "" if isinstance(item, dict) else path) for item in value]
        yield from _align(list(chain.from_iterable(items)))
    else:
        yield _record([_cell(path, _write(value))], context)


def _align(records: list[Record]) -> Iterator[Record]:
    """Yield the records of a list, with the labels of all of them that begin like them: each may leave cells out.
    Those with a text without a label, such as lines of a log, have only their own."""
    columns: dict[frozenset[str], Labels] = {}
    for record in records:
        if not record.columns and _NOTHING not in record.labels:
            first = record.cells[0].label
            columns[first] = columns.get(first, frozenset()) | record.labels
    for record in records:
        shared = record.columns or (
            record.labels if _NOTHING in record.labels else columns[record.cells[0].label]
        )
        yield replace(record, columns=shared)


def _scalars(value: dict[str, Json], path: str) -> Iterator[tuple[str, Json]]:
    for key, item in value.items():
        name = f"{path} {key}" if path else key
        if isinstance(item, dict):
            yield from _scalars(item, name)
        else:
            yield name, item


def _write(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _read_text(text: str) -> Iterator[Record]:
    """Yield the records of a text: rows of a table, blocks of fields, or lines."""
    if "</" in text:
        text = unescape(
            _TAG.sub(
                " ", re.sub(r"</t[dh]>(?!\s*</tr>)", " | ", re.sub(r"</(?:tr|p|li|h\d|div)>", "\n", text))
            )
        )
    lines = [line for line in text.splitlines() if line.strip()][:_MAX_LINES]
    header, delimiter = _read_header(lines)
    above = _NOTHING
    block: list[Cell] = []
    if len(lines) > 2 and not header and _read_field(lines[0]) is None and _read_field(lines[1]) is not None:
        above = stems_of(lines[0])  # a title
    columns = frozenset(map(label_stems, header))
    for index, line in enumerate(lines):
        if header:
            if index and not re.fullmatch(r"[\s|:-]+", line):
                rows = zip(header, _split(line, delimiter), strict=False)
                cells = [_cell(name, cell.strip()) for name, cell in rows if cell.strip()]
                yield replace(_record(cells), columns=columns)
            continue
        field = _read_field(line)
        heading = _HEADING.match(line) if "#" in line or "[" in line else None
        is_new = field is None or line.lstrip().startswith("- ") or "|" in line
        if block and (is_new or label_stems(field["key"] if field else "") in [cell.label for cell in block]):
            yield _record(block, above)
            block = []
        if heading:
            above = stems_of(heading[1])
            yield _record([_cell("", heading[1])])
        elif field and "|" not in line and len(field["value"] or "") < 80:
            block.append(_cell(field["key"], field["value"] or ""))
        else:
            if "[" in line:
                for box, word in _BOX.items():
                    line = line.replace(box, word)
            yield _record(list(_read_line(line)), above)
    if block:
        yield _record(block, above)


def _read_field(line: str) -> re.Match[str] | None:
    return _FIELD.match(line) if ":" in line or "=" in line else None


def _read_line(line: str) -> Iterator[Cell]:
    """Yield the cells of a line: its fields, and what is left of it."""
    rest = line
    for part in line.split("|") if "|" in line else ():
        if field := _read_field(part):
            yield _cell(field["key"], field["value"] or "")
            rest = rest.replace(part, " ")
    if "=" in rest:
        for found in _INLINE.finditer(rest):
            yield _cell(found[1], found[2])
        rest = _INLINE.sub(" ", rest)
    if rest.strip(" |"):
        yield _cell("", rest)


def _read_header(lines: Sequence[str]) -> tuple[list[str], str]:
    """Return the names of a table's columns and the delimiter; no names if the lines are not a table."""
    for delimiter in (",", ";", "\t", "|"):
        header = lines[0].split(delimiter) if len(lines) > 1 else []
        is_name = [
            cell.strip() == ""
            or (re.search(r"[^\W\d]", cell) is not None and len(cell) <= 40 and _NAME.search(cell) is None)
            for cell in header
        ]
        if (
            len(header) > 1
            and all(is_name)
            and all(line.count(delimiter) >= len(header) - 1 for line in lines[1:5])
        ):
            return [cell.strip() for cell in header], delimiter
    return [], ""


def _split(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line of a table."""
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error:  # a cell is very long
        return line.split(delimiter)


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[Record, ...]:
    """Return the records of a text, whichever call gave it: a file that is read is often written again."""
    if text.lstrip()[:1] in ("{", "["):
        for decode in () if is_deep(text) else (msgspec.json.decode, _LINES.decode_lines):
            with suppress(msgspec.DecodeError):
                return tuple(_read_json(decode(text)))
    return tuple(_align(list(_read_text(text))))


@lru_cache(maxsize=256)
def read_records(source: int, text: str, context: frozenset[str]) -> tuple[Record, ...]:
    return tuple([replace(item, source=source, context=context | item.context) for item in _read(text)])
