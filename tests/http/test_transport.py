"""The transports over real sockets: what arrives, and the error for each failure."""

import asyncio
import gzip
import multiprocessing
import os
import socket
import threading
import zlib
from collections.abc import Coroutine

import pytest
from tests.http.ways import TRANSPORTS, WAYS, collect, on_the_loop, over_pyreqwest, whole
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


@TRANSPORTS
@WAYS
async def test_brings_any_status_and_sends_what_it_is_given(make, ask):
    async with serve([Reply(b"one"), Reply(b"two", status=503)]) as server:
        transport = make()
        assert await ask(transport, server.origin + "/a?b=c") == (200, b"one")
        assert await ask(transport, server.origin + "/a") == (503, b"two")
    assert server.requests[0].path == "/a?b=c"
    assert server.requests[0].body == b"{}"
    assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert server.requests[0].headers["x-mine"] == "yes"


@TRANSPORTS
@WAYS
async def test_an_empty_body_is_an_answer(make, ask):
    async with serve([Reply(b"")]) as server:
        assert await ask(make(), server.origin) == (200, b"")


@TRANSPORTS
async def test_header_names_are_found_in_any_case(make):
    async with serve([Reply(b"", headers={"Retry-After": "7"})]) as server:
        answer = await make().post(server.origin, {}, b"")
        assert answer.header("retry-after") == "7"
        assert answer.header("missing") is None


@TRANSPORTS
@WAYS
async def test_ten_megabytes_arrive_whole(make, ask):
    body = os.urandom(10_000_000)
    async with serve([Reply(body)]) as server:
        assert (await ask(make(), server.origin))[1] == body


@TRANSPORTS
@WAYS
async def test_a_compressed_answer_is_decompressed(make, ask):
    async with serve([Reply(gzip.compress(b"hello"), headers={"content-encoding": "gzip"})]) as server:
        assert (await ask(make(), server.origin))[1] == b"hello"


@TRANSPORTS
@WAYS
async def test_connections_are_used_again(make, ask):
    async with serve([stream(b"abc")]) as server:
        transport, other = make(), make()
        for _ in range(5):
            await ask(transport, server.origin)
            await ask(other, server.origin)
        # Some requests may start before the last connection is back in the pool.
        assert server.connections <= 5
        assert len(server.requests) == 10


@TRANSPORTS
@WAYS
async def test_a_server_that_is_down_is_named_with_what_to_check(make, ask):
    port = free_port()
    with pytest.raises(TransportError) as caught:
        await ask(make(), f"http://user:pass@127.0.0.1:{port}/v1?key=sk-hidden")
    assert str(caught.value) == (
        f"cannot connect to http://127.0.0.1:{port} (connection refused): is the server running? check the base URL"
    )


@TRANSPORTS
@WAYS
async def test_an_unknown_host_is_named(make, ask):
    with pytest.raises(TransportError, match=r"cannot connect to http://no-such-host\.invalid .*not known"):
        await ask(make(), "http://no-such-host.invalid/v1")


@TRANSPORTS
@WAYS
async def test_a_server_without_tls_at_https_is_explained(make, ask):
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    with pytest.raises(TransportError, match=r"cannot connect to https://127.*right to say https"):
        await ask(make(), url)
    listener.close()


