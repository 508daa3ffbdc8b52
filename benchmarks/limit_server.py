"""A chat server with limits: a token bucket of requests, or a latency that doubles above a number of requests."""

import asyncio
import contextlib
import json
import math
import sys
import time
from email.utils import formatdate

from benchmarks.server import Connection, Write
from benchmarks.wires import WIRES

LATENCY_SECONDS = 0.05


class Limited:
    """A server that answers or refuses requests. `GET /stats` returns the counts."""

    def __init__(self, rate: float, burst: float, header: str, knee: int) -> None:
        self._rate, self._burst, self._header, self._knee = rate, burst, header, knee
        self._level, self._at = burst, time.monotonic()
        self._in_flight = 0
        self._answered = self._refused = 0
        self._answer = _http(200, WIRES["openai_chat"].make(None, ["3"], 0).whole)

    def respond(self, request: bytes, write: Write) -> None:
        """Answer one request; see `Connection`."""
        loop = asyncio.get_running_loop()
        if request.startswith(b"GET"):
            write(_http(200, json.dumps([self._answered, self._refused]).encode()))
            return
        now = time.monotonic()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            self._refused += 1
            loop.call_later(0.005, write, _http(429, b'{"error":{"message":"slow down"}}', self._when()))
            return
        self._level -= 1
        self._in_flight += 1
        loop.call_later(LATENCY_SECONDS * (2 if self._in_flight > self._knee else 1), self._done, write)

    def _done(self, write: Write) -> None:
        self._in_flight -= 1
        self._answered += 1
        with contextlib.suppress(RuntimeError):
            # The client may have closed the connection.
            write(self._answer)

    def _when(self) -> str:
        seconds = (1 - self._level) / self._rate
        if self._header == "seconds":
            return f"retry-after: {math.ceil(seconds)}\r\n"
        if self._header == "date":
            return f"retry-after: {formatdate(math.ceil(time.time() + seconds), usegmt=True)}\r\n"
        return ""


def _http(status: int, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _serve(limited: Limited) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(limited.respond), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    rate, burst, header, knee = sys.argv[1:]
    uvloop.run(_serve(Limited(float(rate), float(burst), header, int(knee))))
