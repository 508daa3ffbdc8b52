"""The address of a PostgreSQL journal, and a connection that is made again when it is lost.

Work that was under way when the connection was lost is done again. The caller makes sure that doing it twice
changes nothing, because it is not known whether the server has committed it the first time.

No message contains the address's password.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import Connection, Error, errors
from psycopg.conninfo import conninfo_to_dict

from treadle.core.errors import ConfigError, JournalError
from treadle.core.texts.masking import MASK, Mask
from treadle.journal.postgres.arrays import adapt

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""How long to try to reach a server that was there before."""
_CONNECT_SECONDS = 10
_SILENCE = "keepalives_idle"
_SILENT_SECONDS = 10
"""After this time without an answer, the system asks whether the server's machine is still there, and the
connection whether the server is: a statement may take any time, and a server that was stopped never answers."""
_TRIES = 5
"""How often work is repeated that the server ended because of other clients."""

CHANNEL = "treadle"
"""The channel of NOTIFY that says that something was committed."""
QUEUE_CHANNEL = "treadle_queue"
"""The channel of NOTIFY that says that a run may have come to wait in a queue."""
MAIL_CHANNEL = "treadle_inbox"
"""The channel of NOTIFY for messages to runs: number, tag and run id, or nothing if that is too long."""
LISTENERS_CHANNEL = "treadle_listeners"
"""The channel of NOTIFY on which processes name the runs whose output they want."""
OUTPUT_CHANNEL = "treadle_output"
"""The channel of NOTIFY for output of runs that others listen to."""
NOTICE_BYTES = 7999
"""The longest notification that PostgreSQL takes."""
NOTIFY = f"SELECT pg_notify('{CHANNEL}', '')".encode()
NOTIFY_QUEUES = f"SELECT pg_notify('{CHANNEL}', ''), pg_notify('{QUEUE_CHANNEL}', '')".encode()
LEVELS = {"process": "local", "power": "on"}
"""The values of PostgreSQL's `synchronous_commit`, by the journal's level."""
_SETTINGS = """
    SET search_path = treadle;
    SET default_transaction_isolation = 'read committed';
    SET jit = off;
    SET plan_cache_mode = force_generic_plan;
    SET statement_timeout = 0;
    SET idle_in_transaction_session_timeout = '60s';
    SELECT set_config(
        'synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE '{}' END,
        false
    )
"""
WRITING = """
    SET enable_seqscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
"""
"""Settings of the connection that writes. Its statements have indexes for all that they look up, and are planned
once, perhaps while the tables are still empty and a scan of all rows seems to be the best."""
_AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)
_LOST = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.ReadOnlySqlTransaction)
"""Errors after which another connection may work. A server that became a standby refuses to write."""

_log = logging.getLogger("treadle.journal")


class Address:
    """The parts of a URL such as `postgres://user@host/database`. Its `repr` has no password."""

    def __init__(self, url: str) -> None:
        """Parse a URL. Raises: `ConfigError`, which does not contain the URL."""
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


