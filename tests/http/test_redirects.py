"""Redirects over real sockets: what is sent again, what is refused, and that no other origin sees a key."""

import pytest
from tests.http.ways import TRANSPORTS, WAYS, MakeTransport
from tests.models.answers import REQUEST, answer, chunk
from tests.models.server import Received, Reply, serve, sse, stream

from treadle.core.errors import ProviderError, RequestError
from treadle.http.protocol import Transport
from treadle.models import OpenAIChatModel, Watch
from treadle.models.dialects.anthropic.request import AnthropicModel
from treadle.models.dialects.gemini.request import GeminiModel

KEYS = {
    "authorization": "Bearer secret77",
    "x-api-key": "secret77",
    "x-goog-api-key": "secret77",
    "api-key": "secret77",
    "cookie": "session=secret77",
    "x-mine": "secret77",
}
STATUSES = pytest.mark.parametrize("status", [301, 302, 303, 307, 308])


async def get(transport: Transport, url: str) -> tuple[int, bytes]:
    """Send a GET, and return the status and the body of its answer."""
    found = await transport.get(url, KEYS)
    return found.status, found.body


async def post(transport: Transport, url: str) -> tuple[int, bytes]:
    """Send a POST, and return the status and the body of its answer."""
    found = await transport.post(url, KEYS, b"the prompt")
    return found.status, found.body


async def pieces(transport: Transport, url: str) -> tuple[int, bytes]:
    """Send a POST, and return the status and the joined chunks of its streamed answer."""
    async with transport.stream(url, KEYS, b"the prompt") as streamed:
        return streamed.status, b"".join([chunk async for chunk in streamed.chunks])


@TRANSPORTS
@STATUSES
@pytest.mark.parametrize("ask", [get, post, pieces])
async def test_no_other_origin_sees_a_request(make, status, ask):
    async with serve([Reply(b"stolen")]) as other:
        leads = Reply(b"moved", status, {"location": f"{other.origin}/v1/chat?a=b"})
        async with serve([leads]) as server:
            with pytest.raises(RequestError) as refused:
                await ask(make(), f"{server.origin}/v1/chat?key=secret77")
        assert (other.requests, other.connections) == ([], 0)
    text = str(refused.value)
    assert text.startswith(f"{server.origin} answered {status}, a redirect to {other.origin}, another origin")
    assert "--base-url" in text
    assert "secret77" not in text
    assert refused.value.status == status
    assert not refused.value.is_retryable


@TRANSPORTS
@pytest.mark.parametrize("other", ["https://127.0.0.1", "http://localhost", "//127.0.0.2", "data:text/plain"])
async def test_another_scheme_host_or_port_is_another_origin(make, other):
    async with serve([Reply(b"", 308, {"location": other})]) as server:
        with pytest.raises(RequestError, match="another origin"):
            await post(make(), server.origin)


@TRANSPORTS
@WAYS
@pytest.mark.parametrize("status", [307, 308])
async def test_a_request_is_repeated_at_the_same_origin(make, ask, status):
    def lead(received: Received) -> Reply:
        if received.path == "/chat/":
            return Reply(received.body)
        absolute = f"http://{received.headers['host']}/chat/"
        return Reply(b"moved", status, {"location": absolute if received.path == "/a" else "/chat/"})

    async with serve(lead) as server:
        for path in ("/chat", "/a"):
            assert await ask(make(), server.origin + path) == (200, b"{}")
    assert [item.path for item in server.requests] == ["/chat", "/chat/", "/a", "/chat/"]
    assert {item.headers["authorization"] for item in server.requests} == {"Bearer sk-very-secret"}


@TRANSPORTS
@STATUSES
async def test_a_get_is_repeated_whatever_the_status(make, status):
    async with serve([Reply(b"", status, {"location": "models/"}), Reply(b"ok")]) as server:
        assert await get(make(), f"{server.origin}/v1/models") == (200, b"ok")
    assert [item.path for item in server.requests] == ["/v1/models", "/v1/models/"]


@TRANSPORTS
@WAYS
@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_turn_a_post_into_a_get_says_so(make, ask, status):
    async with serve([Reply(b"", status, {"location": "/v1/chat/"})]) as server:
        with pytest.raises(
            RequestError, match=f"{status}.*'/v1/chat/'.*turn the POST into a GET.*--base-url"
        ):
            await ask(make(), f"{server.origin}/v1/chat")
    assert len(server.requests) == 1


def to_itself(received: Received) -> Reply:
    """Redirect to the same URL."""
    return Reply(b"", 307, {"location": received.path})


def in_a_ring(received: Received) -> Reply:
    """Redirect to and fro between two URLs."""
    return Reply(b"", 307, {"location": "/b" if received.path == "/a" else "/a"})


def without_end(received: Received) -> Reply:
    """Redirect to a new URL each time."""
    return Reply(b"", 307, {"location": received.path + "x"})


@TRANSPORTS
@WAYS
@pytest.mark.parametrize(
    ("lead", "message", "count"),
    [
        (to_itself, "in a loop back to '/a'", 1),
        (in_a_ring, "in a loop back to '/a'", 2),
        (without_end, "more than 5 times", 6),
        (lambda _: Reply(b"", 307), "no Location", 1),
        (lambda _: Reply(b"", 302, {"location": "http://[::1"}), "to a place that is not a URL", 1),
    ],
)
async def test_loops_and_redirects_to_nowhere_are_said_to_be_that(make, ask, lead, message, count):
    async with serve(lead) as server:
        with pytest.raises(RequestError, match=message):
            await ask(make(), server.origin + "/a")
    assert len(server.requests) == count


@TRANSPORTS
@WAYS
@pytest.mark.parametrize("status", [300, 304, 305])
async def test_other_statuses_below_400_are_answers(make, ask, status):
    async with serve([Reply(b"", status, {"location": "/b"})]) as server:
        assert (await ask(make(), server.origin))[0] == status


@TRANSPORTS
@pytest.mark.parametrize("kind", [OpenAIChatModel, AnthropicModel, GeminiModel])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_no_model_sends_its_key_to_another_origin(make: MakeTransport, kind, is_streamed):
    async with serve([Reply(answer())]) as other:
        async with serve([Reply(b"", 307, {"location": f"{other.origin}/v1/x"})]) as server:
            model = kind("m", base_url=server.base_url, api_key="secret77", transport=make())
            watch = Watch((lambda _: None) if is_streamed else None)
            with pytest.raises(ProviderError, match=f"{server.origin}.*{other.origin}"):
                await model.infer(REQUEST, watch)
            with pytest.raises(ProviderError, match="another origin"):
                await model.find_context_tokens()
        assert other.requests == []


@TRANSPORTS
async def test_a_model_behind_a_trailing_slash_answers(make):
    good = stream(sse(chunk(content="Sunny."), chunk("stop")))

    def lead(received: Received) -> Reply:
        return good if received.path.endswith("/") else Reply(b"", 307, {"location": received.path + "/"})

    async with serve(lead) as server:
        model = OpenAIChatModel("m", base_url=server.base_url, api_key="secret77", transport=make())
        completion = await model.infer(REQUEST, Watch(lambda _: None))
    assert completion.message.content == "Sunny."
    assert server.requests[-1].headers["authorization"] == "Bearer secret77"
