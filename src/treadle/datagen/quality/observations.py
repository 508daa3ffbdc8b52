"""What a conversation shows before an answer, as records: rows of tables, objects of JSON, blocks of settings, lines.

A record has cells with labels, and the words by which an answer can refer to it. `Observations` finds the records
of a value and of words; what follows from them by arithmetic is in `derivations`.
"""

import csv
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, cached_property, lru_cache
from html import unescape
from itertools import chain

import msgspec
from msgspec import Struct

from treadle.core.types import Json, Message, Role, ToolCall
from treadle.datagen.quality.exchanges import leaves_of
from treadle.datagen.quality.languages import WORDS
from treadle.datagen.quality.quantities import Quantity, QuantityKind, find_quantities, lexicon

_WORD = re.compile(r"[^\W_]+(?:[-_.@'’][^\W_]+)*")
_PART = re.compile(r"[-_.@'’]")
_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])")
_ENDING = re.compile(r"(?:['’]s|ies|ing|ed|es|s)$")
_FIELD = re.compile(
    r"^\s*(?:[-*]\s+)?(?P<key>(?![^:=]*\d{4})[^\W\d][\w.-]{0,40}(?: [\w.-]{1,30}){0,2})\s*[:=]\s*(?P<value>\S.*)?$"
)
_BOX = {"[ ]": "open", "[x]": "done", "[X]": "done"}
_NAME = re.compile(r"^\s*[#\[>]|[.!?:=]\s*$|[:=]\s|\d{4}")
"""What the name of a column has not."""
_INLINE = re.compile(r"(?<!\S)([A-Za-z_][\w.-]*)=(\"[^\"]*\"|\S+)")
_HEADING = re.compile(r"^\s*(?:#{1,6}\s+|\[)([^\]#\n]{1,80})\]?\s*$")
_TAG = re.compile(r"<[^<>]{1,200}>")
_MAX_LINES = 2000
"""The largest number of lines that are read as records. Of longer results only the words are known."""
_COMMON = WORDS["en"]


