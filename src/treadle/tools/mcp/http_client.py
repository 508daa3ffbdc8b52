"""The HTTP client of sessions. It records failures that the SDK does not report."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.registry import require

KEY = "treadle/idempotency_key"
"""The key in a request's `_meta` that holds the call's idempotency key."""
CONNECT_SECONDS = 30.0
MAX_CONNECTIONS = 256


class Trip(Struct, frozen=True):
    """The outcome of one request."""

    key: str | None = None
    """The idempotency key of the request's call, if the request failed."""
    status: int | None = None
    """The status of the response, if it is an error or a redirect."""
    error: Exception | None = None
    is_unsent: bool = False
    """True if no connection was made, so that the server has not seen the request."""


def make_client(headers: Mapping[str, str], note: Callable[[Trip], None]) -> Any:
    """Return a client without a read time-out, as calls have their own. `note` is called with each outcome."""
    httpx = require("httpx2", "mcp")
    return _client_class()(
        note,
        headers=dict(headers),
        timeout=httpx.Timeout(CONNECT_SECONDS, read=None, pool=None),
        limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=64),
    )


@functools.cache
def _client_class() -> Any:
    httpx = require("httpx2", "mcp")
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)

    class Client(httpx.AsyncClient):  # type: ignore[misc, name-defined]
        def __init__(self, note: Callable[[Trip], None], **options: Any) -> None:
            super().__init__(**options)
            self._note = note

        async def send(self, request: Any, **options: Any) -> Any:
            try:
                response = await super().send(request, **options)
            except httpx.TransportError as error:
                self._note(Trip(_key_of(request), error=error, is_unsent=isinstance(error, unsent)))
                raise
            if request.method == "POST":
                has_failed = response.status_code >= 300
                self._note(Trip(_key_of(request), response.status_code) if has_failed else Trip())
            return response

    return Client


def _key_of(request: Any) -> str | None:
    try:
        return str(msgspec.json.decode(request.content)["params"]["_meta"][KEY])
    except Exception:
        # The request is not a call, or has no body.
        return None
