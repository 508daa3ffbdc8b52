"""The server of Treadle's tools over the Spin tool protocol of DeepFabric.

In the protocol, each call names a component, which is a group of tools. Here, all components have the same tools:
those that are served. The component `vfs` also has DeepFabric's four file tools, with the answers that DeepFabric
expects. Source: DeepFabric 4.13, Spin tools protocol.
"""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from treadle.core.documents import decode_document
from treadle.core.errors import ConfigError, SandboxError
from treadle.core.registry import require
from treadle.core.types import Json, ToolCall, ToolErrorKind
from treadle.sandbox.paths import normalize_file
from treadle.server.tool_sessions import VFS, ToolSession, ToolSessions
from treadle.tools.context import Scope, ToolContext
from treadle.tools.mock.fixtures import Fixture
from treadle.tools.mock.mocks import Mock, mock_of
from treadle.tools.schema.tool_definitions import parse_definitions

MAX_BODY_BYTES = 32 * 1024 * 1024
MOCK_COMPONENT = "mock"
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


class SpinService:
    """The answers to the requests of the protocol, independent of the web server."""

    def __init__(self, sessions: ToolSessions) -> None:
        self._sessions = sessions
        self._mock: Mock | None = None
        self._mock_scope = Scope()

    @property
    def health(self) -> Json:
        """The answer to `/health`."""
        return {"status": "healthy", "components": self.components, "sessions": len(self._sessions)}

    @property
    def components(self) -> list[str]:
        """The names of the components, each of which has all tools."""
        return ["vfs", "tools", MOCK_COMPONENT]

    async def execute(self, body: bytes, component: str | None) -> tuple[int, Json]:
        """Make one call, and return the HTTP status and the answer."""
        try:
            request = msgspec.json.decode(body, type=_Execute)
        except (msgspec.DecodeError, UnicodeError) as error:
            return 400, _failure(f"the body is not a valid request: {error}", "InvalidRequest")
        if not request.session_id:
            return 400, _failure("the session_id is empty", "InvalidRequest")
        if component not in (None, *self.components):
            known = ", ".join(self.components)
            return 404, _failure(
                f"there is no component {component!r}; the components are {known}", "UnknownTool"
            )
        call = ToolCall(uuid.uuid4().hex, request.tool, msgspec.json.encode(request.args).decode())
        is_vfs = component == "vfs" and request.tool in VFS.tools
        result = await self._sessions.call(request.session_id, call, is_vfs=is_vfs)
        if not result.is_error:
            return 200, _success(result.content)
        kind = _KINDS.get(result.error_kind) if result.error_kind is not None else None
        if kind is None:
            session = await self._sessions.open(request.session_id)
            kind = "FileNotFound" if _is_absent(session, request.args) else "IOError"
        if is_vfs and kind == "FileNotFound":
            return 200, _failure(f"File not found: {request.args['file_path']}", kind)
        return 200, _failure(result.content, kind)

    async def free(self, session_id: str) -> tuple[int, Json]:
        """End a session, and return the HTTP status and the answer. An unknown session is not an error."""
        was_there = await self._sessions.free(session_id)
        return 200, {"success": True, "session_id": session_id, "freed": was_there}

    async def mock(self, action: str, body: bytes, kind: str) -> tuple[int, Json]:
        """Answer a request to the mock component, whose tools belong to the server and not to a session."""
        if action == "list-tools":
            return 200, {"tools": [_describe(tool.spec) for tool in self._mock.tools()] if self._mock else []}
        if action == "clear":
            self._mock = None
            return 200, {"success": True}
        try:
            value = decode_document(body, "the body", is_yaml="yaml" in kind)
            return await self._change_mock(action, value)
        except (ConfigError, KeyError, TypeError, msgspec.ValidationError) as error:
            return 400, {"error": f"{error}" if isinstance(error, ConfigError) else f"the body lacks {error}"}

    async def _change_mock(self, action: str, value: Json) -> tuple[int, Json]:
        if action == "load-schema":
            parse_definitions(value, "the body")
            self._mock = mock_of(value, "the body")
            return 200, {
                "loaded": len(self._mock.tools()),
                "tools": [item.spec.name for item in self._mock.tools()],
            }
        name = value["name"]
        tool = next(
            (item for item in (self._mock.tools() if self._mock else ()) if item.spec.name == name), None
        )
        if tool is None:
            return 404, {"error": f"there is no mocked tool {name!r}; load its schema first"}
        if action == "execute":
            fault = tool.find_fault(value.get("arguments", {}))
            if fault is not None:
                return 400, {"error": fault}
            context = ToolContext("mock", uuid.uuid4().hex, 1, scope=self._mock_scope)
            output = await tool.call(value.get("arguments", {}), context)
            if output.is_error:
                return 400, {"error": output.content}
            return 200, {"result": output.content if output.structured is None else output.structured}
        if action == "update-response":
            kept = [item for item in tool.fixtures if item.match or item.when]
            tool.use([Fixture(result=value["mockResponse"]), *kept])
            return 200, {"success": True}
        if action == "add-fixture":
            tool.use([*tool.fixtures, {"match": value["match"], "result": value["response"]}])
            return 200, {"success": True, "fixtures": len(tool.fixtures)}
        return 404, {"error": f"there is no /mock/{action}"}