FAULTS = {
    "reset before the head": RESET,
    "closed before the head": Reply(raw=b"", end=End.CLOSE),
    "an empty line": Reply(raw=b"\r\n\r\n", end=End.CLOSE),
    "half a head": Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-le", end=End.CLOSE),
    "no status": Reply(raw=b"HTTP/1.1 OK\r\n\r\n", end=End.CLOSE),
    "a line that is no header": Reply(raw=b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", end=End.CLOSE),
    "two lengths": Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc"),
    "a negative length": Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nab"),
    "no chunk size": Reply(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nok\r\n"),
    "an endless head": Reply(raw=b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2_000_000),
    "cut gzip": Reply(gzip.compress(bytes(10_000))[:-9], headers={"content-encoding": "gzip"}),
    "no HTTP": Reply(raw=b"hello world\r\n\r\n", end=End.CLOSE),
    "body cut": Reply(b"x" * 100, cut_at=10),
    "nothing of the body": Reply(b"x" * 100, cut_at=0),
    "chunks cut": stream(b"x" * 100, end=End.CLOSE),
    "reset within the body": stream(b"x" * 100, end=End.RESET),
    "broken gzip": Reply(b"not gzip at all", headers={"content-encoding": "gzip"}),
}


@TRANSPORTS
@WAYS
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_broken_answer_is_a_transport_error_that_names_the_host(make, ask, fault):
    async with serve([fault]) as server:
        with pytest.raises(TransportError) as caught:
            await ask(make(timeout_seconds=5), server.origin + "/v1")
    assert server.origin in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not isinstance(caught.value, ProviderTimeoutError)
    assert caught.value.is_retryable


ODD_ANSWERS = {
    "a body until the end": Reply(raw=b"HTTP/1.1 200 OK\r\n\r\nok", end=End.CLOSE),
    "HTTP/1.0": Reply(raw=b"HTTP/1.0 200 OK\r\n\r\nok", end=End.CLOSE),
    "HTTP/1.0 that is kept": Reply(
        raw=b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok"
    ),
    "connection: close": Reply(
        raw=b"HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length: 2\r\n\r\nok", end=End.CLOSE
    ),
    "no reason": Reply(raw=b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok"),
    "bare line feeds": Reply(raw=b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok"),
    "interim answers": Reply(
        raw=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    ),
    "chunks with extensions and trailers": Reply(
        raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'1;a=b\r\no\r\n1;c="d"\r\nk\r\n0\r\nx-last: y\r\n\r\n'
    ),
    "a length beside chunks": Reply(
        raw=b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    ),
    "bytes after the answer": Reply(
        raw=b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncont"
    ),
    "deflate": Reply(zlib.compress(b"ok"), headers={"content-encoding": "deflate"}),
    "an unknown encoding": Reply(b"ok", headers={"content-encoding": "rot13"}),
    "a large head": Reply(b"ok", headers={"x-large": "y" * 100_000}),
}


@TRANSPORTS
@WAYS
@pytest.mark.parametrize("reply", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
async def test_an_odd_answer_is_read_and_the_next_one_too(make, ask, reply):
    async with serve([reply, Reply(b"next")]) as server:
        transport = make(timeout_seconds=5)
        assert await ask(transport, server.origin) == (200, b"ok")
        assert await ask(transport, server.origin) == (200, b"next")


@TRANSPORTS
@WAYS
@pytest.mark.parametrize("head", [b"204 No Content", b"304 Not Modified\r\ncontent-length: 5"])
async def test_an_answer_without_a_body_ends_with_its_head(make, ask, head):
    async with serve([Reply(raw=b"HTTP/1.1 %b\r\n\r\n" % head), Reply(b"next")]) as server:
        transport = make(timeout_seconds=5)
        assert await ask(transport, server.origin) == (int(head[:3]), b"")
        assert await ask(transport, server.origin) == (200, b"next")


@TRANSPORTS
async def test_a_user_in_the_url_is_sent_as_a_header(make):
    async with serve([Reply(b"ok")]) as server:
        url = server.origin.replace("://", "://me:p%40ss@")
        await make().post(url, {}, b"")
        await make().get(url, {})
        await make().post(url, {"Authorization": "mine"}, b"")
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Basic bWU6cEBzcw==", "Basic bWU6cEBzcw==", "mine"]


@TRANSPORTS
async def test_a_path_is_encoded_and_a_fragment_is_not_sent(make):
    async with serve([Reply(b"ok")]) as server:
        await make().post(server.origin + "/a b/ü?q=ü x#here", {}, b"")
    assert server.requests[0].path == "/a%20b/%C3%BC?q=%C3%BC%20x"


@TRANSPORTS
async def test_headers_that_change_are_sent_as_they_are_now(make):
    async with serve([Reply(b"ok")]) as server:
        transport, headers = make(), {"authorization": "one"}
        await transport.post(server.origin, headers, b"")
        headers["authorization"] = "two"
        await transport.post(server.origin, headers, b"")
    assert [request.headers["authorization"] for request in server.requests] == ["one", "two"]


@TRANSPORTS
async def test_a_large_request_is_sent_whole(make):
    body = os.urandom(30_000_000)
    async with serve(lambda received: Reply(str(len(received.body)).encode())) as server:
        answer = await make(timeout_seconds=60).post(server.origin, {}, body)
        assert answer.body == b"30000000"
    assert server.requests[0].body == body


@TRANSPORTS
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_connection_that_is_not_made_in_time_says_what_to_raise(make, is_first):
    """A full backlog drops connection attempts, as a firewall does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        seconds = (5.0, 0.2) if is_first else (0.2, 5.0)
        with pytest.raises(ProviderTimeoutError, match=r"(within|for) 0\.2 s") as caught:
            await make(timeout_seconds=seconds[0], connect_timeout_seconds=seconds[1]).get(url, {})
        assert ("connect_timeout_seconds" in str(caught.value)) is is_first
        for item in waiting:
            item.close()


@TRANSPORTS
@WAYS
@pytest.mark.parametrize(
    "fault", [STALL, stream(b"abc", end=End.STALL)], ids=["before the head", "within the body"]
)
async def test_a_server_that_stalls_is_a_timeout_that_says_what_to_raise(make, ask, fault):
    async with serve([fault]) as server:
        with pytest.raises(ProviderTimeoutError, match=r"nothing for 0\.2 s; raise timeout_seconds"):
            await ask(make(timeout_seconds=0.2), server.origin)
        await asyncio.wait_for(server.gone.wait(), 5)


async def cancel(asking: Coroutine, started: asyncio.Event) -> None:
    task = asyncio.create_task(asking)
    await asyncio.wait_for(started.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@TRANSPORTS
async def test_cancelling_within_a_stream_closes_the_connection(make):
    started = asyncio.Event()

    async def read_on(url: str) -> None:
        async with make().stream(url, {}, b"") as answer:
            async for _ in answer.chunks:
                started.set()

    async with serve([stream(b"abc", end=End.STALL)]) as server:
        await cancel(read_on(server.origin), started)
        await asyncio.wait_for(server.gone.wait(), 5)


@TRANSPORTS
@WAYS
async def test_an_answer_to_a_cancelled_request_goes_to_nobody(make, ask):
    go_on = asyncio.Event()
    async with serve([Reply(b"late", before=go_on), Reply(b"mine")]) as server:
        transport = make()
        await cancel(ask(transport, server.origin), server.asked)
        assert await ask(transport, server.origin) == (200, b"mine")
        go_on.set()
        assert await ask(transport, server.origin) == (200, b"mine")


@TRANSPORTS
async def test_chunks_arrive_before_the_stream_ends(make):
    async with serve([stream(b"first", end=End.STALL)]) as server:
        async with make().stream(server.origin, {}, b"") as answer:
            # The server sends nothing more, so the chunk must arrive without waiting for the end.
            assert await asyncio.wait_for(anext(answer.chunks), 5) == b"first"
        await asyncio.wait_for(server.gone.wait(), 5)


@TRANSPORTS
async def test_an_answer_past_the_limit_is_refused(make):
    async with serve([Reply(bytes(64 * 1024 * 1024 + 1))]) as server:
        for ask in (whole, collect):
            with pytest.raises(Exception, match="longer than 67108864 bytes") as caught:
                await ask(make(), server.origin)
            assert not caught.value.is_retryable


@TRANSPORTS
async def test_a_header_that_http_forbids_is_told_without_its_value(make):
    with pytest.raises(ConfigError) as caught:
        await make().post("http://127.0.0.1:1", {"authorization": "sk-secret\n"}, b"")
    assert "header" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


@WAYS
async def test_brotli_is_read_where_it_is_announced(ask):
    """Only pyreqwest announces it. From a server that sends it all the same, the event loop reports it."""
    reply = Reply(b"\x0b\x02\x80hello\x03", headers={"content-encoding": "br"})
    async with serve([reply]) as server:
        assert await ask(over_pyreqwest(), server.origin) == (200, b"hello")
        with pytest.raises(TransportError, match="encoded as 'br', which was not asked for"):
            await ask(on_the_loop(), server.origin)


@TRANSPORTS
async def test_an_answer_that_goes_on_is_not_cut_by_the_time_out_for_silence(make):
    """The whole takes longer than the time-out, and each gap is much shorter."""
    slow = Reply(pieces=[b":\n"] * 8, gap_seconds=0.3)
    async with serve([slow]) as server:
        transport = make(timeout_seconds=2.0)
        answers = await asyncio.gather(collect(transport, server.origin), whole(transport, server.origin))
    assert answers == [(200, b":\n" * 8)] * 2


@TRANSPORTS
@WAYS
async def test_an_answer_without_end_is_cut_by_the_total_time_out_which_says_so(make, ask):
    endless = Reply(pieces=(b"a" for _ in iter(int, 1)), gap_seconds=0.01)
    async with serve([endless]) as server:
        with pytest.raises(ProviderTimeoutError, match=r"within 0\.3 s; raise total_timeout_seconds"):
            await ask(make(total_timeout_seconds=0.3), server.origin)


@TRANSPORTS
@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://x/y"])
async def test_a_url_that_is_none_is_the_callers_mistake(make, url):
    with pytest.raises(ConfigError):
        await make().post(url, {}, b"")


@pytest.mark.parametrize("name", ["timeout_seconds", "connect_timeout_seconds", "total_timeout_seconds"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_timeouts_are_positive(name, value):
    with pytest.raises(ConfigError, match=name):
        HttpTransport(**{name: value})


@TRANSPORTS
async def test_one_pool_serves_several_event_loops_and_threads(make):
    async with serve([Reply(b"ok")]) as server:
        transport = make()
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


def _ask_in_child(transport: Transport, url: str, results) -> None:
    try:
        results.put(str(asyncio.run(whole(transport, url))))
    except ConfigError as error:
        results.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "result"),
    [(on_the_loop, "(200, b'ok')"), (over_pyreqwest, "'spawn'")],
    ids=["loop", "pyreqwest"],
)
async def test_a_forked_child_is_served_or_told_instead_of_hanging(make, result):
    async with serve([Reply(b"ok")]) as server:
        transport = make()
        await whole(transport, server.origin)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_ask_in_child, args=(transport, server.origin, results))
        child.start()
        try:
            assert result in await asyncio.to_thread(results.get, True, 10)
        finally:
            child.kill()
        assert await whole(transport, server.origin) == (200, b"ok")


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


@TRANSPORTS
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_no_cancellation_is_lost_whatever_comes_at_that_moment(make, is_streamed):
    """The transport must not lose a cancellation that comes together with a response."""
    async with serve(lambda _: Reply(b"{}")) as server:
        transport = make(timeout_seconds=5.0)

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
