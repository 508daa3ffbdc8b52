"""Every refusal of `POST /v1/messages` has the form of Anthropic's errors, as Anthropic's SDK reads them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.environments import LateModule
from tests.models.answers import answer, chunk
from tests.models.server import Reply, serve, sse
from tests.server.test_access import KEYS, send, status_of
from tests.server.test_responses import journal, serving

from treadle.journal.protocol import Journal

__all__ = ["journal"]
anthropic = LateModule("anthropic")
pytestmark = pytest.mark.xdist_group("vendors")
HELLO: Any = [{"role": "user", "content": "hi"}]
REPLIES = [
    Reply({"error": {"message": "too fast"}}, 429, {"retry-after": "7"}),
    Reply({"error": {"message": "broken"}}, 500),
    Reply({"error": {"message": "no such thing"}}, 400),
    Reply(
        headers={"content-type": "text/event-stream"},
        pieces=[sse(chunk(content="one "), is_done=False), sse({"error": {"message": "lost"}})],
    ),
    Reply(answer("fine")),
]


@pytest.fixture
async def url(tmp_path: Path, journal: Journal) -> AsyncIterator[str]:
    path = tmp_path / "treadle.toml"
    async with serve(REPLIES) as engine:
        far = f'[models.far]\nmodel = "openai:far-1"\nbase_url = "{engine.base_url}"\napi_key_env = ""\n'
        path.write_text(f"{KEYS}\n{far}max_attempts = 1\n")
        async with serving(path, journal) as served:
            yield served


def client_of(url: str, key: str) -> Any:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)


async def stream_to_end(made: Any) -> None:
    async with made as stream:
        await stream.get_final_message()


def check(body: Any, kind: str, said: str) -> None:
    """Check that a body is what the SDK takes for an error, and nothing else."""
    from anthropic.types import ErrorResponse

    assert set(body) == {"type", "error", "request_id"}
    assert set(body["error"]) == {"type", "message"}
    if kind != "request_too_large":  # the API's documentation has this type, the SDK's list of types does not
        ErrorResponse.model_validate(body)
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert said in body["error"]["message"]
    assert body["request_id"].startswith("req_")


async def test_the_sdk_raises_what_fits(url: str) -> None:
    kim = client_of(url, "kims-key")
    asked: list[tuple[Any, dict[str, Any], type[Any], str, str]] = [
        (client_of(url, "wrong"), {}, anthropic.AuthenticationError, "authentication_error", "is wrong"),
        (client_of(url, "readers-key"), {}, anthropic.PermissionDeniedError, "permission_error", "scope"),
        (kim, {"model": "nope"}, anthropic.NotFoundError, "not_found_error", "there is no model 'nope'"),
        (kim, {"messages": []}, anthropic.BadRequestError, "invalid_request_error", "missing or empty"),
        (
            kim,
            {"extra_body": {"temperature": "x"}},
            anthropic.BadRequestError,
            "invalid_request_error",
            "temperature",
        ),
        (kim, {"system": "a" * 30_000}, anthropic.RequestTooLargeError, "request_too_large", "20,000 bytes"),
        (kim, {"model": "far"}, anthropic.RateLimitError, "rate_limit_error", "too fast"),
        (kim, {"model": "far"}, anthropic.InternalServerError, "api_error", "broken"),
        (kim, {"model": "far"}, anthropic.BadRequestError, "invalid_request_error", "no such thing"),
    ]
    for number, (client, fields, error, kind, said) in enumerate(asked):
        messages = [{"role": "user", "content": f"{number}"}]
        with pytest.raises(error) as refused:
            await client.messages.create(**{"model": "echo", "max_tokens": 9, "messages": messages, **fields})
        check(refused.value.body, kind, said)
        assert refused.value.request_id == refused.value.body["request_id"]
        if kind == "rate_limit_error":
            assert refused.value.response.headers["retry-after"] == "7"
    with pytest.raises(anthropic.APIStatusError) as broken:
        await stream_to_end(kim.messages.stream(model="far", max_tokens=9, messages=HELLO))
    check(broken.value.body, "api_error", "lost")
    assert (await kim.messages.create(model="far", max_tokens=9, messages=HELLO)).content[0].text == "fine"


async def test_a_key_that_asks_too_often_is_told_so(url: str) -> None:
    bo = client_of(url, "bos-key")
    asked = [bo.messages.create(model="echo", max_tokens=9, messages=HELLO) for _ in range(9)]
    with pytest.raises(anthropic.RateLimitError) as refused:
        await asyncio.gather(*asked)
    check(refused.value.body, "rate_limit_error", "too many requests")


@pytest.mark.parametrize(
    ("rest", "status", "kind", "said"),
    [
        ("Content-Length: 1\r\n\r\n{", 400, "invalid_request_error", "JSON"),
        ("Content-Length: 100\r\n\r\n{", 408, "timeout_error", "did not come in time"),
        ("Content-Length: 2\r\nIdempotency-Key: \r\n\r\n{}", 400, "invalid_request_error", "Key"),
        (
            f"Transfer-Encoding: chunked\r\n\r\n8000\r\n{'a' * 0x8000}\r\n0\r\n\r\n",
            413,
            "request_too_large",
            "",
        ),
        ("Origin: https://evil.example\r\nContent-Length: 0\r\n\r\n", 403, "permission_error", "pages of"),
    ],
)
async def test_what_no_sdk_sends_is_refused_in_the_same_form(
    url: str, rest: str, status: int, kind: str, said: str
) -> None:
    head = "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Api-Key: kims-key\r\n"
    told = await send(url, f"{head}{rest}".encode())
    assert status_of(told) == status
    check(json.loads(told.partition(b"\r\n\r\n")[2]), kind, said)


async def test_other_methods_and_paths_of_the_route_too(url: str) -> None:
    for method, path, status in (("GET", "", 405), ("POST", "/count_words", 404)):
        head = f"{method} /v1/messages{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        told = await send(url, f"{head}X-Api-Key: kims-key\r\nContent-Length: 0\r\n\r\n".encode())
        assert status_of(told) == status
        kind = "not_found_error" if status == 404 else "invalid_request_error"
        check(json.loads(told.partition(b"\r\n\r\n")[2]), kind, "/openapi.json")


async def test_a_server_that_stops_says_so_in_the_stream(tmp_path: Path, journal: Journal) -> None:
    going_on = asyncio.Event()
    held = Reply(
        headers={"content-type": "text/event-stream"},
        pieces=[sse(chunk(content="one "), is_done=False), sse(chunk(content="two"))],
        between=going_on,
    )
    path = tmp_path / "treadle.toml"
    async with serve([held]) as engine:
        path.write_text(
            f'[models.far]\nmodel = "openai:m"\nbase_url = "{engine.base_url}"\napi_key_env = ""\n'
        )
        async with serving(path, journal) as url:
            made = client_of(url, "x").messages.stream(model="far", max_tokens=9, messages=HELLO)
            stream = await made.__aenter__()
            async for text in stream.text_stream:
                assert text == "one "
                break
        with pytest.raises(anthropic.APIStatusError) as stopped:
            await stream.get_final_message()
        going_on.set()
        check(stopped.value.body, "api_error", "the server is stopping")
        assert not stopped.value.body["error"]["message"].startswith("503")
