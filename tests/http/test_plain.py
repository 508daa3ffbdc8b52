"""Plain HTTP on the event loop: framing, connections and waiting."""

import asyncio
import gc
import gzip
import socket
import struct
import threading
import time
import weakref
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.http.ways import TRANSPORTS, WAYS, collect, whole
from tests.models.server import STALL, End, Reply, serve, stream

from treadle.core.errors import RequestError, TransportError
from treadle.http.plain.answer_body import Inflater
from treadle.http.plain.client import HttpRoute, find_pool
from treadle.http.plain.dial import connect_first, dial
from treadle.http.transport import HttpTransport
from treadle.http.transport_errors import Timeouts

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listen(handler: Serve, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve each connection with `handler`, and yield the URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(handle, host, 0)
    name = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{name}:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read one request and return its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length or 0))


ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nserver: x\r\ncontent-length: 11\r\n\r\nhello world",
    "chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\na: b\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\nserver: x\r\n\r\nhello world",
    "after an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world",
}


@WAYS
@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_cut_at_any_byte_is_whole_or_an_error(ask, kind):
    answer = ANSWERS[kind]
    end = 0

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer[:end])
            if end < len(answer) or kind == "until the end":
                return

    async with listen(cut) as url:
        transport = HttpTransport(timeout_seconds=10)
        head = answer.index(b"server: x\r\n\r\n") + 13 if kind == "until the end" else len(answer)
        for end in range(len(answer)):
            if end >= head:
                # Without a length the client cannot detect that something is missing.
                assert await ask(transport, url) == (200, answer[head:end])
                continue
            with pytest.raises(TransportError, match=r"broke before|did not answer in HTTP"):
                await ask(transport, url)
        end = len(answer)
        assert await ask(transport, url) == (200, b"hello world")
        assert await ask(transport, url) == (200, b"hello world")


@WAYS
@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_in_any_two_pieces_is_whole(ask, kind):
    answer = ANSWERS[kind]
    at = 0

    async def split(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer[:at])
            # Both ends run on this loop, so that the client reads the first piece on its own.
            for _ in range(3):
                await asyncio.sleep(0)
            writer.write(answer[at:])
            if kind == "until the end":
                return

    async with listen(split) as url:
        transport = HttpTransport(timeout_seconds=10)
        for at in range(len(answer) + 1):  # noqa: B007
            assert await ask(transport, url) == (200, b"hello world")


