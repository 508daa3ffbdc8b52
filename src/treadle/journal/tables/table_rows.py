"""The rows of the tables: which columns have the facts about a run, and the checksums of rows, frames and messages.

Everything is checked while it is read. A frame's checksum is the CRC-32 of its body, continued from the checksum
of the run's previous frame. The first frame continues the checksum of the run's id. It therefore covers the body,
the run that the frame belongs to and its place in the run. CRC-32 finds every change within 32 consecutive bits; it
does not protect against forgery. The other columns of a frame are checked against the frames around it.

A row that a much older Treadle wrote has no checksum. The checksum of the next frame then begins with the run's id.
Some facts may not be stored: an older Treadle wrote the run, or they must be estimated anew. `fill_facts` computes
them from the run's events.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.inbox import Posted, decode_message
from treadle.journal.listing import Facts, facts_of
from treadle.journal.run_info import DAMAGED, RunInfo

Query = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]
"""A function that returns the rows of a SELECT."""

_encode = msgspec.json.Encoder().encode


class Head(NamedTuple):
    """The end of a run's chain of frames."""

    run_id: str
    key: int
    """The number of the run's row."""
    frame: int
    """The run's newest frame."""
    events: int | None
    """The number of the run's events; `None` if it is not known."""


def read_migrations(module: str) -> list[str]:
    """Return the scripts in `migrations.sql` beside a module, in order. `module` is the path of the module."""
    text = Path(module).with_name("migrations.sql").read_text("utf-8")
    return re.split(r"^-- version \d+\n", text, flags=re.MULTILINE)[1:]


def seed_of(run_id: str) -> int:
    """Return the number with which the checksums of a run begin."""
    return crc32(run_id.encode(errors="replace"))


def row_checksum(values: tuple[object, ...], seed: int) -> int:
    """Return the checksum of a row in `runs` or `heads`, given the facts in it."""
    return crc32(_encode(values), seed)


def damaged(run_id: str, problem: str) -> JournalError:
    return JournalError(f"run {run_id!r} is damaged: {problem}; `treadle check` says what can still be read")


def explain_closed(name: str) -> JournalError:
    """Return the error for a journal that cannot be used any more."""
    return JournalError(
        f"the journal {name!r} is closed, or was opened before a fork; open it again with open_journal"
    )


def check_frame(
    run_id: str, body: object, count: int, first_seq: int, checksum: object, seed: int
) -> list[bytes]:
    """Return the bodies of the events in a frame. Raises: `JournalError` if the frame is damaged."""
    if isinstance(body, bytes) and checksum in (None, crc32(body, seed)):
        raws = body.splitlines()
        if raws and len(raws) == count:
            return raws
    raise damaged(
        run_id, f"the frame of the events from {first_seq} on has other content than what was written"
    )


def decode_frame(
    run_id: str, first_seq: int, raws: list[bytes], after_seq: int, until_seq: int | None = None
) -> list[e.Event]:
    """Return the events of a frame whose seq is greater than `after_seq` and at most `until_seq`."""
    events: list[e.Event] = []
    for seq, raw in enumerate(raws, first_seq):
        if seq > after_seq and (until_seq is None or seq <= until_seq):
            try:
                events.append(e.Event(run_id, seq, e.decode_body(raw), raw))
            except JournalError as error:
                raise JournalError(f"event {seq} of run {run_id!r}: {error}") from error
    return events


INSERT_MESSAGE = "INSERT INTO inbox(run, number, kind, body, checksum) VALUES(?,?,?,?,?)"
"""The statement for `Letter.row`."""


class Letter(NamedTuple):
    """A message on its way into the store."""

    run_id: str
    kind: str
    """The tag of the message."""
    body: bytes
    """The message as JSON."""
    blobs: Mapping[str, bytes]
    """The contents that the message refers to."""

    def row(self, key: int, number: int) -> tuple[object, ...]:
        """Return the message as a row of `inbox`, for the run with the row `key`."""
        return key, number, self.kind, self.body, _checksum(self.run_id, number, self.body)


