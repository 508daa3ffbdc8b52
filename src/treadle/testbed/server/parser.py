"""HTTP/1.1 for the oracle's server: a parser without I/O, and the encoding of responses.

The parser is strict: it refuses everything that RFC 9112 calls ambiguous, such as two lengths, folded headers
or bare line feeds. Source: RFC 9110 and RFC 9112.
"""

from collections.abc import Mapping
from http import HTTPStatus

from msgspec import Struct

MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_CHUNK_LINE_BYTES = 256
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HEX = frozenset(b"0123456789abcdefABCDEF")


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
    length: int | None
    """The length of the body in bytes, or `None` if the body is chunked."""

    @property
    def is_kept_alive(self) -> bool:
        """True if the connection stays open after the response."""
        options = self.headers.get("connection", "").lower()
        return "close" not in options if self.is_http_11 else "keep-alive" in options

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class Parser:
    """A parser for the requests of one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: RequestHead | None = None
        self._body = bytearray()
        self._chunk_left: int | None = None
        """The number of bytes left of the current chunk and its line end, or `None` before a chunk's first line."""
        self._is_in_trailer = False
        self._scanned = 0

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that have arrived and have not been parsed yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._buffer += data

    def take_continue(self) -> bool:
        """Return True if the client waits for permission to send its body. It is true only once for each
        request."""
        head = self._head
        if head is None or self._buffer or self._body or "expect" not in head.headers:
            return False
        self._head = RequestHead(
            head.method,
            head.target,
            {name: value for name, value in head.headers.items() if name != "expect"},
            head.is_http_11,
            head.length,
        )
        return head.is_http_11

    def next_request(self) -> tuple[RequestHead, bytes] | None:
        """Return the next complete request, or `None` if more bytes are needed. Raises: `HttpFault`."""
        if self._head is None:
            self._head = self._read_head()
            if self._head is None:
                return None
        head = self._head
        if head.length is None:
            if not self._read_chunks():
                return None
            body = bytes(self._body)
        elif len(self._buffer) >= head.length:
            body = bytes(self._buffer[: head.length])
            del self._buffer[: head.length]
        else:
            return None
        self._head, self._body = None, bytearray()
        return head, body

    def _read_head(self) -> RequestHead | None:
        while self._buffer[:2] == b"\r\n":
            del self._buffer[:2]
        end = self._buffer.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise HttpFault(431, f"the head of a request may have at most {MAX_HEAD_BYTES} bytes")
        if end < 0:
            self._scanned = len(self._buffer)
            return None
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        self._scanned = 0
        method, target, is_http_11 = _read_request_line(lines[0])
        headers = _read_headers(lines[1:])
        if is_http_11 and "host" not in headers:
            raise HttpFault(400, "an HTTP/1.1 request needs a Host header")
        if headers.get("expect", "100-continue").lower() != "100-continue":
            raise HttpFault(417, f"cannot meet the expectation {headers['expect']!r}")
        return RequestHead(method, target, headers, is_http_11, _read_length(headers, is_http_11))

    def _read_chunks(self) -> bool:
        """Read the part of a chunked body that has arrived. Return True at its end."""
        while not self._is_in_trailer:
            if self._chunk_left is None:
                line = self._take_line()
                if line is None:
                    return False
                size = line.partition(b";")[0].strip()
                if not size or len(size) > 8 or not _HEX.issuperset(size):
                    raise HttpFault(400, f"{size.decode('latin-1')!r} is not the size of a chunk")
                self._is_in_trailer = int(size, 16) == 0
                if len(self._body) + int(size, 16) > MAX_BODY_BYTES:
                    raise HttpFault(413, f"a body may have at most {MAX_BODY_BYTES} bytes")
                self._chunk_left = int(size, 16) + 2
                continue
            part = self._buffer[: self._chunk_left]
            del self._buffer[: len(part)]
            self._body += part
            self._chunk_left -= len(part)
            if self._chunk_left:
                return False
            if not self._body.endswith(b"\r\n"):
                raise HttpFault(400, "a chunk is longer than its size says")
            del self._body[-2:]
            self._chunk_left = None
        while (line := self._take_line()) is not None:
            if not line:
                self._is_in_trailer, self._chunk_left = False, None
                return True
        return False

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE_BYTES)
        if end < 0:
            if len(self._buffer) >= _MAX_CHUNK_LINE_BYTES:
                raise HttpFault(400, "a line between chunks is too long")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _read_request_line(line: bytes) -> tuple[str, str, bool]:
    parts = line.decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[0] or not _TOKEN.issuperset(parts[0].encode("latin-1")):
        raise HttpFault(400, f"{line[:80].decode('latin-1')!r} is not a request line")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        status = 505 if version.startswith("HTTP/") else 400
        raise HttpFault(status, f"{version[:20]!r} is not HTTP/1.1")
    if not target or any(ord(char) <= 32 or ord(char) >= 127 for char in target):
        raise HttpFault(400, "the request's target contains characters that are not allowed")
    return method, target, version == "HTTP/1.1"


def _read_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        raw_name, colon, value = line.partition(b":")
        if not colon or not raw_name or not _TOKEN.issuperset(raw_name):
            raise HttpFault(400, f"{line[:80].decode('latin-1')!r} is not a header")
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise HttpFault(400, f"the header {raw_name.decode()!r} contains a control character")
        name, text = raw_name.decode().lower(), value.strip(b" \t").decode("latin-1")
        if name not in headers:
            headers[name] = text
        elif name in ("host", "transfer-encoding"):
            raise HttpFault(400, f"the header {name!r} occurs twice")
        else:
            headers[name] += ", " + text
    return headers


def _read_length(headers: Mapping[str, str], is_http_11: bool) -> int | None:
    """Return the length of the body in bytes, or `None` if the body is chunked."""
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or not is_http_11:
            raise HttpFault(400, "a request may not have both a Content-Length and a Transfer-Encoding")
        if coding.lower() != "chunked":
            raise HttpFault(501, f"the transfer coding {coding!r} is not supported; use chunked")
        return None
    if length is None:
        return 0
    if not length.isascii() or not length.isdecimal():
        raise HttpFault(400, f"the Content-Length {length[:40]!r} is not a number")
    if len(length) > 12 or int(length) > MAX_BODY_BYTES:
        raise HttpFault(413, f"a body may have at most {MAX_BODY_BYTES} bytes")
    return int(length)


def encode_head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the status line and the headers of a response."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def encode_chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
