"""The pinned connection: requests on one connection, which fails instead of being replaced."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from treadle.core.errors import ConfigError, TransportError
from treadle.http.pinned import PinnedConnection
from treadle.http.transport_errors import Timeouts


@asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives these answers on its first connection and then closes it; and what it read."""
    read: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            size = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(size[0].partition(b":")[2])) if size else b""
            read.append(head + body)
            writer.write(answer)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/base", read


async def test_requests_share_the_connection_and_a_lost_one_is_not_replaced() -> None:
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    late = b"HTTP/1.1 500 Oh\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    async with server(ok, late) as (url, read):
        connection = await PinnedConnection.open(url)
        first = await connection.ask("GET", "/a", b"{}")
        second = await connection.ask("POST", "/b", b"a" * 5000)
        assert (first.status, first.body, second.status, second.body) == (200, b"hi", 500, b"x")
        assert read[0].startswith(b"GET /base/a HTTP/1.1\r\n")
        assert read[0].endswith(b"\r\n\r\n{}")
        head, _, body = read[1].partition(b"\r\n\r\n")
        assert b"content-encoding: gzip" in head
        assert gzip.decompress(body) == b"a" * 5000
        for _ in range(2):
            with pytest.raises(TransportError):
                await connection.ask("GET", "/c")
        assert len(read) == 2


async def test_an_answer_that_is_not_http_or_too_late_closes_the_connection() -> None:
    async with server(b"hello\r\n\r\n") as (url, _):
        with pytest.raises(TransportError, match="did not answer in HTTP"):
            await (await PinnedConnection.open(url)).ask("GET", "/")
    async with server(b"") as (url, _):
        with pytest.raises(TransportError):
            await (await PinnedConnection.open(url, Timeouts(silence=0.05))).ask("GET", "/")
    with pytest.raises(ConfigError, match="invalid URL"):
        await PinnedConnection.open("ftp://x")
    with pytest.raises(TransportError, match="cannot connect"):
        await PinnedConnection.open("http://127.0.0.1:1")


def test_a_connection_that_was_never_made_can_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    """The loop closes all pools at its end, also one whose server was down."""
    kept: list[BaseException] = []

    async def fail() -> None:
        try:
            await PinnedConnection.open("http://127.0.0.1:1")
        except TransportError as error:
            kept.append(error)

    asyncio.run(fail())
    assert kept
    assert not caplog.records
