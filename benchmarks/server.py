"""A model server that costs almost nothing, so that only the client is measured.

It understands only the HTTP that the clients here send. It answers a request whose messages contain fewer
than `steps - 1` tool results with a tool call, and any other with the final answer.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import TypeAlias, cast

from benchmarks import ids
from benchmarks.wires import WIRES


def _whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _streamed(events: list[bytes], *, is_sse: bool) -> bytes:
    kind = b"text/event-stream" if is_sse else b"application/x-ndjson"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


Write: TypeAlias = Callable[[bytes], None]


class _Answers:
    def __init__(self, dialect: str, steps: int, chunks: int) -> None:
        self._wire = WIRES[dialect] if dialect in WIRES else ids.make_wire(dialect)
        self._steps = steps
        words = [f"word{i} " for i in range(chunks)]
        calls = [self._wire.make(f"call_{i}", [], i) for i in range(steps - 1)]
        answers = [*calls, self._wire.make(None, ["3"], steps)]
        self._bodies = [answer.whole for answer in answers]
        self._whole = [_whole(answer.whole) for answer in answers]
        # Text comes before each call, so that all streamed answers have the same number of chunks.
        calls = [self._wire.make(f"call_{i}", words[1:], i) for i in range(steps - 1)]
        self._streamed = [
            _streamed(answer.events, is_sse=self._wire.is_sse)
            for answer in [*calls, self._wire.make(None, words, steps)]
        ]

    def respond(self, request: bytes, write: Write) -> None:
        if request.startswith(b"GET "):
            write(_whole(b'{"data":[{"id":"bench","owned_by":"vllm"}],"version":"0.20.0"}'))
            return
        done = min(request.count(self._wire.result), self._steps - 1)
        if self._wire.prompt:
            start = request.index(self._wire.prompt) + len(self._wire.prompt) - 1
            prompt = request[start : request.index(b"]", start) + 1]
            write(_whole(self._bodies[done].replace(b'"PROMPT"', prompt)))
            return
        write(self._streamed[done] if self._wire.is_streamed in request else self._whole[done])


class Connection(asyncio.Protocol):
    """A connection that passes its requests to `respond` one after another, with a function that sends the
    answer."""

    def __init__(self, respond: Callable[[bytes, Write], None]) -> None:
        self._respond = respond
        self._parts: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        request = b"".join(self._parts)
        end = request.find(b"\r\n\r\n")
        if end < 0:
            return
        head = request[:end].lower()
        start = head.find(b"content-length:")
        length = int(head[start + 15 :].split(b"\r", 1)[0]) if start >= 0 else 0
        self._missing = end + 4 + length - len(request)
        if self._missing <= 0:
            self._parts.clear()
            self._missing = 0
            self._respond(request, self._transport.write)


async def _serve(port: int, steps: int, chunks: int, dialect: str) -> None:
    loop = asyncio.get_running_loop()
    answers = _Answers(dialect, steps, chunks)
    server = await loop.create_server(lambda: Connection(answers.respond), "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Run the server: `python -m benchmarks.server STEPS CHUNKS DIALECT`.

    It prints its port and serves until it is killed.
    """
    import uvloop

    uvloop.run(_serve(0, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))


if __name__ == "__main__":
    main()
