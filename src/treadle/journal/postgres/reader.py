"""The reading connection of a journal in PostgreSQL."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.journal.follow import Page
from treadle.journal.postgres.arrays import Texts
from treadle.journal.postgres.frames import NOW, START, Place, Snapshot, next_rows, read_frames
from treadle.journal.postgres.lease import HOLDERS, Holder
from treadle.journal.postgres.link import Db, Link
from treadle.journal.tables.checks import Head, check_frame, damaged, decode_frame, seed_of
from treadle.journal.tables.committer import explain_closed
from treadle.journal.tables.reader import LOST_RUN, TableReader

_PAGE_FRAMES = 500
"""How many frames of all runs are read at a time."""

_encode = msgspec.json.Encoder().encode


def run_query(db: Db, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run a statement with `?` for values, and return its rows."""
    cursor = db.cursor(binary=True)
    cursor.execute(sql.replace("?", "%s").encode(), values)
    return cursor.fetchall() if cursor.description is not None else []


def mark_of(name: str, value: str) -> str:
    """Return a label as an element of `runs.marks`."""
    return _encode((name, value)).decode()


class PostgresReader(TableReader):
    """The `TableReader` of PostgreSQL."""

    newest_frame = "frames.run = heads.run AND frames.seq = heads.frame"
    unknown = "heads.is_unknown"

    def __init__(self, link: Link) -> None:
        super().__init__(link.address.name)
        self._link = link
        self._is_closed = False

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """See `TableReader.query`."""
        with self.lock:
            if self._is_closed:
                raise explain_closed(self._name)
            try:
                return self._link.run(lambda db: run_query(db, sql, values))
            except UnicodeEncodeError:  # a text that nothing in the database can be equal to
                return []

    def close(self) -> None:
        """See `TableReader.close`."""
        self._link.is_closing.set()
        with self.lock:
            self._is_closed = True
            self._link.close()

    def disown(self) -> object:
        """See `TableReader.disown`."""
        self._forget()
        self._is_closed = True
        return self._link.db

    def label_condition(self, name: str, value: str) -> tuple[str, tuple[object, ...]]:
        """See `TableReader.label_condition`."""
        return "runs.marks @> ARRAY[?]", (mark_of(name, value),)

    def ids_condition(self, run_ids: Collection[str]) -> tuple[str, tuple[object, ...]]:
        """See `TableReader.ids_condition`."""
        return "runs.run_id = ANY(?)", (Texts(run_ids),)

    def read_frames(
        self, head: Head, after_seq: int, until_seq: int | None
    ) -> Iterator[tuple[int, list[bytes]]]:
        """See `TableReader.read_frames`."""
        return read_frames(self.query, head, after_seq, until_seq)

    def find_faults(self) -> Iterator[str]:
        """See `Journal.find_faults`."""
        for sql, problem in _FAULTS:
            try:
                for row in self.query(sql):
                    yield problem.format(*row)
            except JournalError as error:
                yield str(error)

    def start_of_all(self) -> Place:
        """See `TableReader.start_of_all`."""
        return START

    def end_position(self) -> Place:
        """See `TableReader.end_position`."""
        return Place(Snapshot.of(self.query(NOW)[0][0]))

    def next_page(self, after_seq: int, position: Place) -> Page:
        """See `TableReader.next_page`."""
        rows, place = next_rows(self.query, position, _PAGE_FRAMES)
        found: list[e.Event] = []
        for name, first, count, body, checksum, before, _, run in rows:
            if name is None:
                raise JournalError(
                    f"a frame of the journal {self._name!r} belongs to row {run}, which is not a run"
                )
            if before is None and first != 1:
                raise damaged(name, f"the frame of event {first - 1} is missing")
            seed = seed_of(name) if before is None else before
            found += decode_frame(
                name, first, check_frame(name, body, count, first, checksum, seed), after_seq
            )
        return Page(found, place, is_last=False, has_more=bool(rows))

    def live_owners(self) -> set[int]:
        """See `TableReader.live_owners`."""
        holders = [Holder.of(row) for row in self.query(HOLDERS)]
        return {holder.id for holder in holders if holder.is_alive}

    def bodies(self, key: int, *, is_own: bool) -> Iterator[bytes]:
        """See `TableReader.bodies`."""
        sign, last = "=" if is_own else "!=", (0, 0)
        sql = (
            f"SELECT run, seq, body FROM frames WHERE (run, seq) > (?, ?) AND run {sign} ? "
            "ORDER BY run, seq LIMIT ?"
        )
        while rows := self.query(sql, (*last, key, _PAGE_FRAMES)):
            last = rows[-1][:2]
            yield from [body for *_, body in rows]


_FAULTS = (
    ("SELECT run FROM heads WHERE NOT EXISTS(SELECT 1 FROM runs WHERE id = run)", LOST_RUN),
    (
        "SELECT run_id FROM runs WHERE NOT EXISTS(SELECT 1 FROM heads WHERE run = id)",
        "run {0!r} has no row in the table `heads`",
    ),
    (
        "SELECT run, count(*) FROM frames WHERE NOT EXISTS(SELECT 1 FROM heads WHERE heads.run = frames.run) "
        "GROUP BY run",
        "row {0} of the table `runs` has {1} frames, but no row in the table `heads`",
    ),
    (
        "SELECT run_id, newest, frame FROM (SELECT run, max(seq) AS newest FROM frames GROUP BY run) AS ends "
        "JOIN heads USING(run) JOIN runs ON runs.id = heads.run WHERE newest != frame",
        "run {0!r} has a frame of event {1}, and ends with the one of event {2}",
    ),
    (
        "SELECT run_id FROM runs JOIN heads ON run = id WHERE runs.token != heads.token",
        "run {0!r} has different tokens in the tables `runs` and `heads`",
    ),
)
"""Queries for what is wrong with the tables, and what their rows mean."""
