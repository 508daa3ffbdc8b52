"""HTTP/1.1 for the mock server: requests without I/O, and the encoding of responses.

httptools does the parsing. This module refuses requests that are too large, and requests that httptools accepts
although RFC 9112 calls them ambiguous.
"""

from collections import deque
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct

MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
_SLICE_BYTES = 16 * 1024
"""How many bytes are parsed at a time. What comes after a complete request waits until it is answered."""


class HttpFault(Exception):  # noqa: N818
    """Raised when a request is malformed. The connection is closed after the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class RequestHead(Struct, frozen=True):
    """The head of a request."""

    method: str
    target: str
    headers: Mapping[str, str]
    """The headers, with names in lower case. Values of repeated headers are joined with commas."""
    is_http_11: bool
    is_kept_alive: bool
    """True if the connection stays open after the response."""


class Parser:
    """A parser for the requests of one connection."""

    def __init__(self) -> None:
        self._parser = HttpRequestParser(self)
        self._backlog = bytearray()
        """The bytes that were not parsed yet."""
        self._ready: deque[tuple[RequestHead, bytes]] = deque()
        self._fault: HttpFault | None = None
        self._head_bytes = 0
        """How many bytes were parsed while the head of a request was not complete."""
        self._is_told = False
        """True if the client was permitted to send its body."""
        self.on_message_begin()

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that have arrived and have not been parsed yet."""
        return len(self._backlog)

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._backlog += data

    def take_continue(self) -> bool:
        """Return True if the client waits for permission to send its body. It is true only once for each
        request."""
        head = self._head
        if head is None or self._backlog or self._body or "expect" not in head.headers or self._is_told:
            return False
        self._is_told = True
        return head.is_http_11

    def next_request(self) -> tuple[RequestHead, bytes] | None:
        """Return the next complete request, or `None` if more bytes are needed. Raises: `HttpFault`."""
        while self._backlog and not self._ready and self._fault is None:
            data = bytes(self._backlog[:_SLICE_BYTES])
            del self._backlog[:_SLICE_BYTES]
            self._parse(data)
        if self._ready:
            return self._ready.popleft()
        if self._fault is not None:
            raise self._fault
        return None

    def _parse(self, data: bytes) -> None:
        if self._head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            # The connection stays as it is: what follows is another request.
            self._parser = HttpRequestParser(self)
            self._backlog[:0] = data[upgrade.args[0] :]
        except HttpParserError as error:
            status = 413 if "overflow" in str(error) and self._head is None else 400
            self._refuse(status, f"the request is not HTTP/1.1: {error}")
        if self._head is None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"the head of a request may have at most {MAX_HEAD_BYTES} bytes")

    def _refuse(self, status: int, message: str) -> None:
        self._fault = self._fault or HttpFault(status, message)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._size = 0
        self._is_told = False

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url
        self._size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")
        self._size += len(name) + len(value) + 4
        if key not in self._headers:
            self._headers[key] = text
        elif key in ("host", "transfer-encoding", "content-length"):
            self._refuse(400, f"the header {key!r} occurs twice")
        else:
            self._headers[key] += f", {text}"

    def on_headers_complete(self) -> None:
        """Check the head of a request."""
        self._head_bytes = 0
        headers, version = self._headers, self._parser.get_http_version()
        target = self._target.decode("latin-1")
        is_http_11 = version == "1.1"
        coding, length = headers.get("transfer-encoding"), headers.get("content-length", "0")
        if version not in ("1.0", "1.1"):
            self._refuse(505, f"'HTTP/{version}' is not HTTP/1.1")
        elif self._size > MAX_HEAD_BYTES:
            self._refuse(431, f"the head of a request may have at most {MAX_HEAD_BYTES} bytes")
        elif is_http_11 and "host" not in headers:
            self._refuse(400, "an HTTP/1.1 request needs a Host header")
        elif not target.isascii() or not target.isprintable():
            self._refuse(400, "the request's target contains characters that are not allowed")
        elif headers.get("expect", "100-continue").lower() != "100-continue":
            self._refuse(417, f"cannot meet the expectation {headers['expect']!r}")
        elif coding is not None and (not is_http_11 or "content-length" in headers):
            self._refuse(400, "a request may not have both a Content-Length and a Transfer-Encoding")
        elif coding is not None and coding.lower() != "chunked":
            self._refuse(501, f"the transfer coding {coding!r} is not supported; use chunked")
        elif not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self._refuse(413, f"a body may have at most {MAX_BODY_BYTES} bytes")
        is_kept = self._parser.should_keep_alive()
        method = self._parser.get_method().decode("latin-1")
        self._head = RequestHead(method, target, headers, is_http_11, is_kept)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413, f"a body may have at most {MAX_BODY_BYTES} bytes")
        elif self._fault is None:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._head is not None and self._fault is None:
            self._ready.append((self._head, b"".join(self._body)))
        self._head = None


def encode_head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the status line and the headers of a response."""
    lines = [_status_line(status)]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@cache
def _status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"


def encode_chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
