"""Requests to http:// URLs on the running event loop.

Everything that is the same in all requests to a URL is computed once and kept as a `Route`: the bytes of the
head, and the pool of the event loop that sent the last request. A request then costs one coroutine, one write and
one future.
"""

import asyncio
import base64
import re
import weakref
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

from treadle.http import failures, redirects
from treadle.http.plain.body import Body
from treadle.http.plain.connection import StaleConnectionError
from treadle.http.plain.pool import Pool, find_pool
from treadle.http.protocol import Answer, StreamedAnswer

if TYPE_CHECKING:
    from pyreqwest.http import Url

_WHOLE_BYTES = 64 * 1024
"""Requests of up to this size are written in one piece."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_FRAMING = frozenset(("content-length", "transfer-encoding"))


class Route:
    """The common data of all requests with the same method, URL and headers."""

    __slots__ = ("head", "headers", "host", "method", "origin", "pool", "port", "url")

    def __init__(self, method: str, url: str, parsed: "Url", headers: Mapping[str, str]) -> None:
        self.method = method
        self.url = url
        self.headers = dict(headers)
        """A copy, so that a change to the caller's headers is noticed."""
        self.host = (parsed.host_str or "").removeprefix("[").removesuffix("]")
        self.port = parsed.port_or_known_default or 80
        self.origin = failures.origin_of(url)
        self.head = _make_head(method, parsed, headers, self.origin)
        """The request's head without its end: the line with the body's length, and the empty line."""
        self.pool: weakref.ref[Pool] | None = None
        """The connection pool of the event loop that sent the last request."""


def _make_head(method: str, parsed: "Url", headers: Mapping[str, str], origin: str) -> bytes:
    port = "" if parsed.port is None else f":{parsed.port}"
    lines = {
        "host": f"{parsed.host_str}{port}",
        "user-agent": "treadle",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
    }
    if parsed.username or parsed.password is not None:
        userinfo = unquote_to_bytes(parsed.username) + b":" + unquote_to_bytes(parsed.password or "")
        lines["authorization"] = f"Basic {base64.b64encode(userinfo).decode()}"
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise failures.invalid_header(origin, name if name.isascii() and name.isprintable() else None)
        if name.lower() not in _FRAMING:
            lines[name.lower()] = value
    path = parsed.path + (f"?{parsed.query_string}" if parsed.query_string else "")
    return "".join(
        [f"{method} {path} HTTP/1.1\r\n", *[f"{name}: {value}\r\n" for name, value in lines.items()]]
    ).encode()


class PlainClient:
    """A client that sends requests on the running event loop. Several loops and threads can use it at once."""

    def __init__(self, timeouts: failures.Timeouts) -> None:
        self._timeouts = timeouts

    def post(self, route: Route, body: bytes) -> Coroutine[Any, Any, Answer]:
        """See `Transport.post`."""
        return self.ask(route, body)

    def get(self, route: Route) -> Coroutine[Any, Any, Answer]:
        """See `Transport.get`."""
        return self.ask(route, None)

    def stream(self, route: Route, body: bytes) -> AbstractAsyncContextManager[StreamedAnswer]:
        """See `Transport.stream`."""
        return _Stream(self, route, body)

    async def ask(
        self,
        route: Route,
        body: bytes | None,
        *,
        is_streamed: bool = False,
        asked: tuple[str, ...] = (),
        end: float | None = None,
    ) -> Any:
        """Send a request and return its `Answer`. If `body` is `None`, the request has none.

        If `is_streamed` is true, return a `StreamedAnswer` when the head has arrived. `asked` are the URLs that
        led here by redirects, and `end` is the time at which all of them must be answered.

        A request is sent a second time, over a new connection, if its connection had been idle for some time and
        the server closed it before any part of an answer arrived. Raises: the errors of `treadle.http.failures`.
        """
        loop = asyncio.get_running_loop()
        pool = route.pool() if route.pool is not None else None
        if pool is None or pool.loop is not loop or pool.is_closed:
            pool = find_pool(loop, route.host, route.port, route.origin, self._timeouts)
            route.pool = weakref.ref(pool)
        payload, unsent = _frame(route, body)
        now = loop.time()
        end = end or now + self._timeouts.total
        connection = pool.take(now)
        while True:
            if connection is None:
                connection = await pool.connect(min(end, now + self._timeouts.silence))
                now = loop.time()
            head = connection.ask(payload, unsent, now, end, is_streamed=is_streamed)
            try:
                answer = await head
                break
            except StaleConnectionError:
                connection = None
            except asyncio.CancelledError:
                if connection.is_asked_by(head):
                    connection.drop()
                raise
        if answer.status not in redirects.STATUSES:
            return answer
        if is_streamed:
            answer.chunks.close()
        asked = (*asked, route.url)
        next_route = _redirect(route, redirects.follow(route.method, asked, answer))
        return await self.ask(next_route, body, is_streamed=is_streamed, asked=asked, end=end)


def _redirect(route: Route, url: str) -> Route:
    """Return the route of the same request to another URL."""
    from pyreqwest.http import Url

    return Route(route.method, url, Url(url), route.headers)


def _frame(route: Route, body: bytes | None) -> tuple[bytes, bytes]:
    """Return the bytes to write at once, and the rest, which is written as fast as the server reads it."""
    if body is None:
        return route.head + b"\r\n", b""
    if len(body) <= _WHOLE_BYTES:
        return b"%bcontent-length: %d\r\n\r\n%b" % (route.head, len(body), body), b""
    return b"%bcontent-length: %d\r\n\r\n" % (route.head, len(body)), body


class _Stream:
    """The context of a streamed answer."""

    __slots__ = ("_answer_body", "_body", "_client", "_route")

    def __init__(self, client: PlainClient, route: Route, body: bytes) -> None:
        self._client = client
        self._route = route
        self._body = body
        self._answer_body: Body | None = None

    async def __aenter__(self) -> StreamedAnswer:
        answer: StreamedAnswer = await self._client.ask(self._route, self._body, is_streamed=True)
        self._answer_body = cast(Body, answer.chunks)
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answer_body is not None:
            self._answer_body.close()
