"""Reports as values: sections of typed blocks, which `treadle.viewer` shows as a page.

A dataset, rollouts and topics make their reports of these blocks. They hold facts and texts, never HTML.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct, field

from treadle.core.types import Json, Message, Role

_MAX_TEXT = 4_000
"""How many characters of a message, a call or a result are shown."""
_MAX_BINS = 40
_WORDS_BYTES = 24_000_000
"""How many bytes the words of rows without bodies may have together, by which they are searched."""


class Spread(Struct):
    """The distribution of a number as counts of its values."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, value: int) -> None:
        """Count one value."""
        self.counts[value] += 1

    @property
    def rows(self) -> int:
        """How many values there are."""
        return self.counts.total()

    @property
    def total(self) -> int:
        """The sum of the values."""
        return sum(value * count for value, count in self.counts.items())

    @property
    def mean(self) -> float:
        """The mean of the values; 0 if there are none."""
        return self.total / self.rows if self.rows else 0.0

    def quantile(self, share: float) -> int:
        """Return the smallest value that at least this share of the values does not exceed; 0 if there are none."""
        wanted = share * self.rows
        passed = 0
        for value in sorted(self.counts):
            passed += self.counts[value]
            if passed >= wanted:
                return value
        return 0


class Figure(Struct, frozen=True, omit_defaults=True):
    """A key figure."""

    value: str
    label: str
    kind: str = ""
    """`good`, `bad` or nothing."""
    about: str = ""
    """What the figure counts, as a sentence."""


