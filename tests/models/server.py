"""A scriptable HTTP server on a real socket, for the faults that no in-process transport can show.

A handler says what to answer to each request: a whole answer, pieces, or one that is cut off, reset or never
ends. The server counts what was asked and how often was connected.
"""

import asyncio
import json
import socket
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
    """It is closed, as it must be for a body without a length."""
    RESET = "reset"
    """It is reset."""
    STALL = "stall"
    """Nothing more comes until the client goes away."""


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """The body decoded."""
        return json.loads(self.body)


@dataclass
class Reply:
    """What to answer."""

    body: Any = b""
    """Bytes, or a value sent as JSON."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterable[bytes] | None = None
    """Instead of `body`: chunks of a chunked body, each sent on its own."""
    cut_at: int | None = None
    """Only so many bytes of the body are sent; the length in the head stays."""
    end: End = End.KEEP
    tail_seconds: float = 0.0
    """How long after the last piece the end of a chunked body is sent."""
    before: asyncio.Event | None = None
    """Waited for before anything is sent."""
    raw: bytes | None = None
    """Instead of everything: these bytes and no head."""


def sse(*events: Any, is_done: bool = True) -> bytes:
    """Events as a stream's bytes; a value is sent as JSON, bytes as they are."""
    texts = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return b"".join(b"data: " + text + b"\n\n" for text in [*texts, *([b"[DONE]"] if is_done else [])])


def stream(body: bytes, *, step: int = 1 << 20, end: End = End.KEEP) -> Reply:
    """A streamed reply in pieces of `step` bytes."""
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    return Reply(headers={"content-type": "text/event-stream"}, pieces=pieces, end=end)


RESET = Reply(raw=b"", end=End.RESET)
STALL = Reply(raw=b"", end=End.STALL)

Handler = Callable[[Received], Reply]


class Server:
    """A running server."""

    def __init__(self, handler: Handler | Iterable[Reply]) -> None:
        self.requests: list[Received] = []
        """What was asked, in order."""
        self.connections = 0
        """How many were opened."""
        self.asked = asyncio.Event()
        """Set once a request has come."""
        self.gone = asyncio.Event()
        """Set once a client has closed a connection that was stalled."""
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        if callable(handler):
            self._handler: Handler = handler
        else:
            replies = list(handler)
            self._handler = lambda _: replies[min(len(self.requests), len(replies)) - 1]

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What a model takes."""
        return f"{self.origin}/v1"

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
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
        """Breaks off what is still open."""
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
    if reply.pieces is None:
        writer.write(body[: reply.cut_at])
    elif reply.end is End.KEEP:
        await asyncio.sleep(reply.tail_seconds)
        writer.write(b"0\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def serve(handler: Handler | Iterable[Reply]) -> AsyncIterator[Server]:
    """A server on a free port. A list answers the n-th request with its n-th reply, and the rest with its last."""
    server = Server(handler)
    listener = await asyncio.start_server(server.serve_connection, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.stop()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
