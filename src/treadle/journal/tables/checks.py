"""Checksums of rows, frames and messages, which are checked while they are read.

A frame's checksum is the CRC-32 of its body, continued from the checksum of the run's previous frame. The first
frame continues the checksum of the run's id. It therefore covers the body, the run that the frame belongs to and
its place in the run. CRC-32 finds every change within 32 consecutive bits; it does not protect against forgery.
The other columns of a frame are checked against the frames around it.

A row that an older Treadle wrote has no checksum. The checksum of the next frame then begins with the run's id.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.inbox import Posted, decode_message

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


def seed_of(run_id: str) -> int:
    """Return the number with which the checksums of a run begin."""
    return crc32(run_id.encode(errors="replace"))


def row_checksum(values: tuple[object, ...], seed: int) -> int:
    """Return the checksum of a row in `runs` or `heads`, given the facts in it."""
    return crc32(_encode(values), seed)


def damaged(run_id: str, problem: str) -> JournalError:
    """Return the error for a run that is damaged in the store."""
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


INSERT_MESSAGE = "INSERT INTO inbox(run, number, kind, body, checksum, nonce) VALUES(?,?,?,?,?,?)"
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
    nonce: int
    """A random number by which a message is recognised that is sent again after the loss of a connection."""

    def row(self, key: int, number: int) -> tuple[object, ...]:
        """Return the message as a row of `inbox`, for the run with the row `key`."""
        return key, number, self.kind, self.body, _checksum(self.run_id, number, self.body), self.nonce


def read_letter(run_id: str, number: int, body: object, checksum: object) -> Posted:
    """Return a message that was read from `inbox`. A damaged one has a fault."""
    if not isinstance(body, bytes) or checksum != _checksum(run_id, number, body):
        return Posted(number, None, "it is damaged: the store has other content than what was written")
    return decode_message(number, body)


def _checksum(run_id: str, number: int, body: bytes) -> int:
    return crc32(body, crc32(b"%d" % number, seed_of(run_id)))
