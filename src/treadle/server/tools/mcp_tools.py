"""Servers of tools over MCP, with the official SDK. Treadle's own tools have files for each session.

Over HTTP, the protocol revisions without sessions (2026-07-28 and later) are refused, so that clients fall back
to the handshake: without sessions, the files of different callers could not be told apart.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from treadle.core.registry import require
from treadle.core.types import Effect, Json, ToolCall, ToolResult, ToolSpec
from treadle.server.tools.tool_sessions import ToolSessions

SESSION = "treadle/session"


def make_server(
    specs: Callable[[], Iterable[ToolSpec]],
    call: Callable[[Any, str, dict[str, Json]], Awaitable[ToolResult]],
) -> Any:
    """Return the SDK's server of the tools that `specs` returns. `call` gets the context of a request, the name of
    a tool and the arguments.

    Raises: `ConfigError` if the SDK is not installed.
    """
    lowlevel, types = require("mcp.server.lowlevel", "mcp"), require("mcp_types", "mcp")

    async def list_tools(context: Any, parameters: Any) -> Any:
        return types.ListToolsResult(tools=[_describe(types, spec) for spec in specs()])

    async def call_tool(context: Any, parameters: Any) -> Any:
        return _to_result(types, await call(context, parameters.name, parameters.arguments or {}))

    import treadle

    return lowlevel.Server(
        "treadle", version=treadle.__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _serve_sessions(sessions: ToolSessions, session_id: str | None = None) -> Any:
    """Return the server of the tools of sessions; of one session if `session_id` is given."""

    async def call(context: Any, name: str, arguments: dict[str, Json]) -> ToolResult:
        own = session_id or _session_of(context, sessions)
        text = msgspec.json.encode(arguments).decode()
        return await sessions.call(own, ToolCall(uuid.uuid4().hex, name, text))

    return make_server(lambda: sessions.specs, call)


async def serve_stdio(sessions: ToolSessions) -> None:
    """Serve one client on standard input and output, until it disconnects. The sessions are closed then."""
    stdio = require("mcp.server.stdio", "mcp")
    server = _serve_sessions(sessions, "stdio")
    try:
        async with stdio.stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        await sessions.close()


def mcp_app(sessions: ToolSessions, host: str) -> tuple[Any, Any]:
    """Return the lifespan of an application that serves `/mcp`, and the application itself, which refuses the
    protocol revisions without sessions."""
    from starlette.responses import PlainTextResponse

    modern = {version.encode() for version in require("mcp_types.version", "mcp").MODERN_PROTOCOL_VERSIONS}
    app = _serve_sessions(sessions).streamable_http_app(
        host=host, session_idle_timeout=sessions.idle_seconds, max_sessions=sessions.max_sessions
    )

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        versions = {value for name, value in scope.get("headers", ()) if name == b"mcp-protocol-version"}
        if versions & modern:
            refusal = PlainTextResponse("this server needs sessions; begin with initialize", 400)
            await refusal(scope, receive, send)
        else:
            await app(scope, receive, send)

    return lambda _: app.router.lifespan_context(app), checked


def _session_of(context: Any, sessions: ToolSessions) -> str:
    """Return the id of the connection's session, which is freed when the connection ends."""
    connection = context.session._connection
    session_id: str | None = connection.state.get(SESSION)
    if session_id is None:
        made = connection.state[SESSION] = session_id = connection.session_id or uuid.uuid4().hex
        connection.exit_stack.push_async_callback(lambda: sessions.free(made))
    return session_id


def _describe(types: Any, spec: ToolSpec) -> Any:
    schema = spec.output_schema
    hints = types.ToolAnnotations(
        read_only_hint=spec.effect is Effect.PURE, idempotent_hint=spec.effect is not Effect.ONCE
    )
    return types.Tool(
        name=spec.name,
        description=spec.description,
        input_schema=spec.parameters,
        # MCP allows no other output schemas than those of objects.
        output_schema=schema if isinstance(schema, dict) and schema.get("type") == "object" else None,
        annotations=hints,
    )


def _to_result(types: Any, result: ToolResult) -> Any:
    structured = result.structured if isinstance(result.structured, dict) else None
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=result.content)],
        structured_content=structured,
        is_error=result.is_error,
    )