class Cell(Struct, frozen=True):
    """One value of a record, with the stems of its label."""

    label: frozenset[str]
    text: str
    quantities: tuple[Quantity, ...] = ()
    unit: str = ""
    """The unit that the label names, such as `kg` of `weight_kg`."""
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


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Return a word in lower case without its ending."""
    if len(word) < 4 or not word[-1].isalpha():
        return word.removesuffix("'s")
    if word.endswith("ss"):
        return word
    cut = _ENDING.sub(lambda found: "y" if found[0] == "ies" else "", word)
    cut = cut.removesuffix("e") if len(cut) > 3 else cut
    return cut if len(cut) >= 3 else word


@lru_cache(maxsize=16384)
def _word_stems(word: str) -> tuple[str, ...]:
    if word.isalnum():
        return (stem(word),)
    return (stem(word), *[stem(part) for part in _PART.split(word) if len(part) > 1])


def stems_of(text: str) -> frozenset[str]:
    """Return the stems of the words in a text; words with hyphens and dots also by their parts."""
    return frozenset(chain.from_iterable(map(_word_stems, _WORD.findall(text.lower()))))


@lru_cache(maxsize=4096)
def _label(text: str) -> frozenset[str]:
    return stems_of(_CAMEL.sub(" ", text))


@lru_cache(maxsize=16384)
def _cell(label: str, text: str) -> Cell:
    unit = re.split(r"[_ (]", label.strip(" )"))[-1] if label else ""
    return Cell(_label(label), text, tuple(find_quantities(text, has_words=False)), unit, stems_of(text))


def _record(source: int, cells: Sequence[Cell], context: frozenset[str]) -> Record:
    stems = cells[0].stems if len(cells) == 1 else frozenset().union(*[cell.stems for cell in cells])
    return Record(source, tuple(cells), stems, context)


def _read_json(source: int, value: Json, context: frozenset[str], path: str = "") -> Iterator[Record]:
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
            yield _record(source, cells, context)
        above = context | frozenset([name for cell in cells[:6] for name in cell.stems])
        for key, item in inner:
            yield from _read_json(source, item, above | _label(key), key)
    elif isinstance(value, list):
        for item in value:
            yield from _read_json(source, item, context, path)
    else:
        yield _record(source, [_cell(path, _write(value))], context)


def _scalars(value: dict[str, Json], path: str) -> Iterator[tuple[str, Json]]:
    for key, item in value.items():
        name = f"{path} {key}" if path else key
        if isinstance(item, dict):
            yield from _scalars(item, name)
        else:
            yield name, item


def _write(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _read_text(source: int, text: str, context: frozenset[str]) -> Iterator[Record]:
    """Yield the records of a text: rows of a table, blocks of fields, or lines."""
    if "</" in text:
        text = unescape(
            _TAG.sub(
                " ", re.sub(r"</t[dh]>(?!\s*</tr>)", " | ", re.sub(r"</(?:tr|p|li|h\d|div)>", "\n", text))
            )
        )
    lines = [line for line in text.splitlines() if line.strip()][:_MAX_LINES]
    header, delimiter = _read_header(lines)
    above: frozenset[str] = frozenset()
    block: list[Cell] = []
    for index, line in enumerate(lines):
        if header:
            if index and not re.fullmatch(r"[\s|:-]+", line):
                rows = zip(header, _split(line, delimiter), strict=False)
                yield _record(
                    source, [_cell(name, cell.strip()) for name, cell in rows if cell.strip()], context
                )
            continue
        field = _FIELD.match(line)
        heading = _HEADING.match(line)
        is_new = field is None or line.lstrip().startswith("- ") or "|" in line
        if block and (is_new or _label(field["key"] if field else "") in [cell.label for cell in block]):
            yield _record(source, block, context | above)
            block = []
        if heading:
            above = stems_of(heading[1])
            yield _record(source, [_cell("", heading[1])], context)
        elif field and "|" not in line and len(field["value"] or "") < 80:
            block.append(_cell(field["key"], field["value"] or ""))
        else:
            if "[" in line:
                for box, word in _BOX.items():
                    line = line.replace(box, word)
            yield _record(source, list(_read_line(line)), context | above)
    if block:
        yield _record(source, block, context | above)


def _read_line(line: str) -> Iterator[Cell]:
    """Yield the cells of a line: its fields, and what is left of it."""
    rest = line
    for part in line.split("|") if "|" in line else ():
        if field := _FIELD.match(part):
            yield _cell(field["key"], field["value"] or "")
            rest = rest.replace(part, " ")
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


def _parse(source: int, text: str, context: frozenset[str]) -> list[Record]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return list(_read_json(source, msgspec.json.decode(text), context))
        except (msgspec.DecodeError, RecursionError):
            pass
    return list(_read_text(source, text, context))


class Sighting(Struct, frozen=True):
    """A quantity in a record."""

    quantity: Quantity
    record: Record
    cell: Cell


class MadeCall(Struct, frozen=True):
    """A call with its result."""

    call: ToolCall
    result: str
    is_error: bool


class Observations:
    """What the messages before an answer show."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """`messages` are those before the answer."""
        results = {item.call_id: item for item in messages if item.role is Role.TOOL}
        self.calls = [
            MadeCall(call, found.content, found.is_error)
            for message in messages
            for call in message.tool_calls
            if (found := results.get(call.call_id)) is not None
        ]
        """The calls that have a result."""
        self.told = [item.content for item in messages if item.role in (Role.USER, Role.SYSTEM)]
        """What the user and the instructions say."""
        self.work = [
            text
            for item in messages
            if item.role is Role.ASSISTANT
            for text in (item.content, item.reasoning or "")
        ]
        """What the agent wrote before."""

    @property
    def has_success(self) -> bool:
        """True if a call succeeded."""
        return any(not item.is_error for item in self.calls)

    @cached_property
    def text(self) -> str:
        """All that was seen, in lower case."""
        calls = [
            f"{item.call.name}\n{item.call.arguments if not item.is_error else ''}" for item in self.calls
        ]
        return (
            "\n".join([*self.told, *calls, *[item.result for item in self.calls]])
            .casefold()
            .replace("\\n", "\n")
        )

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of all words that were seen."""
        return stems_of(_CAMEL.sub(" ", self.text)) | frozenset(
            [name for record in self.records for cell in record.cells for name in cell.label]
        )

    @cached_property
    def records(self) -> list[Record]:
        """The records of the results."""
        found: list[Record] = []
        for number, item in enumerate(self.calls):
            if not item.is_error:
                given = [str(leaf) for leaf in leaves_of(_arguments(item.call))]
                context = stems_of(" ".join([text for text in given if len(text) < 60]))
                found += _parse(number, item.result, context)
        return found

    @cached_property
    def given(self) -> list[list[Record]]:
        """The records of the arguments of each call that succeeded."""
        return [
            [
                record
                for leaf in leaves_of(_arguments(item.call))
                for record in _parse(-1, str(leaf), frozenset())
            ]
            for item in self.calls
            if not item.is_error
        ]

    @cached_property
    def told_records(self) -> list[Record]:
        """The records of what users, instructions, failed calls and the arguments of calls say."""
        texts = [*self.told, *[item.result for item in self.calls if item.is_error]]
        found = [record for text in texts for record in _parse(-1, text, frozenset())]
        return [*found, *[record for records in self.given for record in records]]

    @cached_property
    def frequency(self) -> Counter[str]:
        """How many records of results have each stem."""
        return Counter([name for record in self.records for name in record.stems])

    @cached_property
    def by_stem(self) -> dict[str, list[Record]]:
        """The records of results by the stems of their values."""
        found: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            for name in record.stems:
                found[name].append(record)
        return found

    @cached_property
    def labels(self) -> frozenset[str]:
        """The stems of the labels of cells with quantities."""
        return frozenset(
            [
                name
                for record in self.records
                for cell in record.cells
                if cell.quantities
                for name in cell.label
            ]
        )

    def anchors(self, text: str) -> frozenset[str]:
        """Return the stems of a text that belong to some of the records and not to all of them."""
        total = len(self.records)
        return frozenset(
            [
                name
                for name in stems_of(text)
                if 0 < self.frequency[name] < total and name not in _ignored() and not name[0].isdigit()
            ]
        )

    @cached_property
    def places(self) -> frozenset[str]:
        """The stems of headings and calls that only some of the records have above them."""
        counts = Counter([name for record in self.records for name in record.context])
        return frozenset(
            [
                name
                for name, count in counts.items()
                if count < len(self.records)
                and name not in _ignored()
                and (name[0].isalpha() or len(name) == 4)
            ]
        )

    @cached_property
    def _own(self) -> "_Index":
        return _index(self.records)

    @cached_property
    def _told(self) -> "_Index":
        return _index(self.told_records)

    def sightings(self, kind: QuantityKind, low: float, high: float, *, is_told: bool) -> list[Sighting]:
        """Return where quantities of a kind from `low` to `high` were seen, without regard to the sign: in results, or
        in what was told."""
        values, items = (self._told if is_told else self._own).get(kind, ([], []))
        return items[bisect_left(values, low) : bisect_left(values, high)]


_Index = dict[QuantityKind, tuple[list[float], list[Sighting]]]


def _index(records: Sequence[Record]) -> _Index:
    """Return the quantities of records by kind, sorted by their absolute values."""
    found: dict[QuantityKind, list[tuple[float, Sighting]]] = defaultdict(list)
    for record in records:
        for cell in record.cells:
            for item in cell.quantities:
                found[item.kind].append((abs(item.value), Sighting(item, record, cell)))
    for pairs in found.values():
        pairs.sort(key=lambda pair: pair[0])
    return {
        kind: ([value for value, _ in pairs], [item for _, item in pairs]) for kind, pairs in found.items()
    }


@cache
def _ignored() -> frozenset[str]:
    """Return the stems of words that say nothing about which record is meant."""
    return frozenset([stem(word) for word in lexicon("causes")["ignored"].split()]) | _COMMON


def _arguments(call: ToolCall) -> Json:
    try:
        return call.parsed
    except msgspec.DecodeError:
        return {}
