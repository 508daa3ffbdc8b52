"""The protocol of sinks, which hand groups of rollouts to trainers.

A sink is driven by the delivery queue (`rollout/deliveries.py`), which keeps each group until the sink has
acknowledged it. After a crash a group is delivered again under the same key. The sink finds out whether the
first delivery arrived.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from treadle.export.groups import Group
from treadle.jobs.ledger import transaction
from treadle.rollout.held_out_scores import HeldOutScore

if TYPE_CHECKING:
    import sqlite3

QUEUE = "the queue of the sinks"
"""What an error says that cannot be written."""


class SinkMemory:
    """The notes that the delivery queue durably keeps for a sink."""

    def __init__(self, connection: "sqlite3.Connection", sink: str) -> None:
        self._connection = connection
        self._sink = sink

    def get(self, name: str) -> str | None:
        """Return a note; `None` if there is none."""
        found = self._connection.execute(
            "SELECT value FROM sink_notes WHERE sink = ? AND name = ?", (self._sink, name)
        ).fetchone()
        return None if found is None else str(found[0])

    def set(self, notes: Mapping[str, str | None]) -> None:
        """Store notes in one transaction; `None` removes a note."""
        with transaction(self._connection, QUEUE):
            self.write(notes)

    def write(self, notes: Mapping[str, str | None]) -> None:
        """Store notes in the transaction that is open."""
        for name, value in notes.items():
            if value is None:
                sql = "DELETE FROM sink_notes WHERE sink = ? AND name = ?"
                self._connection.execute(sql, (self._sink, name))
            else:
                sql = "INSERT OR REPLACE INTO sink_notes VALUES (?, ?, ?)"
                self._connection.execute(sql, (self._sink, name, value))

    def sent(self) -> list[tuple[str, str]]:
        """Return the groups that were handed over and not acknowledged, in order: the key and `Receipt.note`."""
        return self._connection.execute(
            "SELECT key, note FROM parcels WHERE sink = ? AND status = 'sent' ORDER BY sent", (self._sink,)
        ).fetchall()


class Receipt(Struct, frozen=True):
    """The result of a delivery. It is stored together with the notes, in one transaction."""

    is_final: bool = True
    """True if the receiver has the group for good. If false, the receiver may still lose the group, so the
    group is kept, and `check` says later whether it was lost."""
    note: str = ""
    """Data about the group that the sink needs later."""
    notes: dict[str, str | None] = {}
    """Changes to the sink's notes."""


class SinkCheck(Struct, frozen=True):
    """The news about groups that were handed over. It is stored in one transaction."""

    taken: tuple[str, ...] = ()
    """The keys of groups that the receiver has for good."""
    lost: tuple[str, ...] = ()
    """The keys of groups that the receiver has lost. They are delivered again."""
    arrived: dict[str, str] = {}
    """The keys of groups whose delivery was interrupted, and which the receiver has, with `Receipt.note`."""
    notes: dict[str, str | None] = {}
    """Changes to the sink's notes."""


class Sink(Protocol):
    """A receiver of groups. One task drives it, one call at a time."""

    @property
    def name(self) -> str:
        """The name of the sink, unique in a rollout."""
        ...

    def encode(self, group: Group) -> bytes:
        """Return what is kept for the group until the sink has acknowledged it. Called once, after `open`.

        Raises: `ExportError` if the sink's format cannot express the group.
        """
        ...

    def open(self, memory: SinkMemory) -> None:
        """Begin to work with these notes. Raises: `ConfigError` or `ExportError` if that is not possible."""
        ...

    async def check(self) -> SinkCheck:
        """Return what became of groups that were handed over. Called before each delivery, and from time to time
        while there are such groups.

        Raises: as `deliver` does.
        """
        ...

    async def deliver(self, key: str, data: bytes) -> Receipt:
        """Hand over a group.

        Raises: `ExportError` if the receiver refuses the group for good; `ConfigError` if it cannot work at all;
        `ProviderError` or `OSError` if it should be tried again.
        """
        ...

    async def close(self) -> None:
        """Release connections and files."""
        ...


@runtime_checkable
class ScoreSink(Protocol):
    """A sink that also takes the scores of held-out tasks. They come to `deliver`, in order with the groups."""

    def encode_score(self, score: HeldOutScore) -> bytes:
        """Return what is kept for the score until the sink has acknowledged it."""
        ...


class BaseSink:
    """The methods of a sink that needs no notes and hands over groups for good."""

    def open(self, memory: SinkMemory) -> None:
        """See `Sink.open`."""

    async def check(self) -> SinkCheck:
        return SinkCheck()

    async def close(self) -> None:
        """See `Sink.close`."""
