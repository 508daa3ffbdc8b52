"""The oracle's server on the network: its connections, and starting and stopping it.

httptools parses the requests. The server is for trials and tests on one machine, so it takes what httptools takes.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.testbed.server.oracle_app import (
    FailureMode,
    HttpReply,
    OracleApp,
    PendingReply,
    ServerSettings,
    error_reply,
)

MAX_REQUEST_BYTES = 64 * 1024 * 1024
_MAX_READY = 1000
"""How many requests of a client may wait before no more are read."""


class _Asked(Struct, frozen=True):
    """A complete request."""

    method: str
    target: str
    body: bytes
    is_http_11: bool
    is_kept_alive: bool
    """True if the connection stays open after the response."""


class ServerConnection(asyncio.Protocol):
    """One client's connection. Requests are answered in the order in which they arrive."""

    def __init__(self, app: OracleApp, connections: "set[ServerConnection]") -> None:
        self._app = app
        self._connections = connections
        self._parser = HttpRequestParser(self)
        self._target, self._body = b"", bytearray()
        self._request_bytes = 0
        """How many bytes have arrived since the last complete request."""
        self._ready: deque[_Asked] = deque()
        self._fault: tuple[int, str] | None = None
        """The status and reason with which the connection ends after the requests before; `None`: it goes on."""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | PendingReply | None = None
        """What sends the next part of a response, or `None` if no response waits."""
        self._is_blocked = False
        self._is_ended = False
        """True if the client sends no more data."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because the transports of uvloop are not subclasses of `asyncio.Transport`.
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._request_bytes += len(data)
        while data and self._fault is None:
            try:
                self._parser.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                # The connection stays as it is: what follows is another request.
                self._parser, data = HttpRequestParser(self), data[upgrade.args[0] :]
            except HttpParserError as error:
                self._fault = (400, f"the request is not HTTP/1.1: {error}")
        if self._request_bytes > MAX_REQUEST_BYTES:
            self._fault = (413, f"a request may have at most {MAX_REQUEST_BYTES} bytes")
        self._advance()

    def eof_received(self) -> bool:
        self._is_ended = True
        return self._timer is not None or self._is_blocked

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._advance()

    def on_message_begin(self) -> None:
        self._target, self._body = b"", bytearray()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Let a client send its body that waits for permission."""
        if name.lower() == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._body += data

    def on_message_complete(self) -> None:
        """End a request."""
        parser, self._request_bytes = self._parser, 0
        method, target = parser.get_method().decode(), self._target.decode("latin-1")
        is_http_11 = parser.get_http_version() == "1.1"
        self._ready.append(_Asked(method, target, bytes(self._body), is_http_11, parser.should_keep_alive()))

    def abort(self) -> None:
        """Close the connection without sending what is pending."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        """Answer the complete requests that have arrived, unless a response still waits."""
        transport = self._transport
        while transport is not None and not transport.is_closing():
            if self._timer is not None or self._is_blocked:
                if len(self._ready) > _MAX_READY:
                    transport.pause_reading()
                return
            if self._ready:
                self._answer(self._ready.popleft())
                continue
            if self._fault is not None:
                asked = _Asked("", "", b"", is_http_11=True, is_kept_alive=False)
                self._send(asked, error_reply(*self._fault, "bad_http"))
                return
            transport.resume_reading()
            if self._is_ended:
                transport.close()
            return

    def _answer(self, asked: _Asked) -> None:
        reply = self._app.answer(asked.method, asked.target, asked.body)
        if reply.pending is None:
            self._send(asked, reply)
            return
        self._timer = reply.pending
        self._timer.start(partial(self._finish, asked, reply.failure))

    def _finish(self, asked: _Asked, failure: FailureMode | None, reply: HttpReply) -> None:
        """Send a response that was pending, and go on with the next request."""
        self._timer = None
        if self._transport is None:
            return
        reply.failure = failure
        self._send(asked, reply)
        self._advance()

    def _send(self, asked: _Asked, reply: HttpReply) -> None:
        settings = self._app.settings
        is_closing = not asked.is_kept_alive
        headers = dict(reply.headers)
        pieces = list(reply.pieces)
        if not reply.is_stream:
            headers["Content-Length"] = str(sum(map(len, pieces)))
        elif asked.is_http_11:
            headers["Transfer-Encoding"] = "chunked"
            pieces = [*[b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces], b"0\r\n\r\n"]
        else:
            is_closing = True
        if is_closing or not asked.is_http_11:
            headers["Connection"] = "close" if is_closing else "keep-alive"
        parts = [_write_head(reply.status, headers), *([] if asked.method == "HEAD" else pieces)]
        delay = reply.delay_seconds
        gap = settings.chunk_seconds if reply.is_stream else 0.0
        if reply.failure is not None:
            parts = [] if reply.failure is not FailureMode.TRUNCATED else _cut(b"".join(parts))
            delay = settings.stall_seconds if reply.failure is FailureMode.STALLED else delay
            is_closing = True
        if delay or gap:
            self._send_later(iter(parts if gap else [b"".join(parts)]), delay, gap, is_closing)
            return
        assert self._transport is not None
        self._transport.write(b"".join(parts))
        if is_closing:
            self._transport.close()

    def _send_later(self, parts: Iterator[bytes], delay: float, gap: float, is_closing: bool) -> None:
        """Send the next part after `delay` seconds, and each further part after `gap` seconds."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, self._send_next, parts, gap, is_closing)

    def _send_next(self, parts: Iterator[bytes], gap: float, is_closing: bool) -> None:
        part = next(parts, None)
        if self._transport is not None and part is not None:
            self._transport.write(part)
            self._send_later(parts, gap, gap, is_closing)
            return
        self._timer = None
        if self._transport is not None and is_closing:
            self._transport.close()
        self._advance()


def _write_head(status: int, headers: dict[str, str]) -> bytes:
    """Return the status line and the headers of a response."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _cut(response: bytes) -> list[bytes]:
    """Return a response without the second half of its body."""
    head, gap, body = response.partition(b"\r\n\r\n")
    return [head + gap + body[: len(body) // 2]]


class OracleServer:
    """A running server."""

    def __init__(
        self, server: asyncio.Server, host: str, connections: set[ServerConnection], app: OracleApp
    ) -> None:
        self.app = app
        self._server = server
        self._connections = connections
        self.port: int = server.sockets[0].getsockname()[1]
        reachable = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        name = f"[{reachable}]" if ":" in reachable else reachable
        self.url = f"http://{name}:{self.port}/v1"
        """The base URL for clients."""

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._server.wait_closed()


async def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    settings: ServerSettings | None = None,
    *,
    app: OracleApp | None = None,
) -> OracleServer:
    """Start the server and return it. Port 0 selects a free port; an `app` has settings of its own.

    Raises: `ConfigError` if the server cannot listen on this address.
    """
    served = app or OracleApp(settings or ServerSettings())
    connections: set[ServerConnection] = set()
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: ServerConnection(served, connections), host, port, backlog=4096
        )
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({error}); choose another port, or 0") from error
    return OracleServer(server, host, connections, served)
