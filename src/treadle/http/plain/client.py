"""Requests on the running event loop, over connections that are kept for each loop.

Everything that is the same in all requests to a URL is computed once and kept as a `HttpRoute`: the bytes of the
head, and the pool of the event loop that sent the last request. A request then costs one coroutine, one write and
one future.
"""

import asyncio
import base64
import contextlib
import errno
import math
import os
import re
import socket
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

from treadle.core.errors import ProviderError
from treadle.http import transport_errors
from treadle.http.plain.answer_body import AnswerBody
from treadle.http.plain.dial import dial, explain_tls, tls_context
from treadle.http.plain.http_connection import HttpConnection, StaleConnectionError
from treadle.http.protocol import StreamedAnswer

if TYPE_CHECKING:
    from pyreqwest.http import Url

_WHOLE_BYTES = 16 * 1024
"""Requests of up to this size are written in one piece. The body of a larger one is not copied."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_FRAMING = frozenset(("content-length", "transfer-encoding"))


class HttpRoute:
    """The common data of all requests with the same method, URL and headers."""

    __slots__ = ("head", "headers", "host", "is_secure", "method", "origin", "pool", "port", "scheme", "url")

    def __init__(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        """Make a route. Raises: `ConfigError` for an invalid URL or header."""
        from pyreqwest.http import Url

        try:
            parsed = Url(url)
        except ValueError as error:
            raise transport_errors.invalid_url(url, str(error)) from None
        self.method = method
        self.url = url
        self.headers = dict(headers)
        """A copy, so that a change to the caller's headers is noticed."""
        self.host = (parsed.host_str or "").removeprefix("[").removesuffix("]")
        self.port = parsed.port_or_known_default or 80
        self.scheme = parsed.scheme
        self.is_secure = parsed.scheme == "https"
        self.origin = transport_errors.origin_of(url)
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
            raise transport_errors.invalid_header(
                origin, name if name.isascii() and name.isprintable() else None
            )
        if name.lower() not in _FRAMING:
            lines[name.lower()] = value
    path = parsed.path + (f"?{parsed.query_string}" if parsed.query_string else "")
    return "".join(
        [f"{method} {path} HTTP/1.1\r\n", *[f"{name}: {value}\r\n" for name, value in lines.items()]]
    ).encode()


