"""`treadle dataset convert`: converts rows from one format to another."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.options.complete import complete_row_format
from treadle.cli.terminal.bar import bar
from treadle.cli.terminal.output import print_json, print_lines, print_note, write_count
from treadle.core.errors import ConfigError, ExportError
from treadle.datagen.dataset.folder import Folder
from treadle.export import FORMATS, Row, encode_row, find_losses, read_row
from treadle.export.exporter import LINES, find_unread
from treadle.export.row_files import detect_format, open_writer, read_objects

EXAMPLES = (
    "treadle dataset convert dataset --to sharegpt -o train.jsonl",
    "treadle dataset convert deepfabric.jsonl --to trl -o train.parquet",
)
_MAX_LISTED = 3
"""How many of the rows that are left out are listed with the reason."""


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A file of rows, as JSON lines or Parquet, a folder with a file for each row, or a dataset.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help=f"{', '.join(FORMATS.names())}.",
            autocompletion=complete_row_format,
        ),
    ],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="The format of the rows. Default: recognised from the first rows.",
            autocompletion=complete_row_format,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write: JSON lines, or Parquet if the name ends in .parquet. For hf_trace a folder. "
            "Default: standard output.",
        ),
    ] = None,
    has_reasoning: Annotated[
        bool | None,
        typer.Option(
            "--reasoning/--no-reasoning", help="Whether to write reasoning. Default: that of the format."
        ),
    ] = None,
    is_json: o.IsJson = False,
) -> int:
    """Convert rows from one format to another, and say what they lose.

    A row that cannot be read or written is left out and counted, with the reason.
    """
    source = _find(source, out, is_json=is_json)
    found = from_ if from_ is not None else detect_format(source, advice="give --from with one of")
    conversion = _Conversion(found, to, has_reasoning)
    with ExitStack() as stack:
        advance = stack.enter_context(bar("converting", None, is_json=out is None))
        if out is None:
            print_lines(conversion.lines(source, advance))
        else:
            writer = stack.enter_context(open_writer(to, out, with_reasoning=has_reasoning))
            for row in conversion.rows(source, advance):
                writer.write(row)
    if is_json:
        print_json(conversion.report())
    else:
        conversion.print_notes(to, out)
    return ExitCode.FAILED if conversion.refused else ExitCode.DONE


def _find(source: Path, out: Path | None, *, is_json: bool) -> Path:
    """Return the file or folder to read. Raises: `ConfigError` if it does not exist, or is the one to write."""
    if source.is_dir() and Folder(source).rows.exists():
        source = Folder(source).rows
    if not source.exists():
        raise ConfigError(f"there is no file {str(source)!r}")
    if out is not None and out.exists() and out.resolve() == source.resolve():
        raise ConfigError(f"--out {str(out)!r} is the file to read; name another file")
    if is_json and out is None:
        raise ConfigError("--json prints the counts on standard output; give --out for the rows")
    return source


class _Conversion:
    """The conversion of a file: what its rows lost, and which were left out."""

    def __init__(self, from_: str, to: str, has_reasoning: bool | None) -> None:
        self.from_ = FORMATS.load(from_)
        self.to = FORMATS.load(to)
        self.name = from_
        self.refused: dict[str, str] = {}
        self._has_reasoning = has_reasoning
        self._written = 0
        self._unread: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()

    def lines(self, source: Path, on_done: Callable[[str], None]) -> Iterator[bytes]:
        """Yield the rows that can be written, as lines of the other format."""
        for row in self.rows(source, on_done):
            yield encode_row(row, self.to, with_reasoning=self._has_reasoning)

    def rows(self, source: Path, on_done: Callable[[str], None]) -> Iterator[Row]:
        """Yield the rows that can be written, and count what they lose. `on_done` is called after each."""
        for place, raw in read_objects(source, self.name):
            try:
                row = read_row(raw, self.from_)
                again = self._rewrite(row)
                unread = () if again is None else find_unread(raw, again, self.from_.aliases)
                back = read_row(self._write(row), self.to)
            except ExportError as error:
                self.refused[place] = str(error)
                continue
            self._unread.update(unread)
            self._losses.update([loss.value for loss in find_losses(row, back)])
            self._written += 1
            yield row
            on_done(place)

    def _rewrite(self, row: Row) -> dict[str, object] | None:
        try:
            return _decode(encode_row(row, self.from_, with_reasoning=True), self.from_.has_own_files)
        except ExportError:
            return None  # such a row can be read in this format, but not written

    def _write(self, row: Row) -> dict[str, object]:
        return _decode(encode_row(row, self.to, with_reasoning=self._has_reasoning), self.to.has_own_files)

    def report(self) -> dict[str, object]:
        """Return the counts."""
        return {
            "from": self.name,
            "rows": self._written,
            "not_read": dict(self._unread),
            "lost": dict(self._losses),
            "left_out": self.refused,
        }

    def print_notes(self, to: str, out: Path | None) -> None:
        """Print what was lost and left out."""
        for what, count in self._unread.most_common():
            print_note(f"{write_count(count, 'row')} lost {what}, which is not read from {self.name}")
        for what, count in self._losses.most_common():
            print_note(f"{write_count(count, 'row')} lost {what}")
        for place, why in list(self.refused.items())[:_MAX_LISTED]:
            print_note(f"{place} left out: {why}")
        if len(self.refused) > _MAX_LISTED:
            print_note(
                f"and {write_count(len(self.refused) - _MAX_LISTED, 'more row')} left out for such reasons"
            )
        where = "" if out is None else f" to {str(out)!r}"
        print_note(f"{write_count(self._written, 'row')} converted from {self.name} to {to}{where}")


def _decode(data: bytes, has_own_files: bool) -> dict[str, object]:
    if has_own_files:
        return {LINES: [msgspec.json.decode(line) for line in data.split(b"\n")]}
    decoded: dict[str, object] = msgspec.json.decode(data)
    return decoded
