"""The rows of a dataset for a page that asks for them: found by their texts, and read from the files one by one."""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.types import Json
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import digest_of
from treadle.datagen.dataset.dataset_view import (
    DatasetView,
    RowHead,
    make_dataset_view,
    read_contents,
    texts_of,
    write_body,
)
from treadle.datagen.dataset.entries import find_rows, read_entries

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
        """The title of the page."""
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
