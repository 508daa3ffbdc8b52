"""The error for each error response of a server. No error contains an API key."""

import time
from email.utils import formatdate

import pytest
from tests.models.answers import REQUEST, error

from treadle.core.errors import (
    AuthenticationError,
    ContextOverflowError,
    ProviderError,
    RateLimitError,
    RefusedError,
    RequestError,
    ServerError,
    UnavailableError,
)
from treadle.models import HttpResponse, InProcessTransport, OpenAIChatModel, Watch
from treadle.models.wire.server import retry_after_seconds

KEY = "sk-proj-0123456789abcdef"


async def fail(status, body=b"", headers=None, **options) -> ProviderError:
    """Return the error for a server's response."""
    transport = InProcessTransport(lambda _: HttpResponse(body, status, headers or {}))
    model = OpenAIChatModel(
        "gpt-x", base_url="https://h.example/v1", api_key=KEY, transport=transport, **options
    )
    with pytest.raises(ProviderError) as caught:
        await model.infer(REQUEST, Watch())
    assert type(caught.value).__name__ in str(type(caught.value))
    assert KEY not in str(caught.value)
    return caught.value


OVERFLOWS = {
    "openai": error("This model's maximum context length is 8192 tokens.", code="context_length_exceeded"),
    "vllm": {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, …",
             "type": "BadRequestError", "code": 400},
    "llama.cpp": error("the request exceeds the available context size. try increasing it",
                       code=400, type="exceed_context_size_error"),
    "openrouter": error("This endpoint's maximum context length is 128000 tokens. However …", code=400),
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error("bad temperature"), RequestError),
        *((400, body, ContextOverflowError) for body in OVERFLOWS.values()),
        (413, b"too large", ContextOverflowError),
        (500, OVERFLOWS["llama.cpp"], ContextOverflowError),
        (400, error("filtered", code="content_filter"), RefusedError),
        (400, error("This request violates our content policy.", code="x"), RefusedError),
        (403, error("Your input was flagged by moderation"), RefusedError),
        (401, error("Incorrect API key"), AuthenticationError),
        (403, error("not for you"), AuthenticationError),
        (402, error("Insufficient Balance"), UnavailableError),
        (404, error("no such model"), UnavailableError),
        (408, b"", ServerError),
        (409, b"", ServerError),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, RequestError),
        (429, error("slow down"), RateLimitError),
        (429, error("You exceeded your current quota", code="insufficient_quota"), UnavailableError),
        (500, b"oops", ServerError),
        (502, b"<html>Bad Gateway</html>", ServerError),
        (503, {"error": "loading"}, ServerError),
        (529, error("overloaded"), ServerError),
        (302, b"", RequestError),
        (200, error("rate limited", code=429), RateLimitError),
        (200, error("rate limited", code="rate_limit_exceeded"), RateLimitError),
        (200, error("boom", code="429"), RateLimitError),
        (200, error("boom"), ServerError),
        (200, error("no", code=401), AuthenticationError),
        (200, error("too long", code="context_length_exceeded"), ContextOverflowError),
        (200, {"error": "it broke"}, ServerError),
        (200, {"object": "error", "message": "it broke"}, ServerError),
    ],
)
async def test_statuses_and_texts_become_types(status, body, kind):
    caught = await fail(status, body)
    assert type(caught) is kind
    assert caught.is_retryable is (kind in (RateLimitError, ServerError))


async def test_the_message_says_who_what_and_what_to_do():
    caught = await fail(404, error("The model `gpt-x` does not exist"))
    assert str(caught) == (
        "https://h.example answered 404 for model 'gpt-x': The model `gpt-x` does not exist - model not found? "
        "check the name 'gpt-x' and the base URL https://h.example/v1"
    )
    assert caught.status == 404


async def test_a_wrong_key_says_where_to_set_it():
    assert "check the key, set OPENAI_API_KEY, or give another one" in str(
        await fail(401, error("Incorrect API key"))
    )


@pytest.mark.parametrize(
    "body",
    [
        error(f"Incorrect API key provided: {KEY}."),
        f"bad header Authorization: Bearer {KEY}".encode(),
        {"detail": {"key": KEY}},
        error("x" * 395 + KEY),
        error("you sent sk-another-key-0123456"),
        error("the other key is other-secret"),
    ],
)
@pytest.mark.parametrize("status", [200, 400, 401, 500])
async def test_an_echoed_key_is_masked(status, body):
    text = str(await fail(status, body, headers={}))
    assert "0123456" not in text
    text = str(await fail(status, body, headers=None))
    assert "sk-" not in text


async def test_keys_in_other_headers_are_masked_too():
    transport = InProcessTransport(lambda _: HttpResponse(b"no: azure-secret and my title", 401))
    headers = {"api-key": "azure-secret", "x-title": "my title"}
    model = OpenAIChatModel("m", headers=headers, transport=transport)
    with pytest.raises(AuthenticationError, match=r"no: \*\*\* and my title"):
        await model.infer(REQUEST, Watch())


async def test_long_messages_are_cut():
    assert len(str(await fail(500, b"x" * 10_000))) < 700


async def test_a_status_without_a_body_still_says_something():
    assert "(no message)" in str(await fail(503))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7),
        ({"retry-after-ms": "-1", "retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "x"}, None),
        ({}, None),
    ],
)
async def test_retry_after(headers, seconds):
    assert (await fail(429, error(), headers)).retry_after_seconds == seconds
    assert (await fail(503, error(), headers)).retry_after_seconds == seconds


def test_retry_after_as_a_date():
    in_a_minute = formatdate(time.time() + 60, usegmt=True)
    seconds = retry_after_seconds({"retry-after": in_a_minute}.get)
    assert seconds is not None
    assert 0 < seconds <= 60
    assert retry_after_seconds({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}.get) == 0.0
