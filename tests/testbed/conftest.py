"""Fixtures: a running server, and a raw connection to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from treadle.testbed.server import OracleServer, ServerSettings, serve

Start = Callable[..., Awaitable[OracleServer]]


class Raw:
    """A connection that can send any bytes."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> "Raw":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        assert lines[0].startswith("HTTP/1.1 ")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), headers

    async def read(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response, with a length or in chunks."""
        status, headers = await self.read_head()
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        if headers.get("transfer-encoding") != "chunked":
            return status, headers, await self.reader.read()
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readline()
        return status, headers, body

    async def is_closed(self) -> bool:
        """Whether the server closes the connection without sending more."""
        return await self.reader.read() == b""


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[OracleServer] = []

    async def begin(**settings: float) -> OracleServer:
        servers.append(await serve(settings=ServerSettings(**settings)))
        return servers[-1]

    yield begin
    for server in servers:
        await server.close()


@pytest.fixture
def connect() -> type[Raw]:
    return Raw
