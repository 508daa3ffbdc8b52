"""What a caller gets of an answer: its headers, and the body of a stream, decompressed as it arrives."""

import asyncio
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from treadle.http.plain.http_connection import HttpConnection

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


class AnswerBody:
    """The body of a streamed answer: an iterator over its pieces as they arrive."""

    __slots__ = ("_connection", "_failure", "_is_ended", "_loop", "_unread", "_unread_bytes", "_waiter")

    def __init__(self, connection: "HttpConnection", loop: asyncio.AbstractEventLoop) -> None:
        self._connection: HttpConnection | None = connection
        self._loop = loop
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._is_ended = False

    def __aiter__(self) -> "AnswerBody":
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


ENCODINGS = frozenset((b"gzip", b"x-gzip", b"deflate"))
UNREADABLE = frozenset((b"br", b"zstd", b"compress"))
"""Encodings that are not asked for, and cannot be decompressed here."""
_PIECE_BYTES = 1024 * 1024


class Inflater:
    """A decompressor for one body."""

    __slots__ = ("_engine", "_has_data", "_is_gzip")

    def __init__(self, encoding: bytes) -> None:
        self._is_gzip = encoding != b"deflate"
        self._engine = zlib.decompressobj(zlib.MAX_WBITS | 32)
        """A decompressor that recognises the headers of gzip and zlib."""
        self._has_data = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress `data`, and yield the result in pieces of limited size. Raises: `zlib.error`."""
        if not self._has_data:
            # In HTTP, deflate means data with a zlib header, but some servers leave the header out.
            if not self._is_gzip and data[0] & 0x0F != 8:
                self._engine = zlib.decompressobj(-zlib.MAX_WBITS)
            self._has_data = True
        while True:
            if self._engine.eof:
                # Gzip data may have several members; anything else after its end is ignored.
                if not self._is_gzip or not data.startswith(b"\x1f"):
                    return
                self._engine = zlib.decompressobj(zlib.MAX_WBITS | 16)
            piece = self._engine.decompress(data, _PIECE_BYTES)
            yield piece
            data = self._engine.unconsumed_tail or self._engine.unused_data
            if not data and len(piece) < _PIECE_BYTES:
                return

    def close(self) -> None:
        """Check that the data was complete. Raises: `zlib.error`."""
        if self._has_data and not self._engine.eof:
            raise zlib.error("the compressed data ended early")
