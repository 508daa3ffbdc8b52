"""The whole stack, from a model's name to a real socket, with the faults that servers have."""

import asyncio
import time
from email.utils import formatdate

import pytest
from tests.http.ways import TRANSPORTS, MakeTransport, on_the_loop
from tests.models.answers import REQUEST, WEATHER_CALL, Listener, answer, chunk, error
from tests.models.server import RESET, STALL, End, Reply, free_port, serve, sse, stream

from treadle.core.errors import (
    AuthenticationError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    ServerError,
    TransportError,
)
from treadle.core.log import Log
from treadle.core.types import FinishReason, Message, Request, Role
from treadle.models import HttpTransport, OpenAIChatModel, RetryModel, Watch, model


def connect(
    base_url: str,
    *,
    timeout_seconds: float = 5.0,
    max_attempts: int = 6,
    make: MakeTransport = on_the_loop,
    **options,
) -> RetryModel:
    """Return what `model()` makes, with short delays."""
    transport = make(timeout_seconds=timeout_seconds)
    inner = OpenAIChatModel("m", base_url=base_url, transport=transport, **options)
    return RetryModel(inner, max_attempts=max_attempts, min_delay_seconds=0.001)


GOOD = Reply(answer())
STORMS = {
    "429 without a header": Reply(error("slow"), 429),
    "429 in milliseconds": Reply(error("slow"), 429, {"Retry-After-Ms": "1"}),
    "429 in seconds": Reply(error("slow"), 429, {"Retry-After": "0.01"}),
    "429 until a date that is past": Reply(error("slow"), 429, {"Retry-After": formatdate(0, usegmt=True)}),
    "500": Reply(b"oops", 500),
    "529": Reply(error("overloaded"), 529),
    "reset": RESET,
    "closed": Reply(raw=b"", end=End.CLOSE),
    "reset within the body": Reply(b"x" * 1000, cut_at=10, end=End.RESET),
    "body cut": Reply(answer(), cut_at=20),
    "invalid JSON": Reply(b'{"choices": ['),
    "not JSON": Reply(b"<html>hello</html>"),
    "no choices": Reply({**answer(), "choices": []}),
    "null message": Reply({"choices": [{"message": None}]}),
    "an error within 200": Reply(error("boom")),
    "a stream cut": stream(sse(chunk(content="Sun"), is_done=False)),
    "a stream reset": stream(sse(chunk(content="Sun"), is_done=False), end=End.RESET),
    "an error within a stream": stream(sse(chunk(content="Sun"), error("boom"))),
}


@TRANSPORTS
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fault", STORMS.values(), ids=STORMS.keys())
async def test_three_faults_in_a_row_before_every_answer_are_survived(make, fault, is_streamed):
    good = stream(sse(chunk(content="Sunny."), chunk("stop"))) if is_streamed else GOOD
    async with serve([fault, fault, fault, good] * 2) as server:
        asked = connect(server.base_url, make=make)
        for _ in range(2):
            listener = Listener()
            if not is_streamed:
                listener.watch.on_delta = None
            completion = await asked.infer(REQUEST, listener.watch)
            assert completion.message.content == "Sunny."
            assert [number for _, number, _ in listener.failures] == [1, 2, 3]
        assert len(server.requests) == 8
        assert len({request.body for request in server.requests}) == 1


async def test_a_fault_that_stays_is_told_with_its_attempts():
    async with serve([Reply(error("slow"), 429)]) as server:
        with pytest.raises(RateLimitError, match=r"slow \(gave up after 4 attempts\)"):
            await connect(server.base_url, max_attempts=4).infer(REQUEST, Watch())
        assert len(server.requests) == 4


@TRANSPORTS
async def test_a_server_that_stalls_is_asked_again(make):
    async with serve([STALL, stream(b"abc", end=End.STALL), GOOD]) as server:
        listener = Listener()
        listener.watch.on_delta = None
        completion = await connect(server.base_url, timeout_seconds=1.0, make=make).infer(
            REQUEST, listener.watch
        )
        assert completion.message.content == "Sunny."
        assert len(listener.failures) == 2
    async with serve([STALL]) as server:
        with pytest.raises(ProviderTimeoutError, match="2 attempts"):
            await connect(server.base_url, timeout_seconds=0.1, max_attempts=2, make=make).infer(
                REQUEST, Watch()
            )


