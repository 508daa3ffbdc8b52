"""Reading from the tables: events, contents, listings, and the facts that the deletion of a run needs.

Everything here blocks and may be called in any thread. The SQL here has `?` for values, and every store understands
it. Each store adds its own parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import JournalError, RunNotFoundError
from treadle.core.inbox import Posted
from treadle.core.turns import RESUME
from treadle.http.locks import new_lock
from treadle.journal.deletion import digests_in, find_unused
from treadle.journal.follow import Page
from treadle.journal.run_info import CALLER, DAMAGED, EQUAL_FIELDS, RunFilter, RunInfo, RunOrder
from treadle.journal.tables.leases import Leases
from treadle.journal.tables.table_rows import (
    COLUMNS,
    Head,
    Query,
    check_frame,
    damaged,
    decode_frame,
    explain_closed,
    info_from,
    read_head,
    read_letter,
    seed_of,
)

_FIGURES = {
    RunOrder.DURATION: "coalesce(coalesce(runs.ended_at, heads.updated_at) - runs.created_at, 0)",
    RunOrder.COST: "coalesce(heads.cost_usd, -1)",
    RunOrder.TOKENS: "coalesce(heads.input_tokens + heads.output_tokens, 0)",
}
"""The SQL of the figures that a list is sorted by; see `RunOrder.key_of`."""


class TableReader(ABC):
    """The reading half of an open journal. See `Journal` and `Source`."""

    faults: tuple[tuple[str, str], ...]
    """Queries for what is wrong in the store, besides `_FAULTS`, and what their rows mean."""
    newest_frame: str
    """The SQL condition that a row of `frames` is the newest one of its row of `heads`."""
    frame_key: tuple[str, ...]
    """The columns that identify a row of `frames` and give the rows an order."""
    unknown = "heads.events IS NULL"
    """The SQL condition that the facts in a row of `heads` are unknown."""

    def __init__(self, name: str, leases: Leases) -> None:
        self._name = name
        self._leases = leases
        self.lock = new_lock(is_awaited=True)
        """Held by the thread that uses the connection."""
        self._is_closed = False

    @abstractmethod
    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT. Raises: `JournalError`."""

    def unpack(self, query: Query, body: Any) -> bytes:
        """Return the JSON lines of a frame to search in, or the stored bytes if the frame is damaged."""
        return bytes(body)

    def unpacked(self, query: Query, run_id: str, first_seq: int, body: object) -> object:
        """Return the JSON lines of the frame of a run that begins with an event. Raises: `JournalError`."""
        return body

    @abstractmethod
    def read_frames(
        self, query: Query, head: Head, after_seq: int = 0, until_seq: int | None = None
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the frames with the events after `after_seq`, each as its first seq and the bodies of its events.

        Every frame is checked before it is yielded, and few frames are in memory at a time. Frames after
        `until_seq` are not read. Raises: `JournalError` at the first frame that is missing or damaged.
        """

    @abstractmethod
    def label_condition(self, name: str, value: str) -> tuple[str, tuple[object, ...]]:
        """Return the SQL condition that a row of `runs` has this label, and its values."""

    @abstractmethod
    def is_one_of(self, column: str, values: Collection[str]) -> tuple[str, tuple[object, ...]]:
        """Return the SQL condition that a column has one of these texts, and its values."""

    @abstractmethod
    def is_after(self, position: Any) -> tuple[str, tuple[object, ...]]:
        """Return the SQL condition that a row of `frames` comes after a position, and its values."""

    @abstractmethod
    def start_of_all(self) -> Any:
        """Return the position before all frames."""

    @abstractmethod
    def end_position(self) -> Any:
        """Return the position after the newest frame of all runs."""

    @abstractmethod
    def next_rows(self, position: Any, limit: int) -> tuple[list[tuple[Any, ...]], Any]:
        """Return the next frames of all runs after `position`, and the position after them.

        A row has the run's id, or `None` if the frame belongs to no run, the seq of the first event, the number of
        events, the body, the checksum, the checksum of the run's frame before, and the key of the frame.
        """

    def next_page(self, after_seq: int, position: Any) -> Page:
        """Return the events of all runs after `position`."""
        rows, position = self.next_rows(position, _PAGE_FRAMES)
        found: list[e.Event] = []
        for name, first, count, body, checksum, before, *key in rows:
            if name is None:
                raise JournalError(f"frame {key} of the journal {self._name!r} belongs to no run")
            seed = seed_of(name) if before is None else before
            raws = check_frame(
                name, self.unpacked(self.query, name, first, body), count, first, checksum, seed
            )
            found += decode_frame(name, first, raws, after_seq)
        return Page(found, position, is_last=False, has_more=bool(rows))

    def bodies(self, condition: str, *values: object) -> Iterator[tuple[int, bytes]]:
        """Yield the row of the run and the body of each frame that meets an SQL condition, a few at a time."""
        key, last = self.frame_key, (0,) * len(self.frame_key)
        names, marks = ", ".join(key), ", ".join("?" * len(key))
        sql = (
            f"SELECT run, body, {names} FROM frames WHERE ({names}) > ({marks}) AND {condition} "
            f"ORDER BY {names} LIMIT {_PAGE_FRAMES}"
        )
        while rows := self.query(sql, (*last, *values)):
            last = rows[-1][2:]
            yield from [(run, self.unpack(self.query, body)) for run, body, *_ in rows]

    def version(self) -> int | None:
        """Return a number that changes when any connection commits; `None` if it cannot be known now."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Wait for the running query to end, and close the connection."""

    @abstractmethod
    def disown(self) -> object:
        """Give up the connection in a forked child, and return it."""

    def check_open(self) -> None:
        """Check that the journal is open. Raises: `JournalError`."""
        if self._is_closed:
            raise explain_closed(self._name)

    def find_faults(self) -> Iterator[str]:
        for sql, problem in (*self.faults, *_FAULTS):
            try:
                for row in self.query(sql):
                    if row != ("ok",):  # SQLite says so if it finds nothing
                        yield problem.format(*row)
            except JournalError as error:
                yield str(error)

    def lost_rows(self) -> list[int]:
        """Return the rows of runs that are missing in the table `runs`."""
        return []

    def read(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> list[e.Event]:
        return list(self.scan(run_id, after_seq, until_seq))

    def scan(self, run_id: str, after_seq: int = 0, until_seq: int | None = None) -> Iterator[e.Event]:
        """See `Journal.scan`; `after_seq` and `until_seq` are those of `read`."""
        key = self.key_of(run_id)
        try:
            head = read_head(self.query, run_id, key)
        except JournalError:
            if until_seq is None:
                raise
            head = Head(run_id, key, 0, None)
        for first, raws in self.read_frames(self.query, head, after_seq, until_seq):
            yield from decode_frame(run_id, first, raws, after_seq, until_seq)

    def read_stored(self, digest: str) -> bytes:
        rows = self.query("SELECT content FROM blobs WHERE digest=?", (digest,))
        if not rows:
            raise JournalError(f"the content {digest!r} is not in the journal {self._name!r}")
        content = rows[0][0]
        if not isinstance(content, bytes):
            raise JournalError(f"the content {digest!r} is damaged: it is not bytes")
        return content

    def find_runs(self, text: str) -> list[str]:
        wanted = msgspec.json.encode(text.casefold()).decode()[1:-1]
        raw = wanted.encode()
        found: set[int] = set()
        for key, body in self.bodies("1=1"):
            if key in found:
                continue
            # Other encoders than Treadle's may have escaped characters.
            if b"\\u" in body or b"\\/" in body:
                found.add(key)
            elif body.isascii():
                if raw in body.lower():
                    found.add(key)
            elif wanted in body.decode(errors="replace").casefold():
                found.add(key)
        names = self.query("SELECT id, run_id FROM runs ORDER BY id")
        return [run_id for key, run_id in names if key in found]

    def inbox(self, run_id: str, after: int = 0) -> list[Posted]:
        rows = self.query(
            "SELECT number, body, checksum FROM inbox WHERE run=? AND number>? AND body IS NOT NULL "
            "ORDER BY number",
            (self.key_of(run_id), after),
        )
        return [read_letter(run_id, *row) for row in rows]

    def messages(self, key: int) -> Iterator[bytes]:
        """Yield the messages of all runs but the one with the row `key`, which may refer to contents."""
        for (body,) in self.query("SELECT body FROM inbox WHERE run!=? AND body IS NOT NULL", (key,)):
            yield body

    def has_unknown_facts(self) -> bool:
        """Return True if there are runs whose facts are unknown: of an older Treadle, or to be estimated anew."""
        return bool(self.query(f"SELECT 1 FROM heads WHERE {self.unknown} LIMIT 1"))

    def runs(
        self,
        filter_: RunFilter,
        after: str | None,
        limit: int | None,
        order: RunOrder | None,
        newest_first: bool,
    ) -> list[RunInfo]:
        live = self._leases.live(self.query)
        conditions, values = self._compile(filter_, live)
        keys = ["runs.id"] if order is None else [_FIGURES[order], "runs.id"]
        direction, sign = ("DESC", "<") if newest_first else ("ASC", ">")
        tables = "runs LEFT JOIN heads ON heads.run = runs.id"
        if after is not None:
            found = ", ".join(keys)
            conditions.append(f"({found}) {sign} (SELECT {found} FROM {tables} WHERE runs.id = ?)")
            values.append(self.key_of(after))
        rows = self.query(
            f"SELECT runs.run_id, runs.owner, losses, {COLUMNS} FROM {tables} "
            f"WHERE {' AND '.join(conditions) or '1=1'} "
            f"ORDER BY {', '.join([f'{key} {direction}' for key in keys])}{'' if limit is None else ' LIMIT ?'}",
            (*values, *(() if limit is None else (limit,))),
        )
        # Rows that the database does not find can be missed only where all runs are asked for.
        lost = self.lost_rows() if filter_ == RunFilter() and after is None else ()
        return [
            *[RunInfo(run_id=f"row {key}", status=DAMAGED, error=LOST_RUN.format(key)) for key in lost],
            *[
                replace(
                    info_from(str(run_id), tuple(row), is_driven=owner in live),
                    losses=losses + (owner is not None and owner not in live),
                )
                for run_id, owner, losses, *row in rows
            ],
        ]

    def start_position(self, run_id: str | None, after_seq: int | None) -> Any:
        """See `Source.start_position`: a seq for one run, a position in the store's own form for all runs."""
        if run_id is None:
            return self.end_position() if after_seq is None else self.start_of_all()
        key = self.key_of(run_id)
        if after_seq is not None:
            return after_seq
        rows = self.query(
            f"SELECT seq + count - 1 FROM heads JOIN frames ON {self.newest_frame} WHERE heads.run=?", (key,)
        )
        if not rows:
            raise damaged(run_id, "its newest frame is missing")
        return int(rows[0][0])

    def read_page(self, run_id: str | None, after_seq: int | None, position: Any) -> Page:
        if run_id is None:
            return self.next_page(after_seq or 0, position)
        rows = self.query("SELECT status, waiting, owner FROM runs WHERE run_id=?", (run_id,))
        is_over = (
            bool(rows)
            and has_stopped(rows[0][0], rows[0][1])
            and rows[0][2] not in self._leases.live(self.query)
        )
        events = self.read(run_id, position)
        return Page(events, position + len(events), is_over, has_more=bool(events))

    def key_of(self, run_id: str) -> int:
        """Return the number of the run's row. Raises: `RunNotFoundError`."""
        rows = self.query("SELECT id FROM runs WHERE run_id=?", (run_id,))
        if not rows:
            raise RunNotFoundError(f"run {run_id!r} not found in the journal {self._name!r}")
        key = rows[0][0]
        if not isinstance(key, int):
            raise damaged(run_id, "its row in the table `runs` has no number")
        return key

    def _compile(self, filter_: RunFilter, live: set[int]) -> tuple[list[str], list[object]]:
        """Return a filter as SQL conditions on runs and heads, and their values. `live` are live owners."""
        owners = ",".join(map(str, live)) or "NULL"
        columns = {
            "is_driven": f"(CASE WHEN runs.owner IN ({owners}) THEN 1 ELSE 0 END)",
            "is_waiting": "(CASE WHEN runs.waiting IS NULL THEN 0 ELSE 1 END)",
            # In JSON, only the name of a label can be followed by a colon.
            "is_called": f"(CASE WHEN replace(runs.labels, '\"{CALLER}\":', '') <> runs.labels THEN 1 ELSE 0 END)",
        }
        found: list[tuple[str, tuple[object, ...]]] = [
            (f"{columns.get(name, f'runs.{name}')} = ?", (int(value) if isinstance(value, bool) else value,))
            for name in EQUAL_FIELDS
            if (value := getattr(filter_, name)) is not None
        ]
        if filter_.id_prefix:
            # A range, so that the index is used.
            found.append(
                ("runs.run_id >= ? AND runs.run_id < ?", (filter_.id_prefix, filter_.id_prefix + _LAST))
            )
        if filter_.run_ids is not None:
            found.append(self.is_one_of("runs.run_id", filter_.run_ids))
        if filter_.is_finished is not None:
            statuses = "'finished'" if filter_.is_finished else "'running', 'paused'"
            found.append((f"runs.status IN ({statuses})", ()))
        for item in filter_.labels.items():
            found.append(self.label_condition(*item))
        if filter_.created_since is not None:
            found.append(("runs.created_at >= ?", (filter_.created_since,)))
        if filter_.created_before is not None:
            found.append(("runs.created_at < ?", (filter_.created_before,)))
        if filter_.updated_since is not None:
            found.append(("heads.updated_at >= ?", (filter_.updated_since,)))
        return [sql for sql, _ in found], [value for _, values in found for value in values]


def has_stopped(status: str, waiting: str | None) -> bool:
    """Return whether a run is over for those who follow it, given its facts, once nobody drives it."""
    return status == "finished" or f'"{RESUME}"' in (waiting or "")


LOST_RUN = "a run is lost: row {} of the table `heads` has no row in `runs`; restore a backup of the journal"
LOST = "SELECT run FROM heads WHERE NOT EXISTS(SELECT 1 FROM runs WHERE id = run)"
_FAULTS = (
    (LOST, LOST_RUN),
    (
        "SELECT run, count(*) FROM frames WHERE NOT EXISTS(SELECT 1 FROM heads WHERE heads.run = frames.run) "
        "GROUP BY run",
        "row {0} of the table `runs` has {1} frames, but no row in the table `heads`",
    ),
)
"""Queries for what is wrong in every store, and what their rows mean."""
_LAST = "\U0010ffff" * 8
"""A text that sorts after every continuation of an id."""


_PAGE = 200
"""How many contents are read at a time."""
_PAGE_FRAMES = 500
"""How many frames of all runs are read at a time."""


class Unused(NamedTuple):
    """The contents that only one run needs, as of a position."""

    digests: set[str]
    position: Any
    """The position up to which the runs were searched."""


def find_contents(reader: TableReader, run_id: str) -> Unused:
    """Return the contents that only this run needs. All runs are read, unless the run has no contents.

    Raises: `RunNotFoundError`.
    """
    key, position = reader.key_of(run_id), reader.end_position()
    mine: set[str] = set()
    for _, body in reader.bodies("run = ?", key):
        mine |= digests_in(body)
    if mine:
        others = chain((body for _, body in reader.bodies("run != ?", key)), reader.messages(key))
        mine = find_unused(mine, reader.read_stored, others, _contents(reader))
    return Unused(mine, position)


def still_unused(unused: Unused, newer: Iterable[bytes]) -> set[str]:
    """Return the contents of `unused` that `newer` does not need: encoded events and messages of other runs."""
    digests = set(unused.digests)
    for body in newer:
        digests -= digests_in(body)
    return digests


def _contents(reader: TableReader) -> Iterator[tuple[str, bytes]]:
    last = ""
    while rows := reader.query(
        f"SELECT digest, content FROM blobs WHERE digest > ? ORDER BY digest LIMIT {_PAGE}", (last,)
    ):
        last = rows[-1][0]
        yield from [(digest, content) for digest, content in rows]
