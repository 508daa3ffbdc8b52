"""Who may ask a server: keys, hosts and origins, and how much a request may hold.

Without keys, only programs of this machine may ask, and web pages may not, since a page could be anybody's.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.registry import require
from treadle.core.types import Json
from treadle.models.config.tables import KeyTable, ServeTable

require("starlette", "serve")  # whatever serves imports this module, and an error says what to install

from starlette.exceptions import HTTPException  # noqa: E402

LOCAL_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))
_OPEN_PATHS = frozenset(("/", "/healthz", "/readyz", "/view"))
Scope = Any
Headers = Mapping[bytes, bytes]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class ApiCaller(Struct, frozen=True):
    """The client that asks."""

    name: str
    """The name of its key; empty if the server has no keys."""
    scopes: frozenset[str]
    max_open_runs: int | None = None

    @property
    def sees_all(self) -> bool:
        """True if the client sees the runs of others."""
        return not self.name or "admin" in self.scopes

    @property
    def sees_only(self) -> str | None:
        """The owner whose files the client sees; `None`: it sees those of all."""
        return None if self.sees_all else self.name


ANYBODY = ApiCaller("", frozenset(("run", "read", "admin")))
"""The caller of a server without keys."""


def new_key() -> tuple[str, str]:
    """Return a new key and its hash."""
    key = f"tk-{secrets.token_urlsafe(32)}"
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """Return the hash under which a key is known."""
    return hashlib.sha256(key.encode()).hexdigest()


def check_scope(caller: ApiCaller, scope: str) -> ApiCaller:
    """Return the caller, whose key must have the scope. Raises: `RequestRefused`."""
    if scope not in caller.scopes:
        raise RequestRefused(403, f"this key does not have the scope {scope!r}", "forbidden")
    return caller


class RequestRefused(HTTPException):
    """Raised if a request is refused. FastAPI passes an `HTTPException` on, also while it reads a body."""

    def __init__(
        self, status: int, message: str, code: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        """The code of the error for programs, such as `not_found`."""


def no_such(what: str, name: object) -> RequestRefused:
    """Return the refusal of a request for something that does not exist, or that the client does not see."""
    return RequestRefused(404, f"there is no {what} {name!r:.150}", "not_found")


_SINGLE = (
    *(b"idempotency-key", b"authorization", b"x-api-key", b"host", b"origin", b"content-type"),
    *(b"x-treadle-run", b"x-treadle-labels", b"last-event-id", b"a2a-version"),
)
"""The headers of which a request has one at most."""


class Gate:
    """ASGI middleware that lets requests in, or refuses them. The caller is in `scope["state"]["caller"]`."""

    def __init__(self, app: Any, table: ServeTable, host: str) -> None:
        self._app = app
        self._table = table
        self._hosts = frozenset([name.lower() for name in (*LOCAL_HOSTS, host, *table.allow_hosts)])
        self._buckets: dict[str, tuple[float, float]] = {}
        """How many requests each key may make at once, and when that was counted."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Headers = dict(scope["headers"])
        try:
            if len(headers) < len(scope["headers"]):
                _check_once(scope["headers"])
            self._check_place(headers)
            is_preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
            if scope["path"] not in _OPEN_PATHS and not is_preflight:
                scope.setdefault("state", {})["caller"] = self._find_caller(headers)
            await self._app(scope, self._bound(receive, headers), send)
        except RequestRefused as refused:
            if (origin := _text_in(headers, b"origin")) in self._table.allow_origins:
                # Without it, a page is not told why it was refused.
                refused.headers = {**(refused.headers or {}), "access-control-allow-origin": origin}
            await refuse(send, refused)

    def _check_place(self, headers: Headers) -> None:
        """Refuse pages of foreign origins, and names of hosts that stand for another machine. The server's own page
        may ask, since its origin is the host that is asked. A foreign name for this machine makes that true of a
        foreign page, so that a server without keys also checks the host."""
        host = _text_in(headers, b"host")
        if b"origin" in headers:
            origin = _text_in(headers, b"origin")
            if origin not in (f"http://{host}", f"https://{host}", *self._table.allow_origins):
                raise RequestRefused(
                    403,
                    f"pages of {origin!r:.100} may not ask; name it in serve.allow_origins",
                    "forbidden_origin",
                )
        if self._table.keys and not self._table.allow_hosts:
            return
        name = _name_of(host)
        if name.lower() not in self._hosts:
            raise RequestRefused(
                403,
                f"the host {name!r:.100} is not one of this server; name it in serve.allow_hosts",
                "forbidden_host",
            )

    def _bound(self, receive: Receive, headers: Headers) -> Receive:
        """Return `receive` with the limit of the body. Raises: `RequestRefused` if its length is too large."""
        most, said = self._table.max_body_bytes, headers.get(b"content-length", b"0")
        if not said.isdigit() or len(said) > 18 or int(said) > most:
            raise _too_large(most)
        if b"transfer-encoding" not in headers:
            return receive
        left = most

        async def receive_bounded() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise _too_large(most)
            return message

        return receive_bounded

    def _find_caller(self, headers: Headers) -> ApiCaller:
        if not self._table.keys:
            return ANYBODY
        kind, _, key = _text_in(headers, b"authorization").partition(" ")
        given = key.strip() if kind.lower() == "bearer" else _text_in(headers, b"x-api-key")
        hashed, found = hash_key(given), None
        for name, table in self._table.keys.items():
            if hmac.compare_digest(hashed, table.sha256):
                found = name, table
        if found is None:
            said = (
                "the API key is wrong"
                if given
                else "there is no API key; send it as 'Authorization: Bearer KEY'"
            )
            raise RequestRefused(401, said, "invalid_api_key", {"www-authenticate": "Bearer"})
        name, table = found
        if table.expires is not None and _end_of(table.expires) <= datetime.now(UTC):
            raise RequestRefused(401, "the API key has expired", "invalid_api_key")
        self._count(name, table)
        return ApiCaller(name, frozenset(table.scopes), table.max_open_runs)

    def _count(self, name: str, table: KeyTable) -> None:
        """Count a request. Raises: `RequestRefused` if the key has made too many."""
        if table.requests_per_minute is None:
            return
        rate, now = table.requests_per_minute / 60, time.monotonic()
        most = max(1.0, table.requests_per_minute)
        left, at = self._buckets.get(name, (most, now))
        left = min(most, left + (now - at) * rate)
        if left < 1:
            wait = (1 - left) / rate
            raise RequestRefused(
                429,
                "this key has made too many requests",
                "rate_limit_exceeded",
                {"retry-after": f"{wait:.0f}" if wait >= 1 else "1"},
            )
        self._buckets[name] = left - 1, now