async def test_a_server_that_is_down():
    port = free_port()
    with pytest.raises(
        TransportError, match=f"cannot connect to http://127.0.0.1:{port} .connection refused.*2 attempts"
    ):
        await connect(f"http://127.0.0.1:{port}/v1", max_attempts=2).infer(REQUEST, Watch())


async def test_a_server_that_comes_up_late_is_found():
    async with serve([GOOD]) as server:
        down = free_port()
        transport = HttpTransport()
        models = [
            OpenAIChatModel("m", base_url=url, transport=transport)
            for url in (f"http://127.0.0.1:{down}", server.base_url)
        ]

        class Moved:
            name = "moved"

            async def infer(self, request, watch):
                return await models.pop(0).infer(request, watch)

        completion = await RetryModel(Moved(), min_delay_seconds=0.001).infer(REQUEST, Watch())
        assert completion.message.content == "Sunny."


async def test_a_date_to_come_back_at_is_waited_for():
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    date = formatdate(time.time() + 30, usegmt=True)
    async with serve([Reply(error("slow"), 429, {"Retry-After": date}), GOOD]) as server:
        inner = OpenAIChatModel("m", base_url=server.base_url)
        await RetryModel(inner, sleep=sleep).infer(REQUEST, Watch())
    assert 10 < slept[0] <= 30


async def test_a_key_that_is_echoed_back_is_masked_and_not_tried_again():
    key = "sk-proj-abcdefghijkl"
    async with serve([Reply(error(f"Incorrect API key provided: {key}"), 401)]) as server:
        with pytest.raises(AuthenticationError, match=r"provided: \*\*\* - check the key") as caught:
            await connect(server.base_url, api_key=key).infer(REQUEST, Watch())
        assert len(server.requests) == 1
        assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert key not in str(caught.value)
    assert key not in repr(caught.value)


async def test_an_answer_cut_off_by_its_limit_keeps_what_there_is():
    call = {**WEATHER_CALL, "function": {"name": "weather", "arguments": '{"city": "Zü'}}
    async with serve([Reply(answer(None, finish="length", tool_calls=[call]))]) as server:
        completion = await connect(server.base_url).infer(REQUEST, Watch())
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.message.tool_calls[0].arguments == '{"city": "Zü'


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@TRANSPORTS
async def test_ten_megabytes(make, is_streamed):
    text = "Zürich 🌞 " * 800_000
    good = stream(sse(chunk(content=text), chunk("stop"))) if is_streamed else Reply(answer(text))
    async with serve([good]) as server:
        watch = Listener().watch if is_streamed else Watch()
        completion = await connect(server.base_url, make=make).infer(REQUEST, watch)
    assert completion.message.content == text


@TRANSPORTS
async def test_many_at_a_time_get_their_own_answers(make):
    async with serve(lambda received: Reply(answer(received.json()["messages"][0]["content"]))) as server:
        asked = connect(server.base_url, timeout_seconds=60, make=make)
        requests = [Request(Log([Message(Role.USER, str(number))])) for number in range(300)]
        completions = await asyncio.gather(*[asked.infer(request, Watch()) for request in requests])
    assert [completion.message.content for completion in completions] == [
        str(number) for number in range(300)
    ]


async def test_what_model_makes_retries():
    async with serve([Reply(error("slow"), 429, {"retry-after-ms": "1"}), GOOD]) as server:
        asked = model("m", base_url=server.base_url)
        assert (await asked.infer(REQUEST, Watch())).message.content == "Sunny."
    async with serve([Reply(b"", 500)]) as server:
        with pytest.raises(ServerError):
            await model("m", base_url=server.base_url, max_attempts=1).infer(REQUEST, Watch())
        assert len(server.requests) == 1
    async with serve([STALL]) as server:
        asked = model("m", base_url=server.base_url, total_timeout_seconds=0.15)
        with pytest.raises(ProviderError, match=r"within 0\.15 s"):
            await asyncio.wait_for(asked.infer(REQUEST, Watch()), 10)
    async with serve([STALL]) as server:
        with pytest.raises(ProviderError, match=r"nothing for 0\.1 s"):
            await model("m", base_url=server.base_url, timeout_seconds=0.1, max_attempts=1).infer(
                REQUEST, Watch()
            )
