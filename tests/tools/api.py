"""A web server that returns the request it received, and OpenAPI documents with one operation."""

import json
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.tools.web import Asked, Web

from treadle.tools.context import ToolContext
from treadle.tools.openapi import OpenAPI

WHERE = ToolContext("r", "c", 1)
_OPTIONS = ("auth", "headers", "effects")


def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    """Return the request as JSON."""
    path = urlsplit(asked.path).path
    said = {
        "method": asked.method,
        "path": unquote(path),
        "query": parse_qsl(urlsplit(asked.path).query, keep_blank_values=True),
        "headers": {
            key: value for key, value in asked.headers.items() if key not in ("host", "accept", "user-agent")
        },
        "body": asked.body.decode(errors="replace"),
    }
    return 200, {"content-type": "application/json"}, json.dumps(said).encode()


def parameter(name: str, place: str, schema: Any, **more: Any) -> Any:
    return {"name": name, "in": place, "schema": schema, **more}


def document(version: str = "3.1.0", **parts: Any) -> dict[str, Any]:
    return {"openapi": version, "info": {"title": "t", "version": "1"}, "paths": {}, **parts}


def one(web: Web, method: str, path: str, operation: Any, **more: Any) -> Any:
    """Return the tool of a document with one operation."""
    options = {key: more.pop(key) for key in _OPTIONS if key in more}
    raw = document(paths={path: {method: operation}}, **more)
    (tool,) = OpenAPI(raw, base_url=web.url, **options).tools()
    return tool


async def ask(tool: Any, **arguments: Any) -> Any:
    """Return the request that a call sends."""
    assert tool.find_fault(arguments) is None, tool.find_fault(arguments)
    output = await tool.call(arguments, WHERE)
    assert not output.is_error, output.content
    return output.structured
