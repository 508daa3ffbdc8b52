"""Streams of server-sent events, in which every protocol of the server answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import StreamingResponse

from treadle.core.errors import RunNotFoundError
from treadle.core.types import Json
from treadle.journal.hub import SENT_BYTES
from treadle.server.admission.access import LeavingWatch, Receive, Scope, Send

if TYPE_CHECKING:
    from treadle.server.run_host import RunHost

KEEP_ALIVE_SECONDS = 15.0
"""How often a stream in which nothing happens says that it is alive."""
_encode = msgspec.json.Encoder().encode


class EventStream(StreamingResponse):
    """A stream of server-sent events, with a comment whenever nothing came for a while.

    It is sent in the task of its request: what comes together is one write, and no task waits for each event.
    A line is sent in pieces that are small enough for a client that does not read them.
    """

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        on_close: Callable[[], None] | None = None,
        more_headers: Mapping[str, str] | None = None,
        host: "RunHost | None" = None,
    ) -> None:
        """Make a response with these lines. `on_close` is called if the client leaves before the end.

        A stream with a `host` ends when the server stops.
        """
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", **(more_headers or {})}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._lines = lines
        self._on_close = on_close
        self._following = contextlib.nullcontext() if host is None else host.following(self._end)
        self._has_ended = False
        self._beating: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop, self._task, self._send = asyncio.get_running_loop(), asyncio.current_task(), send
        self._is_sending, self._sent_at = False, self._loop.time()
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._beat)
        is_complete, leaving = False, LeavingWatch(scope, self._end)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with self._following, leaving:
                async for line in self._lines:
                    await self._write(line)
            is_complete = True
        except RunNotFoundError:
            is_complete = True  # the run was deleted while it was followed
        except asyncio.CancelledError:
            if not self._has_ended or self._task is None:
                raise
            self._task.uncancel()
            is_complete = not leaving.has_left  # the server is stopping
        finally:
            self._has_ended = True
            self._timer.cancel()
            with contextlib.suppress(Exception):
                await self._lines.aclose()  # type: ignore[attr-defined]
            if not is_complete and self._on_close is not None:
                self._on_close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _end(self) -> None:
        """End the stream, because the client has left or the server is stopping."""
        if not self._has_ended and self._task is not None:
            self._has_ended = True
            self._task.cancel()

    async def _write(self, line: bytes) -> None:
        self._is_sending = True
        for at in range(0, len(line), SENT_BYTES):  # what a client does not read stays in the server
            piece = line[at : at + SENT_BYTES]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._is_sending, self._sent_at = False, self._loop.time()

    def _beat(self) -> None:
        """Say that the stream is alive if nothing was sent for a while."""
        wait = self._sent_at + KEEP_ALIVE_SECONDS - self._loop.time()
        if wait <= 0.001 and not self._is_sending:
            wait, self._beating = KEEP_ALIVE_SECONDS, asyncio.ensure_future(self._write(b": still here\n\n"))
        self._timer = self._loop.call_later(max(wait, 1.0), self._beat)


def to_sse(data: bytes, name: str | None = None, seq: int | None = None) -> bytes:
    """Return a server-sent event with its data, its name, and the number from which a client goes on."""
    head = b"" if seq is None else b"id: %d\n" % seq
    head += b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, data)


def write_named(event: dict[str, Json]) -> bytes:
    """Return an event whose name is its `type` as a server-sent event."""
    return to_sse(_encode(event), event["type"])
