"""The component `mock` of DeepFabric's Spin tool protocol: tools that a client defines, with canned results.

They belong to the server and not to a session. Source: DeepFabric 4.13, Spin tools protocol.
"""

import uuid
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import decode_document
from treadle.core.types import Json
from treadle.tools.context import Scope, ToolContext
from treadle.tools.mock.fixtures import Fixture
from treadle.tools.mock.mocks import Mock, mock_of
from treadle.tools.schema.tool_definitions import parse_definitions

MAX_BODY_BYTES = 32 * 1024 * 1024


class MockComponent:
    """The mocked tools of a server, and the routes that change and call them."""

    def __init__(self) -> None:
        self._mock: Mock | None = None
        self._scope = Scope()

    def routes(self) -> list[Route]:
        """Return the routes for Starlette."""
        return [
            Route("/mock/list-tools", self._list, methods=["GET"]),
            Route("/mock/{action}", self._act, methods=["POST"]),
        ]

    async def _list(self, _: Request) -> Response:
        specs = [tool.spec for tool in self._mock.tools()] if self._mock else []
        described = [
            {"name": spec.name, "description": spec.description, "inputSchema": spec.parameters}
            for spec in specs
        ]
        return reply({"tools": described})

    async def _act(self, request: Request) -> Response:
        body, action = await read_body(request), request.path_params["action"]
        if body is None:
            return reply({"error": "the body is too large"}, 413)
        if action == "clear":
            self._mock = None
            return reply({"success": True})
        is_yaml = "yaml" in request.headers.get("content-type", "")
        try:
            value = decode_document(body, "the body", is_yaml=is_yaml)
            status, answer = await self._change(action, value)
            return reply(answer, status)
        except ConfigError as error:
            return reply({"error": str(error)}, 400)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            return reply({"error": f"the body lacks {error}"}, 400)

    async def _change(self, action: str, value: Any) -> tuple[int, Json]:
        if action == "load-schema":
            parse_definitions(value, "the body")
            self._mock = mock_of(value, "the body")
            names = [tool.spec.name for tool in self._mock.tools()]
            return 200, {"loaded": len(names), "tools": names}
        name, tools = value["name"], self._mock.tools() if self._mock else ()
        tool = next((item for item in tools if item.spec.name == name), None)
        if tool is None:
            return 404, {"error": f"there is no mocked tool {name!r}; load its schema first"}
        if action == "execute":
            arguments = value.get("arguments", {})
            if (fault := tool.find_fault(arguments)) is not None:
                return 400, {"error": fault}
            output = await tool.call(arguments, ToolContext("mock", uuid.uuid4().hex, 1, scope=self._scope))
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


async def read_body(request: Request) -> bytes | None:
    """Return the body of a request; `None` if it is larger than `MAX_BODY_BYTES`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def reply(value: Json, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
