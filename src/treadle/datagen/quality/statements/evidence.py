"""What a conversation shows before an answer. `Evidence` finds the records of a value and of words.

A record has cells with labels, and the words by which an answer can refer to it. What follows from records by
arithmetic is in `derivations`.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from itertools import chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.texts.json_text import decode_json
from treadle.core.types import Json, Message, Role, ToolCall
from treadle.datagen.quality.exchanges import leaves_of
from treadle.datagen.quality.figures.quantities import (
    UNITS,
    Quantity,
    QuantityKind,
    lexicon,
    shape,
    shapes,
    unit_of,
)
from treadle.datagen.quality.languages import WORDS
from treadle.datagen.quality.statements.result_records import (
    Cell,
    Labels,
    Record,
    label_stems,
    read_records,
    stem,
    stems_of,
)

FILE, _NUMBERS, _CODE, _NAMED, _PRINTED = shapes("evidence_forms", "file numbers code named printed")
_AMONG = shape("answers", "among")
_FUNCTIONS = {
    "max": ("order", "most"),
    "min": ("order", "least"),
    "sum": ("answers", "aggregate"),
    "mean": ("answers", "mean"),
    "len": ("answers", "number_of"),
}
"""The patterns of the words by which answers name what functions return."""
_VAGUE = frozenset(("number",))
"""Words of labels that alone do not name them."""
_QUOTATION = str.maketrans("’‘“”«»", '\'\'""""')


class Occurrence(Struct, frozen=True):
    """A quantity in a record."""

    quantity: Quantity
    record: Record
    cell: Cell

    @property
    def unit(self) -> tuple[str, float] | None:
        """The dimension and size of its unit, which may stand in another part of the cell."""
        return unit_of(self.quantity.unit) or unit_of(self.cell.unit)


class MadeCall(Struct, frozen=True):
    call: ToolCall
    result: str
    is_error: bool
    is_repeated: bool = False
    """True if an earlier call gave the same result about the same things: it shows nothing more to count."""

    def given(self) -> list[str]:
        """Return the texts of its arguments."""
        return [str(leaf) for leaf in leaves_of(self.call.parsed_or({}))]


class Portion(Struct, frozen=True):
    """How much of a whole has a value."""

    part: float
    whole: float
    is_sole: bool
    """True if the text names no other value that could be meant."""


_Values = dict[tuple[frozenset[str], frozenset[str]], set[int]]
"""The ids of the records that have a value, by the label and the stems of its cell."""


