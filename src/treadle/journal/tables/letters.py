"""Messages in the table `inbox`, with their checksums.

A message that was taken in is deleted, except the newest of its run, which keeps its number and loses its content:
the next message is numbered from it.
"""

from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from treadle.core.inbox import Posted, decode_message
from treadle.journal.tables.checks import seed_of

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