def test_a_connection_closed_as_idle_is_replaced_without_an_error():
    """The loop is busy while the server closes, so that the client finds out only by asking."""
    asked: list[int] = []

    def serve_one_each() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            with connected:
                asked.append(len(connected.recv(65536)))
                connected.sendall(OK)

    async def ask_twice() -> None:
        transport = HttpTransport(timeout_seconds=10)
        assert await whole(transport, url) == (200, b"ok")
        time.sleep(2.1)
        assert await whole(transport, url) == (200, b"ok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=serve_one_each, daemon=True)
        thread.start()
        asyncio.run(ask_twice())
    assert len(asked) == 2


async def test_a_server_that_fails_at_once_is_not_asked_again_in_silence():
    requests = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        while True:
            await read_request(reader)
            requests += 1
            if requests == 2:
                return
            writer.write(OK)

    async with listen(answer_once) as url:
        transport = HttpTransport(timeout_seconds=10)
        assert await whole(transport, url) == (200, b"ok")
        with pytest.raises(TransportError, match="broke before"):
            await whole(transport, url)
        assert await whole(transport, url) == (200, b"ok")
    assert requests == 3


@WAYS
async def test_cancelling_closes_the_connection_at_once(ask):
    async with serve([STALL]) as server:
        task = asyncio.create_task(ask(HttpTransport(), server.origin))
        await asyncio.wait_for(server.asked.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_a_cancelled_connection_attempt_leaves_no_socket():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for item in waiting:
            item.setblocking(False)
            item.connect_ex(address)
        task = asyncio.create_task(whole(HttpTransport(), f"http://127.0.0.1:{address[1]}"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for item in waiting:
            item.close()


async def test_leaving_a_stream_early_closes_its_connection_and_only_then():
    async with serve([stream(b"abc", end=End.STALL), stream(b"abc")]) as server:
        transport = HttpTransport()
        async with transport.stream(server.origin, {}, b"") as answer:
            assert await anext(answer.chunks) == b"abc"
        await asyncio.wait_for(server.gone.wait(), 5)
        with pytest.raises(TransportError, match="the stream was left"):
            await anext(answer.chunks)
        for _ in range(3):
            assert await collect(transport, server.origin) == (200, b"abc")
        assert server.connections == 2


async def test_what_was_not_read_of_a_stream_that_ended_does_not_cost_the_connection():
    async with serve([Reply(b"abc")]) as server:
        transport = HttpTransport()
        for _ in range(3):
            async with transport.stream(server.origin, {}, b"") as answer:
                assert answer.status == 200
                await asyncio.sleep(0.01)
        assert server.connections == 1


async def test_a_slow_reader_slows_the_server():
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 60000000\r\n\r\n")
        for _ in range(600):
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000

    async with (
        listen(flood) as url,
        HttpTransport(timeout_seconds=60).stream(url, {}, b"") as answer,
    ):
        size = len(await anext(answer.chunks))
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 40_000_000
        async for chunk in answer.chunks:
            size += len(chunk)
        assert size == 60_000_000


@WAYS
async def test_a_large_request_is_written_as_the_server_takes_it(ask):
    """The server reads nothing for a while, and then everything."""

    async def lag(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        body = await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n%d" % len(body))

    async with listen(lag) as url:
        answer = await HttpTransport(timeout_seconds=60).post(url, {}, bytes(20_000_000))
        assert answer.body == b"20000000"


async def test_an_answer_before_the_end_of_the_request_counts():
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nlarge")
        await reader.read()

    async with listen(refuse) as url:
        transport = HttpTransport(timeout_seconds=10)
        for _ in range(2):
            answer = await transport.post(url, {}, bytes(20_000_000))
            assert (answer.status, answer.body) == (413, b"large")
        assert connections == 2


@pytest.mark.parametrize("second", [OK, OK[:20], b"HTTP/1.1 200 OK\r\n"])
async def test_a_second_answer_in_one_piece_with_the_first_costs_the_connection(second):
    connections = 0

    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK + second)
        await reader.read()

    async with listen(answer_twice) as url:
        transport = HttpTransport(timeout_seconds=10)
        for _ in range(3):
            assert await whole(transport, url) == (200, b"ok")
        assert connections == 3


@pytest.mark.parametrize(
    "unasked", [b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n", b"\r\n", b"x"]
)
async def test_bytes_that_nobody_asked_for_are_no_answer(unasked):
    is_sent = asyncio.Event()

    async def add(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await asyncio.sleep(0.01)
        writer.write(unasked)
        is_sent.set()
        await reader.read()

    async with listen(add) as url:
        transport = HttpTransport(timeout_seconds=10)
        for _ in range(3):
            assert await whole(transport, url) == (200, b"ok")
            # Bytes that arrive after the next request would be taken for its answer.
            await is_sent.wait()
            is_sent.clear()
            await asyncio.sleep(0.05)


@WAYS
async def test_a_bomb_is_refused(ask):
    bomb = gzip.compress(bytes(80_000_000))
    async with serve([Reply(bomb, headers={"content-encoding": "gzip"})]) as server:
        with pytest.raises(RequestError, match="longer than 67108864 bytes"):
            await ask(HttpTransport(timeout_seconds=60), server.origin)


@WAYS
async def test_endless_trailers_are_refused(ask):
    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        for number in range(1_000_000):
            writer.write(b"x-%d: %s\r\n" % (number, b"y" * 1000))
            await writer.drain()

    async with listen(go_on) as url:
        with pytest.raises(TransportError, match="headers of more than"):
            await ask(HttpTransport(timeout_seconds=60), url)


async def test_a_change_of_protocol_is_refused():
    async with serve(
        [Reply(raw=b"HTTP/1.1 101 Switch\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nab")]
    ) as server:
        with pytest.raises(TransportError, match="changes to another protocol"):
            await whole(HttpTransport(timeout_seconds=10), server.origin)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_addresses_of_both_families_and_names_are_reached(host):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)

    try:
        async with listen(answer, host) as url:
            assert await whole(HttpTransport(), url) == (200, b"ok")
            if host == "127.0.0.1":
                assert await whole(HttpTransport(), url.replace(host, "localhost")) == (200, b"ok")
    except OSError:
        pytest.skip(f"this machine has no {host}")


async def test_an_address_that_does_not_answer_holds_up_no_other():
    loop = asyncio.get_running_loop()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_server(("127.0.0.1", 0)) as good,
    ):
        waiting = [socket.socket() for _ in range(4)]
        for item in waiting:
            item.setblocking(False)
            item.connect_ex(full.getsockname())
        addresses = [(socket.AF_INET, item.getsockname()) for item in (full, good)]
        connected = await asyncio.wait_for(connect_first(loop, addresses), 5)
        assert connected.getpeername() == good.getsockname()
        connected.close()
        good.close()
        with pytest.raises(ConnectionRefusedError):
            await connect_first(loop, [addresses[1], addresses[1]])
        for item in waiting:
            item.close()


async def test_a_name_that_cannot_be_looked_up():
    with pytest.raises(socket.gaierror):
        await dial(asyncio.get_running_loop(), "x" * 300, 80)


async def test_an_idle_connection_is_closed_after_a_while():
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        assert await reader.read() == b""
        closed.set()

    async with listen(answer) as url:
        await whole(HttpTransport(timeout_seconds=7), url)
        route = HttpRoute("POST", url, {})
        pool = find_pool(asyncio.get_running_loop(), route, Timeouts(7, 10))
        pool.sweep()
        await asyncio.sleep(0.01)
        assert not closed.is_set()
        pool.sweep()
        await asyncio.wait_for(closed.wait(), 5)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_connections_end_with_their_event_loop(run, recwarn):
    """`asyncio.run` leaves no open socket, and neither the loop nor its pool stays in memory."""
    # Collect what other tests left, so that its warnings do not appear below.
    gc.collect()
    recwarn.clear()
    gone = threading.Event()

    def serve_all() -> None:
        connected, _ = listener.accept()
        with connected:
            connected.recv(65536)
            connected.sendall(OK)
            assert connected.recv(65536) == b""
            gone.set()

    transport = HttpTransport()
    loops = []

    async def ask() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        assert await whole(transport, url) == (200, b"ok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=serve_all, daemon=True)
        thread.start()
        run(ask())
        assert gone.wait(5)
    gc.collect()
    assert loops[0]() is None
    assert [str(item.message) for item in recwarn if issubclass(item.category, ResourceWarning)] == []


@WAYS
async def test_a_server_that_closes_at_once_is_an_error_at_once(ask):
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with listen(close) as url:
        transport = HttpTransport(timeout_seconds=60)
        for _ in range(50):
            with pytest.raises(TransportError, match="broke before"):
                await ask(transport, url)


async def test_two_event_loops_in_turn_keep_their_connections():
    """The same transport works on this loop and on a thread's loop."""
    async with serve([Reply(b"ok")]) as server:
        transport = HttpTransport()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for _ in range(5):
                assert await whole(transport, server.origin) == (200, b"ok")
                answer = await asyncio.to_thread(runner.run, whole(transport, server.origin))
                assert answer == (200, b"ok")
            assert server.connections == 2
            await asyncio.to_thread(runner.close)


async def test_a_reset_of_a_waiting_connection_harms_nobody():
    has_reset = asyncio.Event()

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await asyncio.sleep(0.01)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        has_reset.set()

    async with listen(reset) as url:
        transport = HttpTransport(timeout_seconds=10)
        for _ in range(3):
            assert await whole(transport, url) == (200, b"ok")
            await has_reset.wait()
            has_reset.clear()
            await asyncio.sleep(0.05)  # both ends take notice, also on a busy machine


@TRANSPORTS
async def test_what_an_error_and_a_repr_say_holds_no_secret(make):
    transport = make(timeout_seconds=0.1)
    secrets = ("sk-very-secret", "hidden", "pass")
    async with serve([STALL]) as server:
        url = server.origin.replace("://", "://me:pass@") + "/?key=hidden"
        for ask in (whole, collect):
            with pytest.raises(TransportError) as caught:
                await ask(transport, url)
            assert not any(secret in repr(caught.value) + repr(transport) for secret in secrets)


def test_deflate_without_its_header_and_any_cutting():
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    raw = engine.compress(b"hello" * 1000) + engine.flush()
    for data in (raw, zlib.compress(b"hello" * 1000)):
        for at in range(1, len(data)):
            inflater = Inflater(b"deflate")
            assert b"".join([*inflater.feed(data[:at]), *inflater.feed(data[at:])]) == b"hello" * 1000
            inflater.close()
    large = bytes(5_000_000)
    inflater = Inflater(b"gzip")
    assert b"".join(inflater.feed(gzip.compress(large) * 2)) == large * 2