class Evidence:
    """What the messages before an answer show."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """`messages` are those before the answer."""
        results = {item.call_id: item for item in messages if item.role is Role.TOOL}
        self.calls = _mark_repeated(
            [
                MadeCall(call, found.content, found.is_error)
                for message in messages
                for call in message.tool_calls
                if (found := results.get(call.call_id)) is not None
            ]
        )
        """The calls that have a result."""
        self.told = [item.content for item in messages if item.role in (Role.USER, Role.SYSTEM)]
        """What the user and the instructions say."""
        last = max([index for index, item in enumerate(messages) if item.role is Role.USER], default=0)
        self.has_new = any(item.role is Role.TOOL for item in messages[last:])
        """True if calls were made since the user's last message."""
        older = {call.call_id for item in messages[:last] for call in item.tool_calls}
        self.new_calls = [item for item in self.calls if item.call.call_id not in older] or self.calls
        """The calls since the user's last message; all if there are none."""
        self.work = [
            text
            for item in messages
            if item.role is Role.ASSISTANT
            for text in (item.content, item.reasoning or "")
        ]
        """What the agent wrote before."""
        self._anchors: dict[str, frozenset[str]] = {}

    def shows(self, name: str) -> bool:
        """Return whether a call that succeeded returned `name` as a whole."""
        whole = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)")
        return any(whole.search(item.result) for item in self.calls if not item.is_error)

    @cached_property
    def plain_text(self) -> str:
        """Return all that was seen, with single spaces and plain quotation marks."""
        return plain(self.text)

    @cached_property
    def text(self) -> str:
        """Return all that was seen, in lower case."""
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
        """Return the stems of all words that were seen."""
        return stems_of(self.text) | frozenset(
            [name for record in self.records for cell in record.cells for name in cell.label]
        )

    @cached_property
    def records(self) -> list[Record]:
        found: list[Record] = []
        for number, item in enumerate(self.calls):
            if not (item.is_error or item.is_repeated):
                context = stems_of(" ".join([text for text in item.given() if len(text) < 60]))
                found += read_records(number, item.result, context)
                found += [
                    replace(record, source=-2 - number, context=record.context | context)
                    for text in self._written(item)
                    for record in read_records(number, text, context)
                ]
        return found

    def _written(self, item: MadeCall) -> Iterator[str]:
        """Yield the contents of files that a successful call wrote, unless a result has them too."""
        if stems_of(item.call.name.replace("_", " ")) & _writing():
            for text in item.given():
                if "\n" in text.strip() and not any(text.strip() in other.result for other in self.calls):
                    yield text

    @property
    def new_texts(self) -> list[str]:
        """The results of the newest calls, and what these wrote."""
        done = [item for item in self.new_calls if not item.is_error]
        return [text for item in done for text in (item.result, *self._written(item))]

    @cached_property
    def given(self) -> list[list[Record]]:
        """Return the records of the arguments of each call that succeeded."""
        return [
            [record for text in item.given() for record in read_records(-1, text, frozenset())]
            for item in self.calls
            if not item.is_error
        ]

    @cached_property
    def told_records(self) -> list[Record]:
        """Return the records of what users, instructions, failed calls and the arguments of calls say."""
        texts = [*self.told, *[item.result for item in self.calls if item.is_error]]
        found = [record for text in texts for record in read_records(-1, text, frozenset())]
        return [*found, *[record for records in self.given for record in records]]

    @cached_property
    def frequency(self) -> Counter[str]:
        """Return how many records of results have each stem."""
        return Counter(chain.from_iterable([record.stems for record in self.records]))

    @cached_property
    def by_stem(self) -> dict[str, list[Record]]:
        """Return the records of results by the stems of their values."""
        found: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            for name in record.stems:
                found[name].append(record)
        return found

    @cached_property
    def _lengths(self) -> list[tuple[str, dict[str, set[float]]]]:
        """Return how many items the lists of each result have, by their key, with the arguments of its call; then
        those of lists of numbers in code that was run, by their name."""
        found: list[tuple[str, dict[str, set[float]]]] = []
        for item in self.calls:
            if not item.is_error and item.result.lstrip()[:1] in ("{", "["):
                own: dict[str, set[float]] = defaultdict(set)
                with suppress(msgspec.DecodeError):
                    _measure(decode_json(item.result), own)
                found.append((item.call.arguments.casefold(), own))
            for name, numbers in () if item.is_error else _NUMBERS.findall(item.call.arguments):
                key = "_".join([stem(part) for part in name.lower().split("_")])
                found.append((item.call.arguments.casefold(), {key: {numbers.rstrip(", ").count(",") + 1.0}}))
        return found

    def lengths(self, text: str = "") -> dict[str, set[float]]:
        """Return how many items the lists of results have, by the stem of their key: of the calls that were given a
        code that a text has, else of all."""
        codes = [word for word in _CODE.findall(text.casefold()) if any(char.isdigit() for char in word)]
        named = [own for given, own in self._lengths if any(f'"{code}"' in given for code in codes)]
        found: dict[str, set[float]] = defaultdict(set)
        for own in named or [own for _, own in self._lengths]:
            for name, sizes in own.items():
                found[name] |= sizes
        return found

    @cached_property
    def tables(self) -> list[list[Record]]:
        """Return the records of each result that have the same columns."""
        found: dict[tuple[int, Labels], list[Record]] = defaultdict(list)
        for record in self.records:
            found[record.source, record.columns].append(record)
        return list(found.values())

    def portions(self, text: str, place: int = 0, *, has_sums: bool = True) -> list[Portion]:
        """Return how many records have a value that a text names, and of how many; then the same for the sums of
        their columns. They are counted among the records with the values that stand after `of`, as in `all of the
        open tickets are urgent`, else in a whole table. If the text names the column of the value, others do not
        count. `place`: where the share stands in the text."""
        words = stems_of(text)
        among = min(
            _AMONG.finditer(text), key=lambda one: max(one.start() - place, place - one.end()), default=None
        )
        within = stems_of(among[1]) if among else frozenset[str]()
        rest = stems_of(f"{text[: among.start()]} {text[among.end() :]}") if among else words
        chosen: dict[bool, list[tuple[list[Record], list[Record], bool]]] = {True: [], False: []}
        for records in self.tables:
            named = _named_values(records, words) if len(records) > 1 else {}
            said = {key: found for key, found in named.items() if key[1] <= rest and not key[1] <= within}
            chooses = {key: found for key, found in named.items() if key[1] <= within} if said else {}
            whole = _common(records, chooses)
            for (label, _), found in (said or named).items() if whole else ():
                inside = [record for record in whole if id(record) in found]
                chosen[bool(label & words)].append((inside, whole, len(said or named) == 1))
        groups = chosen[True] or chosen[False]
        shares = [Portion(len(inside), len(whole), is_sole) for inside, whole, is_sole in groups]
        for inside, whole, is_sole in groups if has_sums else ():
            parts = sum_columns(inside)
            shares += [
                Portion(parts[label], total, is_sole)
                for label, total in sum_columns(whole).items()
                if label in parts and total
            ]
        return shares

    def named_labels(self, text: str, kind: QuantityKind, *, is_full: bool = False) -> Labels:
        """Return the labels of cells with quantities of a kind that a text names: in full, or else by half, unless
        `is_full` is true.

        The words of tools and of their arguments say what a record is, and name no label.
        """
        plain_text = _NAMED.sub(
            lambda found: " " if stem(found[1].lower()) in self.call_words else found[0], text
        )
        words = words_of(FILE.sub(" ", plain_text), kind)
        found: dict[frozenset[str], float] = {}  # how far each is named
        printed = {} if is_full else self._printed
        for label in self._labels_by_kind.get(kind, ()):
            plain = plain_label(label)
            if label and plain <= words and not plain <= self.call_words:
                found[label] = 1.0
            elif label and not is_full and len(plain & words - self.call_words - _VAGUE) * 2 >= len(plain):
                found[label] = 0.5
            if label in printed:
                named = found.get(label, 0.0)
                more = 0.6 * _name_code(printed[label], words, text)
                found[label] = named + more if named == 1.0 else min(named + more, 0.99)
        best = max(found.values(), default=0.0)
        chosen = [label for label, share in found.items() if share == best and share]
        return frozenset(
            [
                label
                for label in chosen
                if not any(label < other and (plain_label(other) - label) & words for other in chosen)
            ]
        )

    @cached_property
    def _printed(self) -> dict[frozenset[str], str]:
        """Return the expressions whose values the code of calls printed, by the labels that it gave them."""
        codes = [text for item in self.calls for text in item.given()]
        found = {label_stems(found[1]): found[2] for code in codes for found in _PRINTED.finditer(code)}
        return found if len(found) > 1 else {}

    @cached_property
    def call_words(self) -> frozenset[str]:
        """Return the stems of the names of tools and of their arguments, and of what these were."""
        names = [item.call.name.replace("_", " ") for item in self.calls]
        given = [item.call.parsed_or({}) for item in self.calls]
        keys = [key for one in given if isinstance(one, dict) for key in one if len(one) < 4]
        return stems_of(" ".join([*names, *keys])) | self.subjects

    @cached_property
    def _labels_by_kind(self) -> dict[QuantityKind, set[frozenset[str]]]:
        found: dict[QuantityKind, set[frozenset[str]]] = defaultdict(set)
        for record in self.records:
            for cell in record.cells:
                for item in cell.quantities:
                    found[item.kind].add(cell.label)
        return found

    @cached_property
    def units(self) -> dict[frozenset[str], frozenset[tuple[str, float]]]:
        """Return the dimensions and sizes of the units in the cells of each label."""
        found: dict[frozenset[str], set[tuple[str, float]]] = defaultdict(set)
        for record in self.records:
            for cell in record.cells:
                names = [cell.unit, *[item.unit for item in cell.quantities]]
                found[cell.label].update([unit for name in names if (unit := unit_of(name)) is not None])
        return {label: frozenset(units) for label, units in found.items()}

    @cached_property
    def numbered(self) -> Labels:
        """Return the labels that have a number and words, such as that of `count below 50`."""
        labels = {plain_label(cell.label) for record in self.records for cell in record.cells}
        return frozenset([label for label in labels if len({word.isdigit() for word in label}) == 2])

    @cached_property
    def subject_numbers(self) -> frozenset[str]:
        """Return the numbers that calls were given as a whole argument: they name what is asked about."""
        given = [text for item in self.calls for text in item.given()]
        return frozenset([leaf for leaf in given if leaf.isdigit()])

    @cached_property
    def labels(self) -> frozenset[str]:
        """Return the stems of the labels of cells with quantities."""
        return frozenset(
            [
                name
                for record in self.records
                for cell in record.cells
                if cell.quantities
                for name in cell.label
            ]
        )

    @cached_property
    def subjects(self) -> frozenset[str]:
        """Return the stems of headings and calls that records have above them."""
        return frozenset([name for record in self.records for name in record.context])

    def anchors(self, text: str) -> frozenset[str]:
        """Return the stems of a text that belong to some of the records and not to all of them."""
        if (known := self._anchors.get(text)) is not None:
            return known
        total, frequency, ignored = len(self.records), self.frequency, _ignored()
        found = [
            name
            for word in stems_of(text) - ignored
            for name in (word if word in frequency else self._as_seen(word),)
            if 0 < frequency.get(name, 0) < total and name not in ignored and not name[0].isdigit()
        ]
        # The name of a column says nothing about the record, even if it is a value elsewhere.
        anchors = frozenset([name for name in found if name not in self.labels and len(name) > 1])
        codes = [name for name in anchors if "-" in name and name[-1].isdigit()]
        anchors -= frozenset([stem(code.partition("-")[0]) for code in codes])  # many codes begin alike
        self._anchors[text] = anchors
        return anchors

    def _as_seen(self, name: str) -> str:
        """Return the word of a record that a word is a longer form of, as `warn` for `warning`; else the word."""
        if len(name) > 4 and "-" in name:
            name = name.replace("-", "")
        if len(name) > 4 and name[0].isalpha() and name.endswith(("ing", "er", "ers", "ings")):
            plain = name.removesuffix("s").removesuffix("ing").removesuffix("er")
            return plain if len(plain) > 3 and plain in self.frequency else name
        return name

    @cached_property
    def places(self) -> frozenset[str]:
        """Return the stems of headings and calls that only some of the records have above them."""
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

    def sightings(self, kind: QuantityKind, low: float, high: float, *, is_told: bool) -> list[Occurrence]:
        """Return where sizes of a kind from `low` to `high` were seen: in results, or in what was told."""
        values, items = (self._told if is_told else self._own).get(kind, ([], []))
        return items[bisect_left(values, low) : bisect_left(values, high)]


