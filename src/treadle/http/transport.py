"""The transports that dialects use: HTTP to a server, and a function instead of a server for tests."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from treadle.core.types import Json
from treadle.http import transport_errors
from treadle.http.plain.client import HttpRoute, PlainClient
from treadle.http.plain.dial import can_secure, is_proxied
from treadle.http.protocol import Answer as Answer
from treadle.http.protocol import StreamedAnswer as StreamedAnswer
from treadle.http.protocol import Transport as Transport
from treadle.http.reqwest import ReqwestTransport
from treadle.http.transport_errors import address_of as address_of
from treadle.http.transport_errors import origin_of as origin_of

_MAX_ROUTES = 256


class HttpTransport:
    """HTTP to any server. Several event loops and threads can use it at once.

    A request is sent on the running event loop, over connections that are kept for each loop. A request through a
    proxy, or to an https:// URL on a system whose trusted certificates Python does not read, goes through pyreqwest
    and the process's connection pool.
    """

    def __init__(
        self,
        *,
        timeout_seconds: float = 600.0,
        connect_timeout_seconds: float = 10.0,
        total_timeout_seconds: float = 1800.0,
    ) -> None:
        """Create a transport.

        `timeout_seconds` limits the time in which nothing arrives. Each byte of an answer starts it again, so it
        never ends an answer that is still being streamed. `total_timeout_seconds` limits the time from the start
        of a request to the end of the answer's body. Raises: `ConfigError` for a time-out that is not a positive
        number.
        """
        self._timeouts = transport_errors.Timeouts(
            timeout_seconds, connect_timeout_seconds, total_timeout_seconds
        )
        self._reqwest = ReqwestTransport(self._timeouts)
        self._plain = PlainClient(self._timeouts)
        self._routes: dict[str, HttpRoute | None] = {}
        """The route of each URL that was used; `None` if pyreqwest is needed."""

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Awaitable[Answer]:
        route = self._routes.get(url)
        if route is None or route.headers != headers:
            route = self._route(url, headers)
        return self._reqwest.post(url, headers, body) if route is None else self._plain.ask(route, body)

    def get(self, url: str, headers: Mapping[str, str]) -> Awaitable[Answer]:
        route = _find_route("GET", url, headers)
        return self._reqwest.get(url, headers) if route is None else self._plain.ask(route, None)

    def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[StreamedAnswer]:
        route = self._route(url, headers)
        return self._reqwest.stream(url, headers, body) if route is None else self._plain.stream(route, body)

    def _route(self, url: str, headers: Mapping[str, str]) -> HttpRoute | None:
        routes = self._routes
        if url in routes:
            route = routes[url]
            if route is None or route.headers == headers:
                return route
        elif len(routes) >= _MAX_ROUTES:
            routes.clear()
        route = routes[url] = _find_route("POST", url, headers)
        return route

    def __repr__(self) -> str:
        return f"HttpTransport(timeout_seconds={self._timeouts.silence!r})"


def _find_route(method: str, url: str, headers: Mapping[str, str]) -> HttpRoute | None:
    """Return how to reach `url` on the event loop; `None` if pyreqwest is needed. Raises: `ConfigError`."""
    route = HttpRoute(method, url, headers)
    is_unknown = route.scheme not in ("http", "https") or (route.is_secure and not can_secure())
    return None if is_unknown or is_proxied(route.host, route.scheme) else route


class HttpRequest(Struct, frozen=True):
    """A request to the function of an `InProcessTransport`."""

    url: str
    headers: dict[str, str]
    """The headers, with names in lower case."""
    body: bytes

    def json(self) -> Json:
        """Return the body decoded as JSON."""
        return msgspec.json.decode(self.body)


class HttpResponse(Struct, frozen=True):
    """An answer from the function of an `InProcessTransport`."""

    body: bytes | list[bytes] | Json = b""
    """Bytes, a list of chunks as a stream delivers them, or a value that is encoded as JSON."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def chunks(self) -> list[bytes]:
        """Return the body in the pieces that a stream would deliver."""
        if isinstance(self.body, bytes):
            return [self.body]
        if isinstance(self.body, list) and self.body and all(isinstance(piece, bytes) for piece in self.body):
            return self.body
        return [msgspec.json.encode(self.body)]


Handler: TypeAlias = Callable[[HttpRequest], "HttpResponse | Awaitable[HttpResponse]"]


class InProcessTransport:
    """A transport that calls a function instead of a server.

    The function may be asynchronous, and may raise a `TransportError`.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[HttpRequest] = []
        """The requests that were made, in order."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        response = await self._ask(url, headers, body)
        return Answer(response.status, b"".join(response.chunks()), _header_of(response))

    async def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        response = await self._ask(url, headers, b"")
        return Answer(response.status, b"".join(response.chunks()), _header_of(response))

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[StreamedAnswer]:
        response = await self._ask(url, headers, body)
        yield StreamedAnswer(response.status, _header_of(response), _iterate(response.chunks()))

    async def _ask(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        request = HttpRequest(url, {name.lower(): value for name, value in headers.items()}, body)
        self.requests.append(request)
        response = self._handler(request)
        return response if isinstance(response, HttpResponse) else await response


def _header_of(response: HttpResponse) -> Callable[[str], str | None]:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return lambda name: headers.get(name.lower())


async def _iterate(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