class ReportBlock(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """A part of a report. The key `type` says which one it is."""

    title: str = ""


class TextBlock(ReportBlock, frozen=True, tag="text"):
    """A text."""

    text: str
    is_mono: bool = False


class TableBlock(ReportBlock, frozen=True, tag="table"):
    """A table of texts."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    """The columns that are aligned to the right."""


class Bar(Struct, frozen=True, omit_defaults=True):
    """One bar of a chart."""

    name: str
    value: int
    part: int = 0
    note: str = ""


class BarBlock(ReportBlock, frozen=True, tag="bars"):
    """Horizontal bars."""

    items: Sequence[Bar]
    unit: str
    """What a value counts, such as `rows`."""
    part: str = ""
    """The name of the part of a value, such as `failed`; `of` if the part is compared with the whole value."""
    kind: str = ""
    """`bad` or nothing."""


class HistogramBlock(ReportBlock, frozen=True, tag="histogram"):
    """The distribution of a number."""

    bins: Sequence[tuple[int, int, int]]
    """The first and the last value of each bin, and how many there are."""
    median: int
    mean: float
    unit: str


class Series(Struct, frozen=True, omit_defaults=True):
    """One line of a chart."""

    name: str
    values: Sequence[float]
    kind: str = ""
    """`area`, `band`, `dots`, `bad` or nothing."""
    upper: Sequence[float] = ()
    """The upper end of a band, whose lower end is `values`."""


class LineBlock(ReportBlock, frozen=True, tag="lines"):
    """Lines over points that have the same distance from each other."""

    series: Sequence[Series]
    ends: tuple[str, str]
    """The labels of the first and the last point."""
    about: str = ""
    unit: str = ""
    """The sign before a value, such as `$`."""
    point: str = "point"
    low: float = 0.0
    high: float = 0.0
    """The scale reaches from `low` to this value or further."""
    is_wide: bool = False


class MatrixBlock(ReportBlock, frozen=True, tag="matrix"):
    """A matrix that shows how often one thing follows another."""

    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]
    lead: str = ""


class Leaf(Struct, frozen=True, omit_defaults=True):
    """One rectangle of a treemap."""

    path: Sequence[str]
    value: int
    size: int = 1
    notes: Sequence[str] = ()


class TreemapBlock(ReportBlock, frozen=True, tag="treemap"):
    """Rectangles in groups. The colour of a rectangle shows its number."""

    items: Sequence[Leaf]
    unit: str
    above: Sequence[str] = ()
    """The beginning that all paths have in common, which is left out of them."""
    about: str = ""


class TreeItem(Struct, frozen=True, omit_defaults=True):
    """One line of an outline."""

    text: str
    depth: int
    branch: int
    """The number of the main branch; -1 for the root."""
    children: int = 0
    value: int = 0
    notes: Sequence[str] = ()
    links: Sequence[str] = ()
    """The names of other parents."""
    error: str = ""


class TreeBlock(ReportBlock, frozen=True, tag="tree"):
    """An outline. The colour of a line shows its branch or its number."""

    items: Sequence[TreeItem]
    is_counted: bool = False


class CellLine(Struct, frozen=True, omit_defaults=True):
    """One line of cells."""

    number: int
    name: str
    cells: Sequence[tuple[str, float | None]]
    """The id of a row, and its value from 0 to 1."""
    about: str
    note: str = ""


class CellBlock(ReportBlock, frozen=True, tag="cells"):
    """Lines of cells. Choosing a cell opens its row."""

    items: Sequence[CellLine]
    about: str = ""


class RowBlock(ReportBlock, frozen=True, tag="rows"):
    """Rows to search, to filter and to read."""

    items: Sequence[Raw]
    """Rows as JSON; see `write_head`."""
    filters: Sequence[tuple[str, str]]
    """The keys of rows that can be chosen, with their labels."""
    unit: str
    absent: str = ""
    """Where to read a row without messages; `{id}` stands for its id."""


class ReportSection(Struct, frozen=True):
    """One part of a report. A section without blocks is not shown."""

    name: str
    title: str
    lead: str
    blocks: Sequence[ReportBlock]


class Report(Struct, frozen=True, kw_only=True):
    """Everything that a page shows."""

    title: str
    """The title of the browser's window."""
    name: str
    lead: str
    figures: Sequence[Figure]
    notes: Sequence[str] = ()
    """What a reader must know before he reads the figures."""
    sections: Sequence[ReportSection]
    footer: str


def make_bars(
    title: str,
    counts: Mapping[str, int],
    unit: str,
    *,
    parts: Mapping[str, int] | None = None,
    part: str = "",
    notes: Mapping[str, str] | None = None,
    kind: str = "",
) -> tuple[BarBlock, ...]:
    """Return bars, the longest first; nothing if all counts are 0."""
    listed = sorted(
        [(name, count) for name, count in counts.items() if count], key=lambda it: (-it[1], it[0])
    )
    items = [
        Bar(name, count, (parts or {}).get(name, 0), (notes or {}).get(name, "")) for name, count in listed
    ]
    return (BarBlock(title=title, items=items, unit=unit, part=part, kind=kind),) if items else ()


def make_histogram(title: str, values: Spread, unit: str) -> tuple[HistogramBlock, ...]:
    """Return the distribution of a number; nothing if all values are 0."""
    if not values.total:
        return ()
    least, most = values.quantile(0.0), values.quantile(1.0)
    # The highest values are put together, because a single one would leave no room for all others.
    near = values.quantile(0.99)
    top = max(least + 1, min(most, near + max(1, near - least) // 10))
    size = max(1, -(-(top - least + 1) // _MAX_BINS))
    counts = [0] * ((top - least) // size + 1)
    for value, count in values.counts.items():
        counts[min((value - least) // size, len(counts) - 1)] += count
    begins = [least + index * size for index in range(len(counts))]
    bins = [(begin, begin + size - 1, count) for begin, count in zip(begins, counts, strict=True)]
    bins[-1] = (begins[-1], max(begins[-1], most), counts[-1])
    return (HistogramBlock(title=title, bins=bins, median=values.quantile(0.5), mean=values.mean, unit=unit),)


RowBody: TypeAlias = Callable[[], dict[str, Json]]
"""A function that returns what a page shows below the head of a row."""
RowTexts: TypeAlias = Callable[[], Iterable[str]]
"""A function that returns the texts of a row."""


def make_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = (), title: str = ""
) -> tuple[TableBlock, ...]:
    """Return a table; nothing if it has no rows."""
    return (TableBlock(title=title, heads=heads, rows=rows, numbers=numbers),) if rows else ()


class RowSample:
    """The rows of a report: the head of each, the bodies of a sample, and the words of the others.

    The sample is drawn by a hash of the rows' keys, so that it does not depend on their order. Rows with the same
    key stay together.
    """

    def __init__(self, most: int, max_bytes: int) -> None:
        """Begin a sample of up to `most` rows, which together have up to `max_bytes` as JSON."""
        self._most, self._max_bytes = most, max_bytes
        self._heads: list[Raw] = []
        self._drawn: list[tuple[int, int, RowBody, RowTexts]] = []
        self._words_left = _WORDS_BYTES

    def add(
        self,
        head: dict[str, Json],
        body: RowBody,
        key: str,
        *,
        is_wanted: bool = False,
        texts: RowTexts = lambda: (),
    ) -> None:
        """Add a row. `body` returns what is shown below the head, and `texts` what the row is found by if it is not
        in the sample. A row that `is_wanted` is drawn into the sample first."""
        digest = int.from_bytes(blake2b(key.encode(), digest_size=8).digest())
        item = (0 if is_wanted else -1 - digest), -len(self._heads), body, texts
        self._heads.append(Raw(msgspec.json.encode(head)))
        if len(self._drawn) < self._most:
            heapq.heappush(self._drawn, item)
        else:
            _, place, _, texts = heapq.heappushpop(self._drawn, item)
            self._add_words(-place, texts)

    def _add_words(self, place: int, texts: RowTexts) -> None:
        """Add the different words of a row without a body to its head."""
        if self._words_left > 0 and (words := " ".join(dict.fromkeys("\n".join(texts()).lower().split()))):
            self._words_left -= len(words)
            head = msgspec.json.decode(self._heads[place])
            self._heads[place] = Raw(msgspec.json.encode(head | {"words": words}))

    def rows(self) -> tuple[list[Raw], int]:
        """Return all rows, and how many of them have their bodies."""
        rows, size, whole = list(self._heads), 0, 0
        for _, place, body, texts in sorted(self._drawn, key=lambda item: item[:2], reverse=True):
            if size <= self._max_bytes:
                raw = Raw(msgspec.json.encode(msgspec.json.decode(rows[-place]) | body()))
                size += len(raw)
                if size <= self._max_bytes or not whole:
                    rows[-place], whole = raw, whole + 1
                    continue
            self._add_words(-place, texts)
            rows[-place] = self._heads[-place]
        return rows, whole


def write_conversation(messages: Sequence[Message], simulated: frozenset[str] = frozenset()) -> list[Json]:
    """Return messages as a page shows them, with the result of each call beside the call."""
    results = {message.call_id: message for message in messages if message.role is Role.TOOL}
    written: list[Json] = []
    for message in messages:
        if message.role is Role.TOOL:
            continue
        raw: dict[str, Json] = {"role": message.role.value, "text": cut_text(message.content)}
        if message.reasoning:
            raw["thought"] = cut_text(message.reasoning)
        for call in message.tool_calls:
            shown: dict[str, Json] = {"name": call.name, "arguments": cut_text(call.arguments)}
            if (result := results.get(call.call_id)) is not None:
                shown |= {"result": cut_text(result.content), "is_error": result.is_error}
            if call.call_id in simulated:
                shown["is_simulated"] = True
            raw.setdefault("calls", []).append(shown)
        written.append(raw)
    return written


def cut_text(text: str, chars: int = _MAX_TEXT) -> str:
    """Return a text, or its beginning with the number of characters that are left out."""
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text) - chars:,} more characters)"


def write_dollars(cost_usd: float) -> str:
    """Return a cost as a text."""
    if not cost_usd:
        return "$0"
    return f"${cost_usd:,.2f}" if cost_usd >= 1 else f"${cost_usd:.4f}"


def write_share(part: int, whole: int) -> str:
    """Return a share in percent, or `-` if `whole` is 0."""
    return f"{part / whole:.1%}" if whole else "-"
