"""The web application that serves tools over HTTP: over MCP, and over the Spin tool protocol of DeepFabric.

In the Spin protocol, each call names a component, which is a group of tools. Here, all components have the same
tools: those that are served. The component `vfs` also has DeepFabric's four file tools, with the answers that
DeepFabric expects, and `mock` those that clients define. Source: DeepFabric 4.13, Spin tools protocol.
"""

import socket
import uuid
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from treadle.core.errors import SandboxError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json, ToolCall, ToolErrorKind
from treadle.sandbox.paths import normalize_file
from treadle.server.listening import serve_app
from treadle.server.tools.mcp_tools import mcp_app
from treadle.server.tools.mock_component import MockComponent, read_body, reply
from treadle.server.tools.tool_sessions import VFS, ToolSession, ToolSessions

_GRACE_SECONDS = 2.0
"""How long calls may take to end when the server stops."""
COMPONENTS = ("vfs", "tools", "mock")
"""The names of the components, each of which has all tools."""
_KINDS = {
    ToolErrorKind.UNKNOWN_TOOL: "UnknownTool",
    ToolErrorKind.INVALID_ARGUMENTS: "InvalidArguments",
    ToolErrorKind.INVALID_JSON: "InvalidArguments",
    ToolErrorKind.TIMEOUT: "Timeout",
}


class _Execute(msgspec.Struct):
    session_id: str
    tool: str
    args: dict[str, Json] = {}


async def serve_http(
    sessions: ToolSessions,
    listener: socket.socket,
    host: str,
    url: str,
    protocols: Collection[str],
    on_ready: Callable[[dict[str, str]], None],
) -> None:
    """Serve `mcp`, `spin` or both until the caller cancels this. The sessions are closed then.

    `on_ready` gets the address of each protocol. Raises: `ConfigError` if a package is not installed.
    """
    paths = {name: f"{url}/mcp" if name == "mcp" else url for name in protocols}
    app = Starlette(routes=_spin_routes(sessions) if "spin" in protocols else [])
    if "mcp" in protocols:
        lifespan, mcp = mcp_app(sessions, host)
        app = Starlette(routes=[*app.routes, Mount("/", mcp)], lifespan=lifespan)
    await serve_app(app, listener, lambda: on_ready(paths), sessions.close, _GRACE_SECONDS)


def _spin_routes(sessions: ToolSessions) -> list[Any]:
    """Return the routes of the protocol for Starlette."""

    async def health(_: Request) -> Response:
        return reply({"status": "healthy", "components": COMPONENTS, "sessions": len(sessions)})

    async def components(_: Request) -> Response:
        return reply({"components": COMPONENTS})

    async def execute(request: Request) -> Response:
        if (body := await read_body(request)) is None:
            return _fail("the body is too large", "InvalidRequest", 413)
        return await _execute(sessions, body, request.path_params.get("component"))

    async def free(request: Request) -> Response:
        session_id = request.path_params["session_id"]
        # An unknown session is not an error.
        was_there = await sessions.free(session_id)
        return reply({"success": True, "session_id": session_id, "freed": was_there})

    routes = {
        ("GET", health): ("/health", "/vfs/health"),
        ("GET", components): ("/components",),
        ("POST", execute): ("/execute", "/{component}/execute"),
        ("DELETE", free): ("/session/{session_id}", "/{component}/session/{session_id}"),
    }
    return [
        *MockComponent().routes(),
        *[
            Route(path, answer, methods=[method])
            for (method, answer), paths in routes.items()
            for path in paths
        ],
    ]


async def _execute(sessions: ToolSessions, body: bytes, component: str | None) -> Response:
    """Make one call, and return the answer."""
    try:
        request = msgspec.json.decode(body, type=_Execute)
    except UNREADABLE as error:
        return _fail(f"the body is not a valid request: {error}", "InvalidRequest", 400)
    if not request.session_id:
        return _fail("the session_id is empty", "InvalidRequest", 400)
    if component not in (None, *COMPONENTS):
        known = ", ".join(COMPONENTS)
        return _fail(f"there is no component {component!r}; the components are {known}", "UnknownTool", 404)
    call = ToolCall(uuid.uuid4().hex, request.tool, msgspec.json.encode(request.args).decode())
    is_vfs = component == "vfs" and request.tool in VFS.tools
    result = await sessions.call(request.session_id, call, is_vfs=is_vfs)
    if not result.is_error:
        return reply({"success": True, "result": result.content})
    kind = _KINDS.get(result.error_kind) if result.error_kind is not None else None
    if kind is None:
        session = await sessions.open(request.session_id)
        kind = "FileNotFound" if _is_absent(session, request.args) else "IOError"
    if is_vfs and kind == "FileNotFound":
        return _fail(f"File not found: {request.args['file_path']}", kind)
    return _fail(result.content, kind)


def _is_absent(session: ToolSession, args: dict[str, Json]) -> bool:
    """Return whether the call names a valid path at which the session has no file."""
    path = args.get("file_path")
    try:
        return isinstance(path, str) and normalize_file(path) not in session.sandbox.paths()
    except SandboxError:
        return False


def _fail(result: str, error_type: str, status: int = 200) -> Response:
    return reply({"success": False, "result": result, "error_type": error_type}, status)
