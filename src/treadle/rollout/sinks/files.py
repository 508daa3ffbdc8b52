"""Sinks that write files: a file of JSON lines for all groups, and a folder with a Parquet file for each group."""

import os
import re
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.export.groups import Group
from treadle.export.parquet import require_arrow, write_table
from treadle.export.token_exporter import TOKEN_FORMATS, LossMask, encode_group
from treadle.rollout.sinks.protocol import BaseSink, Receipt, Sink, SinkMemory
from treadle.rollout.sinks.registry import check_keys

NATIVE = "tokens"
_END = "end"
"""The note with the place after the last acknowledged line."""


class RowsSink(BaseSink):
    """A sink that writes rows of a token format below a path."""

    def __init__(self, name: str, path: Path, format: str, mask: LossMask) -> None:
        self.name = name
        self._path = path
        self._format_name = format
        self._format = TOKEN_FORMATS.load(format)
        self._mask = mask

    def encode(self, group: Group) -> bytes:
        return encode_group(group, self._format, self._mask)


class LinesSink(RowsSink):
    """A file of JSON lines. Anything after the last acknowledged group is overwritten by the next group."""

    _end = 0
    """Where the acknowledged groups end."""

    def open(self, memory: SinkMemory) -> None:
        known = memory.get(_END)
        self._end = int(known or 0)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            size = self._path.stat().st_size
        except OSError as error:
            raise ConfigError(f"cannot write {str(self._path)!r}: {error.strerror}") from error
        if known is None:
            if size:
                raise ConfigError(f"{str(self._path)!r} exists already; move it away, or give another file")
            memory.set({_END: "0"})
        if size < self._end:
            raise self._shortened(size)

    def _shortened(self, size: int) -> ConfigError:
        return ConfigError(
            f"{str(self._path)!r} has {size:,} bytes, but the delivered groups end at {self._end:,}: lines are "
            "missing. Put the file back"
        )

    async def deliver(self, key: str, data: bytes) -> Receipt:
        with self._path.open("r+b") as file:
            if (size := file.seek(0, os.SEEK_END)) < self._end:
                raise self._shortened(size)
            file.truncate(file.seek(self._end))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._end += len(data)
        return Receipt(notes={_END: str(self._end)})


class FolderSink(RowsSink):
    """A folder with a Parquet file for each group, named after it. A file appears when it is complete."""

    def __init__(self, name: str, path: Path, format: str, mask: LossMask) -> None:
        require_arrow()
        super().__init__(name, path, format, mask)

    def open(self, memory: SinkMemory) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {str(self._path)!r}: {error.strerror}") from error

    async def deliver(self, key: str, data: bytes) -> Receipt:
        name = re.sub(r"[^\w.-]", "_", key)[:200]
        lines = self._path / f".{name}.jsonl"
        lines.write_bytes(data)
        write_table(lines, self._path / f"{name}.parquet", self._format_name, self._format.columns)
        lines.unlink()
        return Receipt()


def make_rows(name: str, target: str, options: dict[str, str], *, group_size: int, mask: LossMask) -> Sink:
    """Return a sink for a file of JSON lines, or for a folder if `target` has no suffix."""
    kind = make_lines if Path(target).suffix else make_folder
    return kind(name, target, options, group_size=group_size, mask=mask)


def make_lines(name: str, target: str, options: dict[str, str], *, group_size: int, mask: LossMask) -> Sink:
    """Return the sink `jsonl`."""
    check_keys(name, options, ("format",))
    return LinesSink(name, Path(target), options.get("format", NATIVE), mask)


def make_folder(name: str, target: str, options: dict[str, str], *, group_size: int, mask: LossMask) -> Sink:
    """Return the sink `parquet`."""
    check_keys(name, options, ("format",))
    return FolderSink(name, Path(target), options.get("format", NATIVE), mask)
