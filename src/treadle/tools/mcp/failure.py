"""Failures between this process and a server, and what they mean for the call.

The HTTP client of sessions is here because it records failures that the SDK does not report.
"""

import functools
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ToolError, TreadleError
from treadle.core.registry import require
from treadle.core.texts.documents import read_data
from treadle.http.guarded import find_public

MAX_MESSAGE_CHARS = 2000

_CONNECTION_CLOSED = -32000
_NO_SESSION = re.compile(
    r"session.{0,80}(terminated|expired|not found|unknown)|no valid session|invalid session", re.I
)
_NOTHING_SAID = (
    "Server returned an error response",
    "Not Found",
    "Session terminated",
    "Connection closed",
)
"""Messages of the SDK that say no more than a status does."""


class UnreachableError(TreadleError):
    """Raised if no connection to a server can be made, or if it does not answer as MCP requires."""


class EndedError(UnreachableError):
    """Raised if a server's process ends before it has answered."""


class FailureMeaning(Enum):
    """The meaning of a failure for its call."""

    ANSWERED = auto()
    """The server answered with an error or with something invalid. The session continues."""
    LOST = auto()
    """No answer will come. The call may have run or not."""
    NOT_RUN = auto()
    """The call did not run: it did not reach the server, or the server does not know the session."""


def judge(error: BaseException, *, is_over: bool, status: int | None) -> FailureMeaning:
    """Return what an error means for its call. `status` is the status of its HTTP response, if there is one."""
    leaf = first_leaf(error)
    code, message = getattr(leaf, "code", None), message_of(leaf)
    if status in (400, 404) and _NO_SESSION.search(message):
        return FailureMeaning.NOT_RUN
    if code == _CONNECTION_CLOSED and message.startswith(("Connection closed", "SSE stream")):
        return FailureMeaning.LOST
    if (
        is_over
        or isinstance(leaf, ConnectionError)
        or type(leaf).__name__ in read_data(__package__, "words")["lost"]
    ):
        return FailureMeaning.LOST
    return FailureMeaning.ANSWERED


def first_leaf(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def message_of(error: BaseException) -> str:
    """Return the message of an error, shortened, without its type."""
    text = str(getattr(error, "message", None) or error).strip()
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} […]"


def describe(error: BaseException, status: int | None = None) -> str:
    """Return a short text for a message: what the server said or what happened, and what helps."""
    message = message_of(error)
    if hasattr(error, "code") and status is not None:
        is_said = message not in _NOTHING_SAID
        return f"it answers HTTP {_phrase(status)}{f' ({message})' if is_said else ''}{_advice(status)}"
    if hasattr(error, "code"):
        return message or "it gives no reason"
    kind = type(error).__name__
    if kind == "ValidationError":
        return f"what it answers does not follow the protocol ({message})"
    if kind in ("ConnectError", "ConnectTimeout"):
        return f"nothing answers at its address ({message}); is it running?"
    return f"{kind}: {message}" if message else kind


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _advice(status: int) -> str:
    if status < 400:
        return "; give the URL that the redirect leads to, if you trust it"
    if status in (401, 403):
        return "; it needs headers such as Authorization"
    if status in (404, 405):
        return "; check that the URL is that of an MCP endpoint"
    if status == 429:
        return "; it asks for fewer requests"
    return "; the server is at fault" if status >= 500 else ""


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


def make_client(
    headers: Mapping[str, str], note: Callable[[Trip], None], *, is_public_only: bool = False
) -> Any:
    """Return a client without a read time-out, as calls have their own. `note` is called with each outcome. If it
    `is_public_only`, it connects only to addresses of the public internet."""
    httpx = require("httpx2", "mcp")
    return _client_class()(
        note,
        is_public_only=is_public_only,
        headers=dict(headers),
        timeout=httpx.Timeout(CONNECT_SECONDS, read=None, pool=None),
        limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=64),
    )


@functools.cache
def _client_class() -> Any:
    httpx = require("httpx2", "mcp")
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)

    class Client(httpx.AsyncClient):  # type: ignore[misc, name-defined]
        def __init__(self, note: Callable[[Trip], None], *, is_public_only: bool, **options: Any) -> None:
            super().__init__(**options)
            self._note, self._is_public_only = note, is_public_only

        async def send(self, request: Any, **options: Any) -> Any:
            try:
                if self._is_public_only:
                    await self._pin(request)
                response = await super().send(request, **options)
            except httpx.TransportError as error:
                self._note(Trip(_key_of(request), error=error, is_unsent=isinstance(error, unsent)))
                raise
            if request.method == "POST":
                has_failed = response.status_code >= 300
                self._note(Trip(_key_of(request), response.status_code) if has_failed else Trip())
            return response

        async def _pin(self, request: Any) -> None:
            """Send a request to a checked address, so that a name server cannot answer differently later."""
            host = request.url.host
            port = request.url.port or (443 if request.url.scheme == "https" else 80)
            try:
                address, *_ = await find_public(host, port)
            except ToolError as error:
                raise httpx.ConnectError(str(error), request=request) from error
            request.url = request.url.copy_with(host=address)
            request.extensions = {**request.extensions, "sni_hostname": host}

    return Client


def _key_of(request: Any) -> str | None:
    try:
        return str(msgspec.json.decode(request.content)["params"]["_meta"][KEY])
    except Exception:
        # The request is not a call, or has no body.
        return None
