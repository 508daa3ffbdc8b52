"""Files that appear only when they are complete."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from treadle.core.errors import ConfigError, ExportError


@contextmanager
def whole_file(out: Path) -> Iterator[BinaryIO]:
    """Open a file to be written, which appears as `out` at the end of the block, or not at all if the block fails.

    Raises: `ConfigError` if no file can be made at `out`; `ExportError` if it cannot be written completely.
    """
    if out.is_dir() or out.name in ("", ".."):
        raise ConfigError(f"cannot write {str(out)!r}: it is a folder; name a file in it")
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        file = part.open("wb")
    except FileNotFoundError as error:
        raise ConfigError(
            f"cannot write {str(out)!r}: there is no folder {str(out.parent)!r}; make it first"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error.strerror}") from error
    try:
        try:
            with file:
                yield file
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write {str(out)!r}: {error.strerror}") from error


def write_whole(lines: Iterable[bytes], out: Path) -> int:
    """Write lines to a file that appears only when it is complete, and return their number.

    Raises: as `whole_file` does.
    """
    count = 0
    with whole_file(out) as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
    return count
