"""The statements of one commit: the writes of many runs in one transaction.

What is fast here: all statements are sent at once, in a pipeline, and each handles all runs with one array for
each column. The events of several writes of one run become one frame.

After the loss of a connection, it is not known whether the server has done a commit. So a commit can be repeated
without harm: a row of `heads` changes only if its token and its newest frame are those that the writer knows. A run
that a commit did not change is looked up: if its frame is there, it is stored; if not, the writer has lost the run.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from zlib import crc32

import msgspec
from psycopg.pq.abc import PGresult

from treadle.core.errors import JournalError
from treadle.journal.postgres.arrays import Blobs, Column, Floats, Ints, Texts, pack_float, unescape
from treadle.journal.postgres.link import NOTIFY, NOTIFY_QUEUES, Db
from treadle.journal.postgres.pipe import Call, Statement
from treadle.journal.postgres.postgres_reader import mark_of
from treadle.journal.tables.leases import Lease
from treadle.journal.tables.table_rows import HEAD_COLUMNS, RUN_COLUMNS
from treadle.journal.tables.writer import TableWriter, Write, lease_lost, run_exists

_FIRST_TOKEN_BITS = 60
"""The size of the random first token of a run, by which a writer recognises the run that it made."""
_FLOATS = {"created_at", "reward", "updated_at", "cost_usd", "ended_at"}
_INTS = {
    "is_session", "is_turn_open", "turns", "has_failed", "checksum", "events", "steps", "input_tokens",
    "cached_input_tokens", "output_tokens", "context_chars",
}  # fmt: skip


Kinds: TypeAlias = tuple[type[Column], ...]


def _type_of(column: str) -> type[Column]:
    return Floats if column in _FLOATS else Ints if column in _INTS else Texts


_RUN_TYPES: Kinds = tuple([_type_of(name) for name in RUN_COLUMNS])
_HEAD_TYPES: Kinds = tuple([_type_of(name) for name in HEAD_COLUMNS])


def _rows(names: Sequence[str], types: Iterable[type[Column]]) -> str:
    """Return a FROM item with a row for each element of the arrays."""
    values = ", ".join([f"%b::{kind.type_name}" for kind in types])
    return f"unnest({values}) WITH ORDINALITY AS v({', '.join(names)}, place)"


def _listed(names: Iterable[str], form: str = "{0}") -> str:
    return ", ".join([form.format(name) for name in names])


_FRAME = ("previous", "frame", "count", "body", "frame_checksum")
_FRAME_TYPES: Kinds = (Ints, Ints, Ints, Blobs, Ints)
_SEQ = "frame, count, %b::float8, (SELECT pg_current_xact_id()::text::int8), body, frame_checksum"
_MARKS = "string_to_array(v.marks, chr(31))"
_LABELS = RUN_COLUMNS.index("labels")
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_HEADS = tuple(f"h_{name}" for name in HEAD_COLUMNS)
"""The names of the columns of `heads`. Some of them are also columns of `runs`."""

_APPEND_TYPES: Kinds = (Ints, Ints, *_FRAME_TYPES, *_HEAD_TYPES)
_APPEND = Statement(
    f"WITH v AS MATERIALIZED (SELECT * FROM {_rows(('run', 'old_token', *_FRAME, *_HEADS), _APPEND_TYPES)}), "
    f"moved AS (UPDATE heads SET frame = v.frame, {_listed(HEAD_COLUMNS, '{0} = v.h_{0}')} FROM v "
    "WHERE heads.run = v.run AND heads.token = v.old_token AND heads.frame = v.previous "
    "RETURNING v.run, v.frame, v.count, v.body, v.frame_checksum) "
    f"INSERT INTO frames(run, seq, count, at, xact, body, checksum) SELECT run, {_SEQ} FROM moved RETURNING run"
)
_BEGIN_TYPES: Kinds = (Texts, Ints, Ints, Texts, Texts, Texts, *_FRAME_TYPES, *_RUN_TYPES, *_HEAD_TYPES)
_BEGIN_NAMES = ("run_id", "owner", "first_token", "queue", "marks", "seal", *_FRAME, *RUN_COLUMNS, *_HEADS)
_BEGIN = Statement(
    f"WITH v AS MATERIALIZED (SELECT * FROM {_rows(_BEGIN_NAMES, _BEGIN_TYPES)}), "
    f"made AS (INSERT INTO runs(run_id, owner, token, queue, marks, {_listed(RUN_COLUMNS)}) "
    f"SELECT run_id, owner, first_token, queue, {_MARKS}, {_listed(RUN_COLUMNS)} FROM v ORDER BY place "
    "ON CONFLICT(run_id) DO NOTHING RETURNING id, run_id), "
    "made_v AS MATERIALIZED (SELECT made.id, v.* FROM made JOIN v USING(run_id)), "
    f"heads_of AS (INSERT INTO heads(run, token, frame, {_listed(HEAD_COLUMNS)}) "
    f"SELECT id, first_token, frame, {_listed(_HEADS)} FROM made_v), "
    "trusted AS (INSERT INTO trust(run, seal) SELECT id, seal FROM made_v WHERE seal IS NOT NULL), "
    "framed AS (INSERT INTO frames(run, seq, count, at, xact, body, checksum) "
    f"SELECT id, {_SEQ} FROM made_v) "
    "SELECT run_id, id FROM made"
)
_CHANGE_TYPES: Kinds = (Ints, Ints, Ints, Ints, Texts, *_RUN_TYPES)
_CHANGE = Statement(
    "UPDATE runs SET owner = v.owner, losses = CASE WHEN v.owner IS NULL THEN 0 ELSE losses END, "
    f"marks = {_MARKS}, {_listed(RUN_COLUMNS, '{0} = v.{0}')} "
    f"FROM {_rows(('run', 'old_token', 'frame', 'owner', 'marks', *RUN_COLUMNS), _CHANGE_TYPES)} "
    "JOIN heads ON heads.run = v.run AND heads.token = v.old_token AND heads.frame = v.frame "
    "WHERE runs.id = v.run AND runs.token = v.old_token"
)
_RELEASE = Statement(
    "UPDATE runs SET owner = NULL, losses = losses * v.is_orphan "
    f"FROM {_rows(('run', 'old_token', 'is_orphan'), (Ints,) * 3)} "
    "WHERE runs.id = v.run AND runs.token = v.old_token"
)
_TAKE_IN = Statement(
    f"WITH v AS MATERIALIZED (SELECT v.run, v.number FROM {_rows(('run', 'old_token', 'number'), (Ints,) * 3)} "
    "JOIN heads ON heads.run = v.run AND heads.token = v.old_token), "
    "gone AS (DELETE FROM inbox USING v WHERE inbox.run = v.run AND inbox.number < v.number) "
    "UPDATE inbox SET body = NULL, checksum = NULL FROM v WHERE inbox.run = v.run AND inbox.number = v.number"
)
_COUNT_FROM = Statement(
    "INSERT INTO inbox(run, number, kind) SELECT runs.id, v.number, '' "
    f"FROM {_rows(('run_id', 'old_token', 'number'), (Texts, Ints, Ints))} JOIN runs USING(run_id) "
    "JOIN heads ON heads.run = runs.id AND heads.token = v.old_token ON CONFLICT DO NOTHING"
)
_FIND_MAIL = Statement(
    f"SELECT inbox.run, max(inbox.number) FROM {_rows(('run', 'old_token'), (Ints, Ints))} "
    "JOIN inbox ON inbox.run = v.run WHERE inbox.body IS NOT NULL GROUP BY inbox.run"
)
_KEEP_BLOBS = Statement(
    "INSERT INTO blobs(digest, content) SELECT digest, content FROM "
    f"{_rows(('digest', 'content'), (Texts, Blobs))} "
    "ON CONFLICT(digest) DO NOTHING"
)
_NOTIFY = Call(Statement(NOTIFY.decode()), ())
_NOTIFY_QUEUES = Call(Statement(NOTIFY_QUEUES.decode()), ())
_FIND = (
    "SELECT runs.run_id, runs.id, runs.token, frames.seq, frames.count, frames.checksum FROM "
    f"{_rows(('run_id', 'seq'), (Texts, Ints))} JOIN runs USING(run_id) "
    "LEFT JOIN frames ON frames.run = runs.id AND frames.seq = v.seq"
).encode()


class Entry:
    """The events that one run appended, as one frame, and the release of the run's lease.

    `size` is about how many bytes the store gets.
    """

    def __init__(self, write: Write, size: int) -> None:
        self.writer, self.first_seq = write.writer, write.first_seq
        self.writes: list[Write] = []
        self.frames: list[bytes] = []
        self.checksum = write.writer.checksum
        self.row: tuple[object, ...] | None = None
        self.count = self.taken = self.copied = self.size = 0
        self.add(write, size)

    def add(self, write: Write, size: int) -> None:
        """Add the next write of the run."""
        self.writes.append(write)
        self.count += len(write.bodies)
        self.frames.append(write.frame or b"")
        self.checksum = crc32(self.frames[-1], self.checksum)
        self.row = self.row if write.row is None else write.row
        self.is_release = write.is_release
        self.taken = max(self.taken, write.taken)
        self.copied = max(self.copied, write.copied)
        self.size += size

    @property
    def frame(self) -> tuple[object, ...]:
        return self.writer.head, self.first_seq, self.count, b"".join(self.frames), self.checksum

    @property
    def head(self) -> tuple[object, ...]:
        """The values of `HEAD_COLUMNS`."""
        return self.writes[-1].head

    @property
    def marks(self) -> str:
        """The labels as one text."""
        labels = self.row[_LABELS] if self.row is not None else None
        return "\x1f".join([mark_of(*item) for item in _decode_labels(labels).items()]) if labels else ""  # type: ignore[arg-type]

    def fail(self, error: JournalError) -> None:
        """Store an error in the writes and in their writer."""
        self.writer.error = self.writer.error or error
        for write in self.writes:
            write.error = write.error or self.writer.error

    def settle(self, key: int) -> None:
        """Record that the frame is stored."""
        writer = self.writer
        writer.key, writer.head, writer.checksum = key, self.first_seq, self.checksum


def plan(writes: Iterable[Write]) -> list[Entry]:
    """Return one entry for each run in `writes`. A write that cannot be stored gets an error."""
    by_writer: dict[TableWriter, Entry] = {}
    names: dict[str, TableWriter] = {}
    for write in writes:
        writer, size = write.writer, write.encode()
        if writer.error is None and not writer.key:
            write.error = write.error or _refuse(writer, names)
        if writer.error is not None or write.error is not None:
            writer.error = write.error = writer.error or write.error
        elif writer in by_writer:
            by_writer[writer].add(write, size)
        elif writer.key or write.bodies:
            by_writer[writer] = Entry(write, size)
    return [*by_writer.values()]


def _refuse(writer: TableWriter, names: dict[str, TableWriter]) -> JournalError | None:
    """Return why a new run cannot be stored, if it can be known before the server answers."""
    if names.setdefault(writer.run_id, writer) is not writer:
        return run_exists(writer.run_id)
    try:
        writer.run_id.encode()
    except UnicodeEncodeError as error:
        return JournalError(f"the id {writer.run_id!r} cannot be stored: {error}")
    return None


def calls_of(entries: Sequence[Entry], orphans: Sequence[Lease], owner_id: int, now: float) -> list[Call]:
    """Return the statements that store `entries` and release the leases of `orphans`."""
    new = [entry for entry in entries if not entry.writer.key]
    known = [entry for entry in entries if entry.writer.key]
    appended = [entry for entry in known if entry.count]
    changed = [entry for entry in appended if entry.row is not None]
    released = [entry for entry in known if entry.is_release and (entry.row is None or not entry.count)]
    leases = [*[(*lease, 1) for lease in orphans], *[(*_lease_of(entry), 0) for entry in released]]
    blobs: dict[str, bytes] = {}
    for entry in entries:
        for write in entry.writes:
            blobs = {**(write.blobs or {}), **blobs} if write.blobs else blobs
    calls: list[Call] = []
    if blobs:
        # In order, so that two clients cannot wait for each other.
        calls.append(Call(_KEEP_BLOBS, _pack(sorted(blobs.items()), (Texts, Blobs))))
    if new:
        for entry in new:
            entry.writer.token = entry.writer.token or secrets.randbits(_FIRST_TOKEN_BITS) + 1
        calls.append(Call(_BEGIN, _pack([_new_row(entry, owner_id) for entry in new], _BEGIN_TYPES, now)))
    if appended:
        rows = [(entry.writer.key, entry.writer.token, *entry.frame, *entry.head) for entry in appended]
        calls.append(Call(_APPEND, _pack(rows, _APPEND_TYPES, now)))
    if changed:
        marked = [
            (
                *(entry.writer.key, entry.writer.token, entry.first_seq),
                *(None if entry.is_release else owner_id, entry.marks),
                *(entry.row or ()),
            )
            for entry in changed
        ]
        calls.append(Call(_CHANGE, _pack(marked, _CHANGE_TYPES)))
    if taken := [(*_lease_of(entry), entry.taken) for entry in known if entry.taken]:
        calls.append(Call(_TAKE_IN, _pack(taken, (Ints, Ints, Ints))))
    if copied := [
        (entry.writer.run_id, entry.writer.token, entry.copied) for entry in entries if entry.copied
    ]:
        calls.append(Call(_COUNT_FROM, _pack(copied, (Texts, Ints, Ints))))
    if leases:
        calls.append(Call(_RELEASE, _pack(leases, (Ints,) * 3)))
    if left := [_lease_of(entry) for entry in known if entry.is_release]:
        # After the rows of the runs are locked: whoever stores a message later finds the lease free.
        calls.append(Call(_FIND_MAIL, _pack(left, (Ints, Ints))))
    return calls


def notify(entries: Iterable[Entry], orphans: Sequence[Lease]) -> Call:
    """Return the statement that tells other processes of a commit, and idle workers if a run now waits for one."""
    is_queued = any([entry.is_release and entry.writer.is_queued for entry in entries])
    return _NOTIFY_QUEUES if orphans or is_queued else _NOTIFY


def tell_of_mail(calls: Sequence[Call], results: Sequence[PGresult], entries: Iterable[Entry]) -> None:
    """Tell the runs that were released of the messages that came before."""
    driven = {entry.writer.key: entry.writer.driven for entry in entries if entry.is_release}
    for call, result in zip(calls, results, strict=True):
        if call.statement is _FIND_MAIL:
            for row in range(result.ntuples):
                if (run := driven.get(_int(result, row, 0))) is not None:
                    run.deliver(_int(result, row, 1), "")


def _lease_of(entry: Entry) -> Lease:
    return Lease(entry.writer.key, entry.writer.token)


Keys: TypeAlias = dict[str | int, int]
"""The row of each stored run, by the key that `_name` returns."""


def keys_in(calls: Sequence[Call], results: Sequence[PGresult], entries: Iterable[Entry]) -> Keys:
    """Return the runs of `entries` that the calls of their commit have changed."""
    keys: Keys = {}
    for call, result in zip(calls, results, strict=True):
        rows = range(result.ntuples)
        if call.statement is _BEGIN:
            keys |= {unescape(_value(result, row, 0).decode()): _int(result, row, 1) for row in rows}
        elif call.statement is _APPEND:
            # Usually all are changed, and their keys need not be read.
            found = [entry.writer.key for entry in entries if entry.count and entry.writer.key]
            if len(found) != len(rows):
                found = [_int(result, row, 0) for row in rows]
            keys.update(zip(found, found, strict=True))
    return keys


def missing_in(keys: Keys, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that a commit has not stored, as far as its results say."""
    appended = [entry for entry in entries if entry.count]
    if len(keys) == len(appended):
        return []
    return [entry for entry in appended if _name(entry) not in keys]


