"""The rows of datasets, read one after another from a folder or a file of the format `treadle`."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import did_you_mean
from treadle.core.types import Message, ToolSpec
from treadle.datagen.dataset.folder import Folder
from treadle.datagen.quality.protocol import Verdict
from treadle.export.rows import Lineage, Row

_NEAR = 2_000
"""How many ids are compared with an unknown one to suggest the nearest."""


class Entry(Struct, frozen=True):
    """One line of a file of rows."""

    number: int
    """The number of the row in the file, from 1."""
    row: Row
    verdicts: tuple[Verdict, ...] = ()
    """The verdicts about a rejected sample; empty for a good row."""

    @property
    def row_id(self) -> str:
        """The id of the row in its dataset; for rows of other origin, the id of their run."""
        return id_of(self.row)


class _Line(Struct):
    messages: tuple[Message, ...]
    lineage: Lineage
    tools: tuple[ToolSpec, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


_LINES = msgspec.json.Decoder(_Line)


def id_of(row: Row) -> str:
    """Return the id of a row in its dataset; for rows of other origin, the id of their run."""
    sample = row.lineage.sample
    return row.lineage.run_id if sample is None else sample.sample_id


def find_rows(path: Path) -> Path:
    """Return the file with the rows of a dataset. `path` is the dataset's folder or the file.

    Raises: `ConfigError` if there is no such file.
    """
    if path.is_dir():
        path = Folder(path).rows
    if not path.is_file():
        raise ConfigError(
            f"there is no file {str(path)!r}; give the folder of a dataset, or a file of rows of the format treadle"
        )
    return path


def read_entries(path: Path, *, is_rejected: bool = False) -> Iterator[Entry]:
    """Yield the rows of a dataset or of a file, in their order, or the rejected samples of a dataset.

    `path` is the folder of a dataset or a file of rows. A file, or a dataset without the file of rejected samples,
    has none.
    Raises: `ConfigError` if there is no such file; `ExportError` that names the line if a line is not a row.
    """
    file_of_rows = find_rows(path)
    if is_rejected:
        path = Folder(path).rejected
        if not path.is_file():
            return
    else:
        path = file_of_rows
    with path.open("rb") as file:
        for number, line in enumerate(filter(bytes.strip, file), 1):
            try:
                found = _LINES.decode(line)
            except msgspec.DecodeError as error:
                raise ExportError(
                    f"line {number} of {str(path)!r} is not a row of the format treadle: {error}; "
                    "`treadle dataset convert` reads other formats"
                ) from error
            yield Entry(number, Row(found.messages, found.tools, found.lineage), found.verdicts)


def find_entry(path: Path, text: str, *, is_rejected: bool = False) -> Entry:
    """Return the row that `text` names: its number from 1 (from the end if negative), its id, or its run's id.

    Raises: `ConfigError` if there is no such row.
    """
    entries = read_entries(path, is_rejected=is_rejected)
    number = _read_number(text)
    if number:
        # The line with this number, or as many lines as the number says to count from the end.
        last = deque(islice(entries, number) if number > 0 else entries, maxlen=max(1, -number))
        if last and (last[0].number == number or len(last) == -number):
            return last[0]
        count = sum(1 for _ in read_entries(path, is_rejected=is_rejected))
        raise ConfigError(f"there is no row {text} in {str(path)!r}; it has {count:,} rows")
    known: list[str] = []
    for entry in entries:
        if text in (entry.row_id, entry.row.lineage.run_id):
            return entry
        if len(known) < _NEAR:
            known.append(entry.row_id)
    near = did_you_mean(text, known, f"ids look like {known[0]!r}" if known else "there are no rows")
    raise ConfigError(f"there is no row {text!r} in {str(path)!r}{near}")


def _read_number(text: str) -> int:
    """Return the number in `text`, or 0 if it is not one."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
