"""The ways of sending a request to an http:// server, and functions that send one."""

from collections.abc import Callable

import pytest

from treadle.http.protocol import Transport
from treadle.http.reqwest import ReqwestTransport
from treadle.http.transport import HttpTransport
from treadle.http.transport_errors import Timeouts

HEADERS = {"authorization": "Bearer sk-very-secret", "x-mine": "yes"}


def on_the_loop(**timeouts: float) -> Transport:
    """Return a transport that speaks plain HTTP on the event loop."""
    return HttpTransport(**timeouts)


def over_pyreqwest(
    *,
    timeout_seconds: float = 600.0,
    connect_timeout_seconds: float = 10.0,
    total_timeout_seconds: float = 1800.0,
) -> Transport:
    """Return a transport that sends everything through pyreqwest."""
    return ReqwestTransport(Timeouts(timeout_seconds, connect_timeout_seconds, total_timeout_seconds))


MakeTransport = Callable[..., Transport]
TRANSPORTS = pytest.mark.parametrize("make", [on_the_loop, over_pyreqwest])


async def collect(transport: Transport, url: str) -> tuple[int, bytes]:
    """Send a request, and return the status and the joined chunks of its streamed answer."""
    async with transport.stream(url, HEADERS, b"{}") as answer:
        return answer.status, b"".join([chunk async for chunk in answer.chunks])


async def whole(transport: Transport, url: str) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of its answer."""
    answer = await transport.post(url, HEADERS, b"{}")
    return answer.status, answer.body


WAYS = pytest.mark.parametrize("ask", [whole, collect])
