"""`treadle tools serve`: tools for other programs, over MCP and the Spin protocol."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.disk import read_mount
from treadle.cli.jobs.execute import execute
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import flush, print_json, print_note, stdout
from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.sandbox.in_memory import MemorySandbox
from treadle.server.tools.tool_sessions import ToolSessions

EXAMPLES = (
    "treadle tools serve --tools files --tools python --port 3000",
    "treadle tools serve --tools python --mcp stdio",
)


class Mcp(StrEnum):
    """A transport of MCP."""

    STDIO = "stdio"
    HTTP = "http"


def serve(
    tools: o.Tools = None,
    mcp: Annotated[
        Mcp | None,
        typer.Option(
            "--mcp",
            help="Serve MCP alone: on standard input and output, or over HTTP. Without --mcp and --spin, both "
            "protocols are served over HTTP.",
        ),
    ] = None,
    has_spin: Annotated[
        bool, typer.Option("--spin", help="Serve the Spin protocol alone, as DeepFabric uses it.")
    ] = False,
    host: o.Host = "127.0.0.1",
    port: o.Port = 3000,
    *,
    mount: o.MountOptions,
    idle: Annotated[
        float,
        typer.Option(
            "--idle", metavar="SECONDS", min=0.01, help="The time after which an unused session is freed."
        ),
    ] = 3600.0,
    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions", metavar="N", min=1, help="The most sessions; the longest unused one is freed."
        ),
    ] = 1000,
    is_json: o.IsJson = False,
) -> int:
    """Serve tools over MCP and over the Spin protocol.

    Each session has its own files, which begin as those of --mount.
    """
    from treadle.tools.resolve import resolve_tools

    if has_spin and mcp is not None:
        raise ConfigError("--spin and --mcp each serve one protocol alone; leave out both to serve both")
    with spinner("starting the tools"):
        served = resolve_tools(tools or ["files"])
    sessions = ToolSessions(
        served,
        files=MemorySandbox(read_mount(mount)),
        idle_seconds=idle,
        max_sessions=max_sessions,
    )
    if mcp is Mcp.STDIO:
        _serve_stdio(sessions)
        return ExitCode.DONE
    listener = _listen(host, port)
    url = f"http://{host if ':' not in host else f'[{host}]'}:{listener.getsockname()[1]}"
    app = _make_app(sessions, host, has_mcp=not has_spin, has_spin=mcp is None)
    paths = {**({"mcp": f"{url}/mcp"} if not has_spin else {}), **({"spin": url} if mcp is None else {})}
    _serve_http(app, listener, sessions, paths, is_json=is_json)
    return ExitCode.DONE


def _serve_stdio(sessions: ToolSessions) -> None:
    """Serve MCP to the process that started this one, until it closes standard input."""
    from treadle.server.tools.mcp import serve_stdio

    async def work() -> None:
        try:
            await serve_stdio(sessions)
        finally:
            await sessions.close()

    execute(work())


def _serve_http(
    app: Any, listener: socket.socket, sessions: ToolSessions, paths: dict[str, str], *, is_json: bool
) -> None:
    """Serve the application at `listener` until Ctrl-C."""
    uvicorn = require("uvicorn", "serve")

    async def work() -> None:
        config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        # Ctrl-C is handled by `execute`, as in all commands.
        server.capture_signals = contextlib.nullcontext
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            # A client that connects now waits in the listener's queue.
            _print_addresses(paths, sessions, is_json=is_json)
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


def _make_app(sessions: ToolSessions, host: str, *, has_mcp: bool, has_spin: bool) -> Any:
    """Return the ASGI application for the protocols."""
    from treadle.server.tools.mcp import mcp_app, needs_session
    from treadle.server.tools.spin import SpinService, spin_routes

    starlette, routing = require("starlette.applications", "serve"), require("starlette.routing", "serve")
    routes = spin_routes(SpinService(sessions)) if has_spin else []
    inner = mcp_app(sessions, host) if has_mcp else None

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


def _print_addresses(paths: dict[str, str], sessions: ToolSessions, *, is_json: bool) -> None:
    if is_json:
        print_json({**paths, "tools": list(sessions.tools)})
        return
    for name, address in paths.items():
        stdout().print(f"{name:<5} {address}", style="bold")
    flush()
    print_note(f"tools: {', '.join(sessions.tools)}; Ctrl-C stops the server")
