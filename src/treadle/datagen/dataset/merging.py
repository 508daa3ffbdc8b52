"""The merge of datasets into one, without duplicate rows."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import digest_of
from treadle.datagen.dataset.entries import RowEntry, find_rows, read_entries
from treadle.export.exporter import FORMATS, encode_row
from treadle.export.rows import Row, SampleInfo
from treadle.export.whole import write_whole


class MergeSource(Struct):
    """One dataset of a merge."""

    path: str
    """The name of its folder or file."""
    rows: int = 0
    kept: int = 0
    same_sample: int = 0
    """The number of rows left out because the same sample of the same dataset came before."""
    same_content: int = 0
    """The number of rows left out because a row with the same messages came before."""
    renamed: int = 0
    """The number of rows that got a new id, because an earlier row has the same id."""


class Merged(Struct, frozen=True):
    """The outcome of a merge, which is also the content of `sources.json`."""

    sources: tuple[MergeSource, ...]

    @property
    def rows(self) -> int:
        """How many rows there are in the merged dataset."""
        return sum(source.kept for source in self.sources)


class _Known(Struct):
    """What the merge remembers of the rows that were kept."""

    samples: set[bytes] = field(default_factory=set)
    contents: set[bytes] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)


def merge(paths: Sequence[Path], out: Path, *, is_forced: bool = False) -> Merged:
    """Write the rows of several datasets, which are folders or files, to the new folder `out`.

    If `is_forced`, a dataset that was merged in `out` before is replaced.

    The first of several equal rows is kept. A row keeps its origin: the name of its dataset, its run, its topic and
    all else but its id, which is changed if an earlier row has it.

    Raises: `ConfigError` if `out` exists and is not empty, or is one of the datasets; as `read_entries` does.
    """
    for path in paths:
        find_rows(path)
    was_merged = DatasetFolder(out).sources.exists() and not DatasetFolder(out).journal.exists()
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (is_forced and was_merged):
        advice = "; --force replaces it" if was_merged else ""
        raise ConfigError(f"the folder {str(out)!r} exists and is not empty; give a new folder{advice}")
    if any(path.resolve() in (out.resolve(), DatasetFolder(out).rows.resolve()) for path in paths):
        raise ConfigError(f"{str(out)!r} is one of the datasets to merge; give another folder")
    out.mkdir(parents=True, exist_ok=True)
    sources = [MergeSource(path.name or str(path)) for path in paths]
    known = _Known()

    row_format = FORMATS.load("treadle")

    def lines() -> Iterator[bytes]:
        for path, source in zip(paths, sources, strict=True):
            for entry in read_entries(path):
                if (row := _take(entry, source, known)) is not None:
                    yield encode_row(row, row_format)

    write_whole(lines(), DatasetFolder(out).rows)
    merged = Merged(tuple(sources))
    write_whole([msgspec.json.encode(merged)], DatasetFolder(out).sources)
    return merged


def _take(entry: RowEntry, source: MergeSource, known: _Known) -> Row | None:
    """Count a row, and return it with an id that no earlier row has; `None` if it is a duplicate."""
    row, sample = entry.row, entry.row.lineage.sample
    source.rows += 1
    origin = _hash_origin(row, sample)
    if origin in known.samples:
        source.same_sample += 1
        return None
    content = digest_of(row.messages)
    if content in known.contents:
        source.same_content += 1
        return None
    known.samples.add(origin)
    known.contents.add(content)
    source.kept += 1
    if sample is None:
        return row
    row_id = _find_free(sample, known.ids)
    known.ids.add(row_id)
    if row_id == sample.sample_id:
        return row
    source.renamed += 1
    return replace(row, lineage=replace(row.lineage, sample=replace(sample, sample_id=row_id)))


def _hash_origin(row: Row, sample: SampleInfo | None) -> bytes:
    """Return a hash of what makes two rows the same sample.

    Different datasets can have the same name, which is `dataset` if nobody gave one; then their topics or seeds
    differ.
    """
    lineage = row.lineage
    facts = (
        (lineage.run_id, lineage.task, lineage.seed, digest_of(row.messages).hex())
        if sample is None
        else (sample.dataset, sample.sample_id, sample.topic_id, sample.seed)
    )
    return blake2b(msgspec.json.encode(facts), digest_size=16).digest()


def _find_free(sample: SampleInfo, ids: set[str]) -> str:
    """Return the id of a sample. If an earlier row has it, return an id made from it and the name of its
    dataset."""
    base = row_id = sample.sample_id
    number = 1
    while row_id in ids:
        row_id = f"{sample.dataset}-{base}" if number == 1 else f"{sample.dataset}-{base}-{number}"
        number += 1
    return row_id
