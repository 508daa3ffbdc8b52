"""One connection: it writes a request, parses the answer, and wakes the caller.

What is fast here, and why:

- a request is one write and one future, made by `ask` and resolved by the parser's callbacks: no task, no stream
  reader, no queue between the socket and the caller;
- httptools parses in C and passes each header to `dict.setdefault`, so that no Python code runs per header; names
  are decoded only if a header is looked up;
- there is no timer per request: the pool watches all its connections with one timer.
"""

import asyncio
import os
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from treadle.http import transport_errors
from treadle.http.plain.answer_body import ENCODINGS, UNREADABLE, AnswerBody, Headers, Inflater
from treadle.http.protocol import MAX_ANSWER_BYTES, Answer, StreamedAnswer

if TYPE_CHECKING:
    from treadle.http.plain.client import Pool

MAX_HEAD_BYTES = 256 * 1024
_FRAMING_RATE = 16
"""Bytes of chunk sizes and extensions that are allowed for each byte of a body."""
_WRITE_BYTES = 256 * 1024
_END = b""
"""The name, which no header can have, of a mark that an answer is complete."""

Head: TypeAlias = asyncio.Future[Answer] | asyncio.Future[StreamedAnswer]


class StaleConnectionError(Exception):
    """Raised if a request was lost because the server had closed the idle connection before it answered."""