class PlainClient:
    """A client that sends requests on the running event loop. Several loops and threads can use it at once."""

    def __init__(self, timeouts: transport_errors.Timeouts) -> None:
        self._timeouts = timeouts

    @contextlib.asynccontextmanager
    async def stream(self, route: HttpRoute, body: bytes) -> AsyncGenerator[StreamedAnswer, None]:
        """See `Transport.stream`."""
        answer: StreamedAnswer = await self.ask(route, body, is_streamed=True)
        try:
            yield answer
        finally:
            cast(AnswerBody, answer.chunks).close()

    async def ask(
        self,
        route: HttpRoute,
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
        the server closed it before any part of an answer arrived. Raises: the errors of
        `treadle.http.transport_errors`.
        """
        loop = asyncio.get_running_loop()
        pool = route.pool() if route.pool is not None else None
        if pool is None or pool.loop is not loop or pool.is_closed:
            pool = find_pool(loop, route, self._timeouts)
            route.pool = weakref.ref(pool)
        payload, unsent = frame(route, body)
        now = loop.time()
        end = end or now + self._timeouts.total
        connection = pool.take(now)
        while True:
            if connection is None:
                connection = await pool.connect(min(end, now + self._timeouts.silence))
                now = loop.time()
            head = connection.ask(payload, unsent, now, end, is_streamed)
            try:
                answer = await head
                break
            except StaleConnectionError:
                connection = None
            except asyncio.CancelledError:
                if connection.is_asked_by(head):
                    connection.drop()
                raise
        if answer.status not in transport_errors.STATUSES:
            return answer
        if is_streamed:
            answer.chunks.close()
        asked = (*asked, route.url)
        url = transport_errors.follow(route.method, asked, answer)
        next_route = HttpRoute(route.method, url, route.headers)
        return await self.ask(next_route, body, is_streamed=is_streamed, asked=asked, end=end)


def frame(route: HttpRoute, body: bytes | None) -> tuple[bytes, bytes]:
    """Return the bytes to write at once, and the rest, which is written as fast as the server reads it."""
    if body is None:
        return route.head + b"\r\n", b""
    if len(body) <= _WHOLE_BYTES:
        return b"%bcontent-length: %d\r\n\r\n%b" % (route.head, len(body), body), b""
    return b"%bcontent-length: %d\r\n\r\n" % (route.head, len(body)), body


_STALE_SECONDS = 2.0
"""The age, from its last activity, at which the server may close a connection as idle. A connection
that breaks earlier is a failure of the server, which is reported to the caller."""
_SWEEP_SECONDS = 45.0
"""The interval of sweeps. A connection is closed after being idle for one to two intervals."""


class Pool:
    """The connections of one event loop to one server, for requests with the same time-outs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        route: HttpRoute,
        timeouts: transport_errors.Timeouts,
    ) -> None:
        self.loop = loop
        self.origin = route.origin
        self.is_closed = False
        self._host = route.host
        self._port = route.port
        self._is_secure = route.is_secure
        self._timeouts = timeouts
        self._silence_seconds = timeouts.silence
        self._idle: dict[HttpConnection, None] = {}
        """The idle connections. The one that was used last is used next."""
        self._busy: set[HttpConnection] = set()
        self._unwritten: list[tuple[HttpConnection, bytes]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._sweeper: asyncio.TimerHandle | None = None
        self._guard = _close_at_shutdown(weakref.ref(self))
        # The first step makes the generator known to the loop.
        with contextlib.suppress(StopIteration):
            self._guard.asend(None).send(None)

    def take(self, now: float) -> HttpConnection | None:
        """Return an idle connection, if there is one."""
        if not self._idle:
            return None
        connection = self._idle.popitem()[0]
        connection.may_be_stale = now - connection.active_at > _STALE_SECONDS
        return connection

    def send(self, connection: HttpConnection, payload: bytes) -> None:
        """Write a request at the end of this turn of the event loop, with those of other connections, and make it
        fail at its deadline.

        A system call between two tasks slows the second task down, because the processor's caches are cold
        afterwards; this costs more than the call itself. Written together, 64 requests cost a third less.
        """
        self._busy.add(connection)
        end, silent_at = connection.end, connection.active_at + self._silence_seconds
        if end < self._rings_at or silent_at < self._rings_at:
            self._set_timer(min(end, silent_at))
        if not self._unwritten:
            self.loop.call_soon(self._write_all)
        self._unwritten.append((connection, payload))

    def _write_all(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for connection, payload in unwritten:
            connection.write(payload)

    def _due(self, connection: HttpConnection) -> float:
        """Return the time at which a connection's request fails, if no more of the answer arrives before."""
        return min(connection.end, connection.active_at + self._silence_seconds)

    def release(self, connection: HttpConnection) -> None:
        """Take back a connection that can be used again."""
        self._busy.discard(connection)
        if self.is_closed:
            connection.drop()
            return
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self.sweep)

    def forget(self, connection: HttpConnection) -> None:
        """Remove a connection that is closed."""
        self._busy.discard(connection)
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Close all connections, and from now on each one that is released."""
        self.is_closed = True
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        for connection in [*self._idle, *self._busy]:
            connection.fail(transport_errors.broken(self.origin, "the event loop shuts down"))

    async def connect(self, end: float) -> HttpConnection:
        """Return a new connection, made before `end`. Raises: the errors of `treadle.http.transport_errors`."""
        in_time = self.loop.time() + self._timeouts.connect
        connected: socket.socket | None = None
        try:
            async with asyncio.timeout_at(min(in_time, end)):
                connected = await dial(self.loop, self._host, self._port)
                _, connection = await self.loop.create_connection(
                    lambda: HttpConnection(self),
                    sock=connected,
                    ssl=tls_context() if self._is_secure else None,
                    server_hostname=self._host if self._is_secure else None,
                )
                return connection
        except BaseException as error:
            if connected is not None:
                connected.close()
            if not isinstance(error, OSError):
                raise
            # `TimeoutError` is an `OSError`, and has a number if it is the operating system's.
            if not isinstance(error, TimeoutError) or error.errno is not None:
                raise self._explain(error, is_connected=connected is not None) from None
            if in_time <= end:
                raise transport_errors.connect_timeout(self.origin, self._timeouts) from None
            is_total = self._timeouts.total <= self._timeouts.silence
            raise transport_errors.answer_timeout(self.origin, self._timeouts, is_total=is_total) from None

    def _explain(self, error: OSError, *, is_connected: bool) -> ProviderError:
        if is_connected and self._is_secure:
            return transport_errors.no_tls(self.origin, explain_tls(error))
        if isinstance(error, socket.gaierror):
            detail = f"failed to lookup address information: {(error.strerror or '').lower()}"
            return transport_errors.cannot_connect(self.origin, detail, transport_errors.UNKNOWN_HOST)
        detail = os.strerror(error.errno or errno.EIO).lower()
        return transport_errors.cannot_connect(self.origin, detail, transport_errors.SERVER_DOWN)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = at
        self._timer = self.loop.call_at(at, self._expire)

    def _expire(self) -> None:
        """Fail the requests whose time is over, and set the timer for the next one. The timer is not moved when
        requests end, so that it fires about once per time-out and not for each request."""
        now = self.loop.time()
        self._timer, self._rings_at = None, math.inf
        for connection in [item for item in self._busy if self._due(item) <= now]:
            is_total = connection.end <= now
            connection.fail(transport_errors.answer_timeout(self.origin, self._timeouts, is_total=is_total))
        if self._busy:
            # uvloop's timers may fire a little early.
            self._set_timer(max(min(map(self._due, self._busy)), now + 0.001))

    def sweep(self) -> None:
        """Close the connections that have been idle since the last sweep."""
        for connection in list(self._idle):
            if connection.is_resting:
                connection.drop()
            connection.is_resting = True
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self.sweep) if self._idle else None


async def _close_at_shutdown(found: "weakref.ref[Pool]") -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        pool = found()
        if pool is not None:
            pool.close()


_pools: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[tuple[str, transport_errors.Timeouts], Pool]
] = weakref.WeakKeyDictionary()


def find_pool(loop: asyncio.AbstractEventLoop, route: HttpRoute, timeouts: transport_errors.Timeouts) -> Pool:
    """Return the pool of the running `loop` for the server of a route."""
    pools = _pools.get(loop)
    if pools is None:
        pools = _pools[loop] = weakref.WeakValueDictionary()
    key = (route.origin, timeouts)
    pool = pools.get(key)
    if pool is None or pool.is_closed:
        pool = pools[key] = Pool(loop, route, timeouts)
    return pool
