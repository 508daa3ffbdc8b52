"""The oracle's server answers requests in whatever pieces they arrive, in order, and refuses what is none."""

import asyncio
import json

import pytest

from treadle.tasks.files import TASK_SET
from treadle.testbed.server.oracle_app import OracleApp, ServerSettings
from treadle.testbed.server.serving import MAX_REQUEST_BYTES, ServerConnection

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"1\r\n{\r\n1;name=value\r\n}\r\n0\r\nTrailer: yes\r\n\r\n"
)
UPGRADE = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
NO_REQUESTS = [
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    b"GET / FTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nNo-Colon\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 64, 1000])
async def test_requests_come_in_any_pieces(size, start, connect):
    server, data = await start(), GET + POST + CHUNKED + b"\r\n" + UPGRADE + CHUNKED + POST + GET
    async with connect(server.port) as raw:
        for begin in range(0, len(data), size):
            raw.send(data[begin : begin + size])
            await raw.writer.drain()
        assert [(await raw.read())[0] for _ in range(7)] == [200, 400, 400, 200, 400, 400, 200]


async def test_a_refused_connection_ends_and_the_others_live_on(start, connect):
    server = await start()
    async with connect(server.port) as good:
        good.send(GET)
        assert (await good.read())[0] == 200
        for data in NO_REQUESTS:
            async with connect(server.port) as bad:
                bad.send(data)
                answer, headers, body = await bad.read()
                assert (answer, headers["connection"]) == (400, "close")
                assert b'"message"' in body
                assert await bad.is_closed()
        good.send(GET)
        assert (await good.read())[0] == 200


async def test_pipelined_requests_are_answered_in_order(start, connect):
    for settings in ({}, {"latency_seconds": 0.01}):
        server = await start(**settings)
        async with connect(server.port) as raw:
            raw.send(GET + POST + GET.replace(b"/health", b"/none") + POST + GET)
            assert [(await raw.read())[0] for _ in range(5)] == [200, 400, 404, 400, 200]


async def test_a_client_that_waits_is_told_to_go_on(start, connect):
    server = await start()
    async with connect(server.port) as raw:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        for _ in range(2):
            raw.send(head + b"Expect: 100-continue\r\n\r\n")
            assert (await raw.read_head())[0] == 100
            raw.send(b"{}")
            assert (await raw.read())[0] == 400


async def test_old_clients_are_closed_on(start, connect):
    server = await start()
    async with connect(server.port) as raw:
        raw.send(b"GET /health HTTP/1.0\r\n\r\n")
        status, headers, body = await raw.read()
        assert (status, headers["connection"], body) == (200, "close", b'{"status":"ok"}')
        assert await raw.is_closed()


async def test_a_head_has_no_body(start, connect):
    server = await start()
    async with connect(server.port) as raw:
        raw.send(GET.replace(b"GET", b"HEAD") + GET)
        status, headers = await raw.read_head()
        assert (status, headers["content-length"]) == (200, "15")
        assert (await raw.read())[2] == b'{"status":"ok"}'


class Recorder(asyncio.Transport):
    """A transport that records what is written and whether the server reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def test_a_request_is_limited():
    connection, transport = ServerConnection(OracleApp(ServerSettings()), set()), Recorder()
    connection.connection_made(transport)
    connection.data_received(POST.partition(b"Content")[0] + b"Content-Length: 99999999999\r\n\r\n")
    part = bytes(8 * 1024 * 1024)
    for _ in range(MAX_REQUEST_BYTES // len(part)):
        assert not transport.written
        connection.data_received(part)
    assert transport.written.startswith(b"HTTP/1.1 413 ")
    assert transport.is_closed


def test_a_client_that_does_not_read_is_not_read_from():
    connection, transport = ServerConnection(OracleApp(ServerSettings()), set()), Recorder()
    connection.connection_made(transport)
    connection.data_received(GET)
    assert transport.written.count(b"HTTP/1.1 200 OK") == 1
    connection.pause_writing()
    connection.data_received(GET * 10)
    assert transport.reads
    connection.data_received(GET * 20_000)
    assert not transport.reads
    assert transport.written.count(b"HTTP/1.1 200 OK") == 1
    assert connection.eof_received()
    connection.resume_writing()
    assert transport.reads
    assert transport.written.count(b"HTTP/1.1 200 OK") == 20_011
    assert transport.is_closed


async def test_a_client_that_only_sends_leaves_the_others_alone(start, connect):
    server = await start()
    async with connect(server.port) as raw:
        raw.send(GET * 200_000)
        for _ in range(3):
            async with connect(server.port) as other:
                other.send(GET)
                assert (await other.read())[0] == 200
        raw.writer.transport.abort()


async def test_half_closed_and_gone_clients(start, connect):
    server = await start(latency_seconds=0.01)
    messages = [{"role": "user", "content": TASK_SET.get("csv_sum-0000").input}]
    body = json.dumps({"model": "oracle", "messages": messages}).encode()
    good = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with connect(server.port) as raw:
        raw.send(good + GET)
        raw.writer.write_eof()
        assert [(await raw.read())[0] for _ in range(2)] == [200, 200]
        assert await raw.is_closed()
    for _ in range(20):
        async with connect(server.port) as raw:
            raw.send(good[:30])
        async with connect(server.port) as raw:
            raw.send(good)
            raw.writer.transport.abort()
    async with connect(server.port) as raw:
        raw.send(GET)
        assert (await raw.read())[0] == 200
