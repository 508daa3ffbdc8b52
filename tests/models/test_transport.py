"""The transport over real sockets: what arrives, and what each failure says."""

import asyncio
import gzip
import multiprocessing
import os
import threading
from collections.abc import Coroutine

import pytest
from tests.models.server import RESET, STALL, End, Reply, free_port, serve, stream

from treadle.core.errors import ConfigError, ProviderTimeoutError, TransportError
from treadle.http.transport import (
    HttpRequest,
    HttpResponse,
    HttpTransport,
    InProcessTransport,
    Transport,
    origin_of,
)

HEADERS = {"authorization": "Bearer sk-very-secret", "x-mine": "yes"}


async def collect(transport: Transport, url: str) -> tuple[int, bytes]:
    async with transport.stream(url, HEADERS, b"{}") as answer:
        return answer.status, b"".join([chunk async for chunk in answer.chunks])


async def whole(transport: Transport, url: str) -> tuple[int, bytes]:
    answer = await transport.post(url, HEADERS, b"{}")
    return answer.status, answer.body


WAYS = pytest.mark.parametrize("ask", [whole, collect])


@WAYS
async def test_brings_any_status_and_sends_what_it_is_given(ask):
    async with serve([Reply(b"one"), Reply(b"two", status=503)]) as server:
        transport = HttpTransport()
        assert await ask(transport, server.origin + "/a?b=c") == (200, b"one")
        assert await ask(transport, server.origin + "/a") == (503, b"two")
    assert server.requests[0].path == "/a?b=c"
    assert server.requests[0].body == b"{}"
    assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert server.requests[0].headers["x-mine"] == "yes"


@WAYS
async def test_an_empty_body_is_an_answer(ask):
    async with serve([Reply(b"")]) as server:
        assert await ask(HttpTransport(), server.origin) == (200, b"")


async def test_header_names_are_found_in_any_case():
    async with serve([Reply(b"", headers={"Retry-After": "7"})]) as server:
        answer = await HttpTransport().post(server.origin, {}, b"")
        assert answer.header("retry-after") == "7"
        assert answer.header("missing") is None


@WAYS
async def test_ten_megabytes_arrive_whole(ask):
    body = os.urandom(10_000_000)
    async with serve([Reply(body)]) as server:
        assert (await ask(HttpTransport(), server.origin))[1] == body


@WAYS
async def test_a_compressed_answer_is_decompressed(ask):
    async with serve([Reply(gzip.compress(b"hello"), headers={"content-encoding": "gzip"})]) as server:
        assert (await ask(HttpTransport(), server.origin))[1] == b"hello"


@WAYS
async def test_connections_are_used_again(ask):
    async with serve([stream(b"abc")]) as server:
        transport, other = HttpTransport(), HttpTransport()
        for _ in range(5):
            await ask(transport, server.origin)
            await ask(other, server.origin)
        # A request may come before the last connection is back in the pool, but not every one does.
        assert server.connections <= 5
        assert len(server.requests) == 10


@WAYS
async def test_a_server_that_is_down_is_named_with_what_to_check(ask):
    port = free_port()
    with pytest.raises(TransportError) as caught:
        await ask(HttpTransport(), f"http://user:pass@127.0.0.1:{port}/v1?key=sk-hidden")
    assert str(caught.value) == (
        f"cannot connect to http://127.0.0.1:{port} (connection refused): is the server running? check base_url"
    )


@WAYS
async def test_an_unknown_host_is_named(ask):
    with pytest.raises(TransportError, match=r"cannot connect to http://no-such-host\.invalid .*not known"):
        await ask(HttpTransport(), "http://no-such-host.invalid/v1")


@WAYS
async def test_a_server_without_tls_at_https_is_explained(ask):
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    with pytest.raises(TransportError, match=r"cannot connect to https://127.*right to say https"):
        await ask(HttpTransport(), url)
    listener.close()


FAULTS = {
    "reset before the head": RESET,
    "closed before the head": Reply(raw=b"", end=End.CLOSE),
    "no HTTP": Reply(raw=b"hello world\r\n\r\n", end=End.CLOSE),
    "body cut": Reply(b"x" * 100, cut_at=10),
    "nothing of the body": Reply(b"x" * 100, cut_at=0),
    "chunks cut": stream(b"x" * 100, end=End.CLOSE),
    "reset within the body": stream(b"x" * 100, end=End.RESET),
    "broken gzip": Reply(b"not gzip at all", headers={"content-encoding": "gzip"}),
}


@WAYS
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_broken_answer_is_a_transport_error_that_names_the_host(ask, fault):
    async with serve([fault]) as server:
        with pytest.raises(TransportError) as caught:
            await ask(HttpTransport(timeout_seconds=5), server.origin + "/v1")
    assert server.origin in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not isinstance(caught.value, ProviderTimeoutError)
    assert caught.value.is_retryable


