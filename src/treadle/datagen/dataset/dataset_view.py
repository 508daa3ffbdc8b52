"""What the viewer shows of a dataset: its statistics, its topics, its work over time, and its rows.

A page in one file has its rows; a page of a server asks for them: they are found by their texts, and read from the
files one by one.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, islice
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from treadle.core.tally import write_usd
from treadle.core.types import Json, Role
from treadle.datagen.config.loading import read_config
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import SPREADS, DatasetStats, describe, read_leaves
from treadle.datagen.dataset.entries import RowEntry, digest_of, find_rows, read_entries
from treadle.datagen.dataset.splits import read_written
from treadle.export.body_sample import BodySample, cut_text, write_conversation
from treadle.jobs.ledger import ItemStatus, Ledger

_BODIES, _BODY_BYTES = 1_000, 12_000_000
"""How many rows and rejected samples have their messages in a page in one file, in how many bytes."""
_MAX_MESSAGES = 80
_BINS = 120


class RowHead(Struct, frozen=True, omit_defaults=True):
    """What a list shows of a row."""

    number: int
    """The number of the row in its file, from 1."""
    row_id: str
    text: str
    """The beginning of the first request."""
    is_rejected: bool = False
    kind: str = ""
    topic: str = ""
    tools: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """The filters that the row did not pass."""
    is_verified: bool = False
    weight: float = 1.0


class RowList(Struct, frozen=True, kw_only=True):
    """All rows and rejected samples of a page in one file."""

    heads: list[RowHead]
    bodies: dict[int, Raw]
    """What rows show when they are opened, by their places in `heads`."""
    words: dict[int, str]
    """The words of the rows without bodies, by their places in `heads`."""


class WorkTimes(Struct, frozen=True, kw_only=True):
    """Sums over time, in parts of the same length."""

    begin: float
    """In seconds since the epoch."""
    seconds: float
    kept: list[float]
    rejected: list[float]
    tokens: list[float]
    cost_usd: list[float]


class DatasetView(Struct, frozen=True, kw_only=True):
    """A dataset as a page shows it."""

    name: str
    about: str
    """The subject of the dataset; empty if there is no configuration."""
    folder: str
    stats: dict[str, object]
    """The statistics of `describe`, with the counts of distributions and the orders of tools."""
    leaves: list[tuple[tuple[str, ...], int]]
    """The paths of the leaf topics with their numbers of rows."""
    times: WorkTimes | None
    notes: list[str]
    """What a reader of the figures should know: what files lack, who wrote rows, what was simulated."""
    rows: RowList | None = None
    """The rows of a page in one file; `None` if the page asks for them."""

    @property
    def title(self) -> str:
        return f"{self.name}: dataset"


class DatasetContents(Struct, frozen=True):
    """The data that was read from a dataset in one pass."""

    stats: DatasetStats
    heads: list[RowHead]
    samples: tuple[BodySample, BodySample]
    """The bodies of rows and those of rejected samples."""

    @property
    def rows(self) -> RowList:
        """The rows of a page in one file."""
        bodies, words = self.samples[0].take()
        first = self.samples[0].rows
        more, others = self.samples[1].take()
        bodies |= {first + place: body for place, body in more.items()}
        words |= {first + place: text for place, text in others.items()}
        return RowList(heads=self.heads, bodies=bodies, words=words)


def read_contents(folder: Path, *, with_bodies: bool = True) -> DatasetContents:
    """Read the rows of a dataset's folder, or of a file of rows. Raises: as `read_entries` does."""
    most = _BODIES if with_bodies else 0
    contents = DatasetContents(
        DatasetStats(), [], (BodySample(most, _BODY_BYTES), BodySample(most, _BODY_BYTES))
    )
    stats, topics = contents.stats, dict[tuple[str, ...], str]()
    for sample, is_rejected in zip(contents.samples, (False, True), strict=True):
        for entry in read_entries(folder, is_rejected=is_rejected):
            (stats.reject if is_rejected else stats.add)(entry)
            contents.heads.append(_make_head(entry, topics, is_rejected=is_rejected))
            if with_bodies:
                key = f"{entry.row_id}\x1f{entry.row.lineage.run_id}"
                sample.add(key, partial(write_body, entry), texts=partial(texts_of, entry))
    return contents


