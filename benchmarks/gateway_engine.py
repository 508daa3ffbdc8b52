"""A chat server with a latency, which costs almost nothing: what a gateway adds is measured in front of it.

`python -m benchmarks.gateway_engine` prints its port. A whole answer comes after the seconds that the path names,
as in `/0.5/v1`, or a message, as in "takes 0.4 s"; the first text of a stream comes after half of them, and its
other chunks evenly in the rest. A conversation with tools ends after two results.
"""

import asyncio
import contextlib
import re
import sys

from benchmarks.server import Connection, Write
from benchmarks.wires import WIRES

CHUNKS = 16
_NAMED = re.compile(rb"takes (\d+\.\d+) s")
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Engine:
    """The answers, each sent after the time that its request's path names."""

    def __init__(self) -> None:
        wire = WIRES["openai_chat"]
        words = [f"word{number} " for number in range(CHUNKS)]
        made = [*[wire.make(f"call_{number}", [], number) for number in range(2)], wire.make(None, words, 2)]
        self._whole = [
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(answer.whole), answer.whole)
            for answer in made
        ]
        self._events = [[b"%x\r\n%b\r\n" % (len(event), event) for event in answer.events] for answer in made]

    def respond(self, request: bytes, write: Write) -> None:
        """Answer one request; see `Connection`."""
        loop = asyncio.get_running_loop()
        seconds = float(request.split(b" ", 2)[1].split(b"/", 2)[1])
        _head, _, body = request.partition(b"\r\n\r\n")
        if (named := _NAMED.search(body)) is not None:
            seconds = float(named[1])
        number = min(body.count(b'"tool_call_id"'), 2) if b'"tools"' in body else 2
        if b'"stream":true' not in body.replace(b": ", b":"):
            loop.call_later(seconds, _send, write, self._whole[number])
            return
        events = self._events[number]
        pieces = [_HEAD + events[0] + events[1], *events[2:-1], events[-1] + b"0\r\n\r\n"]
        for number, piece in enumerate(pieces):
            loop.call_later(seconds / 2 * (1 + number / (len(pieces) - 1)), _send, write, piece)


def _send(write: Write, answer: bytes) -> None:
    with contextlib.suppress(RuntimeError):
        # The client may have closed the connection.
        write(answer)


async def _serve() -> None:
    engine = Engine()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine.respond), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    sys.exit(uvloop.run(_serve()))
