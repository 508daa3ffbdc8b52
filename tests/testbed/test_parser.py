"""The oracle's server parses HTTP strictly, in whatever pieces it arrives, and refuses everything else."""

import asyncio
import json

import pytest

from treadle.tasks.files.task_set import TASK_SET
from treadle.testbed.server.oracle_app import OracleApp, ServerSettings
from treadle.testbed.server.parser import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    HttpFault,
    Parser,
    encode_chunk,
    encode_head,
)
from treadle.testbed.server.serving import ServerConnection

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"3\r\nhel\r\n2;name=value\r\nlo\r\n0\r\nTrailer: yes\r\n\r\n"
)


def read_all(data: bytes, size: int) -> list[tuple[str, str, bytes]]:
    parser, found = Parser(), []
    for start in range(0, len(data), size):
        parser.feed(data[start : start + size])
        while (request := parser.next_request()) is not None:
            found.append((request[0].method, request[0].target.partition("?")[0], request[1]))
    assert parser.buffered_bytes == 0
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 64, 1000])
def test_requests_come_in_any_pieces(size):
    data = GET + POST + CHUNKED + b"\r\n" + CHUNKED + POST + GET
    get, post, chunked = ("GET", "/health", b""), ("POST", "/a", b"hello"), ("POST", "/a", b"hello")
    assert read_all(data, size) == [get, post, chunked, chunked, post, get]


@pytest.mark.parametrize(
    ("head", "is_kept"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_how_long_a_connection_lives(head, is_kept):
    parser = Parser()
    parser.feed(head)
    assert parser.next_request()[0].is_kept_alive is is_kept


HOSTILE = [
    (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    (b"GET /\r\n\r\n", 505),
    (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    (b"GET / FTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"G(T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"G\xe9T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nNo-Colon\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\nContent-Length: 5\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \xb2\r\n\r\nhello", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 68719476736\r\n\r\n", 413),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 300, 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nExpect: a-miracle\r\nContent-Length: 1\r\n\r\n", 417),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    (b"GET /" + b"x" * (MAX_HEAD_BYTES + 1), 431),
]


@pytest.mark.parametrize(("data", "status"), HOSTILE)
def test_what_is_no_request_is_refused(data, status):
    parser = Parser()
    parser.feed(data)
    with pytest.raises(HttpFault) as caught:
        parser.next_request()
    assert caught.value.status == status
    assert caught.value.message


def test_a_body_in_chunks_is_limited():
    parser = Parser()
    parser.feed(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n")
    assert parser.next_request() is None
    part = bytes(1024 * 1024)
    for _ in range(MAX_BODY_BYTES // len(part)):
        parser.feed(part)
        assert parser.next_request() is None
    parser.feed(b"x")
    with pytest.raises(HttpFault) as caught:
        parser.next_request()
    assert caught.value.status == 413


def test_bytes_of_answers():
    assert encode_head(404, {"A": "b"}) == b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n"
    assert encode_chunk(b"x" * 16) == b"10\r\n" + b"x" * 16 + b"\r\n"


async def test_a_refused_connection_ends_and_the_others_live_on(start, connect):
    server = await start()
    async with connect(server.port) as good:
        good.send(GET)
        assert (await good.read())[0] == 200
        for data, status in HOSTILE:
            async with connect(server.port) as bad:
                bad.send(data)
                answer, headers, body = await bad.read()
                assert (answer, headers["connection"]) == (status, "close")
                assert b'"message"' in body
                assert await bad.is_closed()
        good.send(GET)
        assert (await good.read())[0] == 200


async def test_pipelined_requests_are_answered_in_order(start, connect):
    for settings in ({}, {"latency_seconds": 0.01}):
        server = await start(**settings)
        async with connect(server.port) as raw:
            bad = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
            raw.send(GET + bad + GET.replace(b"/health", b"/none") + bad + GET)
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
        raw.send(head + b"Expect: 100-continue\r\n\r\n{}")
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
