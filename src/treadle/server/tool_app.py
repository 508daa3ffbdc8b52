"""The web application that serves tools over HTTP."""

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from treadle.core.registry import require
from treadle.server.listening import serve_app
from treadle.server.mcp_tools import mcp_app, needs_session
from treadle.server.spin_tools import SpinService, spin_routes
from treadle.server.tool_sessions import ToolSessions

_GRACE_SECONDS = 2.0
"""How long calls may take to end when the server stops."""


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
    paths = {name: f"{url}/mcp" if name == "mcp" else url for name in protocols}
    app = tool_app(sessions, host, protocols)
    await serve_app(app, listener, lambda: on_ready(paths), sessions.close, _GRACE_SECONDS)


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
