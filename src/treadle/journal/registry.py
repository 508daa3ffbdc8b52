"""The function `open_journal`, and the stores that it can open, by the scheme of an address."""

import time
from collections.abc import Callable
from pathlib import Path

from treadle.core.errors import ConfigError, JournalError
from treadle.core.registry import Registry, require
from treadle.journal.identity import belongs_to_user
from treadle.journal.protocol import Clock, Journal, StoreOptions

DEFAULT_PATH = ".treadle/runs.db"
"""The default file for runs, relative to the working directory."""

STORES: Registry[Callable[[str, StoreOptions], Journal]] = Registry(
    "store",
    "treadle.journal",
    {
        "sqlite": "treadle.journal.sqlite.sqlite_journal:open_store",
        "memory": "treadle.journal.memory:open_store",
        "postgres": "treadle.journal.registry:open_postgres",
        "postgresql": "treadle.journal.registry:open_postgres",
    },
)
"""The functions that open a store, by scheme. They are called with the text after the scheme, `//` included."""


def open_journal(
    path: str | Path | None = None,
    level: str = "process",
    *,
    must_exist: bool = False,
    lease_seconds: float = 10.0,
    clock: Clock = time,
    packs: bool = False,
) -> Journal:
    """Open the journal at `path`, and create it and the folder of its file if they do not exist.

    `path` is a file's path, `"memory:"` for a journal in memory, or the address of another registered store, such
    as `scheme://host/name`. `None` stands for the default file. `level` says what a stored event survives: at
    `process` kill -9, at `power` also a power loss. A file keeps the strongest level that it was opened with. If
    this process sends no heartbeat for `lease_seconds`, other processes may take its runs over. With `packs`, a
    file keeps events compressed with a dictionary that is made from the first ones, for many runs that have much in
    common; every later writer of the file uses it.

    Raises: `ConfigError` for an unknown store or level; `JournalError` for a file that does not exist although it
    must, that belongs to another program or a newer Treadle, or that cannot be opened.
    """
    if path is not None and not isinstance(path, str | Path):
        raise ConfigError(f"the journal's path is {path!r:.200}; give a str or a Path")
    if not isinstance(lease_seconds, int | float) or isinstance(lease_seconds, bool) or not lease_seconds > 0:
        raise ConfigError(f"lease_seconds is {lease_seconds!r:.200}; give a number above 0")
    options = StoreOptions(
        level=level, must_exist=must_exist, lease_seconds=lease_seconds, clock=clock, packs=packs
    )
    if path is None:
        path = Path(DEFAULT_PATH)
        for place in (path.parent, path):
            if place.exists() and not belongs_to_user(place):
                raise JournalError(
                    f"the journal {str(path)!r} belongs to another user; if you want to use it, name it"
                )
    scheme, address = _split(path)
    if scheme == "sqlite" and not must_exist:
        make_folder(Path(address).parent)
    return STORES.load(scheme)(address, options)


def make_folder(folder: Path) -> None:
    """Make the folder of a journal. Only its owner can read a folder `.treadle`, and git ignores it.

    Raises: `JournalError`.
    """
    if folder.is_dir():
        return
    is_private = folder.name == Path(DEFAULT_PATH).parent.name
    try:
        folder.mkdir(0o700 if is_private else 0o777, parents=True, exist_ok=True)
        if is_private:
            (folder / ".gitignore").write_text("*\n")
    except OSError as error:
        raise JournalError(
            f"cannot make the folder {str(folder)!r} of the journal: {error.strerror}; give another path"
        ) from error


def open_postgres(address: str, options: StoreOptions) -> Journal:
    """Open the journal in the PostgreSQL database at `address`, a URL without its scheme.

    Raises: `ConfigError` for a URL that is not valid, or if psycopg is not installed; `JournalError`.
    """
    require("psycopg", "postgres")
    from treadle.journal.postgres.postgres_journal import PostgresJournal

    return PostgresJournal(
        f"postgresql:{address}",
        options.level,
        options.lease_seconds,
        options.clock,
        must_exist=options.must_exist,
    )


def _split(path: str | Path) -> tuple[str, str]:
    """Return scheme and address: `memory:` and `scheme://...` have a scheme, all else is a file's path."""
    scheme, colon, rest = str(path).partition(":")
    if isinstance(path, Path) or not colon or (rest and not rest.startswith("//")) or "/" in scheme:
        return "sqlite", str(path)
    return scheme, rest
