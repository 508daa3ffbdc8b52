"""A server of the built-in teacher with a heavy-tailed latency: 93 % of the answers take 20 ms, 7 % take 500 ms.

An answer is computed once and then remembered by its request, so that the server costs almost nothing when the same
dataset is generated again. `GET /reset` begins the sequence of latencies again.
"""

import asyncio
import contextlib
import random
import sys

from benchmarks.server import Connection, Write
from treadle.testbed.server.oracle_app import OracleApp, ServerSettings

FAST_SECONDS, SLOW_SECONDS, SLOW_SHARE = 0.02, 0.5, 0.07


def draw_latencies() -> random.Random:
    """Return the source of latencies: `latency` of each number in turn."""
    return random.Random(64)


def latency(number: float) -> float:
    """Return the seconds for a number from 0 to 1."""
    return SLOW_SECONDS if number < SLOW_SHARE else FAST_SECONDS


class SlowTeacher:
    """The answers of the teacher, each sent after a drawn time."""

    def __init__(self) -> None:
        self._app = OracleApp(ServerSettings())
        self._known: dict[bytes, bytes] = {}
        self._draw = draw_latencies()

    def respond(self, request: bytes, write: Write) -> None:
        """Answer one request; see `Connection`."""
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            self._draw = draw_latencies()
            write(_http(b"{}"))
            return
        answer = self._known.get(body)
        if answer is None:
            reply = self._app.answer("POST", "/v1/chat/completions", body)
            assert reply.status == 200, reply
            answer = self._known[body] = _http(b"".join(reply.pieces))
        loop = asyncio.get_running_loop()
        loop.call_later(latency(self._draw.random()), _send, write, answer)


def _send(write: Write, answer: bytes) -> None:
    with contextlib.suppress(RuntimeError):
        # The client may have closed the connection.
        write(answer)


def _http(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    teacher = SlowTeacher()
    server = await loop.create_server(lambda: Connection(teacher.respond), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    sys.exit(uvloop.run(_serve()))
