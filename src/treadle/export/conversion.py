"""The conversion of rows from one format to another, and the list of what the rows lose."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from treadle.core.errors import ConfigError, ExportError
from treadle.export import FORMATS, Row, encode_row, find_losses, read_row
from treadle.export.exporter import LINES, find_unread
from treadle.export.row_changes import RowOptions
from treadle.export.row_files import read_objects

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
        self._has_reasoning = has_reasoning
        self._options = options

    def lines(self, source: Path, on_done: Callable[[str], None]) -> Iterator[bytes]:
        """Yield the rows that can be written, as lines of the other format."""
        for row in self.rows(source, on_done):
            yield self._encode(row)

    def rows(self, source: Path, on_done: Callable[[str], None]) -> Iterator[Row]:
        """Yield the rows that can be written, and count what they lose. `on_done` is called after each."""
        for place, raw in read_objects(source, self.name):
            try:
                row = read_row(raw, self.from_)
                again = self._rewrite(row)
                unread = () if again is None else find_unread(raw, again, self.from_.aliases)
                row = self._options.change(row)
                back = read_row(self._write(row), self.to)
            except ExportError as error:
                self.refused[place] = str(error)
                continue
            self.unread.update(unread)
            self.losses.update([loss.value for loss in find_losses(row, back)])
            self.written += 1
            yield row
            on_done(place)

    def _rewrite(self, row: Row) -> dict[str, object] | None:
        try:
            return _decode(encode_row(row, self.from_, with_reasoning=True), self.from_.has_own_files)
        except ExportError:
            return None  # such a row can be read in this format, but not written

    def _write(self, row: Row) -> dict[str, object]:
        return _decode(self._encode(row), self.to.has_own_files)

    def _encode(self, row: Row) -> bytes:
        return encode_row(
            row, self.to, with_reasoning=self._has_reasoning, with_lineage=self._options.has_lineage
        )


def _decode(data: bytes, has_own_files: bool) -> dict[str, object]:
    if has_own_files:
        return {LINES: [msgspec.json.decode(line) for line in data.split(b"\n")]}
    decoded: dict[str, object] = msgspec.json.decode(data)
    return decoded