class HttpConnection(asyncio.Protocol):
    """A connection of a pool. It carries one request at a time."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._transport: Any = None
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._is_writable = True
        self._is_paused = False
        self.may_be_stale = False
        """True if the server may have closed the idle connection before it read the request."""
        self.is_resting = False
        """True if the pool has seen the connection idle since its last request."""
        self.active_at = 0.0
        """When, by the loop's clock, the last request was sent, or the last part of a long answer came."""
        self.end = 0.0
        """The time, by the loop's clock, at which the request must be answered."""
        self._reset()

    def _reset(self) -> None:
        self._head: Head | None = None
        self._body: AnswerBody | None = None
        self._pieces.clear()
        self._size = self._received_bytes = self._status = 0
        self._inflater: Inflater | None = None
        self._unsent: memoryview | None = None
        self._fault: Exception | None = None
        """The error that the parser's callbacks found. They must not raise it themselves."""
        self._is_streamed = self._is_complete = self._is_keepable = False

    def ask(self, payload: bytes, unsent: bytes, now: float, end: float, is_streamed: bool) -> Any:
        """Send a request and return a future for the whole answer, or for its head if it is streamed.

        `payload` is sent at once, and `unsent`, the rest of a large request, as fast as the server reads it. `end`
        is the time at which the request must be answered. The future fails with an error of
        `treadle.http.transport_errors`, or with `StaleConnectionError`.
        """
        self.active_at, self.end = now, end
        self.is_resting = False
        self._is_streamed = is_streamed
        head = self._pool.loop.create_future()
        if self._parser is None:
            # The server closed the connection immediately after it was opened.
            head.set_exception(transport_errors.broken(self._pool.origin, _CLOSED))
            return head
        self._head = head
        if unsent:
            self._unsent = memoryview(unsent)
        self._pool.send(self, payload)
        return head

    def write(self, payload: bytes) -> None:
        """Write the beginning of the request, unless the request was given up since."""
        if self._head is None:
            return
        self._transport.write(payload)
        if self._unsent is not None:
            self._write_on()

    def drop(self) -> None:
        """Close the connection, whether it is in use or not."""
        self._pool.forget(self)
        self._reset()
        self._transport.abort()

    def is_asked_by(self, head: object) -> bool:
        """Return whether the request whose future is `head` is still running."""
        return self._head is head

    def fail(self, failure: Exception) -> None:
        """Close the connection, and raise `failure` in the caller that waits for the answer."""
        head, body = self._head, self._body
        self.drop()
        if body is not None:
            body.end(failure)
        elif head is not None and not head.done():
            head.set_exception(failure)

    def leave(self) -> None:
        """Close the connection because the caller does not read the rest of the body."""
        self.fail(transport_errors.broken(self._pool.origin, "the stream was left"))

    def resume(self) -> None:
        """Read the socket again, if that was paused."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # Methods that the event loop calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # Bound methods of a dictionary: the parser calls them without entering Python code.
        self._raw: dict[bytes, bytes] = {}
        self.on_message_begin: Callable[[], Any] = self._raw.clear
        self.on_header: Callable[[bytes, bytes], Any] = self._raw.setdefault
        parser = HttpResponseParser(self)
        # Like pyreqwest, accept lines that end in a bare line feed, and a length together with chunks.
        parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_chunked_length=True)
        self._parser: HttpResponseParser | None = parser

    def data_received(self, data: bytes) -> None:
        if self._head is None or self._parser is None:
            # No request is running, so this cannot be an answer.
            self.drop()
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._is_complete:
                is_upgrade = isinstance(error, HttpParserUpgrade)
                detail = "it changes to another protocol" if is_upgrade else str(error).lower()
                self.fail(transport_errors.not_http(self._pool.origin, detail))
                return
            self._is_keepable = False
        if self._fault is not None:
            self.fail(self._fault)
        elif self._is_complete:
            self._finish()
        elif self._received_bytes - _FRAMING_RATE * self._size > MAX_HEAD_BYTES:
            self.fail(
                transport_errors.not_http(self._pool.origin, f"headers of more than {MAX_HEAD_BYTES} bytes")
            )
        else:
            # Whatever arrives shows that the server is alive.
            self.active_at = self._pool.loop.time()
            if self._body is not None and self._body.wake() and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._parser = None
        self._pool.forget(self)
        if self._head is None:
            return
        if error is None and self._status and not self._size_is_known():
            # A body without a length ends with the connection.
            self._is_complete = True
            self._finish()
        elif self.may_be_stale and not self._received_bytes and not self._head.done():
            self._head.set_exception(StaleConnectionError())
            self._head = None
        else:
            self.fail(transport_errors.broken(self._pool.origin, self._describe(error)))

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._write_on()

    # Methods that the parser calls. They must not raise.

    def on_headers_complete(self) -> None:
        """Read the head; interim answers are skipped."""
        if self._is_complete or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._raw.clear()
            return
        self._status = status
        headers = self._headers = self._raw.copy()
        # `in` makes and drops an exception before it searches bytes for bytes.
        if b"\n".join(headers).lower().find(b"content-encoding") != -1:
            self._note_encoding(headers)
        if self._is_streamed and self._head is not None and not self._head.done():
            self._body = AnswerBody(self, self._pool.loop)
            self._head.set_result(StreamedAnswer(status, Headers(headers), self._body))  # type: ignore[arg-type]

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body, up to the limit."""
        if self._is_complete or self._fault is not None:
            return
        if self._inflater is None:
            size = self._size + len(data)
            if self._body is None and size <= MAX_ANSWER_BYTES:
                self._size = size
                self._pieces.append(data)
            else:
                self._keep(data)
            return
        try:
            for piece in self._inflater.feed(data):
                self._keep(piece)
                if self._fault is not None:
                    return
        except zlib.error as error:
            self._fault = transport_errors.bad_body(self._pool.origin, str(error).lower())

    def on_message_complete(self) -> None:
        """Record the end of an answer."""
        if not self._status or self._is_complete or self._parser is None:
            return
        self._is_complete = True
        self._is_keepable = self._parser.should_keep_alive()
        # It is gone as soon as a second answer to the same request begins.
        self._raw[_END] = b""

    def _note_encoding(self, headers: dict[bytes, bytes]) -> None:
        """Note how the body is compressed. An encoding that was not asked for is a fault."""
        for name, value in headers.items():
            if name.lower() != b"content-encoding":
                continue
            encoding = value.strip().lower()
            if encoding in ENCODINGS:
                self._inflater = Inflater(encoding)
            elif encoding in UNREADABLE:
                said = f"it is encoded as {encoding.decode('latin-1')!r}, which was not asked for"
                self._fault = transport_errors.bad_body(self._pool.origin, said)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_ANSWER_BYTES:
            self._fault = transport_errors.too_long(self._pool.origin)
        elif self._body is not None:
            self._body.add(piece)
        else:
            self._pieces.append(piece)

    def _finish(self) -> None:
        """Pass a complete answer to the caller, and return the connection to the pool if it can be used again."""
        if self._inflater is not None:
            try:
                self._inflater.close()
            except zlib.error as error:
                self.fail(transport_errors.bad_body(self._pool.origin, str(error)))
                return
        head, body, pieces = self._head, self._body, self._pieces
        answer: Answer | None = None
        if body is None:
            content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            answer = Answer(self._status, content, Headers(self._headers))
        is_reusable = self._is_keepable and self._unsent is None and _END in self._raw
        if self._is_paused:
            self.resume()
        self._reset()
        if is_reusable:
            self._pool.release(self)
        else:
            self._pool.forget(self)
            self._transport.close()
        if body is not None:
            body.end()
        elif head is not None and not head.done():
            head.set_result(answer)  # type: ignore[arg-type]

    def _size_is_known(self) -> bool:
        """Return whether the head says where the body ends. Otherwise it ends with the connection."""
        headers = {name.lower(): value.lower() for name, value in self._headers.items()}
        return b"content-length" in headers or b"chunked" in headers.get(b"transfer-encoding", b"")

    def _write_on(self) -> None:
        """Write as much of a large request as the server accepts now."""
        while self._unsent is not None and self._is_writable:
            piece, rest = self._unsent[:_WRITE_BYTES], self._unsent[_WRITE_BYTES:]
            self._unsent = rest if rest else None
            self._transport.write(piece)

    def _describe(self, error: Exception | None) -> str:
        """Return the reason why a connection was lost, with the same text as pyreqwest."""
        if isinstance(error, OSError) and error.errno is not None:
            return os.strerror(error.errno).lower()
        if error is not None:
            return type(error).__name__
        return "end of file before message length reached" if self._status else _CLOSED


_CLOSED = "connection closed before message completed"
