"""The stream of events that a performer gives back while it works.

A performer puts events in, in order. Who reads them is not its business: the driver appends them to the journal,
`verify` compares them, and others throw them away.
"""

from collections.abc import Awaitable, Generator, Mapping
from typing import Protocol

from treadle.core.events import DurableBody


class Outbox(Protocol):
    """Takes the events of a performer."""

    def put(self, *bodies: DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Take the next events, all or none, with the contents that they name. Their times are still unset."""
        ...

    def kept(self) -> Awaitable[None]:
        """Wait until everything that was put in is durable. Raises: `JournalError`."""
        ...


class Collected:
    """An outbox without a journal: it keeps the events in a list."""

    def __init__(self) -> None:
        self.bodies: list[DurableBody] = []

    def put(self, *bodies: DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """See `Outbox.put`."""
        self.bodies += bodies

    def kept(self) -> Awaitable[None]:
        """See `Outbox.kept`."""
        return DONE


class _Done:
    """An awaitable that is finished."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


DONE = _Done()
