"""The outbox: the stream in which a performer returns events while it works.

A performer puts events into an outbox in order, and does not know who reads them: the driver appends them to the
journal, `verify` compares them, and others ignore them.
"""

from collections.abc import Awaitable, Generator, Mapping
from typing import Protocol

from treadle.core.events import DurableBody


class Outbox(Protocol):
    """The receiver of a performer's events."""

    def put(self, *bodies: DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Take the next events, all or none, with the contents that they refer to. Their times are not set yet."""
        ...

    def kept(self) -> Awaitable[None]:
        """Wait until all events that were put are durable. Raises: `JournalError`."""
        ...


class Collected:
    """An outbox without a journal: it keeps the events in a list."""

    def __init__(self) -> None:
        self.bodies: list[DurableBody] = []

    def put(self, *bodies: DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Add the events to the list."""
        self.bodies += bodies

    def kept(self) -> Awaitable[None]:
        """Return an awaitable that is finished, because there is nothing to wait for."""
        return DONE


class _Done:
    """An awaitable that is finished."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


DONE = _Done()
"""An awaitable that is finished; it can be awaited any number of times."""