class WatchedConnection(Connection[tuple[Any, ...]]):
    """A connection that does not wait for ever if the server has stopped answering everybody."""

    address: Address
    limits: dict[str, Any]
    """The options of the connection, for the question whether the server is still there."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Run what psycopg does on the connection. Raises: `psycopg.OperationalError` if the server is away."""
        return super().wait(self._watch(gen), *args, **options)

    def _watch(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > float({**self.limits, **self.address.options}[_SILENCE]):
                    self._ask_server()
                    heard_at = time.monotonic()
                wanted = gen.send(ready)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _ask_server(self) -> None:
        """Close this connection and raise an error if the server does not answer another one either."""
        try:
            psycopg.connect(self.address.url, **self.limits).close()
        except Error as error:
            if "FATAL" in str(error):  # the server refuses another connection, so it is there
                return
            self.pgconn.finish()
            raise psycopg.OperationalError(f"the server has stopped answering: {error}") from error


Db = WatchedConnection


def refuse_pooler(link: "Link") -> None:
    """Check that no pooler gives the link's connection to others after each transaction. Raises: `JournalError`.

    Behind a pooler the server's process is not the one that the connection was told when it was made. If another
    connection gets that process while this one is open, the pooler is in transaction mode.
    """
    db = link.connect()
    if _process_of(db) == db.pgconn.backend_pid:
        return
    with closing(psycopg.connect(link.address.url, autocommit=True, **db.limits)) as other:
        if not any([_is_shared(db, other) for _ in range(3)]):
            return
    raise JournalError(_POOLED_TEXT.format(name=link.address.name, mode="transaction"))


def _is_shared(db: Connection[Any], other: Connection[Any]) -> bool:
    """Return whether a connection loses its process to another one that has a transaction."""
    own = _process_of(db)
    with other.transaction():
        return own == _process_of(other) or own != _process_of(db)


def _process_of(db: Connection[Any]) -> int:
    row = db.execute("SELECT pg_backend_pid()").fetchone()
    return 0 if row is None else int(row[0])


class Link:
    """One connection. Its user lets only one thread call it at a time."""

    def __init__(
        self, address: Address, level: str, settings: str = "", *, was_connected: bool = False
    ) -> None:
        self.address = address
        self._settings = settings
        self.level = level
        self.db: Db | None = None
        """The connection; `None` until it is needed, and after it was lost."""
        self.is_closing = threading.Event()
        """Set when the journal is being closed, after which nothing waits for the server."""
        self._was_connected = was_connected
        """True if the server was reached before. Then it is worth waiting for."""

    def connect(self) -> Db:
        """Return the connection, and make it first if necessary. Raises: `psycopg.Error`."""
        if self.db is None:
            options: dict[str, Any] = {
                "connect_timeout": _CONNECT_SECONDS,
                _SILENCE: _SILENT_SECONDS,
                "keepalives_interval": _SILENT_SECONDS // 2,
                "keepalives_count": 3,
                "tcp_user_timeout": int(PATIENCE_SECONDS * 1000),
                "fallback_application_name": "treadle",
            }
            options = {name: value for name, value in options.items() if name not in self.address.options}
            url = self.address.url
            db = WatchedConnection.connect(url, autocommit=True, client_encoding="utf8", **options)
            db.address, db.limits = self.address, options
            try:
                adapt(db)
                db.execute((self._settings + _SETTINGS.format(LEVELS[self.level])).encode())
            except BaseException:
                db.close()
                raise
            self.db, self._was_connected = db, True
        return self.db

    def run(self, work: Callable[[Db], T]) -> T:
        """Return what `work` returns. If the connection is lost, connect again and do the work again.

        Raises: `JournalError` if the server cannot be reached for `PATIENCE_SECONDS`, or refuses the work. There is
        no waiting for a server that was not reached before, unless it is starting.
        """
        give_up_at, pause_seconds, tries = None, 0.01, 0
        while True:
            try:
                return work(self.connect())
            except psycopg.Error as error:
                tries += 1
                is_lost = self.db is None or self.db.closed or isinstance(error, _LOST)
                if not is_lost and not (isinstance(error, _AGAIN) and tries < _TRIES):
                    raise self.explain(error) from error
                if is_lost:
                    self.close()
                failure = self.explain(error, _LOST_TEXT)
                now = time.monotonic()
                if give_up_at is None:
                    give_up_at = now + PATIENCE_SECONDS
                    _log.info("the connection to the journal %r was lost; trying again", self.address.name)
                can_wait = self._was_connected or "the database system is" in str(error)
                if now > give_up_at or not can_wait or (self.is_closing.is_set() and tries > _TRIES):
                    raise failure from None
            time.sleep(pause_seconds)
            pause_seconds = min(0.5, pause_seconds * 2)

    def explain(self, error: psycopg.Error, text: str | None = None) -> JournalError:
        """Return a `JournalError` that says what failed and what to do, without the password.

        `text` is used for an error that no message of its own explains.
        """
        found = _advise(error, text or "the journal {name!r} failed: {text}")
        told = self.address.hide(" ".join(str(error).split()))
        return JournalError(found.format(name=self.address.name, text=told, mode="statement"))

    def close(self) -> None:
        if self.db is not None:
            self.db.close()
            self.db = None


def _advise(error: psycopg.Error, other: str) -> str:
    for kinds, text in _MESSAGES:
        if isinstance(error, kinds):
            return text
    # These are errors of PgBouncer, which gives all of them the same code.
    if "statement pooling mode" in str(error):
        return _POOLED_TEXT
    return _NARROW_TEXT if "query_wait_timeout" in str(error) else other


_LOST_TEXT = "the journal {name!r} cannot be reached ({text}); check that the server runs, and the address"
_POOLED_TEXT = (
    "{name!r} is a pooler in {mode} mode (as PgBouncer's pool_mode={mode}), which loses the settings, locks and "
    "notifications of a connection; give the address of the server itself, or of a pool in session mode"
)
_NARROW_TEXT = (
    "the pooler at {name!r} has no free connection to the server ({text}); each process that opens the journal "
    "takes up to three, so make its pool larger (PgBouncer's default_pool_size)"
)
_MESSAGES: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (
        (errors.DiskFull, errors.IoError),
        "the journal {name!r} cannot be written ({text}): is the server's disk full? What was stored before is "
        "safe; free disk space, then resume the run, or give the same command again",
    ),
    (
        (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction),
        "the journal {name!r} cannot be written ({text}); check the rights of the user, and whether the server is "
        "a standby",
    ),
    (
        (errors.DataCorrupted, errors.IndexCorrupted),
        "the journal {name!r} is damaged ({text}); see with `treadle check` what can still be read",
    ),
)
"""The texts for users, by the errors of PostgreSQL; the first that fits is used."""