def make_dataset_view(
    folder: Path, contents: DatasetContents | None = None, *, with_rows: bool = True
) -> DatasetView:
    """Return what a page shows of a dataset's folder, or of a file of rows.

    `contents` has what was read before; `None` to read it now. Raises: as `read_entries` does.
    """
    find_rows(folder)
    contents = contents or read_contents(folder, with_bodies=with_rows)
    stats, config = contents.stats, read_config(folder)
    return DatasetView(
        name=", ".join(sorted(stats.datasets)) or (config.name if config is not None else folder.name),
        about="" if config is None else config.topics.prompt,
        folder=str(folder),
        stats=_write_stats(stats),
        leaves=list(read_leaves(folder, stats).items()),
        times=_read_times(DatasetFolder(folder).ledger) if folder.is_dir() else None,
        notes=_write_notes(folder, stats),
        rows=contents.rows if with_rows else None,
    )


def _write_stats(stats: DatasetStats) -> dict[str, object]:
    return {
        **describe(stats),
        "known_cost_usd": stats.cost_usd,
        "counts": {name: sorted(getattr(stats, name).counts.items()) for name in SPREADS},
        "orders": [(*pair, count) for pair, count in stats.orders.items()],
        "sequences": stats.sequences.most_common(8),
        "turns_in_all": stats.sequences.total(),
        "topics_with_rows": len(stats.topics),
    }


def _write_notes(folder: Path, stats: DatasetStats) -> list[str]:
    notes = [f"{file} lacks {lacks}." for file, lacks in read_written(folder).left_out.items()]
    if stats.lowered:
        notes.append(stats.describe_lowered())
    notes += stats.describe_built_in()
    if stats.simulated:
        calls = f"{stats.simulated_calls:,} of {stats.calls.total:,} calls"
        notes.append(
            f"{stats.simulated:,} rows have results that were simulated ({calls}); no tool ran for them."
        )
    return notes


def _read_times(ledger: Path) -> WorkTimes | None:
    """Return rows, tokens and cost over time; `None` without a ledger with two attempts at least."""
    if not ledger.exists():
        return None
    with Ledger(ledger, is_readonly=True) as opened:
        entries = sorted(
            [
                (item.at, item.status, item.input_tokens + item.output_tokens, item.cost_usd or 0.0)
                for item in opened.entries()
            ]
        )
    if len(entries) < 2 or entries[0][0] == entries[-1][0]:
        return None
    begin, seconds = entries[0][0], entries[-1][0] - entries[0][0]
    edges = [begin + seconds * (index + 1) / _BINS for index in range(_BINS - 1)]

    def sums(value: Callable[[tuple[float, str, int, float]], float]) -> list[float]:
        bins = [0.0] * _BINS
        for entry in entries:
            bins[bisect_right(edges, entry[0])] += value(entry)
        return list(accumulate(bins))

    return WorkTimes(
        begin=begin,
        seconds=seconds,
        kept=sums(lambda it: it[1] == ItemStatus.KEPT),
        rejected=sums(lambda it: it[1] == ItemStatus.REJECTED),
        tokens=sums(lambda it: it[2]),
        cost_usd=sums(lambda it: it[3]),
    )


