"""What `treadle import` does."""

import sys
from pathlib import Path

from treadle.cli.execute import execute
from treadle.core.errors import ConfigError, JournalError
from treadle.journal.jsonl import import_lines
from treadle.journal.protocol import Journal


def import_file(journal: Journal, path: str) -> list[str]:
    """Keep the runs of an exported journal; their ids.

    Raises: `ConfigError` if the file cannot be read; `JournalError` for what it holds.
    """
    try:
        if path == "-":
            return execute(import_lines(journal, sys.stdin.buffer))
        with Path(path).open("rb") as file:
            return execute(import_lines(journal, file))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ConfigError(f"cannot read {path!r}: {error}") from error
    except JournalError as error:
        raise type(error)(f"{path}: {error}") from error
