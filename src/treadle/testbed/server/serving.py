"""The oracle's server on the network: its connections, and starting and stopping it."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import cast

from treadle.core.errors import ConfigError
from treadle.testbed.server.oracle_app import (
    FailureMode,
    HttpReply,
    OracleApp,
    PendingReply,
    ServerSettings,
    error_reply,
)
from treadle.testbed.server.parser import HttpFault, Parser, RequestHead, encode_chunk, encode_head

_MAX_PENDING_BYTES = 256 * 1024


class ServerConnection(asyncio.Protocol):
    """One client's connection. Requests are answered in the order in which they arrive."""

    def __init__(self, app: OracleApp, connections: "set[ServerConnection]") -> None:
        self._app = app
        self._connections = connections
        self._parser = Parser()
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
        self._parser.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        self._is_ended = True
        return self._timer is not None or self._is_blocked

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._advance()

    def abort(self) -> None:
        """Close the connection without sending what is pending."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        """Answer the complete requests that have arrived, unless a response still waits."""
        transport = self._transport
        while transport is not None and not transport.is_closing():
            if self._timer is not None or self._is_blocked:
                if self._parser.buffered_bytes > _MAX_PENDING_BYTES:
                    transport.pause_reading()
                return
            try:
                request = self._parser.next_request()
            except HttpFault as fault:
                self._refuse(transport, fault)
                return
            if request is None:
                if self._parser.take_continue():
                    transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                transport.resume_reading()
                if self._is_ended:
                    transport.close()
                return
            self._answer(*request)

    def _refuse(self, transport: asyncio.Transport, fault: HttpFault) -> None:
        reply = error_reply(fault.status, fault.message, "bad_http")
        headers = {**reply.headers, "Content-Length": str(len(reply.pieces[0])), "Connection": "close"}
        transport.write(encode_head(fault.status, headers) + reply.pieces[0])
        transport.close()

    def _answer(self, head: RequestHead, body: bytes) -> None:
        reply = self._app.answer(head.method, head.target, body)
        if reply.pending is None:
            self._send(head, reply)
            return
        self._timer = reply.pending
        self._timer.start(partial(self._finish, head, reply.failure))

    def _finish(self, head: RequestHead, failure: FailureMode | None, reply: HttpReply) -> None:
        """Send a response that was pending, and go on with the next request."""
        self._timer = None
        if self._transport is None:
            return
        reply.failure = failure
        self._send(head, reply)
        self._advance()

    def _send(self, head: RequestHead, reply: HttpReply) -> None:
        settings = self._app.settings
        is_closing = not head.is_kept_alive
        headers = dict(reply.headers)
        pieces = list(reply.pieces)
        if not reply.is_stream:
            headers["Content-Length"] = str(sum(map(len, pieces)))
        elif head.is_http_11:
            headers["Transfer-Encoding"] = "chunked"
            pieces = [*map(encode_chunk, pieces), b"0\r\n\r\n"]
        else:
            is_closing = True
        if is_closing or not head.is_http_11:
            headers["Connection"] = "close" if is_closing else "keep-alive"
        parts = [encode_head(reply.status, headers), *([] if head.method == "HEAD" else pieces)]
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
