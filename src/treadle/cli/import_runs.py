"""What `treadle import` does."""

import sys
from collections.abc import Sequence
from pathlib import Path

from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import print_note
from treadle.cli.terminal.setup import read_started, recorded_options
from treadle.core.errors import ConfigError, JournalError
from treadle.journal.jsonl import import_lines
from treadle.journal.protocol import Journal
from treadle.tools.resolve import TOOLSETS


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


def warn_of_options(journal: Journal, run_ids: Sequence[str]) -> None:
    """Say which servers and tools the runs name, as resuming them would send a key there and run those."""
    named: set[str] = set()
    for run_id in run_ids:
        options = recorded_options(read_started(journal, run_id))
        named.update(item for item in (options.base_url, *options.tools) if item and item not in TOOLSETS)
    if named:
        print_note(
            f"these runs name {', '.join(sorted(named))}; look at that before you resume them, or resume with "
            "--base-url and --tools of yours"
        )