def _make_head(entry: RowEntry, topics: dict[tuple[str, ...], str], *, is_rejected: bool) -> RowHead:
    sample, messages = entry.row.lineage.sample, entry.row.messages
    asked = next((message.content for message in messages if message.role is Role.USER), "")
    path = () if sample is None else sample.topic
    return RowHead(
        number=entry.number,
        row_id=entry.row_id,
        text=" ".join(asked[:300].split())[:160],
        is_rejected=is_rejected,
        kind="" if sample is None else sample.kind or "",
        # Rows of one topic share its text.
        topic=topics.setdefault(path, " › ".join(path)),
        tools=tuple(sorted({call.name for message in messages for call in message.tool_calls})),
        failed=tuple([item.filter for item in entry.verdicts if not item.is_kept]),
        is_verified=sample is not None and sample.is_verified,
        weight=entry.row.weight,
    )


def texts_of(entry: RowEntry) -> Iterator[str]:
    """Yield the texts by which a row is found."""
    lineage, sample = entry.row.lineage, entry.row.lineage.sample
    yield from (entry.row_id, lineage.run_id, lineage.model or "", lineage.stop_reason)
    yield from (sample.difficulty, sample.persona, *sample.topic) if sample is not None else ()
    for message in entry.row.messages:
        yield from (message.content, message.reasoning or "")
        yield from [f"{call.name} {call.arguments}" for call in message.tool_calls]
    yield from [f"{item.filter} {item.reason}" for item in entry.verdicts]


def write_body(entry: RowEntry, *, is_whole: bool = False) -> dict[str, Json]:
    """Return what a row shows when it is opened. Long texts are cut unless it `is_whole`."""
    lineage, sample, messages = entry.row.lineage, entry.row.lineage.sample, entry.row.messages
    facts: dict[str, Json] = {
        "run": lineage.run_id,
        "model": lineage.model,
        "ended with": lineage.stop_reason,
        "reward": lineage.reward,
    }
    if sample is not None:
        facts |= {
            "topic": " › ".join(sample.topic),
            "difficulty": sample.difficulty,
            "user": sample.persona,
            "goal": sample.goal,
            "seed": sample.seed,
            "tokens": f"{sample.input_tokens + sample.output_tokens:,}",
            "cost": None if sample.cost_usd is None else write_usd(sample.cost_usd),
        }
    most, chars = (len(messages), 10_000_000) if is_whole else (_MAX_MESSAGES, 4_000)
    return {
        "facts": {
            name: cut_text(str(value), 300) for name, value in facts.items() if value not in (None, "")
        },
        "messages": write_conversation(
            messages[:most], frozenset(lineage.simulated), chars, entry.row.untrained
        ),
        "verdicts": [
            {"filter": item.filter, "is_passed": item.is_passed, "reason": cut_text(item.reason, chars)}
            for item in entry.known_verdicts
        ],
        "left_out": max(0, len(messages) - most),
    }


_KEPT_SEARCHES = 16
_SEPARATOR = " › "


class FoundRows(Struct, frozen=True):
    """A part of the rows that a search has found."""

    total: int
    """How many rows there are."""
    found: int
    """How many of them the search has found."""
    heads: list[RowHead]


