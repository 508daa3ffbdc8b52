"""The frames of a run in the file, which are checked while they are read."""

from collections.abc import Iterator
from typing import Any

import msgspec

from treadle.journal.tables.checks import Head, Query, check_frame, damaged, seed_of

_BATCH = 256
"""How many frames are read at a time."""

_encode = msgspec.json.Encoder().encode


def read_frames(
    query: Query, head: Head, after_seq: int = 0, until_seq: int | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the frames that hold the events after `after_seq`, each as its first seq and the bodies of its events.

    Every frame is checked before it is yielded, and few frames are in memory at a time. Frames after `until_seq`
    are not read.
    Raises: `JournalError` at the first frame that is missing or damaged.
    """
    if until_seq is not None and until_seq <= after_seq:
        return
    run_id = head.run_id
    chain = query(_CHAIN, (head.frame, after_seq + 1))
    is_whole = bool(chain) and chain[0][2] <= after_seq + 1 and {run for *_, run in chain} == {head.key}
    if not is_whole:  # the chain leads elsewhere, but the frames before the damage can be found
        chain = query(_OF_RUN, (head.key, after_seq))
    if until_seq is not None:
        chain = [row for row in chain if row[2] <= until_seq]
    _, before, expected, _ = chain[0] if chain else (0, 0, after_seq + 2, 0)
    checksum = None
    if expected == 1:
        before = 0
    if expected > after_seq + 1:
        raise damaged(run_id, f"the frame of event {after_seq + 1} is missing or belongs to another run")
    if before:
        rows = query("SELECT checksum FROM frames WHERE id=?", (before,))
        checksum = rows[0][0] if rows else None
    ids = [row[0] for row in chain]
    for start in range(0, len(ids), _BATCH):
        batch = ids[start : start + _BATCH]
        rows = query(_FRAMES, (_encode(batch).decode(),))
        for index, frame in enumerate(batch):
            row = rows[index] if index < len(rows) else (0,)
            if row[0] != frame:
                raise damaged(run_id, f"the frame of event {expected} is missing")
            raws = _check(head, row, before, expected, seed_of(run_id) if checksum is None else checksum)
            yield expected, raws
            before, expected, checksum = frame, expected + len(raws), row[-1]
    if until_seq is None and head.events not in (None, expected - 1):
        raise damaged(run_id, f"it has {head.events} events, and {expected - 1} of them were found")
    if until_seq is None and not is_whole:
        raise damaged(run_id, "its row in the table `heads` leads to another run")


def _check(head: Head, row: tuple[Any, ...], before: int, expected: int, seed: int) -> list[bytes]:
    _, previous, run, seq, count, body, checksum = row
    if run != head.key:
        raise damaged(head.run_id, f"the frame of event {expected} belongs to another run")
    if (previous, seq) != (before, expected):
        raise damaged(head.run_id, f"the frame of event {expected} does not continue the one before it")
    return check_frame(head.run_id, body, count, expected, checksum, seed)


_CHAIN = (
    "WITH RECURSIVE chain(id, previous, seq, run) AS ("
    "SELECT id, previous, seq, run FROM frames WHERE id=? UNION ALL "
    "SELECT frames.id, frames.previous, frames.seq, frames.run FROM chain "
    "JOIN frames ON frames.id = chain.previous "
    "WHERE chain.previous > 0 AND chain.previous < chain.id AND chain.seq > ?"
    ") SELECT id, previous, coalesce(CAST(seq AS INTEGER), 0), run FROM chain ORDER BY id"
)
"""The frames of a run that hold the events from a seq on. It ends because a frame comes after its previous one."""

_OF_RUN = (
    "SELECT id, previous, CAST(seq AS INTEGER), run FROM frames "
    "WHERE run = ? AND seq + count - 1 > ? ORDER BY id"
)

_FRAMES = (
    "SELECT id, previous, run, seq, count, body, checksum FROM frames "
    "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
)
