"""A scriptable HTTP server on a real socket, for faults that an in-process transport cannot show.

A handler chooses the reply to each request: complete, in pieces, cut off, reset, or without end. The server
counts the requests and the connections.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class End(Enum):
    """What happens after the last byte of a reply."""

    KEEP = "keep"
    """The connection waits for the next request."""
    CLOSE = "close"
    """The connection is closed, which ends a body without a length."""
    RESET = "reset"
    """The connection is reset."""
    STALL = "stall"
    """Nothing more is sent until the client closes the connection."""


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    """The headers, with names in lower case."""
    body: bytes

    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)


@dataclass
class Reply:
    """The reply to one request."""

    body: Any = b""
    """The body: bytes, or a value that is sent as JSON."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterable[bytes] | None = None
    """The chunks of a chunked body, each sent on its own, instead of `body`."""
    cut_at: int | None = None
    """The number of bytes of the body that are sent. The length in the head is not changed."""
    end: End = End.KEEP
    gap_seconds: float = 0.0
    """The time between the chunks of a chunked body."""
    tail_seconds: float = 0.0
    """The time between the last chunk and the end of a chunked body."""
    between: asyncio.Event | None = None
    """An event to wait for after the first chunk of a chunked body."""
    before: asyncio.Event | None = None
    """An event to wait for before anything is sent."""
    raw: bytes | None = None
    """Raw bytes to send instead of a response."""


def sse(*events: Any, is_done: bool = True) -> bytes:
    """Return events as the bytes of a stream. Values are sent as JSON, and bytes unchanged."""
    texts = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return b"".join(b"data: " + text + b"\n\n" for text in [*texts, *([b"[DONE]"] if is_done else [])])


def stream(body: bytes, *, step: int = 1 << 20, end: End = End.KEEP) -> Reply:
    """Return a streamed reply in pieces of `step` bytes."""
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    return Reply(headers={"content-type": "text/event-stream"}, pieces=pieces, end=end)


RESET = Reply(raw=b"", end=End.RESET)
STALL = Reply(raw=b"", end=End.STALL)

Handler = Callable[[Received], Reply]


class Server:
    """A running server."""

    def __init__(self, handler: Handler | Iterable[Reply]) -> None:
        self.requests: list[Received] = []
        """The requests, in order."""
        self.connections = 0
        """The number of connections that were opened."""
        self.asked = asyncio.Event()
        """Set when a request has arrived."""
        self.gone = asyncio.Event()
        """Set when a client has closed a connection that was stalled."""
        self.port = 0
        self.scheme = "http"
        self._writers: set[asyncio.StreamWriter] = set()
        if callable(handler):
            self._handler: Handler = handler
        else:
            replies = list(handler)
            self._handler = lambda _: replies[min(len(self.requests), len(replies)) - 1]

    @property
    def origin(self) -> str:
        """The scheme, host and port."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """The base URL for a model."""
        return f"{self.origin}/v1"

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._serve_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def stop(self) -> None:
        """Abort all open connections."""
        while self._writers:
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(0.001)

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        received = Received(head[0].split(" ")[1], headers, body)
        self.requests.append(received)
        self.asked.set()
        reply = self._handler(received)
        if reply.before is not None:
            await reply.before.wait()
        await _write(writer, reply)
        if reply.end is End.RESET:
            # A zero linger makes the close a reset.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        elif reply.end is End.STALL:
            await reader.read(1)
            self.gone.set()
        return reply.end is End.KEEP and reply.cut_at is None


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> None:
    if reply.raw is not None:
        writer.write(reply.raw)
        await writer.drain()
        return
    is_bytes = isinstance(reply.body, bytes)
    body = reply.body if is_bytes else json.dumps(reply.body).encode()
    headers = {"content-type": "text/plain" if is_bytes else "application/json"} | reply.headers
    if reply.pieces is None:
        headers["content-length"] = str(len(body))
    else:
        headers["transfer-encoding"] = "chunked"
    lines = [f"HTTP/1.1 {reply.status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for piece in reply.pieces or ():
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(reply.gap_seconds)
        if reply.between is not None:
            await reply.between.wait()
    if reply.pieces is None:
        writer.write(body[: reply.cut_at])
    elif reply.end is End.KEEP:
        await asyncio.sleep(reply.tail_seconds)
        writer.write(b"0\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def serve(
    handler: Handler | Iterable[Reply], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Run a server on a free port, with `tls` for https:// URLs.

    A list gives the n-th request its n-th reply, and all further requests its last.
    """
    server = Server(handler)
    server.scheme = "http" if tls is None else "https"
    listener = await asyncio.start_server(server.serve_connection, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.stop()


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