@WAYS
@pytest.mark.parametrize(
    "fault", [STALL, stream(b"abc", end=End.STALL)], ids=["before the head", "within the body"]
)
async def test_a_server_that_stalls_is_a_timeout_that_says_what_to_raise(ask, fault):
    async with serve([fault]) as server:
        with pytest.raises(ProviderTimeoutError, match=r"within 0\.2 s; raise timeout_seconds"):
            await ask(HttpTransport(timeout_seconds=0.2), server.origin)
        await asyncio.wait_for(server.gone.wait(), 5)


async def cancel(asking: Coroutine, started: asyncio.Event) -> None:
    task = asyncio.create_task(asking)
    await asyncio.wait_for(started.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_within_a_stream_closes_the_connection():
    started = asyncio.Event()

    async def read_on(url: str) -> None:
        async with HttpTransport().stream(url, {}, b"") as answer:
            async for _ in answer.chunks:
                started.set()

    async with serve([stream(b"abc", end=End.STALL)]) as server:
        await cancel(read_on(server.origin), started)
        await asyncio.wait_for(server.gone.wait(), 5)


@WAYS
async def test_an_answer_to_a_cancelled_request_goes_to_nobody(ask):
    go_on = asyncio.Event()
    async with serve([Reply(b"late", before=go_on), Reply(b"mine")]) as server:
        transport = HttpTransport()
        await cancel(ask(transport, server.origin), server.asked)
        assert await ask(transport, server.origin) == (200, b"mine")
        go_on.set()
        assert await ask(transport, server.origin) == (200, b"mine")


async def test_chunks_arrive_before_the_stream_ends():
    async with serve([stream(b"first", end=End.STALL)]) as server:
        async with HttpTransport().stream(server.origin, {}, b"") as answer:
            # The server never sends more, so this comes now or never.
            assert await asyncio.wait_for(anext(answer.chunks), 5) == b"first"
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_an_answer_past_the_limit_is_refused():
    async with serve([Reply(bytes(64 * 1024 * 1024 + 1))]) as server:
        for ask in (whole, collect):
            with pytest.raises(Exception, match="longer than 67108864 bytes") as caught:
                await ask(HttpTransport(), server.origin)
            assert not caught.value.is_retryable


async def test_a_header_that_http_forbids_is_told_without_its_value():
    with pytest.raises(ConfigError) as caught:
        await HttpTransport().post("http://127.0.0.1:1", {"authorization": "sk-secret\n"}, b"")
    assert "header" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://x/y"])
async def test_a_url_that_is_none_is_the_callers_mistake(url):
    with pytest.raises(ConfigError):
        await HttpTransport().post(url, {}, b"")


@pytest.mark.parametrize("name", ["timeout_seconds", "connect_timeout_seconds"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_timeouts_are_positive(name, value):
    with pytest.raises(ConfigError, match=name):
        HttpTransport(**{name: value})


async def test_one_pool_serves_several_event_loops_and_threads():
    async with serve([Reply(b"ok")]) as server:
        transport = HttpTransport()
        results = []

        def work():
            results.append(asyncio.run(whole(transport, server.origin)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        results.append(await whole(transport, server.origin))
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert results == [(200, b"ok")] * 5


def _ask_in_child(url: str, results) -> None:
    try:
        asyncio.run(whole(HttpTransport(), url))
    except ConfigError as error:
        results.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_forked_child_is_told_instead_of_hanging():
    async with serve([Reply(b"ok")]) as server:
        await whole(HttpTransport(), server.origin)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_ask_in_child, args=(server.origin, results))
        child.start()
        try:
            assert "'spawn'" in await asyncio.to_thread(results.get, True, 10)
        finally:
            child.kill()


def test_an_origin_holds_nothing_secret():
    assert origin_of("https://me:pw@host:8443/a/sk-x?key=y#z") == "https://host:8443"


@WAYS
async def test_in_process_asks_a_function(ask):
    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse({"echo": request.json()}, 201, {"X-Mine": "yes"})

    transport = InProcessTransport(answer)
    assert await ask(transport, "http://x/y") == (201, b'{"echo":{}}')
    assert transport.requests[0].url == "http://x/y"
    assert transport.requests[0].headers["x-mine"] == "yes"


async def test_in_process_streams_its_chunks():
    transport = InProcessTransport(lambda _: HttpResponse([b"a", b"b"], headers={"X": "1"}))
    async with transport.stream("http://x", {}, b"") as answer:
        assert answer.header("x") == "1"
        assert [chunk async for chunk in answer.chunks] == [b"a", b"b"]
    assert (await transport.post("http://x", {}, b"")).body == b"ab"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_no_cancellation_is_lost_whatever_comes_at_that_moment(is_streamed):
    """A cancellation that comes together with an answer once let the task go on, as if nothing had been said."""
    async with serve(lambda _: Reply(b"{}")) as server:
        transport = HttpTransport(timeout_seconds=5.0)

        async def ask_for_ever():
            while True:
                if is_streamed:
                    async with transport.stream(server.base_url, {}, b"{}") as answer:
                        async for _ in answer.chunks:
                            pass
                else:
                    await transport.post(server.base_url, {}, b"{}")

        for _ in range(5):
            tasks = [asyncio.create_task(ask_for_ever()) for _ in range(60)]
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            _, left = await asyncio.wait(tasks, timeout=5)
            assert not left
