"""The ledger of a plan: its work items and the outcome of each attempt, in one SQLite file.

An outcome is counted when its transaction is committed. Lines that belong to outcomes, such as the rows of a
dataset, are appended to their files before that, and the transaction records where they end. When a ledger is
opened, its files are cut after the last counted line, so that they hold exactly the counted lines, whenever the
process was killed.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, JournalError
from treadle.core.types import Json
from treadle.journal.named_files import suggest_path

if TYPE_CHECKING:
    import sqlite3


class ItemStatus(StrEnum):
    """The status of an item, and of an attempt at it."""

    OPEN = "open"
    """The item is planned, and not decided yet. An attempt never has this status."""
    KEPT = "kept"
    REJECTED = "rejected"
    FAILED = "failed"
    """Failed because of the infrastructure and not because of the item."""


class PlannedItem(Struct, frozen=True):
    """One planned piece of work."""

    number: int
    """The position in the plan, from 1. Items beside the plan have negative numbers; they are not counted."""
    label: str
    """The name under which the item is counted, such as the planned kind of tool use."""
    share: str
    """The part of the plan that the item belongs to, such as its topic."""
    spec: Json
    """The plan of the item."""
    attempts: int = 0
    """How many attempts were decided. A failed attempt is made again under the same number."""
    feedback: tuple[str, ...] = ()
    """Why the newest decided attempt was rejected."""


class ItemOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one attempt at an item."""

    status: ItemStatus
    label: str = ""
    """The name under which a kept item is counted; it may differ from the label of the plan."""
    reasons: tuple[str, ...] = ()
    """Why the attempt was rejected or failed, each as `name: text`."""
    is_final: bool = True
    """True if the item is decided; false if it is attempted again."""
    details: Json = None
    """Further facts for readers of the ledger."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """The cost in US dollars; `None` if a price is unknown."""
    file: str | None = None
    """The file that `line` is appended to; `None` if there is none."""
    line: bytes = b""
    """The line, with its newline."""


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """One attempt that the ledger has recorded."""

    number: int
    attempt: int
    status: str
    label: str
    reasons: tuple[str, ...]
    details: Json
    spec: Json
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    at: float
    """When the outcome was counted, in seconds since the epoch."""


class ItemUse(Struct, frozen=True):
    """The tokens and the cost that the attempts at one item have used."""

    input_tokens: int
    output_tokens: int
    cost_usd: float


class JobCounts(Struct):
    """The totals of a ledger."""

    kept: int = 0
    rejected: int = 0
    failed: int = 0
    planned: int = 0
    """How many items the plan has."""
    labels: dict[str, int] = {}
    """The number of kept items by label."""
    shares: dict[str, int] = {}
    """The number of items by share, without the rejected ones."""
    reasons: dict[str, int] = {}
    """The number of rejected attempts by the name of the first reason."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """The cost in US dollars; `None` if the cost of an attempt is unknown."""


class Ledger:
    """The ledger of one plan. One process at a time may open it for writing."""

    def __init__(
        self, path: Path, files: Mapping[str, Path] | None = None, *, is_readonly: bool = False
    ) -> None:
        """Open the ledger at `path`, and its files by name. A ledger that does not exist is made.

        Raises: `ConfigError` if another process has it open for writing, or if it does not exist and
        `is_readonly`; `JournalError` if it cannot be read, or if a file has lost counted lines.
        """
        self.path = path
        self._lock: sqlite3.Connection | None = None
        self._files: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        """Where the last counted line of each file ends."""
        if is_readonly and not path.exists():
            hint = suggest_path(path, "the job has not begun; run its command first")
            raise ConfigError(f"there is no ledger {str(path)!r}{hint}")
        if not is_readonly:
            self._lock = lock(path)
        try:
            self.connection = connect(path, is_readonly=is_readonly)
            self.open_files(files or {})
        except BaseException:
            self.close()
            raise

    def open_files(self, files: Mapping[str, Path]) -> None:
        """Open files for the lines that belong to outcomes, by name, and cut them after the last counted line.

        Raises: `JournalError` if a file has lost counted lines.
        """
        for name, place in files.items():
            self._files[name] = self._open_file(name, place)

    def get(self, name: str) -> str | None:
        """Return a stored fact about the plan; `None` if the ledger does not have it."""
        found = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def set(self, name: str, value: str) -> None:
        """Store a fact about the plan."""
        self.keep({name: value})

    def keep(self, facts: Mapping[str, str]) -> None:
        """Store facts about the plan by name."""
        with self._transaction():
            self._set(facts)

    def plan(self, item: PlannedItem) -> None:
        with self._transaction():
            self.connection.execute(
                "INSERT INTO items VALUES (?, 'open', ?, ?, ?)",
                (item.number, item.label, item.share, msgspec.json.encode(item.spec)),
            )

    def drop_plan(self) -> bool:
        """Forget the plan and all facts about it, unless an item was attempted; return whether it did."""
        with self._transaction():
            if self.connection.execute("SELECT count(*) FROM attempts").fetchone()[0]:
                return False
            self.connection.execute("DELETE FROM items")
            self.connection.execute("DELETE FROM meta WHERE name != 'version'")
        return True

    def count(
        self,
        number: int,
        attempt: int,
        settle: "Callable[[sqlite3.Connection], ItemOutcome]",
        facts: Mapping[str, str] = {},
    ) -> ItemOutcome:
        """Count the outcome of an attempt that `settle` returns, and append its line.

        `settle` may read and write its own tables on the connection; what it writes is part of the transaction.
        `facts` are stored too; see `keep`. Raises: `JournalError` if the ledger or a file cannot be
        written.
        """
        try:
            with self._transaction():
                outcome = settle(self.connection)
                end = None if outcome.file is None else self._append(outcome.file, outcome.line)
                self._insert(number, attempt, outcome, end)
                self._set(facts)
        except BaseException:
            self._cut()
            raise
        if outcome.file is not None and end is not None:
            self._ends[outcome.file] = end
        return outcome

    def _insert(self, number: int, attempt: int, outcome: ItemOutcome, end: int | None) -> None:
        self.connection.execute(
            "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number,
                attempt,
                outcome.status.value,
                outcome.label,
                outcome.reasons[0].partition(":")[0] if outcome.reasons else "",
                outcome.input_tokens,
                outcome.output_tokens,
                outcome.cost_usd,
                outcome.file,
                end,
                time.time(),
                msgspec.json.encode({"reasons": outcome.reasons, "details": outcome.details}),
            ),
        )
        if outcome.is_final:
            self.connection.execute(
                "UPDATE items SET status = ? WHERE number = ?", (outcome.status.value, number)
            )

    def reopen(self, *statuses: ItemStatus, is_forgotten: bool = False) -> int:
        """Reopen the items with these statuses, and return their number. If `is_forgotten`, their attempts are
        deleted, and counted again."""
        marks = ", ".join("?" * len(statuses))
        with self._transaction():
            if is_forgotten:
                self.connection.execute(
                    f"DELETE FROM attempts WHERE number IN (SELECT number FROM items WHERE status IN ({marks}))",
                    [status.value for status in statuses],
                )
            cursor = self.connection.execute(
                f"UPDATE items SET status = 'open' WHERE status IN ({marks})",
                [status.value for status in statuses],
            )
        return cursor.rowcount

    def renew(self, status: ItemStatus, change: Callable[[Json], Json]) -> None:
        """Reopen the items with a status, each with the spec that `change` returns for its spec."""
        chosen = "SELECT number, spec FROM items WHERE status = ?"
        with self._transaction():
            for number, spec in self.connection.execute(chosen, (status.value,)).fetchall():
                changed = msgspec.json.encode(change(msgspec.json.decode(spec)))
                self.connection.execute(
                    "UPDATE items SET status = 'open', spec = ? WHERE number = ?", (changed, number)
                )

    def open_items(self) -> list[PlannedItem]:
        """Return the items that are not decided, in order, with those beside the plan."""
        found = self.connection.execute(
            "SELECT number, label, share, spec FROM items WHERE status = 'open' ORDER BY number"
        ).fetchall()
        return [self._with_attempts(*row) for row in found]

    def _with_attempts(self, number: int, label: str, share: str, spec: bytes) -> PlannedItem:
        # A failed attempt has no outcome of its own, so it is made again under the same number.
        row = self.connection.execute(
            "SELECT attempt, outcome FROM attempts WHERE number = ? AND status != 'failed' "
            "ORDER BY attempt DESC LIMIT 1",
            (number,),
        ).fetchone()
        if row is None:
            return PlannedItem(number, label, share, msgspec.json.decode(spec))
        feedback = tuple(msgspec.json.decode(row[1])["reasons"])
        return PlannedItem(number, label, share, msgspec.json.decode(spec), row[0], feedback)

    def entries(self, status: ItemStatus | None = None, *, is_beside: bool = False) -> Iterator[LedgerEntry]:
        """Yield the attempts with `status`, or all, in order of number and attempt: those at items of the plan, or,
        if `is_beside`, those at items beside it."""
        condition = "WHERE number < 0" if is_beside else "WHERE number > 0"
        condition += "" if status is None else " AND attempts.status = ?"
        cursor = self.connection.cursor()
        cursor.execute(
            "SELECT number, attempt, attempts.status, attempts.label, input_tokens, output_tokens, cost_usd, at, "
            f"outcome, spec FROM attempts JOIN items USING (number) {condition} ORDER BY number, attempt",
            () if status is None else (status.value,),
        )
        for number, attempt, kind, label, tokens_in, tokens_out, cost, at, outcome, spec in cursor:
            known = msgspec.json.decode(outcome)
            yield LedgerEntry(
                number=number,
                attempt=attempt,
                status=kind,
                label=label,
                reasons=tuple(known["reasons"]),
                details=known["details"],
                spec=msgspec.json.decode(spec),
                input_tokens=tokens_in,
                output_tokens=tokens_out,
                cost_usd=cost,
                at=at,
            )

    def counts(self) -> JobCounts:
        """Return the totals of all attempts. An item that failed counts once, by its newest attempt. Of items
        beside the plan, only the tokens and the cost count."""
        ask = self.connection.execute
        counts = JobCounts(labels={}, shares={}, reasons={})
        for status, number in ask("SELECT status, count(*) FROM items WHERE number > 0 GROUP BY status"):
            counts.planned += number
            if status in (ItemStatus.KEPT, ItemStatus.FAILED):
                setattr(counts, status, number)
        for status, number, tokens_in, tokens_out, unknown, cost in ask(
            "SELECT status, count(*), sum(input_tokens), sum(output_tokens), sum(cost_usd IS NULL), "
            "total(cost_usd) FROM attempts GROUP BY status"
        ):
            counts.input_tokens += tokens_in
            counts.output_tokens += tokens_out
            if unknown:
                counts.cost_usd = None
            elif counts.cost_usd is not None:
                counts.cost_usd += cost
            if status == ItemStatus.REJECTED:
                counts.rejected = number
        planned = "number > 0 AND"
        counts.labels = dict(
            ask(f"SELECT label, count(*) FROM attempts WHERE {planned} status = 'kept' GROUP BY label")
        )
        counts.shares = dict(
            ask(f"SELECT share, count(*) FROM items WHERE {planned} status != 'rejected' GROUP BY share")
        )
        counts.reasons = dict(
            ask("SELECT reason, count(*) FROM attempts WHERE status = 'rejected' GROUP BY reason")
        )
        return counts

    def spent(self, number: int) -> ItemUse:
        """Return the sums over the attempts at one item."""
        found = self.connection.execute(
            "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), total(cost_usd) "
            "FROM attempts WHERE number = ?",
            (number,),
        ).fetchone()
        return ItemUse(*found)

    @property
    def last_number(self) -> int:
        """The number of the last item of the plan; 0 if there is none."""
        return self._find_number("max")

    @property
    def last_beside(self) -> int:
        """The number of the newest item beside the plan; 0 if there is none."""
        return self._find_number("min")

    def _find_number(self, which: str) -> int:
        return int(
            self.connection.execute(
                f"SELECT {which}(number) FROM (SELECT 0 AS number UNION ALL SELECT number FROM items)"
            ).fetchone()[0]
        )

    def close(self) -> None:
        """Close the ledger and its files, and let other processes open it."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        if hasattr(self, "connection"):
            self.connection.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the ledger. Raises: `JournalError` if the block ended because the ledger is damaged."""
        import sqlite3

        self.close()
        if isinstance(error, sqlite3.DatabaseError):
            raise JournalError(f"cannot read the ledger {str(self.path)!r}: {error}") from error

    def _set(self, facts: Mapping[str, str]) -> None:
        self.connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts.items())

    def _transaction(self) -> contextlib.AbstractContextManager[None]:
        return transaction(self.connection, f"the ledger {str(self.path)!r}")

    def _open_file(self, name: str, path: Path) -> int:
        end = (
            self.connection.execute("SELECT max(end) FROM attempts WHERE file = ?", (name,)).fetchone()[0]
            or 0
        )
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            try:
                self._check_file(path, file, end)
                os.ftruncate(file, end)
            except BaseException:
                os.close(file)
                raise
        except OSError as error:
            raise JournalError(f"cannot write {str(path)!r}: {error.strerror}") from error
        self._ends[name] = end
        return file

    def _check_file(self, path: Path, file: int, end: int) -> None:
        """Raise an error if a file is not what was counted. After a crash, at most one line more is there."""
        size = os.fstat(file).st_size
        if size < end:
            raise JournalError(
                f"{str(path)!r} has {size:,} bytes, but its counted lines end at {end:,}: lines are missing. "
                "Put the file back"
            )
        with os.fdopen(os.dup(file), "rb") as opened:
            opened.seek(max(0, end - 1))
            is_whole = end == 0 or opened.read(1) == b"\n"
            more = len(opened.readline()) < size - end
        if not is_whole:
            raise JournalError(f"{str(path)!r} was changed after its lines were counted. Put the file back")
        if more or (size and not self.last_number):
            raise JournalError(
                f"{str(path)!r} has lines that were not counted by {str(self.path)!r}. Put the ledger back, or "
                "move the file to another folder"
            )

    def _append(self, name: str, line: bytes) -> int:
        """Write a line after the last counted one, and return where it ends."""
        file, start = self._files[name], self._ends[name]
        try:
            os.lseek(file, start, os.SEEK_SET)
            written = 0
            while written < len(line):
                written += os.write(file, line[written:])
        except OSError as error:
            raise JournalError(
                f"cannot write the {name} of {str(self.path.parent)!r}: {error.strerror}"
            ) from error
        return start + len(line)

    def _cut(self) -> None:
        """Remove everything after the counted lines. If that fails, it is done when the ledger is opened next."""
        for name, file in self._files.items():
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._ends[name])


_VERSION = "1"


@contextlib.contextmanager
def transaction(connection: "sqlite3.Connection", what: str) -> Iterator[None]:
    """Commit what the `with` block writes, or nothing of it. Raises: `JournalError` that says `what` cannot be
    written."""
    import sqlite3  # takes 5 ms

    from treadle.journal.sqlite import sqlite_layout

    try:
        with sqlite_layout.transaction(connection):
            yield
    except sqlite3.Error as error:
        hint = "; make room on the disk, and run the same command again" if "full" in str(error) else ""
        raise JournalError(f"cannot write {what}: {error}{hint}") from error


def lock(path: Path) -> "sqlite3.Connection":
    """Return a connection that holds the right to write the ledger; the right ends with the process."""
    import sqlite3

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = sqlite3.connect(path.with_suffix(".lock"), timeout=0, isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
    except OSError as error:
        raise ConfigError(f"cannot make the folder {str(path.parent)!r}: {error.strerror}") from error
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise ConfigError(
                f"another process works on {str(path.parent)!r}; wait until it has ended, or use another folder"
            ) from error
        raise JournalError(f"cannot write in {str(path.parent)!r}: {error}") from error
    return held


def connect(path: Path, *, is_readonly: bool) -> "sqlite3.Connection":
    """Return a connection to the database of the ledger at `path`, which is created if it is missing."""
    import sqlite3

    from treadle.journal.sqlite.sqlite_layout import connect_to_read

    try:
        if is_readonly:
            return connect_to_read(path)
        connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(Path(__file__).with_name("ledger.sql").read_text("utf-8"))
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", (_VERSION,))
        found = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()[0]
    except sqlite3.Error as error:
        raise JournalError(f"cannot open the ledger {str(path)!r}: {error}") from error
    if found != _VERSION:
        raise JournalError(
            f"the ledger {str(path)!r} has the layout {found!r}; use the Treadle that wrote it"
        )
    return connection
