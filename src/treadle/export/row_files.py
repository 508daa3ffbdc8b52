"""Files of rows and of groups of rollouts: JSON lines, Parquet, or a folder with a file for each row; and the
conversion of a file of rows to another format. A JSON list of rows, or a row over several lines, is read too, as a
whole.

Rows and groups are read and written one at a time.
"""

import logging
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import find_near
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json
from treadle.export.exporter import (
    FORMATS,
    LINES,
    Loss,
    RowFormat,
    decode_rows,
    encode_row,
    find_losses,
    find_unread,
    fit_untrained,
    read_row,
)
from treadle.export.groups import Group
from treadle.export.parquet import find_columns, read_parquet, require_arrow, write_table
from treadle.export.row_changes import RowOptions
from treadle.export.rows import Row
from treadle.export.token_exporter import TOKEN_FORMATS, LossMask, encode_group, sampled_mask
from treadle.export.token_formats.token_groups import FORMAT, read_groups
from treadle.export.whole import whole_file
from treadle.journal.named_files import explain_unread

PARQUET = ".parquet"
_WHOLE = re.compile(rb"\s*+(?:\[|\{[ \t\r]*+\n)")
"""The beginning of a file that has one JSON text over several lines."""
_MESSAGE_KEYS = (
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "name",
    "from",
    "value",
    "function",
    "arguments",
)
"""Keys within the columns of rows, for suggestions."""
_LOG = logging.getLogger("treadle")
_MAX_SAMPLED = 100
"""How many rows are read to recognise a file's format."""


