"""The operations of OpenAPI documents as tools, over a real socket."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from tests.tools.web import Asked, Web, serve

from treadle import Agent, ScriptedModel
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.openapi import OpenAPI, openapi
from treadle.tools.protocol import ToolContext, ToolOutput


def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    path = urlsplit(asked.path).path
    if path == "/image":
        return 200, {"content-type": "image/png"}, b"\x89PNG"
    if path == "/text":
        return 200, {"content-type": "text/plain"}, b"plain"
    if path == "/broken":
        return 503, {"content-type": "application/json", "retry-after": "7"}, b'{"why": "busy"}'
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


@pytest.fixture
def web() -> Iterator[Web]:
    with serve(answer) as web:
        yield web


def parameter(name: str, place: str, schema: Any, **more: Any) -> Any:
    return {"name": name, "in": place, "schema": schema, **more}


def document(version: str = "3.1.0", **paths: Any) -> dict[str, Any]:
    return {
        "openapi": version,
        "info": {"title": "t", "version": "1"},
        "paths": paths.pop("paths", {}),
        **paths,
    }


def one(web: Web, method: str, path: str, operation: Any, **more: Any) -> Any:
    options = {key: more.pop(key) for key in list(more) if key in ("auth", "headers", "effects")}
    raw = document(paths={path: {method: operation}}, **more)
    (tool,) = OpenAPI(raw, base_url=web.url, **options).tools()
    return tool


async def ask(tool: Any, **arguments: Any) -> Any:
    assert tool.find_fault(arguments) is None, tool.find_fault(arguments)
    output = await tool.call(arguments, ToolContext("r", "c", 1))
    assert not output.is_error, output.content
    return output.structured


async def test_parameters_go_where_they_belong(web: Web) -> None:
    tool = one(
        web,
        "get",
        "/items/{id}/{kind}",
        {
            "operationId": "get item!",
            "summary": "One item.",
            "parameters": [
                parameter("id", "path", {"type": "integer"}),
                parameter("kind", "path", {"type": "array"}),
                parameter("tags", "query", {"type": "array", "items": {"type": "string"}}),
                parameter("plain", "query", {"type": "array"}, explode=False),
                parameter("piped", "query", {"type": "array"}, style="pipeDelimited", explode=False),
                parameter("filter", "query", {"type": "object"}, style="deepObject"),
                parameter("X-Trace", "header", {"type": "string"}),
                parameter("session", "cookie", {"type": "string"}),
                parameter("flag", "query", {"type": "boolean"}, required=True),
            ],
        },
    )
    assert (tool.spec.name, tool.spec.effect, tool.spec.description) == ("get_item", Effect.PURE, "One item.")
    assert tool.spec.parameters["required"] == ["id", "kind", "flag"]
    said = await ask(
        tool,
        id=7,
        kind=["a/b", "c"],
        tags=["x", "y z"],
        plain=["1", "2"],
        piped=["3", "4"],
        filter={"from": 1, "to": {"a": 2}},
        flag=True,
        session="s s",
        **{"X-Trace": "t"},
    )
    assert said["path"] == "/items/7/a/b,c"
    assert said["query"] == [
        ["tags", "x"],
        ["tags", "y z"],
        ["plain", "1,2"],
        ["piped", "3|4"],
        ["filter[from]", "1"],
        ["filter[to]", '{"a":2}'],
        ["flag", "true"],
    ]
    assert (said["headers"]["x-trace"], said["headers"]["cookie"]) == ("t", "session=s%20s")
    assert web.asked[0].path.startswith("/items/7/a%2Fb%2Cc?")


@pytest.mark.parametrize("value", ["..", ".", ""])
async def test_a_path_cannot_be_left(web: Web, value: str) -> None:
    tool = one(web, "get", "/a/{id}/b", {"parameters": [parameter("id", "path", {"type": "string"})]})
    with pytest.raises(ToolError, match="cannot stand in a path"):
        await tool.call({"id": value}, ToolContext("r", "c", 1))
    assert (await ask(tool, id="../../x?y#z"))["path"] == "/a/../../x?y#z/b"
    assert web.asked[0].path == "/a/..%2F..%2Fx%3Fy%23z/b"


async def test_bodies_of_every_kind(web: Web) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
    }

    def body(media: str, inner: Any = schema) -> Any:
        return {"requestBody": {"required": True, "content": {media: {"schema": inner}}}}

    tool = one(web, "post", "/j", body("application/json"))
    assert tool.spec.parameters["required"] == ["a"]
    said = await ask(tool, a=1, b="é")
    assert (json.loads(said["body"]), said["headers"]["idempotency-key"]) == ({"a": 1, "b": "é"}, "r/c")
    said = await ask(one(web, "put", "/f", body("application/x-www-form-urlencoded")), a=1, b="x y")
    assert (said["body"], "idempotency-key" in said["headers"]) == ("a=1&b=x+y", False)
    said = await ask(one(web, "post", "/m", body("multipart/form-data")), a=1, b="x")
    assert 'name="b"\r\n\r\nx\r\n' in said["body"]
    whole = one(web, "post", "/l", body("application/json", {"type": "array", "items": {"type": "integer"}}))
    assert (await ask(whole, body=[1, 2]))["body"] == "[1,2]"
    assert (await ask(one(web, "post", "/t", body("text/plain", {"type": "string"})), body="hi"))[
        "body"
    ] == "hi"
    binary = one(web, "post", "/b", body("application/octet-stream", {}))
    assert (await ask(binary, body="aGk="))["body"] == "hi"
    with pytest.raises(ToolError, match="not base64"):
        await binary.call({"body": "*"}, ToolContext("r", "c", 1))
    clash = body("application/json") | {"parameters": [parameter("a", "query", {"type": "string"})]}
    said = await ask(one(web, "post", "/c", clash), a="q", body={"a": 5})
    assert (said["query"], said["body"]) == ([["a", "q"]], '{"a":5}')


def test_an_operation_that_cannot_be_written_is_left_out_and_told() -> None:
    odd = {"requestBody": {"content": {"application/protobuf": {}}}}
    api = OpenAPI(document(paths={"/a": {"post": odd, "get": {}}}), base_url="https://api.example")
    assert [tool.spec.name for tool in api.tools()] == ["get_a"]
    assert api.notes == ["POST /a: its body is application/protobuf, which cannot be written"]


def test_schemas_are_whole_and_old_ones_are_made_new() -> None:
    node = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {
            "id": {"type": "integer", "readOnly": True},
            "name": {"type": "string", "nullable": True, "enum": ["a"]},
            "size": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
        },
    }
    raw = document(
        "3.0.3",
        paths={"/n": {"post": {"requestBody": {"$ref": "#/components/requestBodies/N"}}}},
        components={
            "schemas": {"Node": node},
            "requestBodies": {
                "N": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}},
                }
            },
        },
    )
    (tool,) = OpenAPI(raw, base_url="https://api.example").tools()
    parameters = tool.spec.parameters
    assert parameters["required"] == ["name"]
    assert parameters["properties"]["name"] == {"type": ["string", "null"], "enum": ["a", None]}
    assert parameters["properties"]["size"] == {"type": "number", "exclusiveMinimum": 0}
    assert tool.find_fault({"name": "a", "children": [{"name": None, "children": []}]}) is None
    assert "/children/0/name" in (tool.find_fault({"name": "a", "children": [{"name": "b"}]}) or "")
    assert "unknown parameter 'id'" in (tool.find_fault({"name": "a", "id": 1}) or "")


async def test_secrets_come_from_the_environment_or_the_program(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemes = {
        "api-key": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "inQuery": {"type": "apiKey", "in": "query", "name": "key"},
        "bearer": {"type": "http", "scheme": "bearer"},
        "basic": {"type": "http", "scheme": "basic"},
    }
    components = {"securitySchemes": schemes}

    def tool(name: str, **auth: str) -> Any:
        return one(web, "get", "/s", {"security": [{name: []}]}, components=components, auth=auth or None)

    with pytest.raises(ToolError, match="set API_KEY in the environment"):
        await tool("api-key").call({}, ToolContext("r", "c", 1))
    monkeypatch.setenv("API_KEY", "from-env")
    assert (await ask(tool("api-key")))["headers"]["x-key"] == "from-env"
    assert (await ask(tool("inQuery", inQuery="a b")))["query"] == [["key", "a b"]]
    assert (await ask(tool("bearer", bearer="t0ken")))["headers"]["authorization"] == "Bearer t0ken"
    assert (await ask(tool("basic", basic="u:p")))["headers"]["authorization"] == "Basic dTpw"
    assert "t0ken" not in repr(tool("bearer", bearer="t0ken")) + str(tool("bearer", bearer="t0ken").spec)
    with pytest.raises(ConfigError, match="no security scheme 'beerer'"):
        tool("bearer", beerer="x")


async def test_answers_of_every_kind(web: Web) -> None:
    paths = {f"/{name}": {"get": {"operationId": name}} for name in ("image", "text", "broken")}
    tools = {tool.spec.name: tool for tool in OpenAPI(document(paths=paths), base_url=web.url).tools()}
    image = await tools["image"].call({}, ToolContext("r", "c", 1))
    assert (image.content, image.attachments[0].content) == ("[image image/png, 4 bytes]", b"\x89PNG")
    assert await tools["text"].call({}, ToolContext("r", "c", 1)) == ToolOutput("plain")
    broken = await tools["broken"].call({}, ToolContext("r", "c", 1))
    assert (broken.is_error, broken.content) == (True, 'HTTP 503 (retry after 7)\n{"why":"busy"}')


async def test_a_document_may_name_no_private_server_of_its_own(web: Web) -> None:
    raw = document(paths={"/a": {"get": {}}}, servers=[{"url": web.url}])
    (tool,) = OpenAPI(raw).tools()
    with pytest.raises(ToolError, match="a loopback address; no request is made"):
        await tool.call({}, ToolContext("r", "c", 1))
    assert web.asked == []
    (tool,) = OpenAPI(raw, allow_private=True).tools()
    assert (await ask(tool))["path"] == "/a"


async def test_a_whole_run_from_a_document_at_a_url() -> None:
    def serve_it(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.path == "/openapi.json":
            raw = document(
                servers=[{"url": "/v1"}],
                paths={
                    "/double": {"get": {"operationId": "double", "parameters": [parameter("n", "query", {})]}}
                },
            )
            return 200, {"content-type": "application/json"}, json.dumps(raw).encode()
        return answer(asked)

    with serve(serve_it) as web:
        tools = openapi(f"{web.url}/openapi.json")
        model = ScriptedModel([[call("double", {"n": 2})], "ok"])
        run = await Agent(model, tools=[tools], journal=MemoryJournal()).run("go")
    assert json.loads(run.messages[-2].content)["path"] == "/v1/double"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"swagger": "2.0"}, "is a Swagger 2.0 document"),
        ({"openapi": "4.0.0"}, "says openapi '4.0.0'"),
        ({}, "says openapi 'nothing'"),
        (document(), "has no operation that can be a tool"),
        (document(paths={"/a": {"get": {"parameters": [{"$ref": "#/components/x"}]}}}), "leads nowhere"),
        (document(paths={"/a": {"get": {"parameters": [{"$ref": "other.json"}]}}}), "outside itself"),
        (document(paths={"/a": {"get": {"x-treadle-effect": "twice"}}}), "use pure, idempotent or once"),
    ],
)
def test_documents_that_cannot_be_used(raw: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenAPI(raw, base_url="https://api.example")


def test_what_else_cannot_be(tmp_path: Path) -> None:
    raw = document(paths={"/a": {"get": {"operationId": "list"}}})
    with pytest.raises(ConfigError, match="names no server with an address"):
        OpenAPI(raw)
    with pytest.raises(ConfigError, match="has no operation 'lst'; did you mean 'list'"):
        OpenAPI(raw, base_url="https://api.example", include=["lst"])
    with pytest.raises(ConfigError, match=r"cannot read the OpenAPI document 'absent.json'"):
        openapi("absent.json")
    (tmp_path / "x.yaml").write_text("openapi: 3.1.0\npaths:\n  /a:\n    get: {operationId: x}\n")
    (tool,) = OpenAPI(tmp_path / "x.yaml", base_url="https://api.example").tools()
    assert tool.spec.name == "x"
    with pytest.raises(ConfigError, match="is no URL of a server"):
        OpenAPI(raw, base_url="api.example")
