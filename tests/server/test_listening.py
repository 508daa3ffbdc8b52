"""The listening socket, and connections whose requests come late or while the server is busy."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.server.listening import listen, serve_app


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer, and keep the event loop busy before that if the path says so."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    if scope["path"] == "/body":
        while (message := await receive()).get("more_body"):
            pass
        assert message["type"] == "http.disconnect"
        return
    if scope["path"] == "/busy":
        time.sleep(1.0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def serving(request_seconds: float) -> AsyncIterator[int]:
    listener, _ = listen("127.0.0.1", 0)

    async def stop() -> None: ...

    task = asyncio.ensure_future(
        serve_app(answer, listener, lambda: None, stop, grace_seconds=1, request_seconds=request_seconds)
    )
    try:
        yield listener.getsockname()[1]
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_many_connections_wait_until_the_server_takes_them() -> None:
    most = Path("/proc/sys/net/core/somaxconn")
    if most.exists() and int(most.read_text()) < 1000:
        pytest.skip("this system lets fewer connections wait")
    listener, _ = listen("127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(listener)
        for _ in range(400):
            stack.enter_context(socket.create_connection(listener.getsockname(), 20))


def test_many_connections_are_taken_at_once() -> None:
    """A turn of a loop that has much to do is long, so few turns must be enough."""
    uvloop = pytest.importorskip("uvloop")
    made: list[int] = []
    turns = 0

    async def note(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            made.append(turns)
        await answer(scope, receive, send)

    async def stop() -> None: ...

    async def take(listener: socket.socket) -> None:
        nonlocal turns
        task = asyncio.ensure_future(serve_app(note, listener, lambda: None, stop, grace_seconds=1))
        while len(made) < 64:
            turns += 1
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    listener, _ = listen("127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            client = stack.enter_context(socket.create_connection(listener.getsockname(), 20))
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        uvloop.run(take(listener))
    assert made[-1] - made[0] < 32


async def test_a_head_that_came_in_time_counts_although_the_server_was_busy() -> None:
    def ask(port: int) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), 60) as quick,
            socket.create_connection(("127.0.0.1", port), 60) as busy,
        ):
            quick.sendall(b"GET /quick HTTP/1.1\r\n")
            time.sleep(0.1)
            busy.sendall(b"GET /busy HTTP/1.1\r\nhost: localhost\r\n\r\n")
            time.sleep(
                0.2
            )  # the server has begun to be busy, and has not read the rest when the time is over
            quick.sendall(b"host: localhost\r\n\r\n")
            return quick.recv(1000)

    async with serving(request_seconds=0.5) as port:
        assert (await asyncio.to_thread(ask, port)).startswith(b"HTTP/1.1 200")


async def test_a_head_that_does_not_come_closes_the_connection() -> None:
    async with serving(request_seconds=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_a_body_that_does_not_come_is_answered_and_closed() -> None:
    async with serving(request_seconds=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        async with asyncio.timeout(60):
            told = await reader.read()
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in told
        writer.close()


async def test_lines_that_begin_no_request_do_not_keep_a_connection() -> None:
    async with serving(request_seconds=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(b"\r\n")
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
