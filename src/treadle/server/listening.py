"""The listening socket of a server, and the program that serves a web application on it."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.models.dialects.anthropic.served import write_error
from treadle.server.admission.access import PRESENCE, Presence, error_body, is_of_anthropic


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a listening socket and its URL; port 0 chooses a free port.

    Raises: `ConfigError` if the address cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot serve at {host}:{port}: {error.strerror}; try another --port, or 0"
        ) from error
    return listener, f"http://{host if ':' not in host else f'[{host}]'}:{listener.getsockname()[1]}"


_BACKLOG = 4096
"""How many connections may wait until the server takes them."""
_TAKEN_AT_ONCE = 16
"""How many connections the server takes in a turn of its event loop. uvloop takes one from each socket, and turns
are long while thousands of clients follow runs, so that others were reset before they were taken."""
REQUEST_SECONDS = 30.0
"""How long a client may take to send a request."""
_MAX_HEAD_BYTES = 65_536
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"


class _HeadWithBody:
    """A transport that sends the head of a response together with what follows at once, because each write is a
    system call and wakes the client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data`; a head waits for what is written in the same turn of the event loop."""
        if self._head or not data.startswith(b"HTTP/"):
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()


def _make_protocol(request_seconds: float) -> Any:
    """Return uvicorn's protocol with limits for a request, which uvicorn does not have."""
    httptools_impl = require("uvicorn.protocols.http.httptools_impl", "serve")

    class BoundedProtocol(httptools_impl.HttpToolsProtocol):  # type: ignore[misc, name-defined]
        """A connection that is closed if a head is too long, or a request does not come in time."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(_HeadWithBody(transport))
            self.presence = Presence()
            self.head_bytes, self.has_head, self.is_whole = 0, False, False
            self.late_timer: asyncio.TimerHandle | None = None
            self.wait_for_request()

        def wait_for_request(self) -> None:
            if self.late_timer is None:
                self.late_timer = self.loop.call_later(request_seconds, self.on_late)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope[PRESENCE] = self.presence
            self.head_bytes, self.has_head, self.is_whole = 0, False, False

        def on_headers_complete(self) -> None:
            self.has_head = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self.is_whole = True
            super().on_message_complete()
            if not self.pipeline:
                # Whoever leaves while the answer is made is only noticed by reading.
                self.flow.resume_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.is_whole and not self.cycle.response_complete:
                if self.late_timer is not None:
                    self.late_timer.cancel()
                    self.late_timer = None
                return
            self.wait_for_request()
            if not self.has_head:
                self.head_bytes += len(data)
                if self.head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                    self.transport.write(b"HTTP/1.1 431 Header Too Large\r\nconnection: close\r\n\r\n")
                    self.transport.close()

        def on_late(self) -> None:
            if self.has_head and not (self.is_whole or self.cycle.response_started):
                told = "the request did not come in time"
                is_other = is_of_anthropic(self.scope["path"])
                body = write_error(408, told) if is_other else error_body(408, told, "request_timeout")
                raw = msgspec.json.encode(body)
                self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (_LATE, len(raw), raw))
            self.transport.close()

        def connection_lost(self, error: Exception | None) -> None:
            if self.late_timer is not None:
                self.late_timer.cancel()
            super().connection_lost(error)
            self.presence.leave()

    return BoundedProtocol


def _is_defect(record: logging.LogRecord) -> bool:
    """Return whether uvicorn logs a defect, and not that something was cancelled: it is when the server does not
    wait for it, because of a second Ctrl-C or SIGTERM, or at the end of the grace."""
    error = record.exc_info[1] if record.exc_info else None
    ending = f"{asyncio.CancelledError.__name__}\n"  # an application hands over the text of its traceback
    return not (isinstance(error, asyncio.CancelledError) or record.getMessage().endswith(ending))


async def serve_app(
    app: Any,
    listener: socket.socket,
    on_ready: Callable[[], None],
    on_stop: Callable[[], Awaitable[None]],
    grace_seconds: float,
    request_seconds: float = REQUEST_SECONDS,
) -> None:
    """Serve an ASGI application until the caller cancels this.

    Then `on_stop` is awaited, while the requests that are under way have `grace_seconds` to end. Raises:
    `ConfigError` if the extra `serve` is not installed.
    """
    uvicorn = require("uvicorn", "serve")
    config = uvicorn.Config(
        app,
        interface="asgi3",  # not all layers are functions that uvicorn would recognise
        log_level="error",
        access_log=False,
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        ws="none",
        headers=[("x-content-type-options", "nosniff")],
        http=_make_protocol(request_seconds),
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(grace_seconds)),
    )
    logging.getLogger("uvicorn.error").addFilter(_is_defect)
    server = uvicorn.Server(config)
    # The caller handles Ctrl-C.
    server.capture_signals = contextlib.nullcontext
    listeners = [listener, *[listener.dup() for _ in range(_TAKEN_AT_ONCE - 1)]]
    task: asyncio.Task[Any] = asyncio.ensure_future(server.serve(sockets=listeners))
    try:
        # A client that connects now waits in the listener's queue.
        on_ready()
        await asyncio.shield(task)
    finally:
        stopping = asyncio.ensure_future(on_stop())
        server.should_exit = True
        await asyncio.wait([task, stopping], timeout=grace_seconds + 5)
