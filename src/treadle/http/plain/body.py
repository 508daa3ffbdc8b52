"""The parts of an answer that a caller gets: its headers, and the body of a streamed answer."""

import asyncio
from typing import Protocol

from msgspec import Struct

_UNREAD_BYTES = 256 * 1024
"""How many unread bytes of a streamed body are kept before reading from the socket is paused."""


class Headers(Struct, gc=False):
    """The headers of an answer. Calling the object with a name returns the first header with that name."""

    raw: dict[bytes, bytes]
    """The headers as received. If several names are spelt the same, the first one counts."""
    by_name: dict[str, str] | None = None
    """The headers by name in lower case; `None` until it is needed."""

    def __call__(self, name: str) -> str | None:
        """Return the first header called `name`, ignoring case; `None` if there is none."""
        if self.by_name is None:
            self.by_name = {}
            for key, value in self.raw.items():
                self.by_name.setdefault(key.decode("latin-1").lower(), value.decode("latin-1"))
        return self.by_name.get(name.lower())


class Source(Protocol):
    """The connection that a body arrives on."""

    def resume(self) -> None:
        """Read the socket again, if that was paused."""
        ...

    def leave(self) -> None:
        """Close the connection, because nobody reads the rest of the body."""
        ...


class Body:
    """The body of a streamed answer: an iterator over its pieces as they arrive."""

    __slots__ = ("_connection", "_failure", "_is_ended", "_loop", "_unread", "_unread_bytes", "_waiter")

    def __init__(self, connection: Source, loop: asyncio.AbstractEventLoop) -> None:
        self._connection: Source | None = connection
        self._loop = loop
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._is_ended = False

    def __aiter__(self) -> "Body":
        return self

    async def __anext__(self) -> bytes:
        while not self._unread:
            if self._failure is not None:
                raise self._failure
            if self._is_ended:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        piece = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if self._connection is not None:
            self._connection.resume()
        return piece

    def add(self, piece: bytes) -> None:
        """Append a piece, without waking the reader."""
        self._unread.append(piece)
        self._unread_bytes += len(piece)

    def wake(self) -> bool:
        """Wake the reader if there is something to read. Return whether too much is unread."""
        if self._unread and self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None
        return self._unread_bytes > _UNREAD_BYTES

    def end(self, failure: Exception | None = None) -> None:
        """End the body: the reader gets the unread rest, and then the end or the failure."""
        self._connection = None
        self._is_ended = True
        self._failure = failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    def close(self) -> None:
        """Give up the rest of the body, if any, and close its connection."""
        if self._connection is not None:
            self._connection.leave()
