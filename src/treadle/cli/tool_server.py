"""What `treadle tools serve` does."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import print_lines, print_note, stdout
from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.sandbox.memory import MemorySandbox
from treadle.server.tools.tool_sessions import ToolSessions
from treadle.tools.resolve import resolve_tools


class Service(Struct, frozen=True):
    """What is served."""

    tools: Sequence[str]
    mount: Path | None
    idle_seconds: float
    max_sessions: int

    def open(self) -> ToolSessions:
        """Load the tools. Raises: `ConfigError`."""
        return ToolSessions(
            resolve_tools(list(self.tools)),
            files=MemorySandbox.from_folder(self.mount) if self.mount is not None else None,
            idle_seconds=self.idle_seconds,
            max_sessions=self.max_sessions,
        )


def serve_stdio(service: Service) -> None:
    """Serve MCP to whoever started this process, until it hangs up."""
    from treadle.server.tools.mcp import serve_stdio as serve

    sessions = service.open()

    async def work() -> None:
        try:
            await serve(sessions)
        finally:
            await sessions.close()

    execute(work())


def serve_http(
    service: Service, host: str, port: int, *, has_mcp: bool, has_spin: bool, is_json: bool
) -> None:
    """Serve until Ctrl-C. Raises: `ConfigError` if the port cannot be had."""
    uvicorn = require("uvicorn", "serve")
    sessions = service.open()
    listener = _listen(host, port)
    url = f"http://{host if ':' not in host else f'[{host}]'}:{listener.getsockname()[1]}"

    async def work() -> None:
        app = _make_app(sessions, service, host, has_mcp=has_mcp, has_spin=has_spin)
        config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        # Ctrl-C is this command's to handle, as in all others.
        server.capture_signals = contextlib.nullcontext
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            # Who connects from now on waits in the listener's queue.
            _announce(url, sessions, has_mcp=has_mcp, has_spin=has_spin, is_json=is_json)
            await asyncio.shield(task)
        finally:
            server.should_exit = True
            await asyncio.wait([task], timeout=5)
            await sessions.close()

    execute(work())


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot serve at {host}:{port}: {error.strerror}; try another --port, or 0"
        ) from error
    return listener


def _make_app(sessions: ToolSessions, service: Service, host: str, *, has_mcp: bool, has_spin: bool) -> Any:
    from treadle.server.tools.mcp import mcp_app, needs_session
    from treadle.server.tools.spin import SpinService, spin_routes

    starlette, routing = require("starlette.applications", "serve"), require("starlette.routing", "serve")
    routes = spin_routes(SpinService(sessions)) if has_spin else []
    inner = mcp_app(sessions, host, service.idle_seconds, service.max_sessions) if has_mcp else None

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


def _announce(url: str, sessions: ToolSessions, *, has_mcp: bool, has_spin: bool, is_json: bool) -> None:
    where = {"mcp": f"{url}/mcp"} if has_mcp else {}
    where |= {"spin": url} if has_spin else {}
    if is_json:
        print_lines([msgspec.json.encode({**where, "tools": list(sessions.tools)})])
        return
    for name, address in where.items():
        stdout().print(f"{name:<5} {address}", style="bold")
    sys.stdout.flush()
    print_note(f"tools: {', '.join(sessions.tools)}; Ctrl-C stops")