def settle_entries(entries: Iterable[Entry], keys: Keys) -> None:
    """Note which entries are stored, and put the error in the others."""
    for entry in entries:
        if entry.count:
            if (key := keys.get(_name(entry))) is not None:
                entry.settle(key)
            else:
                run_id = entry.writer.run_id
                entry.fail(lease_lost(run_id) if entry.writer.key else run_exists(run_id))


def _name(entry: Entry) -> str | int:
    """Return the key of a run in the results: the id of a new run, the number of the row of another."""
    return entry.writer.key or entry.writer.run_id


def _new_row(entry: Entry, owner_id: int) -> tuple[object, ...]:
    writer = entry.writer
    return (
        *(writer.run_id, None if entry.is_release else owner_id, writer.token),
        *(writer.queue, entry.marks, writer.seal),
        *entry.frame,
        *(entry.row or ()),
        *entry.head,
    )


def _pack(rows: Sequence[Sequence[object]], types: Kinds, *floats: float) -> list[bytes]:
    """Return the values of a statement: an array for each column, and numbers."""
    columns = [kind(column).pack() for kind, column in zip(types, zip(*rows, strict=True), strict=True)]
    return [*columns, *[pack_float(value) for value in floats]]


def _value(result: PGresult, row: int, column: int) -> bytes:
    return result.get_value(row, column) or b""


def _int(result: PGresult, row: int, column: int) -> int:
    return int.from_bytes(_value(result, row, column), "big", signed=True)


def find(db: Db, entries: Sequence[Entry]) -> Keys:
    """Return the runs whose frame the server had stored before the connection was lost."""
    names = Texts([entry.writer.run_id for entry in entries])
    seqs = Ints([entry.first_seq for entry in entries])
    frames = {row[0]: row[1:] for row in db.cursor(binary=True).execute(_FIND, (names, seqs))}
    found: Keys = {}
    for entry in entries:
        writer, (key, token, *frame) = entry.writer, frames.get(entry.writer.run_id, (0, 0))
        # The token of a new run is random, so no other writer has made it.
        if frame == [entry.first_seq, entry.count, entry.checksum] and (writer.key or token == writer.token):
            found[_name(entry)] = key
    return found
