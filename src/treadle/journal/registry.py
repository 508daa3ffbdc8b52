"""`open_journal`: a journal from a path."""

from pathlib import Path

from treadle.core.errors import ConfigError, JournalError
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal

DEFAULT_PATH = ".treadle/runs.db"
"""Where runs are kept unless told otherwise, relative to the working directory."""


def open_journal(
    path: str | Path | None = None,
    level: str = "process",
    *,
    must_exist: bool = False,
    lease_seconds: float = 10.0,
) -> Journal:
    """The journal at `path`, made if it is not there; `"memory:"` is one in memory, `None` the default file.

    `level` says what a kept event survives: `process` kill -9, `power` a loss of power. A process that is
    not heard of for `lease_seconds` loses its runs.

    Raises: `ConfigError` for an unknown level; `JournalError` for a file that is not there though it must,
    of another program, of a newer Treadle, or that cannot be opened.
    """
    if path == "memory:":
        if level not in ("memory", "process"):
            raise ConfigError(f"a journal in memory keeps nothing at level {level!r}; give a file's path")
        return MemoryJournal()
    from treadle.journal.sqlite.journal import SqliteJournal

    file = Path(path if path is not None else DEFAULT_PATH)
    if must_exist and not file.exists():
        raise JournalError(f"there is no journal at {str(file)!r}; give another path, or run something first")
    if path is None:
        file.parent.mkdir(exist_ok=True)
    return SqliteJournal(file, level, lease_seconds)
