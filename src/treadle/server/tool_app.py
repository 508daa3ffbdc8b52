"""The web application that serves tools over HTTP, and the server that runs it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.server.mcp_tools import mcp_app, needs_session
from treadle.server.spin_tools import SpinService, spin_routes
from treadle.server.tool_sessions import ToolSessions


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


async def serve_http(
    sessions: ToolSessions,
    listener: socket.socket,
    host: str,
    url: str,
    protocols: Collection[str],
    on_ready: Callable[[dict[str, str]], None],
) -> None:
    """Serve `mcp`, `spin` or both until the caller cancels this. The sessions are closed then.

    `on_ready` gets the address of each protocol.
    """
    uvicorn = require("uvicorn", "serve")
    app = tool_app(sessions, host, protocols)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    # The caller handles Ctrl-C.
    server.capture_signals = contextlib.nullcontext
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        # A client that connects now waits in the listener's queue.
        on_ready({name: f"{url}/mcp" if name == "mcp" else url for name in protocols})
        await asyncio.shield(task)
    finally:
        server.should_exit = True
        await asyncio.wait([task], timeout=5)
        await sessions.close()


def tool_app(sessions: ToolSessions, host: str, protocols: Collection[str]) -> Any:
    """Return the ASGI application for the protocols. Raises: `ConfigError` if a package is not installed."""
    starlette, routing = require("starlette.applications", "serve"), require("starlette.routing", "serve")
    routes = spin_routes(SpinService(sessions)) if "spin" in protocols else []
    inner = mcp_app(sessions, host) if "mcp" in protocols else None

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        if inner is None:
            yield
        else:
            async with inner.router.lifespan_context(inner):
                yield

    if inner is not None:
        routes = [*routes, routing.Mount("/", needs_session(inner))]
    return starlette.Starlette(routes=routes, lifespan=lifespan)
