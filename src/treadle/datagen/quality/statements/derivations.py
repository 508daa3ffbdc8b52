"""What follows from records by simple arithmetic: counts, sums, means, shares, differences, products, spans of
time.

A quantity is derived if such a figure equals it after rounding. The figures are those of groups of records:
all, those of one result, and those with the words of the statement. Small whole numbers must be counts or
figures of the group that the statement names, since among many figures one equals nearly any small number.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

from msgspec import Struct

from treadle.datagen.quality.figures.figure_reader import find_quantities, read_number
from treadle.datagen.quality.figures.quantities import Quantity, QuantityKind, day_of
from treadle.datagen.quality.statements.evidence import FILE, Evidence
from treadle.datagen.quality.statements.result_records import Labels, Record, stems_of

_MAX_GROUPS = 24
_MAX_PAIRED = 40
"""How many records of a group have the numbers of their cells combined."""
_MAX_DATES = 16
_MARK = re.compile(r"\s*+(?:[-*•]|(?P<n>\d++)(?:[.)]|\s?[x×]))\s")
_EQUATION = re.compile(r"([-−\d.,()+*/×÷ $€£%]{3,120})=\s*([-−]?[$€£]?\d[\d,']*(?:\.\d+)?)")


class RecordGroup(Struct, frozen=True):
    """Records that a statement can be about."""

    records: tuple[Record, ...]
    is_named: bool
    """True if the words of the statement choose them."""


def groups_of(seen: Evidence, anchors: Sequence[str]) -> list[RecordGroup]:
    """Return the groups of records that words choose, and those of each result."""
    chosen = [seen.by_stem[name] for name in anchors]
    found = {tuple(map(id, records)): RecordGroup(tuple(records), True) for records in chosen[:_MAX_GROUPS]}
    for name in list(anchors)[:_MAX_GROUPS]:
        if below := [record for record in seen.records if name in record.context]:
            found.setdefault(tuple(map(id, below)), RecordGroup(tuple(below), True))
    for one, two in combinations(chosen[:8], 2):
        both = {id(item) for item in two}
        inside = [record for record in one if id(record) in both]
        found.setdefault(tuple(map(id, inside)), RecordGroup(tuple(inside), True))
        if not inside:  # paid and open ones
            every = [*one, *two]
            found.setdefault(tuple(map(id, every)), RecordGroup(tuple(every), True))
    shown = [record for record in seen.records if record.source >= 0]
    whole = [
        RecordGroup(tuple(seen.records), False),
        RecordGroup(tuple(shown), False),
        *[RecordGroup(tuple(items), False) for items in seen.tables],
    ]
    whole += [
        RecordGroup(tuple(records), False)
        for records in seen.given
        if any(len(_numbers(record)) > 1 or len(records) > 2 for record in records)
    ]
    places = sorted(stems_of(" ".join(seen.told)) & seen.places)[:_MAX_GROUPS]
    for place in places if len(seen.tables) > 1 else ():
        whole.append(
            RecordGroup(tuple([record for record in seen.records if place in record.context]), False)
        )
    return [item for item in found.values() if item.records] + whole


def _columns(records: Sequence[Record]) -> dict[frozenset[str], list[Quantity]]:
    columns: dict[frozenset[str], list[Quantity]] = defaultdict(list)
    for record in records:
        for cell in record.cells:
            if len(numbers := [item for item in cell.quantities if item.kind is QuantityKind.NUMBER]) == 1:
                columns[cell.label].append(numbers[0])
    return columns


class Figures:
    """The figures that follow from what was seen, for statements with some anchors."""

    def __init__(self, seen: Evidence, anchors: frozenset[str], places: frozenset[str] = frozenset()) -> None:
        """`anchors` choose records, and `places` the calls that gave them."""
        self.groups = groups_of(seen, sorted(anchors))
        if places:
            inside = [
                RecordGroup(
                    tuple([r for r in group.records if places & (r.context | r.stems)]), group.is_named
                )
                for group in self.groups
            ]
            self.groups = [group for group in inside if group.records] or self.groups
        self._seen = seen
        self._sums: dict[frozenset[str], dict[float, bool]] = defaultdict(dict)
        """The sums of each column, and whether the statement chooses one of their groups."""
        self._counts: set[float] = set()
        self._calls: set[float] = set(_count_calls(seen, self.groups))
        self._named_counts: set[float] = set()
        self._means: dict[frozenset[str], dict[float, bool]] = defaultdict(dict)
        """The means, medians and ranges of each column, in the same way."""
        sizes = Counter([record.source for record in seen.records])
        for group in self.groups:
            (self._named_counts if group.is_named else self._counts).update(_count_records(group, sizes))
            for label, items in _columns(group.records).items():
                values = sorted([item.value for item in items])
                middle = (values[len(values) // 2] + values[(len(values) - 1) // 2]) / 2
                total = sum(values)
                self._sums[label][total] = group.is_named or self._sums[label].get(total, False)
                for one in (total / len(values), values[-1] - values[0], middle) if len(values) > 1 else ():
                    self._means[label][one] = group.is_named or self._means[label].get(one, False)
            if not group.is_named:
                self._counts.update(_count_values(group.records))
        below = tuple([record for record in seen.records if (places | anchors) & record.context])
        if below and places:
            self._named_counts.update(_count_records(RecordGroup(below, True), sizes))
        for numbers in map(_numbers, seen.told_records):
            if 3 <= len(numbers) <= 100:
                self._means[frozenset()].setdefault(sum(numbers), False)
                self._counts.add(float(len(numbers)))
        for records in seen.given:
            for has_lists in (True, False):
                total = sum([one for record in records for one in _numbers(record, has_lists=has_lists)])
                self._means[frozenset()].setdefault(total, False)
        self._named = [group for group in self.groups if group.is_named]

    @cached_property
    def _inner(self) -> set[float]:
        """Return what the cells of single records give together."""
        return set(_combine_cells(self._named or self.groups[:1]))

    @property
    def is_chosen(self) -> bool:
        """True if words of the statement choose records."""
        return bool(self._named)

    def counts(self) -> set[float]:
        """Return how many records the statement chooses; if it chooses none, how many there are of each kind."""
        return self._calls | self._named_counts | (set() if self._named else self._counts)

    @property
    def named_counts(self) -> set[float]:
        """How many records the statement chooses, in whole and by their form."""
        return self._named_counts

    @property
    def listed_sums(self) -> set[float]:
        """The sums of what calls were given, and of the lists in the request."""
        return set(self._means[frozenset()])

    def text_sizes(self) -> set[float]:
        """Return how many characters and words the results have."""
        return {
            float(size) for item in self._seen.calls for size in (len(item.result), len(item.result.split()))
        }

    def sums(self) -> set[float]:
        """Return the sums of the groups that the statement chooses; if it chooses none, of all."""
        chosen = {
            total
            for totals in self._sums.values()
            for total, is_named in totals.items()
            if is_named or not self._named
        }
        lines = [
            _numbers(record)
            for group in self._named or self.groups[:1]
            for record in group.records[:_MAX_PAIRED]
        ]
        return chosen | {sum(numbers[:count]) for numbers in lines for count in (2, 3)}

    def amounts(self, labels: Labels, *, is_strict: bool, is_difference: bool) -> Iterator[float]:
        """Yield sums, means and products, and, with `is_difference`, differences. With `is_strict`, they are
        those of the groups that the statement chooses, if there are any, and of the columns with these
        `labels`."""
        is_chosen = is_strict and bool(self._named)
        names = [label for label in self._sums if not is_strict or not labels or label in labels]
        for label in names:
            listed = [total for total, is_named in self._sums[label].items() if is_named or not is_chosen]
            yield from listed
            yield from (one for one, is_named in self._means[label].items() if is_named or not is_chosen)
            if is_difference:
                some = sorted(listed)[:_MAX_GROUPS]
                yield from (two - one for one, two in combinations(some, 2))
                if not is_strict:
                    yield from (two / one for one, two in combinations(some, 2) if one)
        if not (is_strict and labels):
            yield from self._means[frozenset()]
            yield from self._inner
            if is_difference:
                counts = sorted(self._named_counts if is_chosen else self._counts | self._named_counts)
                yield from (two - one for one, two in combinations(counts[:_MAX_GROUPS], 2))

    def gaps(self) -> set[float]:
        """Return the differences of numbers within the records that the statement chooses, else within all."""
        return (
            {
                abs(one - two)
                for group in self._named or self.groups[:1]
                for record in group.records[:_MAX_PAIRED]
                for one, two in combinations(_numbers(record)[:8], 2)
            }
            | {
                abs(one - two)
                for totals in self._sums.values()
                for one, two in combinations(sorted(totals)[:_MAX_GROUPS], 2)
            }
            | {abs(one - two) for one in self._named_counts for two in self._named_counts}
        )

    def shares(self) -> Iterator[float]:
        """Yield shares and relative changes, where 1 is the whole."""
        pairs: list[tuple[float, float]] = []
        named = self._named_counts or self._counts
        wholes = sorted({float(len(group.records)) for group in self.groups if not group.is_named})
        pairs += [(one, two) for one in sorted(named)[:_MAX_GROUPS] for two in wholes[:_MAX_GROUPS]]
        for totals in self._sums.values():
            chosen = [total for total, is_named in totals.items() if is_named] or list(totals)
            pairs += [(one, two) for one in chosen[:_MAX_GROUPS] for two in list(totals)[:_MAX_GROUPS]]
        for group in self._named or self.groups[:1]:
            for record in group.records if len(group.records) <= 4 else ():
                pairs += combinations(sorted(_numbers(record), key=abs)[:8], 2)
        singles = [_numbers(group.records[0])[:4] for group in self._named if len(group.records) == 1][:4]
        for here, there in combinations(singles, 2):
            pairs += [(one, two) for one in here for two in there]
        for one, two in pairs:
            if two and one != two:
                yield one / two
                yield (two - one) / two
                if one:
                    yield (two - one) / one
                    yield two / one

    def spans(self, *, is_wide: bool) -> Iterator[float]:
        """Yield the spans between dates and between times of day, in minutes; with `is_wide`, of all records."""
        dates: set[int] = set()
        times: set[float] = set()
        total = 0.0
        chosen = [
            record for group in self._named for record in group.records if not is_wide
        ] or self._seen.records
        for record in {id(record): record for record in [*chosen, *self._seen.told_records]}.values():
            items = [item for cell in record.cells for item in cell.quantities]
            own = sorted([item.value for item in items if item.kind is QuantityKind.TIME])
            total += own[-1] - own[0] if own else 0.0
            times.update(own)
            days = [day_of(item) for item in items if item.kind is QuantityKind.DATE]
            dates.update([day.toordinal() for day in days if day is not None])
        yield total
        yield from ((two - one) * 1440.0 for one, two in combinations(sorted(dates)[:_MAX_DATES], 2))
        yield from (two - one for one, two in combinations(sorted(times)[:_MAX_DATES], 2))


def _numbers(record: Record, *, has_lists: bool = True) -> list[float]:
    return [
        item.value
        for cell in record.cells
        if has_lists or not cell.text.startswith("[")
        for item in cell.quantities
        if item.kind is QuantityKind.NUMBER
    ]


def _count_records(group: RecordGroup, sizes: Counter[int]) -> Iterator[float]:
    """Yield how many records a group has: all, those of results with several, those of the same form."""
    yield float(len(group.records))
    if group.is_named:
        yield float(sum([sizes[record.source] > 1 for record in group.records]))
        if len(group.records) == 1:
            yield float(sum([bool(cell.quantities) for cell in group.records[0].cells]))
    yield from map(float, Counter([record.labels for record in group.records]).values())


def _count_values(records: Sequence[Record]) -> Iterator[float]:
    """Yield how many different values each column has."""
    values: dict[frozenset[str], set[str]] = defaultdict(set)
    for record in records:
        for cell in record.cells:
            if cell.label:
                values[cell.label].add(cell.text)
            elif cell.text.startswith("["):
                yield cell.text.count(",") + 1.0
    yield from (float(len(found)) for found in values.values())


def _count_calls(seen: Evidence, groups: Sequence[RecordGroup]) -> Iterator[float]:
    """Yield the numbers of calls of each tool, of results with the chosen records, of records in calls."""
    by_tool: Counter[tuple[str, bool]] = Counter([(item.call.name, item.is_error) for item in seen.calls])
    yield from map(float, by_tool.values())
    yield float(len({item.call.arguments for item in seen.calls if not item.is_error}))
    paths = {path for item in seen.calls if not item.is_error for path in FILE.findall(item.call.arguments)}
    for mark in "/.":  # files of each folder, name and ending
        yield from map(float, Counter([path.rpartition(mark)[0] for path in paths]).values())
        yield from map(float, Counter([path.rpartition(mark)[2] for path in paths]).values())
    for group in groups:
        if group.is_named:
            yield float(len({record.source for record in group.records}))
    for records in seen.given:
        yield from (float(len(records)), float(max([len(record.cells) for record in records], default=0)))
    for text in seen.new_texts:
        lines = text.splitlines()
        yield float(len(lines))
        marks = [found["n"] is None for line in lines if (found := _MARK.match(line)) is not None]
        yield from map(float, Counter(marks).values())
        if text.startswith("["):
            yield float(text.count(",") + 1)


def _combine_cells(groups: Sequence[RecordGroup]) -> Iterator[float]:
    """Yield sums, differences, products and quotients of the numbers of a record, and the sums of products."""
    for group in groups:
        products = 0.0
        for record in group.records[:_MAX_PAIRED]:
            numbers = _numbers(record)
            if len(numbers) > 1:
                yield sum(numbers)
            for one, two in combinations(numbers[:8], 2):
                yield from (abs(one - two), one + two, one * two)
                if one and two:
                    yield from (one / two, two / one)
            if len(numbers) == 2:
                products += numbers[0] * numbers[1]
        if products:
            yield products


def solve_equations(text: str, *, has_parts: bool = False) -> Iterator[float]:
    """Yield the right sides of the equations in a text that are correct; with `has_parts`, all of their numbers."""
    for left, right in _EQUATION.findall(text):
        value, stated = evaluate(left), read_number(right)
        if value is not None and stated is not None and abs(value - stated) <= 0.0101:
            yield abs(stated)
            yield from [abs(item.value) for item in find_quantities(left)] if has_parts else ()


def evaluate(text: str) -> float | None:
    """Return the value of sums and products of numbers, or `None` if the text is something else."""
    text = re.sub(r"[$€£,' ]", "", text.replace("−", "-").replace("×", "*").replace("÷", "/"))
    total = 0.0
    position = 0
    for term in re.finditer(r"([+-]?)(\d+(?:\.\d+)?%?(?:[*/]\d+(?:\.\d+)?%?)*)", text):
        if term.start() != position or (position and not term[1]):
            return None
        position = term.end()
        product = 1.0
        for sign, digits, percent in re.findall(r"([*/]?)(\d+(?:\.\d+)?)(%?)", term[2]):
            factor = float(digits) / (100 if percent else 1)
            if sign == "/" and not factor:
                return None
            product = product / factor if sign == "/" else product * factor
        total += -product if term[1] == "-" else product
    return total if position == len(text) and position else None
