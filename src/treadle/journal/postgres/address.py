"""The address of a PostgreSQL journal, and the opener of `postgres:` and `postgresql:`.

No message contains the address's password. This module is imported where psycopg may be missing.
"""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from treadle.core.errors import ConfigError
from treadle.core.masking import MASK, Mask
from treadle.core.registry import require
from treadle.journal.protocol import StoreOptions

if TYPE_CHECKING:
    from treadle.journal.postgres.postgres_journal import PostgresJournal


class Address:
    """The parts of a URL such as `postgres://user@host/database`. Its `repr` has no password."""

    def __init__(self, url: str) -> None:
        """Parse a URL. Raises: `ConfigError`, which does not contain the URL."""
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict

        self.url = url
        """The URL with the password, if it has one."""
        try:
            self.options = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        except Error:
            # The error of the library quotes parts of the URL.
            raise ConfigError(
                "the address of the journal is not a valid URL; write postgres://USER@HOST:PORT/DATABASE, with "
                "special characters as %XX, and the password in PGPASSWORD or ~/.pgpass"
            ) from None
        secrets = [self.options.get("password"), self.options.get("sslpassword"), _password_in(url)]
        self._secrets = [secret for secret in secrets if secret]
        self._mask = Mask(self._secrets)
        user, host, port = (self.options.get(name, "") for name in ("user", "host", "port"))
        place = f"{user}@{host}" if user else host
        self.name = self.hide(
            f"postgres://{place}{f':{port}' if port else ''}/{self.options.get('dbname', '')}"
        )
        """The address for messages: without password and settings."""

    def __repr__(self) -> str:
        return f"Address({self.name!r})"

    def hide(self, text: str) -> str:
        """Return `text` without the passwords."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return self._mask.hide_pieces(text)


def _password_in(url: str) -> str | None:
    """Return the password of a URL that libpq would read differently, because the password is not escaped."""
    try:
        return urlsplit(url).password
    except ValueError:
        return None


def open_store(address: str, options: StoreOptions) -> "PostgresJournal":
    """Open the journal in the database at `address`, a URL without its scheme.

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
