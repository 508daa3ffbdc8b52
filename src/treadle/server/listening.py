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
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot serve at {host}:{port}: {error.strerror}; try another --port, or 0"
        ) from error
    return listener, f"http://{host if ':' not in host else f'[{host}]'}:{listener.getsockname()[1]}"


async def serve_app(
    app: Any,
    listener: socket.socket,
    on_ready: Callable[[], None],
    on_stop: Callable[[], Awaitable[None]],
    grace_seconds: float,
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
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(grace_seconds)),
    )
    server = uvicorn.Server(config)
    # The caller handles Ctrl-C.
    server.capture_signals = contextlib.nullcontext
    task: asyncio.Task[Any] = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        # A client that connects now waits in the listener's queue.
        on_ready()
        await asyncio.shield(task)
    finally:
        stopping = asyncio.ensure_future(on_stop())
        server.should_exit = True
        await asyncio.wait([task, stopping], timeout=grace_seconds + 5)
