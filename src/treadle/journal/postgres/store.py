"""The opener of `postgres:` and `postgresql:`."""

from typing import TYPE_CHECKING

from treadle.core.registry import require
from treadle.journal.protocol import StoreOptions

if TYPE_CHECKING:
    from treadle.journal.postgres.journal import PostgresJournal


def open_store(address: str, options: StoreOptions) -> "PostgresJournal":
    """Open the journal in the database at `address`, a URL without its scheme.

    Raises: `ConfigError` for a URL that is not valid, or if psycopg is not installed; `JournalError`.
    """
    require("psycopg", "postgres")
    from treadle.journal.postgres.journal import PostgresJournal

    return PostgresJournal(
        f"postgresql:{address}",
        options.level,
        options.lease_seconds,
        options.clock,
        must_exist=options.must_exist,
    )