def _mark_repeated(calls: Sequence[MadeCall]) -> list[MadeCall]:
    """Return calls, of which those are marked whose result an earlier one has: a call with the same arguments; one
    about the same files, or whose result names files itself, if it has several lines or values."""
    known: set[tuple[str, str, str]] = set()
    marked: list[MadeCall] = []
    for item in calls:
        given = msgspec.json.encode(
            item.call.parsed_or({}) or item.call.arguments, order="deterministic"
        ).decode()
        result = item.result.strip()
        keys = {(f"{item.call.name} {given}", "", result)}
        files = " ".join(sorted(set(FILE.findall(given))))
        is_long = "\n" in result or (result[:1] in ("{", "[") and "," in result)
        if is_long and (files or _is_of_files(result)):
            keys.add(("", files, result))
        marked.append(replace(item, is_repeated=not (item.is_error or keys.isdisjoint(known))))
        known |= set() if item.is_error else keys
    return marked


def _is_of_files(result: str) -> bool:
    """Return whether each line or item of a result has a path or the name of a file: a search or a listing."""
    parts = result.strip("[]").split(",") if result.startswith('["') else result.splitlines()
    return not result.startswith("{") and all(FILE.search(part) is not None for part in parts)


def _name_code(expression: str, words: frozenset[str], text: str) -> int:
    """Return how many names and functions of an expression a text names, as in `shortest` for `min(lengths)`."""
    names = stems_of(expression.replace("_", " "))
    shapes = [(section, name) for function, (section, name) in _FUNCTIONS.items() if function in names]
    return len(names & words) + sum(
        [re.search(lexicon(section)[name], text) is not None for section, name in shapes]
    )


