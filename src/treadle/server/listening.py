"""The listening socket of a server, and the program that serves a web application on it."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import require


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
HEAD_SECONDS = 30.0
"""How long a client may take to send the head of a request."""
_MAX_HEAD_BYTES = 65_536


class _HeadWithBody:
    """A transport that sends the head of a response together with what follows at once, because each write is a
    system call and wakes the client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""

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
        """Send the head that waits."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Close the connection once all is sent."""
        self.flush()
        self._transport.close()


def _make_protocol(head_seconds: float) -> Any:
    """Return uvicorn's protocol with limits for the head of a request, which uvicorn does not have."""
    httptools_impl = require("uvicorn.protocols.http.httptools_impl", "serve")

    class BoundedProtocol(httptools_impl.HttpToolsProtocol):  # type: ignore[misc, name-defined]
        """A connection that is closed if a head is too long or does not come in time."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(_HeadWithBody(transport))
            self.head_bytes = 0
            self.head_timer: asyncio.TimerHandle | None = None
            self.on_head_begin()

        def on_head_begin(self) -> None:
            self.head_bytes = 0
            if self.head_timer is None:
                self.head_timer = self.loop.call_later(head_seconds, self.transport.close)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.on_head_begin()

        def on_headers_complete(self) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.head_timer is not None:
                self.head_bytes += len(data)
                if self.head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                    self.transport.write(b"HTTP/1.1 431 Header Too Large\r\nconnection: close\r\n\r\n")
                    self.transport.close()

        def connection_lost(self, error: Exception | None) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
            super().connection_lost(error)

    return BoundedProtocol


async def serve_app(
    app: Any,
    listener: socket.socket,
    on_ready: Callable[[], None],
    on_stop: Callable[[], Awaitable[None]],
    grace_seconds: float,
    head_seconds: float = HEAD_SECONDS,
) -> None:
    """Serve an ASGI application until the caller cancels this.

    Then `on_stop` is awaited, while the requests that are under way have `grace_seconds` to end. Raises:
    `ConfigError` if the extra `serve` is not installed.
    """
    uvicorn = require("uvicorn", "serve")
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="on",
        server_header=False,
        headers=[("x-content-type-options", "nosniff")],
        http=_make_protocol(head_seconds),
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(grace_seconds)),
    )
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
