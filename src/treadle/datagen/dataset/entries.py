"""The rows of datasets, read one after another from a folder or a file, and the merge of datasets into one.

Files of other formats are read too.
"""

import sys
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Message, Role, ToolSpec
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.quality.protocol import FilterVerdict
from treadle.export.exporter import FORMATS, encode_row
from treadle.export.row_files import PARQUET, detect_format
from treadle.export.row_formats.treadle_rows import VERSION
from treadle.export.rows import Row, SampleInfo
from treadle.export.whole import write_whole
from treadle.journal.named_files import suggest_path
from treadle.tasks.conversation_set import iterate_rows

_NEAR = 2_000
"""How many ids are compared with an unknown one to suggest the nearest."""


class RowEntry(Struct, frozen=True):
    """One line of a file of rows."""

    number: int
    """The number of the row in the file, from 1."""
    row: Row
    verdicts: tuple[FilterVerdict, ...] = ()
    """The verdicts about a rejected sample; empty for a kept row."""

    @property
    def row_id(self) -> str:
        """The id of the row in its dataset; for rows of other origin, the id of their run."""
        return id_of(self.row)

    @property
    def known_verdicts(self) -> tuple[FilterVerdict, ...]:
        """The verdicts about a rejected sample, or those that the lineage of a kept row has."""
        sample = self.row.lineage.sample
        if self.verdicts or sample is None:
            return self.verdicts
        passed = [FilterVerdict(name, True, note) for name, note in sample.filters.items()]
        return (*passed, *[FilterVerdict(name, False, note) for name, note in sample.lowered.items()])


class _Line(Row, frozen=True, kw_only=True):
    format: str
    tools: tuple[ToolSpec, ...] = ()
    verdicts: tuple[FilterVerdict, ...] = ()


class _Format(Struct):
    format: str = ""


_FORMATS = msgspec.json.Decoder(_Format)
_LINES = msgspec.json.Decoder(_Line)


def id_of(row: Row) -> str:
    """Return the id of a row in its dataset; for rows of other origin, the id of their run."""
    sample = row.lineage.sample
    return row.lineage.run_id if sample is None else sample.sample_id


def digest_of(messages: Sequence[Message]) -> bytes:
    """Return a hash of what messages say. The ids of calls are not part of it."""
    said = [
        (message.role, message.content, [(call.name, call.arguments) for call in message.tool_calls])
        for message in messages
        if message.role is not Role.SYSTEM
    ]
    return make_digest(msgspec.json.encode(said))


def make_digest(data: bytes) -> bytes:
    """Return a hash of 16 bytes."""
    return blake2b(data, digest_size=16).digest()


def find_rows(path: Path) -> Path:
    """Return the file with the rows of a dataset. `path` is the dataset's folder or the file.

    Raises: `ConfigError` if there is no such file.
    """
    if path.is_dir():
        path = DatasetFolder(path).rows
    if not path.is_file():
        hint = suggest_path(path, "give the folder of a dataset, or a file of rows")
        raise ConfigError(f"there is no file {str(path)!r}{hint}")
    return path


def read_entries(
    path: Path, *, is_rejected: bool = False, first: int = 1, needles: Sequence[str] = ()
) -> Iterator[RowEntry]:
    """Yield the rows of a dataset or of a file, in their order, or the rejected samples of a dataset.

    `path` is the folder of a dataset or a file of rows. A file of rows, or a dataset without a file of rejected
    samples, has no rejected samples. It begins with row number `first`. Lines of the format `treadle` that lack one
    of the `needles`, which are in small letters, may be left out. Raises: `ConfigError` if there is no such file;
    `ExportError` that names the line if a line is not a row.
    """
    file_of_rows = find_rows(path)
    first = min(first, sys.maxsize)
    if is_rejected:
        if DatasetFolder(path).rejected.is_file():
            yield from _read_native(DatasetFolder(path).rejected, first, needles)
    elif _is_native(file_of_rows):
        yield from _read_native(file_of_rows, first, needles)
    else:
        for number, _, row in islice(iterate_rows(file_of_rows), first - 1, None):
            yield RowEntry(number, row)


def find_format(path: Path) -> str | None:
    """Return the format of the rows of a dataset or of a file; `None` if it is `treadle`, which loses nothing.

    Raises: `ConfigError`; `ExportError` if the file is damaged.
    """
    file = find_rows(path)
    return None if _is_native(file) else detect_format(file)


def _is_native(path: Path) -> bool:
    """Return whether a file is empty or has rows of the format `treadle`."""
    if path.suffix == PARQUET:
        return False
    with path.open("rb") as file:
        first = next(filter(bytes.strip, file), b"")
    try:
        return not first or _FORMATS.decode(first).format.startswith("treadle/")
    except UNREADABLE:
        return False


def _read_native(path: Path, first: int = 1, needles: Sequence[str] = ()) -> Iterator[RowEntry]:
    with path.open("rb") as file:
        for number, line in islice(enumerate(filter(bytes.strip, file), 1), first - 1, None):
            if needles:
                text = line.decode("utf-8", "replace").lower()
                # Another program may have written a character as its number.
                if "\\u" not in text and not all(needle in text for needle in needles):
                    continue
            try:
                found = _LINES.decode(line)
                if found.format != VERSION:
                    raise ExportError(f"its format is {found.format!r}, and this version reads {VERSION!r}")
            except (*UNREADABLE, ExportError) as error:
                text = f"line {number} of {str(path)!r} is not a row of the format treadle: {error}"
                raise ExportError(text) from error
            row = Row(
                found.messages, found.tools, found.lineage, untrained=found.untrained, weight=found.weight
            )
            yield RowEntry(number, row, found.verdicts)


def find_entry(path: Path, text: str, *, is_rejected: bool = False) -> RowEntry:
    """Return the row that `text` names: its number from 1, its id, its run's id, or `last`.

    Raises: `ConfigError` if there is no such row.
    """
    known: list[str] = []
    count, last = 0, None
    for last in read_entries(path, is_rejected=is_rejected):
        count += 1
        if text in (str(count), last.row_id, last.row.lineage.run_id):
            return last
        if len(known) < _NEAR:
            known.append(last.row_id)
    if last is not None and text == "last":
        return last
    what = "rejected samples" if is_rejected else "rows"
    near = f"; there are {count:,} {what}"
    if not count:
        has_others = not is_rejected and any(read_entries(path, is_rejected=True))
        also = "; --rejected shows the rejected samples" if has_others else ""
        raise ConfigError(f"{str(path)!r} has no {what}{also}")
    if known and not text.isdigit():
        near = did_you_mean(text, known, f"ids look like {known[0]!r}")
    raise ConfigError(f"there is no row {text!r} in {str(path)!r}{near}")


class MergeSource(Struct):
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
    """Return a hash of what makes two rows the same sample. Different datasets can have the same name, which is
    `dataset` if nobody gave one; then their topics or seeds differ."""
    lineage = row.lineage
    facts = (
        (lineage.run_id, lineage.task, lineage.seed, digest_of(row.messages).hex())
        if sample is None
        else (sample.dataset, sample.sample_id, sample.topic_id, sample.seed)
    )
    return make_digest(msgspec.json.encode(facts))


def _find_free(sample: SampleInfo, ids: set[str]) -> str:
    """Return the id of a sample, or one made from it and its dataset's name if an earlier row has it."""
    base = row_id = sample.sample_id
    number = 1
    while row_id in ids:
        row_id = f"{sample.dataset}-{base}" if number == 1 else f"{sample.dataset}-{base}-{number}"
        number += 1
    return row_id
