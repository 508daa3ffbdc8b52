"""The reader of streamed answers, which splits a stream into events, joins them, and checks that none is missing.

Each piece is passed on when it arrives. An answer is incomplete if its stream ends before the server gave a finish
reason.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from treadle.core.errors import ProviderError, ServerError, TransportError
from treadle.core.events import Delta
from treadle.core.types import Json
from treadle.http.sse import LineReader, SseReader
from treadle.http.transport import StreamedAnswer
from treadle.models.wire.server import Server

_DRAIN_SECONDS = 0.25

_decode = msgspec.json.Decoder().decode


class Collector(ABC):
    """A builder of a whole answer's raw object from a dialect's events."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        """Make a collector for one answer; `on_delta` is called with each piece as it arrives."""
        self.is_done = False
        """True if the server has marked the end of the stream."""
        self._on_delta = on_delta
        self._server = server

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """True if the server has given its finish reason, so that only details can be missing."""

    @abstractmethod
    def add(self, event: Json) -> None:
        """Add one decoded event.

        Raises: `ProviderError` for an error in it; `LookupError`, `TypeError`, `AttributeError` or `ValueError`
        for an event that makes no sense.
        """

    def add_whole(self, raw: Json) -> None:
        """Add the answer of a server that did not stream. By default it is read as one chunk."""
        self.add(raw)

    def end(self) -> None:
        """Record that the server sent the end mark `[DONE]`."""
        self.is_done = True

    @abstractmethod
    def raw(self) -> Json:
        """Return the raw object of the whole answer. Called once, when the stream is over and `is_complete`."""


async def read_stream(
    answer: StreamedAnswer,
    collector: Collector,
    server: Server,
    reader: SseReader | LineReader,
    decode: Callable[[bytes], Json] = _decode,
) -> Json:
    """Return the raw object of a streamed answer. `decode` decodes one event.

    Raises: `ProviderError` for an error in the stream, `TransportError` for a stream that was cut off.
    """
    is_whole = isinstance(reader, SseReader) and "json" in (answer.header("content-type") or "")
    unread: list[bytes] = []
    try:
        async for chunk in answer.chunks:
            if is_whole:
                unread.append(chunk)
                continue
            for event in reader.feed(chunk):
                _add(event, collector, server, decode)
            if collector.is_done:
                await _drain(answer)
                break
        else:
            if is_whole:
                _add(b"".join(unread), collector, server, decode, is_whole=True)
            for event in reader.close():
                # An incomplete event at the end is not a separate error: the answer is incomplete.
                if event == b"[DONE]" or _is_json(event):
                    _add(event, collector, server, decode)
    except TransportError:
        # After the finish reason nothing essential can be missing.
        if not collector.is_complete:
            raise
    if not collector.is_done and not collector.is_complete:
        raise TransportError(f"the stream of {server.origin} ended before its end")
    try:
        return collector.raw()
    except (TypeError, LookupError, AttributeError, ValueError):
        raise ServerError(f"what {server.origin} streamed makes no sense together", status=200) from None


def _add(
    event: bytes,
    collector: Collector,
    server: Server,
    decode: Callable[[bytes], Json],
    *,
    is_whole: bool = False,
) -> None:
    if event == b"[DONE]":
        collector.end()
        return
    try:
        raw = decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError(
            f"{server.origin} streamed what is not JSON ({error}): {server.excerpt(event)}", status=200
        ) from None
    if collector.is_done:
        return
    try:
        if is_whole:
            collector.add_whole(raw)
        else:
            collector.add(raw)
    except ProviderError:
        raise
    except (TypeError, LookupError, AttributeError, ValueError):
        excerpt = server.excerpt(msgspec.json.encode(raw))
        raise ServerError(f"a chunk of {server.origin} makes no sense: {excerpt}", status=200) from None


async def _drain(answer: StreamedAnswer) -> None:
    """Read the end of the body, so that the connection can be used again, but do not wait long for it."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in answer.chunks:
                pass
    except (TransportError, TimeoutError):
        pass


def _is_json(event: bytes) -> bool:
    try:
        _decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