def read_objects(
    path: Path, format: str, on_damage: Callable[[str, ExportError], None] | None = None
) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield each row of a file or folder as a JSON object, with its place in words.

    If `on_damage` is given, it gets the place of each line that is not a JSON object, instead of an error.

    Raises: `ConfigError` if the format is unknown or there is no such file; `ExportError` if it is damaged.
    """
    row_format = FORMATS.load(format)
    if path.suffix.lower() == PARQUET:
        for number, raw in enumerate(read_parquet(path), 1):
            yield f"row {number}", raw
        return
    try:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        for file in files:
            head = f"{file.name}, " if path.is_dir() else ""
            tell = None if on_damage is None else partial(_tell_damage, on_damage, head)
            with file.open("rb") as lines:
                begin = len(BOM_UTF8) if lines.peek(len(BOM_UTF8)).startswith(BOM_UTF8) else 0
                lines.seek(begin)
                if _WHOLE.match(lines.peek(64)):
                    if found := _decode_whole(lines.read()):
                        yield from ((f"{head}row {number}", raw) for number, raw in enumerate(found, 1))
                        continue
                    lines.seek(begin)
                for number, raw in decode_rows(lines, row_format, tell):
                    yield f"{head}line {number}", raw
    except OSError as error:
        raise explain_unread("", path, error) from error


def _decode_whole(data: bytes) -> list[dict[str, Json]]:
    """Return the objects of one JSON list, or the only object; an empty list if the data is anything else."""
    try:
        found = msgspec.json.decode(data, type=list[dict[str, Any]] | dict[str, Any])
        return [found] if isinstance(found, dict) else found
    except UNREADABLE:
        return []


def _tell_damage(
    on_damage: Callable[[str, ExportError], None], head: str, number: int, error: ExportError
) -> None:
    on_damage(f"{head}line {number}", error)


def detect_format(path: Path, *, advice: str = "its format must be one of") -> str:
    """Return the name of the format of a file or folder of rows, by its first rows.

    Raises: `ConfigError` if there is no such file, if it has no rows, or if they fit no format; then the message
    has `advice` before the names. `ExportError` if the file is damaged.
    """
    # A row in a file of its own is found by its first line, so a format with one line for each row serves here.
    damage: list[ExportError] = []
    found = read_objects(path, "treadle", lambda place, error: damage.append(error))
    sample = [raw for _, raw in islice(found, _MAX_SAMPLED)]
    if not sample and damage:
        raise damage[0]
    if not sample:
        raise ConfigError(f"{str(path)!r} has no rows")
    loaded = {name: FORMATS.load(name) for name in FORMATS.names()}
    if _fits(loaded["hf_trace"], sample[0]):
        return "hf_trace"
    fits = {name: sum(_fits(found, raw) for raw in sample) for name, found in loaded.items()}
    for least in (len(sample), 1):
        for name, count in fits.items():
            if count >= least:
                _warn_of_keys(path, sample[0], loaded[name])
                return name
    for name in TOKEN_FORMATS.names():
        if sample[0].keys() == TOKEN_FORMATS.load(name).columns.keys():
            raise ConfigError(
                f"{str(path)!r} has rows of the token format {name!r}, which is not read here; `treadle export` "
                "writes the runs in other formats"
            )
    known = {*_MESSAGE_KEYS, *[key for found in loaded.values() for key in found.columns]}
    meant = {key: find_near(key, known, cutoff=0.7)[:1] for key in sorted(_keys_in(sample[0]) - known)}
    names = {key: near[0] for key, near in meant.items() if near}
    renamed: Any = _rename(sample[0], names)
    if any(_fits(found, renamed) for found in loaded.values()):
        wrong, right = [" and ".join(map(repr, keys)) for keys in (names, names.values())]
        raise ConfigError(
            f"{str(path)!r} is in no known format: its first row has the key {wrong}; did you mean {right}?"
        )
    raise ConfigError(f"{str(path)!r} is in no known format; {advice} {', '.join(FORMATS.names())}")


def _warn_of_keys(path: Path, raw: Mapping[str, Json], row_format: RowFormat) -> None:
    """Log the keys of a row that are nearly those of its format which it lacks."""
    lacking = row_format.columns.keys() - raw.keys()
    for key in sorted(raw.keys() - row_format.columns.keys()):
        for near in find_near(key, lacking, cutoff=0.8)[:1]:
            _LOG.warning("%s: its first row has %r, which is not read; did you mean %r?", path, key, near)


def _keys_in(value: Json) -> set[str]:
    """Return the keys of an object, of the objects in it, and of those in lists."""
    if isinstance(value, list):
        return set().union(*map(_keys_in, value))
    return {*value}.union(*map(_keys_in, value.values())) if isinstance(value, dict) else set()


def _rename(value: Json, names: Mapping[str, str]) -> Json:
    """Return a value with other names for keys at any depth."""
    if isinstance(value, list):
        return [_rename(item, names) for item in value]
    if isinstance(value, dict):
        return {names.get(key, key): _rename(item, names) for key, item in value.items()}
    return value


def _fits(row_format: RowFormat, raw: dict[str, Json]) -> bool:
    try:
        return row_format.fits(raw)
    except (ValueError, AttributeError, LookupError, TypeError):
        return False  # it is like no row of the format


class RowWriter(Struct):
    """A file or folder that rows are written to; made by `open_writer`."""

    row_format: RowFormat
    encode: Callable[[Row], bytes]
    put: Callable[[Row, bytes], object]
    """The function that writes a row, given it and its lines."""
    count: int = 0
    """The number of rows written so far."""
    shortened: int = 0
    """How many of them lack turns that are not trained on, for which the format has no place."""
    unweighted: int = 0
    """How many of them lack their weight, for which the format has no place."""

    def write(self, row: Row) -> None:
        """Write one row. Raises: `ExportError` if the format cannot express it; nothing of it is written then."""
        fitted = fit_untrained(row, self.row_format)
        self.put(row, self.encode(fitted) + b"\n")
        self.count += 1
        self.shortened += fitted is not row
        self.unweighted += row.weight not in (0, 1) and Loss.WEIGHT in self.row_format.losses


@contextmanager
def open_writer(
    format: str, out: Path, *, with_reasoning: bool | None = None, with_lineage: bool = True
) -> Iterator[RowWriter]:
    """Open a file or folder for rows of a format.

    `out` becomes a file of JSON lines, or a Parquet file if its name ends in `.parquet`; for a format whose rows
    are files of their own it becomes a folder. A file appears at the end of the block, or not at all if the block
    fails.

    Raises: `ConfigError` if `out` cannot be made or a package is missing; `ExportError` if it cannot be written.
    """
    row_format = FORMATS.load(format)
    encode = partial(
        encode_row, row_format=row_format, with_reasoning=with_reasoning, with_lineage=with_lineage
    )
    if row_format.has_own_files:
        yield RowWriter(row_format, encode, _folder_writer(out))
        return
    columns = {name: kind for name, kind in row_format.columns.items() if with_lineage or name != "lineage"}
    with _open_lines(
        out, lambda lines: write_table(lines, out, format, columns or find_columns(lines))
    ) as file:
        yield RowWriter(row_format, encode, lambda _, line: file.write(line))


@contextmanager
def _open_lines(out: Path, write_table: Callable[[Path], int]) -> Iterator[BinaryIO]:
    """Open the file of JSON lines that becomes `out`, by `write_table` if that is a Parquet file."""
    if out.suffix.lower() != PARQUET:
        with whole_file(out) as file:
            yield file
        return
    require_arrow()
    lines = out.with_name(f"{out.name}.jsonl")
    with whole_file(lines) as file:
        yield file
    # If this fails, the rows stay in the file of JSON lines, which the error names.
    write_table(lines)
    lines.unlink()


def _folder_writer(out: Path) -> Callable[[Row, bytes], object]:
    names: set[str] = set()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {str(out)!r}: {error.strerror}") from error
    if any(out.glob("*.jsonl")):
        raise ConfigError(f"the folder {str(out)!r} has rows already, which would be read with the new ones")

    def put(row: Row, lines: bytes) -> None:
        sample = row.lineage.sample
        # Rows of merged datasets can have the same run id; their own ids differ.
        ids = [row.lineage.run_id] if sample is None else [row.lineage.run_id, sample.sample_id]
        found = [re.sub(r"[^\w.-]", "_", item)[:200] or "row" for item in ids]
        found += [f"{found[0]}-{number}" for number in range(2, len(names) + 3)]
        name = next(item for item in found if item not in names)
        with whole_file(out / f"{name}.jsonl") as file:
            file.write(lines)
        names.add(name)

    return put


@contextmanager
def open_group_writer(
    format: str, out: Path, mask: LossMask = sampled_mask
) -> Iterator[Callable[[Group], None]]:
    """Open a file for groups in a token format, and return the function that writes one.

    The file is a Parquet file if its name ends in `.parquet`, and one of JSON lines otherwise. It appears at the
    end of the block, or not at all if the block fails. The function writes nothing of a group that it refuses.

    Raises: `ConfigError` if `out` cannot be made or a package is missing; `ExportError` if it cannot be written.
    """
    token_format = TOKEN_FORMATS.load(format)
    with _open_lines(out, lambda lines: write_table(lines, out, format, token_format.columns)) as file:

        def put(group: Group) -> None:
            file.write(encode_group(group, token_format, mask))

        yield put


_NEEDS_LINEAGE = ("treadle", "custom", "hf_trace", "atif")
"""The formats whose rows always have their lineage."""


class RowConversion:
    """The conversion of a file: what its rows lost, and which were left out."""

    def __init__(
        self, from_: str, to: str, has_reasoning: bool | None, options: RowOptions = RowOptions()
    ) -> None:
        self.from_ = FORMATS.load(from_)
        self.to = FORMATS.load(to)
        if not options.has_lineage and to in _NEEDS_LINEAGE:
            raise ConfigError(f"rows of {to} cannot be without lineage; leave out --no-lineage")
        self.name = from_
        self.refused: dict[str, str] = {}
        """The reasons for which rows were left out, by their places in the file."""
        self.written = 0
        """How many rows were written."""
        self.unread: Counter[str] = Counter()
        """How many rows had a key that is not read, by key."""
        self.losses: Counter[str] = Counter()
        """How many rows lost something, by what it was."""
        self._options = options
        self._encode = partial(
            encode_row,
            row_format=self.to,
            with_reasoning=has_reasoning,
            with_lineage=options.has_lineage,
        )

    def lines(self, source: Path, on_done: Callable[[str], None]) -> Iterator[bytes]:
        """Yield the rows that can be written, as lines of the other format."""
        yield from map(self._encode, self.rows(source, on_done))

    def rows(self, source: Path, on_done: Callable[[str], None]) -> Iterator[Row]:
        """Yield the rows that can be written, and count what they lose. `on_done` is called after each."""
        for place, raw in read_objects(source, self.name, self._refuse):
            try:
                row = read_row(raw, self.from_)
                again = self._rewrite(row)
                unread = () if again is None else find_unread(raw, again, self.from_)
                row = self._options.change(row)
                back = read_row(_decode(self._encode(row), self.to.has_own_files), self.to)
            except ExportError as error:
                self._refuse(place, error)
                continue
            self.unread.update(unread)
            self.losses.update([loss.value for loss in find_losses(row, back)])
            self.written += 1
            yield row
            on_done(place)

    def _refuse(self, place: str, error: ExportError) -> None:
        self.refused[place] = str(error)

    def _rewrite(self, row: Row) -> dict[str, object] | None:
        try:
            return _decode(encode_row(row, self.from_, with_reasoning=True), self.from_.has_own_files)
        except ExportError:
            return None  # such a row can be read in this format, but not written


def _decode(data: bytes, has_own_files: bool) -> dict[str, object]:
    if has_own_files:
        return {LINES: [msgspec.json.decode(line) for line in data.split(b"\n")]}
    decoded: dict[str, object] = msgspec.json.decode(data)
    return decoded


def read_group_file(path: str | Path) -> Iterator[Group]:
    """Yield the groups in a file of the format `tokens`. Raises: `ConfigError`; `ExportError` if it is damaged."""
    path = Path(path)
    if path.suffix.lower() == PARQUET:
        yield from read_groups({**dict.fromkeys(FORMAT.columns), **row} for row in read_parquet(path))
        return
    try:
        with path.open("rb") as file:
            yield from read_groups(msgspec.json.decode(line) for line in file if line.strip())
    except OSError as error:
        raise explain_unread("", path, error) from error
    except UNREADABLE as error:
        raise ExportError(f"{str(path)!r} has a line that is not JSON: {error}") from error