def _named_values(records: Sequence[Record], words: frozenset[str]) -> _Values:
    """Return the values without numbers that words name."""
    found: _Values = defaultdict(set)
    for record in records:
        for cell in record.cells:
            if cell.label and cell.stems and cell.stems <= words and not cell.quantities:
                found[cell.label, cell.stems].add(id(record))
    return found


def _common(records: Sequence[Record], values: _Values) -> list[Record]:
    """Return the records that have one of the values in each column that they are of."""
    columns: dict[frozenset[str], set[int]] = defaultdict(set)
    for (label, _), found in values.items():
        columns[label] |= found
    return [record for record in records if all(id(record) in found for found in columns.values())]


def sum_columns(records: Sequence[Record]) -> dict[frozenset[str], float]:
    """Return the sum of each column with one number in each cell."""
    found: dict[frozenset[str], float] = defaultdict(float)
    for record in records:
        for cell in record.cells:
            numbers = [item.value for item in cell.quantities if item.kind is QuantityKind.NUMBER]
            if cell.label and len(numbers) == 1:
                found[cell.label] += numbers[0]
    return found


def _measure(value: Json, found: dict[str, set[float]]) -> None:
    """Add how many items each list has, by its key and by the first key of its items, which names them."""
    for key, item in value.items() if isinstance(value, dict) else ():
        if isinstance(item, list):
            first = next(iter(item[0]), key) if item and isinstance(item[0], dict) else key
            for name in {key, first}:
                found["_".join(map(stem, name.lower().split("_")))].add(float(len(item)))
        _measure(item, found)
    for item in value if isinstance(value, list) else ():
        _measure(item, found)