def read_letter(run_id: str, number: int, body: object, checksum: object) -> Posted:
    """Return a message that was read from `inbox`. A damaged one has a fault."""
    if not isinstance(body, bytes) or checksum != _checksum(run_id, number, body):
        return Posted(number, None, "it is damaged: the store has other content than what was written")
    return decode_message(number, body)


def _checksum(run_id: str, number: int, body: bytes) -> int:
    return crc32(body, crc32(b"%d" % number, seed_of(run_id)))


RUN_COLUMNS = (
    "status", "stop_reason", "fault", "error", "created_at", "model", "task_set", "task_id", "parent_run_id",
    "labels", "input", "is_session", "is_turn_open", "waiting", "turns", "reward", "has_failed", "ended_at",
    "checksum",
)  # fmt: skip
"""The facts in `runs`: they change with a turn at most. `labels` and `waiting` are JSON, NULL if empty."""

HEAD_COLUMNS = (
    "events", "updated_at", "steps", "input_tokens", "cached_input_tokens", "output_tokens", "cost_usd",
    "context_chars", "checksum",
)  # fmt: skip
"""The facts in `heads`: they change with every commit of the run."""

_HEADS = ", ".join([f"heads.{name}" for name in HEAD_COLUMNS])
COLUMNS = f"{', '.join([f'runs.{name}' for name in RUN_COLUMNS])}, heads.frame, {_HEADS}"
"""The columns of all facts for a SELECT of runs and their heads, in the order that `facts_from` expects."""

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_decode_waiting = msgspec.json.Decoder(tuple[str, ...]).decode


def run_values(facts: Facts, seed: int) -> tuple[object, ...]:
    """Return the values of `RUN_COLUMNS`. `seed` is the one of the run's checksums."""
    values = (
        facts.status,
        facts.stop_reason,
        facts.fault,
        facts.error,
        float(facts.created_at),
        facts.model,
        facts.task_set,
        facts.task_id,
        facts.parent_run_id,
        _encode(facts.labels).decode() if facts.labels else None,
        facts.input,
        int(facts.is_session),
        int(facts.is_turn_open),
        _encode(list(facts.waiting)).decode() if facts.waiting else None,
        facts.turns,
        None if facts.reward is None else float(facts.reward),
        int(facts.has_failed),
        None if facts.ended_at is None else float(facts.ended_at),
    )
    return (*values, row_checksum(values, seed))


def head_values(facts: Facts, seed: int) -> tuple[object, ...]:
    """Return the values of `HEAD_COLUMNS`; see `run_values`. `events` is NULL if the facts are to be computed."""
    values = (
        facts.events if facts.is_exact else None,
        float(facts.updated_at),
        facts.steps,
        facts.input_tokens,
        facts.cached_input_tokens,
        facts.output_tokens,
        facts.cost_usd,
        facts.context_chars if not facts.steering_chars else None,
    )
    return (*values, crc32(_encode(values), seed))


def info_from(run_id: str, row: tuple[Any, ...], *, is_driven: bool) -> RunInfo:
    """Return a run for a listing, from a row of `COLUMNS`. If that is damaged, its status is `damaged`."""
    try:
        return facts_from(run_id, row).info(run_id, is_driven=is_driven)
    except JournalError as error:
        return RunInfo(run_id=run_id, status=DAMAGED, error=str(error))


