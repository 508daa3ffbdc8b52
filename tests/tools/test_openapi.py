"""The operations of OpenAPI documents as tools, over a real socket."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools.api import WHERE, answer, ask, document, one, parameter
from tests.tools.web import Asked, Web, serve

from treadle import Agent, ScriptedModel
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.openapi import OpenAPI, openapi
from treadle.tools.schema.validation import ArgumentChecker


@pytest.fixture
def web() -> Iterator[Web]:
    with serve(answer) as web:
        yield web


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
                parameter("flag", "query", {"type": "boolean"}, required=True),
                parameter("X-Trace", "header", {"type": "string"}),
                parameter("Host", "header", {"type": "string"}, required=True),
                parameter("session", "cookie", {"type": "string"}),
                parameter("id", "query", {"type": "string"}),
            ],
        },
    )
    assert (tool.spec.name, tool.spec.effect, tool.spec.description) == ("get_item", Effect.PURE, "One item.")
    assert tool.spec.parameters["required"] == ["id", "kind", "flag"]
    said = await ask(
        tool, id=7, query_id="seven", kind=["a/b", "c"], flag=True, session="s s", **{"X-Trace": "t"}
    )
    assert said["path"] == "/items/7/a/b,c"
    assert said["query"] == [["flag", "true"], ["id", "seven"]]
    assert (said["headers"]["x-trace"], said["headers"]["cookie"]) == ("t", "session=s%20s")
    assert web.asked[0].path.startswith("/items/7/a%2Fb,c?")
    with pytest.raises(ToolError, match="'X-Trace' contains a control character"):
        await tool.call({"id": 7, "kind": ["a"], "flag": True, "X-Trace": "a\r\nb: c"}, WHERE)


@pytest.mark.parametrize(
    ("style", "explode", "expected"),
    [
        ("form", None, "v=a%26b&v=c | x=1&y%20=2 | v=p"),
        ("form", False, "v=a%26b,c | v=x,1,y%20,2 | v=p"),
        ("deepObject", True, "v=a%26b&v=c | v%5Bx%5D=1&v%5By%20%5D=2 | v=p"),
    ],
)
async def test_styles_of_queries(web: Web, style: str, explode: bool | None, expected: str) -> None:
    more = {} if explode is None else {"explode": explode}
    tool = one(web, "get", "/q", {"parameters": [parameter("v", "query", {}, style=style, **more)]})
    for value in (["a&b", "c"], {"x": 1, "y ": 2}, "p"):
        await ask(tool, v=value)
    assert " | ".join(asked.path.partition("?")[2] for asked in web.asked) == expected


@pytest.mark.parametrize(
    ("style", "explode", "expected"),
    [
        ("simple", False, "p.x a,b%2C c,1,d,2"),
        ("simple", True, "p.x a,b%2C c=1,d=2"),
    ],
)
async def test_styles_of_paths(web: Web, style: str, explode: bool, expected: str) -> None:
    """Source: RFC 6570, section 3.2; OpenAPI 3.1.1, Style Values."""
    tool = one(web, "get", "/{v}", {"parameters": [parameter("v", "path", {}, style=style, explode=explode)]})
    for value in ("p.x", ["a", "b,"], {"c": 1, "d": 2}):
        await ask(tool, v=value)
    assert " ".join(asked.path[1:] for asked in web.asked) == expected


async def test_other_ways_to_write_a_parameter(web: Web) -> None:
    shared = [
        {"name": "filter", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
        parameter("deep", "query", {"type": "object"}, style="deepObject"),
        parameter("url", "query", {"type": "string"}, allowReserved=True),
    ]
    tool = one(web, "get", "/w/{undeclared}", {"parameters": shared})
    assert tool.spec.parameters["required"] == ["undeclared"]
    said = await ask(
        tool, undeclared="u", filter={"a": [1]}, deep={"to": {"a": 2}, "in": [1, 2]}, url="http://a/?b&c#d+e"
    )
    assert said["query"] == [
        ["filter", '{"a":[1]}'],
        ["deep[to][a]", "2"],
        ["deep[in]", "1"],
        ["deep[in]", "2"],
        ["url", "http://a/?b&c#d+e"],
    ]
    assert "url=http://a/?b%26c%23d%2Be" in web.asked[0].path


@pytest.mark.parametrize("value", ["..", ".", ""])
async def test_a_path_cannot_be_left(web: Web, value: str) -> None:
    tool = one(web, "get", "/a/{id}/b", {"parameters": [parameter("id", "path", {"type": "string"})]})
    with pytest.raises(ToolError, match=r"(not allowed in|cannot be part of) a path"):
        await tool.call({"id": value}, WHERE)
    assert (await ask(tool, id="../../x?y#z"))["path"] == "/a/../../x?y#z/b"
    assert web.asked[0].path == "/a/..%2F..%2Fx%3Fy%23z/b"
    pair = one(web, "get", "/a/{x}{y}/b", {})
    with pytest.raises(ToolError, match=r"(not allowed in|cannot be part of) a path"):
        await pair.call({"x": ".", "y": "."}, WHERE)


async def test_bodies_of_every_kind(web: Web) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
    }

    def body(media: str, inner: Any = schema, *, required: bool = True) -> Any:
        return {"requestBody": {"required": required, "content": {media: {"schema": inner}}}}

    tool = one(web, "post", "/j", body("application/json"))
    assert tool.spec.parameters["required"] == ["a"]
    said = await ask(tool, a=1, b="é")
    assert (json.loads(said["body"]), said["headers"]["idempotency-key"]) == ({"a": 1, "b": "é"}, "r/c")
    said = await ask(one(web, "put", "/f", body("application/x-www-form-urlencoded")), a=1, b="x y")
    assert (said["body"], "idempotency-key" in said["headers"]) == ("a=1&b=x+y", False)
    whole = one(web, "post", "/l", body("application/vnd.x+json; v=1", {"type": "array", "items": {}}))
    said = await ask(whole, body=[1, 2])
    assert (said["body"], said["headers"]["content-type"]) == ("[1,2]", "application/vnd.x+json; v=1")
    text = one(web, "post", "/t", body("text/plain", {"type": "string"}))
    assert (await ask(text, body="hi"))["body"] == "hi"
    xml = one(web, "post", "/x", body("application/xml"))
    assert (await ask(xml, body="<a/>"))["headers"]["content-type"] == "application/xml"
    clash = body("application/json") | {"parameters": [parameter("a", "query", {"type": "string"})]}
    said = await ask(one(web, "post", "/c", clash), a="q", body={"a": 5})
    assert (said["query"], said["body"]) == ([["a", "q"]], '{"a":5}')
    for inner in (schema, {**schema, "required": []}):
        optional = one(web, "post", "/o", body("application/json", inner, required=False))
        said = await ask(optional)
        assert (said["body"], "content-type" in said["headers"]) == ("", False)
        has_body = "body" in optional.spec.parameters["properties"]
        assert has_body == bool(inner["required"])
        assert (await ask(optional, **({"body": {"a": 5}} if has_body else {"a": 5})))["body"] == '{"a":5}'
        checker = ArgumentChecker(optional.spec.parameters)
        assert checker.find_fault({}) is None
        assert (checker.find_fault({"body": {"b": "x"}} if has_body else {"b": "x"}) is None) != has_body
    free = one(web, "post", "/a", body("application/json", {**schema, "additionalProperties": True}))
    assert (await ask(free, body={"a": 1, "more": 2}))["body"] == '{"a":1,"more":2}'
    assert one(web, "get", "/g", body("application/json")).spec.parameters["properties"] == {}


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (
            {"requestBody": {"content": {"multipart/form-data": {"schema": {}}}}},
            "its body is multipart/form-data",
        ),
        ({"requestBody": {"content": {"image/png": {}}}}, "its body is image/png"),
        (
            {"parameters": [parameter("v", "query", {}, style="pipeDelimited")]},
            "unsupported style pipeDelimited",
        ),
    ],
)
def test_an_operation_that_takes_files_or_another_style_is_no_tool(item: dict[str, Any], why: str) -> None:
    api = OpenAPI(document(paths={"/a": {"get": {}, "post": item}}), base_url="http://127.0.0.1:9")
    assert [tool.spec.name for tool in api.tools()] == ["get_a"]
    (note,) = api.notes
    assert why in note


async def test_effects_follow_from_the_method_and_can_be_said(web: Web) -> None:
    methods = ("get", "head", "options", "put", "delete", "post", "patch")
    paths = {"/a": {method: {"operationId": method} for method in methods}}
    paths["/b"] = {"post": {"operationId": "search", "x-treadle-effect": "pure"}}
    api = OpenAPI(document(paths=paths), base_url=web.url, effects={"patch": "idempotent"})
    tools = {tool.spec.name: tool for tool in api.tools()}
    assert {name: str(tool.spec.effect) for name, tool in tools.items()} == {
        **dict.fromkeys(("get", "head", "options", "search"), "pure"),
        **dict.fromkeys(("put", "delete", "patch"), "idempotent"),
        "post": "once",
    }
    for name in ("put", "post", "patch", "search"):
        await ask(tools[name])
    keys = [asked.headers.get("idempotency-key") for asked in web.asked]
    assert keys == [None, "r/c", "r/c", None]
    for effects, message in (({"pots": "once"}, "did you mean 'post'"), ({"post": "twice"}, "use one of")):
        with pytest.raises(ConfigError, match=message):
            OpenAPI(document(paths=paths), base_url=web.url, effects=effects)


@pytest.mark.parametrize(
    ("media", "body", "text"),
    [
        ("text/plain", b"plain", "plain"),
        ("text/plain; charset=ISO-8859-1", b"\xe9", "é"),
        ("text/plain; charset=nonsense", b"\xff", "�"),
        ("text/plain; charset=punycode", b"a-bcd", "a-bcd"),
        ("application/json", b'{"a": [1.0, "\xc3\xa9"]}', '{"a":[1.0,"é"]}'),
        ("application/problem+json", b"[1]", "[1]"),
        ("application/json", b"{broken", "{broken"),
        ("application/json", b"[" * 100_000, "[" * 100_000),
        ("application/atom+xml", b"<a/>", "<a/>"),
        ("", b"no type", "no type"),
        ("", b"", "HTTP 200"),
        ("image/png", b"\x89PNG", "[image, image/png, 4 bytes]"),
        ("application/zip", b"PK", "[resource, application/zip, 2 bytes]"),
        ("", b"\xff\xfe", "[resource, of unknown type, 2 bytes]"),
    ],
)
async def test_answers_of_every_kind(media: str, body: bytes, text: str) -> None:
    with serve(lambda _: (200, {"content-type": media} if media else {}, body)) as web:
        output = await one(web, "get", "/a", {}).call({}, WHERE)
    assert (output.content, output.is_error) == (text, False)
    if text.startswith("["):
        assert [item.content for item in output.attachments] in ([], [body])
    assert bool(output.attachments) == text.endswith(" bytes]")


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (503, {"retry-after": "7"}, b'{"why": "busy"}', 'HTTP 503 (retry after 7 s)\n{"why":"busy"}'),
        (429, {"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, b"{}", "HTTP 429 (retry after Fri, 31"),
        (404, {}, b"", "HTTP 404"),
        (500, {"content-type": "image/png"}, b"text", "HTTP 500\ntext"),
    ],
)
async def test_a_status_that_is_an_error(status: int, headers: Any, body: bytes, expected: str) -> None:
    with serve(lambda _: (status, {"content-type": "application/json", **headers}, body)) as web:
        output = await one(web, "get", "/a", {}).call({}, WHERE)
    assert (output.is_error, output.structured, output.attachments) == (True, None, ())
    assert output.content.startswith(expected)


async def test_what_breaks_the_schema_of_the_answer_is_text_alone() -> None:
    said = {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}}
    pet = {
        "type": "object",
        "required": ["id", "secret"],
        "properties": {"id": {"type": "integer", "readOnly": True}, "secret": {"writeOnly": True}},
        "additionalProperties": False,
    }
    for answered, is_kept in (({"id": 1}, True), ({"id": "1"}, False), ([1], False)):
        body = json.dumps(answered).encode()
        with serve(lambda _, body=body: (200, {"content-type": "application/json"}, body)) as web:  # type: ignore[misc]
            tool = one(web, "get", "/a", {"responses": said}, components={"schemas": {"Pet": pet}})
            output = await tool.call({}, WHERE)
        assert tool.spec.output_schema["type"] == "object"
        assert (output.structured is not None, output.content) == (
            is_kept,
            body.decode().replace(" ", ""),
        )


async def test_servers_are_those_of_the_document_the_path_or_the_user(web: Web) -> None:
    with serve(answer) as other:
        raw = document(
            servers=[
                {"url": "{scheme}://127.0.0.1:{port}/v1/", "variables": {"scheme": {"default": "http"}}}
            ],
            paths={
                "/a": {"get": {"operationId": "a"}},
                "/b": {"servers": [{"url": f"{other.url}/b"}], "get": {"operationId": "b"}},
            },
        )
        raw["servers"][0]["variables"]["port"] = {"default": str(web.port)}
        own = {tool.spec.name: tool for tool in OpenAPI(raw, allow_private=True).tools()}
        assert [(await ask(own[name]))["path"] for name in "ab"] == ["/v1/a", "/b/b"]
        assert [len(web.asked), len(other.asked)] == [1, 1]
        given = {tool.spec.name: tool for tool in OpenAPI(raw, base_url=f"{web.url}/x/").tools()}
        assert [(await ask(given[name]))["path"] for name in "ab"] == ["/x/a", "/x/b"]
        assert [len(web.asked), len(other.asked)] == [3, 1]


async def test_a_document_may_name_no_private_server_of_its_own(web: Web) -> None:
    raw = document(paths={"/a": {"get": {}}}, servers=[{"url": web.url}])
    (tool,) = OpenAPI(raw).tools()
    with pytest.raises(ToolError, match="a loopback address; no request is made"):
        await tool.call({}, WHERE)
    assert web.asked == []


async def test_redirects_lead_to_hosts_that_the_user_allows() -> None:
    with serve(answer) as other, serve(lambda _: (302, {"location": f"{other.url}/there"}, b"")) as web:
        raw = document(paths={"/a": {"get": {}}})
        (tool,) = OpenAPI(raw, base_url=web.url).tools()
        with pytest.raises(ToolError, match="is not allowed; allowed hosts"):
            await tool.call({}, WHERE)
        (tool,) = OpenAPI(raw, base_url=web.url, allowed_hosts=[f"127.0.0.1:{other.port}"]).tools()
        assert (await ask(tool))["path"] == "/there"


def serving(raw: dict[str, Any], **more: Any) -> Any:
    """Return the document if it is asked for, and otherwise the request."""

    def serve_it(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.path.startswith("/openapi.json"):
            return 200, {"content-type": "application/json"}, json.dumps(raw).encode()
        return answer(asked)

    return serve(serve_it)


async def test_a_whole_run_from_a_document_at_a_url() -> None:
    double = {"operationId": "double", "parameters": [parameter("n", "query", {})]}
    with serving(document(servers=[{"url": "/v1"}], paths={"/double": {"get": double}})) as web:
        tools = openapi(f"{web.url}/openapi.json")
        model = ScriptedModel([[call("double", {"n": 2})], "ok"])
        run = await Agent(model, tools=[tools], journal=MemoryJournal()).run("go")
    assert json.loads(run.messages[-2].content)["path"] == "/v1/double"


def test_documents_at_a_url_that_cannot_be_had() -> None:
    with serve(lambda _: (404, {}, b"")) as web:
        with pytest.raises(ConfigError, match="HTTP 404") as refused:
            openapi(f"{web.url}/openapi.json?key=s3cret")
        assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="gave no answer: connection refused"):
        openapi("http://127.0.0.1:9/openapi.json")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"swagger": "2.0"}, "is a Swagger 2.0 document"),
        ({"openapi": "4.0.0"}, "says openapi '4.0.0'"),
        ({}, "says openapi 'nothing'"),
        (document(), "has no operation that can be a tool"),
        (document(paths=["/a"]), "has no operation that can be a tool"),
        (document(paths={"/a": {"get": {"parameters": [{"$ref": "#/components/x"}]}}}), "has no target"),
        (document(paths={"/a": {"get": {"parameters": [{"$ref": "other.json"}]}}}), "outside the document"),
        (document(paths={"/a": {"$ref": "#/paths/~1a"}}), "the path /a: a reference refers to itself"),
        (document(paths={"/a": {"get": {"parameters": [{"in": "query"}]}}}), "it is malformed.*'name'"),
        (
            document(paths={"/a": {"get": {"x-treadle-effect": "twice"}}}),
            "use one of 'pure', 'idempotent', 'once'",
        ),
        (
            document(paths={"/a": {"get": {"parameters": [parameter("a", "query", {"pattern": "("})]}}}),
            "not a valid JSON Schema",
        ),
        (
            document(paths={"/a": {"post": {"requestBody": {"content": {"application/protobuf": {}}}}}}),
            "POST /a: its body is application/protobuf, which is not supported",
        ),
    ],
)
def test_documents_that_cannot_be_used(raw: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenAPI(raw, base_url="https://api.example")


def test_an_operation_that_cannot_be_written_is_left_out_and_told() -> None:
    odd = {"requestBody": {"content": {"application/protobuf": {}}}}
    api = OpenAPI(document(paths={"/a": {"post": odd, "get": {}}}), base_url="https://api.example")
    assert [tool.spec.name for tool in api.tools()] == ["get_a"]
    assert api.notes == ["POST /a: its body is application/protobuf, which is not supported"]
    assert repr(api) == "<OpenAPI 't': 1 tools, 1 left out>"


def test_names_are_safe_and_unique() -> None:
    ids = ["get.user", "get user", "x" * 80, "x" * 81, "ü"]
    paths: dict[str, Any] = {f"/{number}": {"get": {"operationId": name}} for number, name in enumerate(ids)}
    paths["/a/{b}"] = {"delete": {"deprecated": True, "description": "Gone."}}
    tools = OpenAPI(document(paths=paths), base_url="https://api.example").tools()
    names = [tool.spec.name for tool in tools]
    assert names == ["get_user", "get_user_2", "x" * 64, f"{'x' * 60}_2", "get", "delete_a_b"]
    assert tools[-1].spec.description == "Deprecated.\n\nGone."


def test_what_else_cannot_be(tmp_path: Path) -> None:
    raw = document(paths={"/a": {"get": {"operationId": "list"}}})
    with pytest.raises(ConfigError, match="has no server with an absolute URL"):
        OpenAPI(raw)
    with pytest.raises(ConfigError, match="has no operation 'lst'; did you mean 'list'"):
        OpenAPI(raw, base_url="https://api.example", include=["lst"])
    with pytest.raises(ConfigError, match="is not the URL of a server"):
        OpenAPI(raw, base_url="api.example")
    with pytest.raises(ConfigError, match=r"cannot read the OpenAPI document 'absent.json'"):
        openapi("absent.json")
    with pytest.raises(ConfigError, match="name a document"):
        openapi("")
    (tmp_path / "x.json").write_text("nonsense")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        openapi(str(tmp_path / "x.json"))


def test_documents_of_every_form(tmp_path: Path) -> None:
    written = "openapi: 3.1.0\npaths:\n  /a:\n    get: {operationId: x, responses: {200: {description: d}}}\n"
    path = tmp_path / "x.yaml"
    path.write_text(written)
    as_json = json.dumps(document(paths={"/a": {"get": {"operationId": "x"}}}))
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + as_json.encode())
    for given in (path, str(path), written, as_json, tmp_path / "bom.json"):
        (tool,) = OpenAPI(given, base_url="https://api.example").tools()
        assert tool.spec.name == "x"
    odd = (
        "openapi: 3.1.0\npaths:\n  /a:\n    post:\n      requestBody: {content: {application/json: {schema: "
    )
    odd += "{properties: {1: {default: 2020-01-02}}}}}}\n"
    (tool,) = OpenAPI(odd, base_url="https://api.example").tools()
    assert tool.spec.parameters["properties"] == {"1": {"default": "2020-01-02"}}
    with pytest.raises(ConfigError, match="not valid YAML"):
        OpenAPI("openapi: [\n", base_url="https://api.example")


def test_yaml_that_would_be_endless() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]
    bomb = "\n".join(["openapi: 3.1.0", "l0: &l0 [x]", *levels])
    with pytest.raises(ConfigError, match="its aliases make more than"):
        OpenAPI(bomb, base_url="https://api.example")
    with pytest.raises(ConfigError, match="nested too deeply, or contains itself"):
        OpenAPI("openapi: 3.1.0\na: &a\n  b: *a\n", base_url="https://api.example")
    for nested in ("openapi: 3.1.0\na: " + "[" * 20_000, "{" + '"a":{' * 20_000):
        with pytest.raises(ConfigError, match="nested too deeply, or contains itself"):
            OpenAPI(nested, base_url="https://api.example")