def _check_once(headers: list[tuple[bytes, bytes]]) -> None:
    """Refuse a request that has a header twice of which only one can count. Raises: `RequestRefused`."""
    names = [name for name, _ in headers]
    for name in _SINGLE:
        if names.count(name) > 1:
            said = f"the request has the header {name.decode()!r} more than once; send it once"
            raise RequestRefused(400, said, "invalid_request")


def _text_in(headers: Headers, name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


@lru_cache(maxsize=64)
def _name_of(host: str) -> str:
    """Return the name in a `host` header, which also has the port."""
    host = host.rpartition("@")[2]
    return host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]


def _end_of(given: date | datetime) -> datetime:
    if not isinstance(given, datetime):
        return datetime.combine(given, time_of_day.max, UTC)
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(413, f"the body has more than {max_bytes:,} bytes", "request_too_large")


async def read_body(receive: Receive) -> bytes:
    """Return the whole body of a request. Raises: `RequestRefused` if the client leaves before its end."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefused(400, "the client left before its request was complete", "request_incomplete")
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


PRESENCE = "treadle.presence"
"""The entry of a scope with the `Presence` of the client; a scope without it has a client that never leaves."""


class Presence:
    """Whether the client of a connection is there, and the functions to call when it leaves."""

    def __init__(self) -> None:
        self.has_left = False
        self.watches: set[Callable[[], object]] = set()

    def leave(self) -> None:
        """Note that the client has left."""
        self.has_left = True
        for tell in list(self.watches):
            tell()


class LeavingWatch:
    """A context manager that calls a function if the client leaves within the `with` block."""

    def __init__(self, scope: Scope, on_left: Callable[[], object]) -> None:
        self._presence: Presence | None = scope.get(PRESENCE)
        self._on_left = on_left
        self.has_left = False
        """True if the client has left before the end of the block."""

    def __enter__(self) -> None:
        if self._presence is not None:
            self._presence.watches.add(self._leave)
            if self._presence.has_left:
                self._leave()

    def __exit__(self, *_: object) -> None:
        if self._presence is not None:
            self._presence.watches.discard(self._leave)

    def _leave(self) -> None:
        self.has_left = True
        self._on_left()


def is_of_anthropic(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API, whose errors have another form."""
    return path.startswith("/v1/messages")


def error_body(status: int, message: str, code: str | None, param: str | None = None) -> Json:
    """Return the body of an error, in the form of OpenAI's API."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def send_whole(send: Send, status: int, body: Json, headers: Mapping[str, str]) -> None:
    encoded = msgspec.json.encode(body)
    raw = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(encoded))]
    raw += [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": encoded})


async def refuse(send: Send, refused: RequestRefused) -> None:
    body = error_body(refused.status_code, refused.detail, refused.code)
    await send_whole(send, refused.status_code, body, {"connection": "close", **(refused.headers or {})})