_Index = dict[QuantityKind, tuple[list[float], list[Occurrence]]]


def _index(records: Sequence[Record]) -> _Index:
    """Return the quantities of records by kind, sorted by their absolute values."""
    found: dict[QuantityKind, list[tuple[float, Occurrence]]] = defaultdict(list)
    for record in records:
        for cell in record.cells:
            for item in cell.quantities:
                place = Occurrence(item, record, cell)
                kind = item.kind if item.kind is not QuantityKind.SHARE else QuantityKind.NUMBER
                found[kind].append((abs(item.value), place))
                if item.other is not None and kind is QuantityKind.NUMBER:
                    found[kind].append((item.other, place))
    for pairs in found.values():
        pairs.sort(key=lambda pair: pair[0])
    return {
        kind: ([value for value, _ in pairs], [item for _, item in pairs]) for kind, pairs in found.items()
    }


@lru_cache(maxsize=4096)
def plain_label(label: frozenset[str]) -> frozenset[str]:
    """Return the words of a label by which an answer names it: without units, and without `is` and `on`."""
    words = frozenset([name for name in label if name.isalnum()])
    units = unit_stems() - (words & {"second"} if "the" in words else set())  # as in `sum of the second`
    plain = words - units - (WORDS["en"] - frozenset(("to",)).union(*_ends()))
    is_size = plain <= word_list("answers", "measured")  # as in `bytes in file`
    return (words - WORDS["en"] if is_size else plain) or words or label


def plain(text: str) -> str:
    """Return a text in lower case with single spaces and plain quotation marks."""
    return " ".join(text.casefold().translate(_QUOTATION).split())


@cache
def word_list(section: str, name: str) -> frozenset[str]:
    """Return the stems of a list of words of `grounding.toml`, or of the keys of a table."""
    words = lexicon(section)[name]
    words = words.split() if isinstance(words, str) else words
    return frozenset([stem(word) for word in words])


def words_of(text: str, kind: QuantityKind) -> frozenset[str]:
    """Return the stems of the words by which a text names a quantity: `pick-up` is also `pickup`, and for a time or
    a date, `end` also means `until`; `number` also means `count`."""
    words = stems_of(text)
    words |= frozenset([word.replace("-", "") for word in words if "-" in word])
    if kind in (QuantityKind.TIME, QuantityKind.DATE):
        words |= frozenset().union(*[ends for ends in _ends() if not ends.isdisjoint(words)])
    elif words & (counts := word_list("answers", "counts")):
        words |= counts
    return words


def is_opposite(label: frozenset[str], words: frozenset[str]) -> bool:
    """Return whether a label is of a beginning where `words` name an end, or the other way round."""
    first, last = [(ends.isdisjoint(label), ends.isdisjoint(words)) for ends in _ends()]
    return (first, last) in (((True, False), (False, True)), ((False, True), (True, False)))


@cache
def _ends() -> tuple[frozenset[str], frozenset[str]]:
    """Return the stems of the words for the beginning of something, and of those for its end."""
    return word_list("answers", "beginnings"), word_list("answers", "endings")


@cache
def _writing() -> frozenset[str]:
    return frozenset([stem(word) for word in lexicon("actions")["write"]["done"].split()])


@cache
def unit_stems() -> frozenset[str]:
    return frozenset([name for unit in UNITS for name in stems_of(unit)])


@cache
def _ignored() -> frozenset[str]:
    """Return the stems of words that say nothing about which record is meant."""
    said = [*lexicon("causes")["ignored"].split(), *lexicon("numbers")["en"]]
    return frozenset([stem(word) for word in said]) | WORDS["en"]
