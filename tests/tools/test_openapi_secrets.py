"""Secrets of OpenAPI tools: their sources, where they are sent, and that nobody else can read them."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.tools.api import WHERE, answer, document, one
from tests.tools.web import Web, serve

from treadle.core.errors import ConfigError, ToolError
from treadle.tools.openapi import OpenAPI
from treadle.tools.openapi.security import variable_of

SCHEMES = {
    "api-key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "inQuery": {"type": "apiKey", "in": "query", "name": "key"},
    "inCookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {}},
    "tls": {"type": "mutualTLS"},
}
COMPONENTS = {"securitySchemes": SCHEMES}


@pytest.fixture
def web() -> Iterator[Web]:
    with serve(answer) as web:
        yield web


def tool_of(web: Web, security: list[Any], **options: Any) -> Any:
    return one(web, "get", "/s", {"security": security}, components=COMPONENTS, **options)


@pytest.mark.parametrize(
    ("scheme", "secret", "where", "sent"),
    [
        ("api-key", "k3y-k3y-k3y", "x-key", "k3y-k3y-k3y"),
        ("inQuery", "a b&c=d/e", "query", "key=a%20b%26c%3Dd%2Fe"),
        ("inCookie", "a;b c-d-e", "cookie", "sid=a%3Bb%20c-d-e"),
        ("bearer", "t0ken-t0ken", "authorization", "Bearer t0ken-t0ken"),
        ("oauth", "t0ken-t0ken", "authorization", "Bearer t0ken-t0ken"),
        ("basic", "user:p4ssw0rd", "authorization", "Basic dXNlcjpwNHNzdzByZA=="),
    ],
)
async def test_secrets_go_where_they_belong_and_come_back_to_nobody(
    web: Web, scheme: str, secret: str, where: str, sent: str
) -> None:
    tool = tool_of(web, [{scheme: []}], auth={scheme: secret})
    output = await tool.call({}, WHERE)
    (asked,) = web.asked
    assert (asked.path.partition("?")[2] if where == "query" else asked.headers[where]) == sent
    # The server repeats the whole request.
    told = f"{output} {tool!r} {tool.spec} {tool._api!r}"
    assert "***" in output.content
    for form in (secret, sent.rpartition(" ")[2], sent.rpartition("=")[2] or sent, secret.rpartition(":")[2]):
        assert form not in told


async def test_secrets_of_the_environment_are_bound_to_a_host(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tool_of(web, [{"api-key": []}])
    for name in ("API_KEY", "API-KEY", "APIKEY", "OPENAPI_APIKEY", "OPENAPI_EXAMPLE_COM_APIKEY"):
        monkeypatch.setenv(name, "of another")
    with pytest.raises(ToolError, match="set OPENAPI_127_0_0_1_APIKEY in the environment"):
        await tool.call({}, WHERE)
    monkeypatch.setenv("OPENAPI_127_0_0_1_APIKEY", "from-the-environment")
    output = await tool.call({}, WHERE)
    assert web.asked[0].headers["x-key"] == "from-the-environment"
    assert "from-the-environment" not in output.content


def test_no_two_hosts_share_a_variable() -> None:
    assert variable_of("https://api.example.com/v1", "bearerAuth") == "OPENAPI_API_EXAMPLE_COM_BEARERAUTH"
    assert variable_of("https://api-example.com", "bearerAuth") == "OPENAPI_API__EXAMPLE_COM_BEARERAUTH"
    assert variable_of("https://api.example", "com_bearerAuth") == "OPENAPI_API_EXAMPLE_COMBEARERAUTH"


async def test_secrets_of_the_environment_do_not_go_over_http_to_whom_the_document_names(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAPI_127_0_0_1_BEARER", "from-the-environment")
    raw = document(
        paths={"/a": {"get": {"security": [{"bearer": []}]}}},
        components=COMPONENTS,
        servers=[{"url": web.url}],
    )
    (tool,) = OpenAPI(raw, allow_private=True).tools()
    with pytest.raises(ToolError, match="is not sent over http to a server that only the document names"):
        await tool.call({}, WHERE)
    assert web.asked == []
    (tool,) = OpenAPI(raw, base_url=web.url).tools()
    await tool.call({}, WHERE)
    assert web.asked[0].headers["authorization"] == "Bearer from-the-environment"


async def test_the_first_alternative_whose_secrets_are_there_is_taken(web: Web) -> None:
    both = [{"bearer": [], "inQuery": []}, {"api-key": []}]
    await tool_of(web, both, auth={"api-key": "k3y-k3y"}).call({}, WHERE)
    await tool_of(web, both, auth={"bearer": "b", "inQuery": "q"}).call({}, WHERE)
    await tool_of(web, [{}, {"api-key": []}]).call({}, WHERE)
    await tool_of(web, [{}, {"api-key": []}], auth={"api-key": "k"}).call({}, WHERE)
    await tool_of(web, [], auth={"api-key": "k"}).call({}, WHERE)
    sent = [
        (asked.path, asked.headers.get("authorization"), asked.headers.get("x-key")) for asked in web.asked
    ]
    assert sent == [
        ("/s", None, "k3y-k3y"),
        ("/s?key=q", "Bearer b", None),
        ("/s", None, None),
        ("/s", None, "k"),
        ("/s", None, None),
    ]
    with pytest.raises(ToolError, match=r"set OPENAPI_\S+_BEARER and OPENAPI_\S+_INQUERY in"):
        await tool_of(web, both).call({}, WHERE)


async def test_headers_of_the_program_are_kept_and_hidden_too(web: Web) -> None:
    headers = {"Authorization": "Bearer s3cret-s3cret", "X-Tenant": "everyday", "Cookie": "a=secret-cookie"}
    tool = one(
        web,
        "get",
        "/h",
        {"parameters": [{"name": "c", "in": "cookie", "schema": {}}]},
        headers=headers,
    )
    output = await tool.call({"c": "x"}, WHERE)
    assert web.asked[0].headers["authorization"] == "Bearer s3cret-s3cret"
    assert web.asked[0].headers["cookie"] == "a=secret-cookie; c=x"
    assert "s3cret" not in output.content
    assert "secret-cookie" not in output.content
    assert "everyday" in output.content


async def test_an_error_holds_no_secret() -> None:
    def lead(asked: Any) -> Any:
        key = asked.path.partition("key=")[2]
        return 302, {"location": f"http://{key}.example/?{key}"}, b""

    with serve(lead) as web:
        for secret in ("s3cret-s3cret", "s3cret s3cret"):
            tool = tool_of(web, [{"inQuery": []}], auth={"inQuery": secret})
            with pytest.raises(ToolError, match=r"a redirect to|is not allowed") as failed:
                await tool.call({}, WHERE)
            assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize(("status", "header"), [(429, "retry-after"), (200, "content-type")])
async def test_a_header_of_an_answer_holds_no_secret(status: int, header: str) -> None:
    with serve(lambda asked: (status, {header: f"x/{asked.headers['x-key']}"}, b"\0")) as web:
        output = await tool_of(web, [{"api-key": []}], auth={"api-key": "s3cret-s3cret"}).call({}, WHERE)
    assert ("***" in output.content, "s3cret" in f"{output}") == (True, False), output


async def test_secrets_that_cannot_be(web: Web) -> None:
    with pytest.raises(ConfigError, match="no security scheme 'beerer'; it has api-key"):
        tool_of(web, [], auth={"beerer": "x"})
    with pytest.raises(ToolError, match="the security scheme 'tls' is 'mutualTLS', which is not supported"):
        await tool_of(web, [{"tls": []}], auth={"tls": "x"}).call({}, WHERE)
    with pytest.raises(ToolError, match="a header is not valid") as refused:
        await tool_of(web, [{"bearer": []}], auth={"bearer": "a\r\nb: c-secret"}).call({}, WHERE)
    assert "c-secret" not in str(refused.value)