def spin_routes(service: SpinService) -> list[Any]:
    """Return the routes of the protocol for Starlette. Raises: `ConfigError` if Starlette is not installed."""
    responses, routing = require("starlette.responses", "serve"), require("starlette.routing", "serve")

    def reply(answer: tuple[int, Json]) -> Any:
        status, value = answer
        return responses.Response(msgspec.json.encode(value), status, media_type="application/json")

    async def read(request: Any) -> bytes | None:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return None
        return bytes(body)

    def route(path: str, method: str, answer: Callable[[Any, bytes], Awaitable[tuple[int, Json]]]) -> Any:
        async def handle(request: Any) -> Any:
            body = await read(request)
            if body is None:
                return reply((413, _failure("the body is too large", "InvalidRequest")))
            return reply(await answer(request, body))

        return routing.Route(path, handle, methods=[method])

    async def health(request: Any, body: bytes) -> tuple[int, Json]:
        return 200, service.health

    async def components(request: Any, body: bytes) -> tuple[int, Json]:
        return 200, {"components": service.components}

    async def execute(request: Any, body: bytes) -> tuple[int, Json]:
        return await service.execute(body, request.path_params.get("component"))

    async def free(request: Any, body: bytes) -> tuple[int, Json]:
        return await service.free(request.path_params["session_id"])

    async def mock(request: Any, body: bytes) -> tuple[int, Json]:
        return await service.mock(
            request.path_params["action"], body, request.headers.get("content-type", "")
        )

    return [
        *[route(path, "GET", health) for path in ("/health", "/vfs/health")],
        route("/components", "GET", components),
        route("/mock/list-tools", "GET", lambda request, body: service.mock("list-tools", body, "")),
        route("/mock/{action}", "POST", mock),
        *[route(path, "POST", execute) for path in ("/execute", "/{component}/execute")],
        *[
            route(path, "DELETE", free)
            for path in ("/session/{session_id}", "/{component}/session/{session_id}")
        ],
    ]


def _is_absent(session: ToolSession, args: dict[str, Json]) -> bool:
    """Return whether the call names a valid path at which the session has no file."""
    path = args.get("file_path")
    try:
        return isinstance(path, str) and normalize_file(path) not in session.sandbox.paths()
    except SandboxError:
        return False


def _success(result: str) -> Json:
    return {"success": True, "result": result}


def _failure(result: str, error_type: str) -> Json:
    return {"success": False, "result": result, "error_type": error_type}


def _describe(spec: Any) -> Json:
    return {"name": spec.name, "description": spec.description, "inputSchema": spec.parameters}
