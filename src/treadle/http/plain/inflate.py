"""Decompression of a body as it arrives: gzip and deflate."""

import zlib
from collections.abc import Iterator

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
