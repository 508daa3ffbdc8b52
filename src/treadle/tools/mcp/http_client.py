"""The HTTP client that sessions are held over, which sees what the SDK does not tell."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.registry import require

KEY = "treadle/idempotency_key"
"""Under which a request's `_meta` holds the call's idempotency key."""
CONNECT_SECONDS = 30.0
MAX_CONNECTIONS = 256


class Trip(Struct, frozen=True):
    """How one request fared."""

    key: str | None = None
    """The idempotency key of the call that it was for, if it failed."""
    status: int | None = None
    """Of the answer, if that is an error."""
    error: Exception | None = None
    is_unsent: bool = False
    """No connection came about, so the server has seen nothing of it."""


def make_client(headers: Mapping[str, str], note: Callable[[Trip], None]) -> Any:
    """A client that waits as long as its caller does, for as many calls as there are; `note` hears of each trip."""
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
                is_error = response.status_code >= 400
                self._note(Trip(_key_of(request), response.status_code) if is_error else Trip())
            return response

    return Client


def _key_of(request: Any) -> str | None:
    try:
        return str(msgspec.json.decode(request.content)["params"]["_meta"][KEY])
    except Exception:
        # Another request than a call, or none with a body.
        return None