class RowIndex:
    """The heads of all rows. The texts stay in the files, which every search reads."""

    def __init__(self, path: Path) -> None:
        """Read the rows. Raises: as `read_entries` does."""
        self.path = path
        self._seen = self._look()
        contents = read_contents(path, with_bodies=False)
        self.view: DatasetView = make_dataset_view(path, contents, with_rows=False)
        self._heads = contents.heads
        self._kept = sum(not head.is_rejected for head in self._heads)
        self._searches: OrderedDict[tuple[tuple[str, str], ...], list[int]] = OrderedDict()

    def _look(self) -> tuple[tuple[int, int], ...]:
        files = [find_rows(self.path), DatasetFolder(self.path).rejected]
        stats = [file.stat() for file in files if file.exists()]
        return tuple([(stat.st_size, stat.st_mtime_ns) for stat in stats])

    @property
    def is_current(self) -> bool:
        """True unless the files have changed since they were read."""
        return self._seen == self._look()

    def find(self, words: str, chosen: Mapping[str, str], offset: int, limit: int) -> FoundRows:
        """Return rows that have all `words` and the `chosen` values. Blocks.

        The keys of `chosen` are `status`, `kind`, `tool`, `filter` and `topic`; a topic includes those below it.
        """
        key = (("words", words), *sorted(chosen.items()))
        places = self._searches.get(key)
        if places is None:
            places = [place for place, head in enumerate(self._heads) if _is_chosen(head, chosen)]
            if wanted := words.lower().split():
                matching = self._match(wanted)
                places = [place for place in places if place in matching]
            self._searches[key] = places
            if len(self._searches) > _KEPT_SEARCHES:
                self._searches.popitem(last=False)
        heads = [self._heads[place] for place in places[offset : offset + limit]]
        return FoundRows(len(self._heads), len(places), heads)

    def _match(self, wanted: list[str]) -> set[int]:
        """Return the places of the rows with all words."""
        # A row is decoded only if its line has the words as JSON writes them.
        needles = [msgspec.json.encode(word).decode()[1:-1] for word in wanted]
        found: set[int] = set()
        for is_rejected, first in ((False, 0), (True, self._kept)):
            for entry in read_entries(self.path, is_rejected=is_rejected, needles=needles):
                text = "\n".join(texts_of(entry)).lower()
                if all(word in text for word in wanted):
                    found.add(first + entry.number - 1)
        return found

    def read(self, number: int, *, is_rejected: bool) -> dict[str, Json] | None:
        """Return what a row shows when it is opened; `None` if there is no such row. Blocks."""
        entries = read_entries(self.path, is_rejected=is_rejected, first=number)
        entry = next(islice(entries, 1), None) if number >= 1 else None
        return None if entry is None else write_body(entry, is_whole=True)


def _is_chosen(head: RowHead, chosen: Mapping[str, str]) -> bool:
    for name, value in chosen.items():
        if name == "status" and value != ("rejected" if head.is_rejected else "kept"):
            return False
        if name == "kind" and value != head.kind:
            return False
        if name == "tool" and value not in head.tools:
            return False
        if name == "filter" and value not in head.failed:
            return False
        if name == "topic" and head.topic != value and not head.topic.startswith(value + _SEPARATOR):
            return False
    return True


class ComparedRows(Struct, frozen=True):
    """Two datasets, row by row. Rows are the same if they have the same id, and equal if they also say the same."""

    name: str
    equal: int
    changed: list[str]
    """The ids of rows that say something else."""
    only: tuple[list[str], list[str]]
    """The ids of the rows that only one of the datasets has."""
    moved: int
    """How many of the rows that only the second dataset has say the same as a row of the first one."""


class ComparedDatasets(Struct, frozen=True):
    """Two datasets as a page in one file shows them."""

    rows: ComparedRows
    datasets: tuple[DatasetView, DatasetView]

    @property
    def title(self) -> str:
        return f"{self.rows.name}: two datasets"


def compare_datasets(one: Path, other: Path) -> ComparedDatasets:
    """Return what a page in one file shows of two datasets. Raises: as `read_entries` does."""
    views = make_dataset_view(one), make_dataset_view(other)
    return ComparedDatasets(compare_rows(one, other, views), views)


def compare_rows(one: Path, other: Path, views: tuple[DatasetView, DatasetView]) -> ComparedRows:
    """Return how the rows of two datasets differ. Raises: as `read_entries` does."""
    first, second = (
        {entry.row_id: digest_of(entry.row.messages) for entry in read_entries(path)} for path in (one, other)
    )
    shared = [key for key in first if key in second]
    changed = [key for key in shared if first[key] != second[key]]
    known = set(first.values())
    has_names = views[0].name != views[1].name
    return ComparedRows(
        " and ".join([view.name if has_names else view.folder for view in views]),
        len(shared) - len(changed),
        changed,
        ([key for key in first if key not in second], [key for key in second if key not in first]),
        sum(key not in first and digest in known for key, digest in second.items()),
    )