def facts_from(run_id: str, row: tuple[Any, ...]) -> Facts:
    """Return the facts in a row of `COLUMNS`. Raises: `JournalError` if they are damaged."""
    run_row, (frame, *head_row) = row[: len(RUN_COLUMNS)], row[len(RUN_COLUMNS) :]
    *run_facts, checksum = run_row
    if checksum not in (None, row_checksum(tuple(run_facts), seed_of(run_id))):
        *run_facts, _ = run_facts  # an older Treadle leaves `ended_at`, and its checksum does not cover it
        if checksum != row_checksum(tuple(run_facts), seed_of(run_id)):
            raise damaged(run_id, "its row in the table `runs` has other content than what was written")
    values: dict[str, Any] = dict(zip(RUN_COLUMNS, run_facts, strict=False))
    values.update(_check_head(run_id, frame, head_row))
    try:
        values["labels"] = _decode_labels(values["labels"]) if values["labels"] else {}
        values["waiting"] = dict.fromkeys(_decode_waiting(values["waiting"] or "[]"))
        for name in ("is_session", "is_turn_open", "has_failed"):
            if values[name] not in (None, 0, 1):  # a checksum is here if a damaged header joins two columns
                raise ValueError(f"{name} is {values[name]!r}")
            values[name] = bool(values[name])
        return msgspec.convert(values, Facts)
    except (ValueError, TypeError) as error:
        raise damaged(run_id, f"its facts cannot be read ({error})") from error


def read_head(query: Query, run_id: str, key: int) -> Head:
    """Return the end of the chain of the run with the row `key`. Raises: `JournalError` if it is damaged."""
    rows = query(f"SELECT frame, {_HEADS} FROM heads WHERE run=?", (key,))
    row: list[Any] = [*rows[0]] if rows else [0, *[None] * len(HEAD_COLUMNS)]
    frame, *head_row = row
    return Head(run_id, key, frame, _check_head(run_id, frame, head_row).get("events"))


def _check_head(run_id: str, frame: object, head_row: list[Any]) -> dict[str, Any]:
    """Return the facts in a row of `heads` by name, or nothing if an older Treadle wrote the row."""
    *facts, checksum = head_row
    if not frame or checksum not in (None, row_checksum(tuple(facts), seed_of(run_id))):
        raise damaged(
            run_id, "its row in the table `heads` is missing or has other content than what was written"
        )
    return {} if facts[0] is None else dict(zip(HEAD_COLUMNS, facts, strict=False))


ReadFrames = Callable[[Query, Head], Iterator[tuple[int, list[bytes]]]]
"""A function that yields the frames of a run."""

_FILL_RUN = f"UPDATE runs SET {', '.join(f'{name}=?' for name in RUN_COLUMNS)} WHERE id=?"
_FILL_HEAD = f"UPDATE heads SET {', '.join(f'{name}=?' for name in HEAD_COLUMNS)} WHERE run=?"
UNKNOWN = (
    "SELECT heads.run, heads.frame, run_id, status, stop_reason, created_at FROM heads "
    "JOIN runs ON runs.id = heads.run WHERE {unknown} ORDER BY heads.run LIMIT ?"
)
"""The query for the runs whose facts are unknown."""


def fill_facts(query: Query, read: ReadFrames, unknown: str, *, limit: int = 200) -> int:
    """Compute the facts of the first `limit` runs whose facts are not known yet, within a transaction.

    `unknown` is the query for these runs. Return their number.
    """
    rows = query(unknown, (limit,))
    for key, frame, run_id, status, stop_reason, created_at in rows:
        name = run_id if isinstance(run_id, str) else run_id.decode(errors="backslashreplace")
        try:
            store_facts(query, read, Head(name, key, frame, None))
        except JournalError:  # the listing shows the run; reading it raises the error
            facts = Facts(status=status, stop_reason=stop_reason, created_at=created_at)
            query(_FILL_RUN, (*run_values(facts, 0)[:-1], None, key))
            query(_FILL_HEAD, (*head_values(facts, 0)[:-1], None, key))
    return len(rows)


def store_facts(query: Query, read: ReadFrames, head: Head) -> None:
    """Compute the facts of a run from its events, and store them, within a transaction.

    Raises: `JournalError` if the run is damaged.
    """
    facts = facts_of([e.decode_body(raw) for _, raws in read(query, head) for raw in raws])
    seed = seed_of(head.run_id)
    query(_FILL_RUN, (*run_values(facts, seed), head.key))
    query(_FILL_HEAD, (*head_values(facts, seed), head.key))
