"""The only module that uses pyreqwest: clients, cancellation, limits, and the meaning of its errors.

It is used for https:// URLs and proxies. Source: pyreqwest 0.15, for every statement here about its behaviour.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.core.errors import ConfigError, ProviderError, RequestError
from treadle.http import transport_errors
from treadle.http.locks import in_child
from treadle.http.protocol import MAX_ANSWER_BYTES, Answer, StreamedAnswer

if TYPE_CHECKING:
    from pyreqwest.client import Client
    from pyreqwest.exceptions import PyreqwestError
    from pyreqwest.request import RequestBuilder
    from pyreqwest.response import Response


class CancellationCheck:
    """A check for cancellations that pyreqwest loses: those that arrive at the same moment as the awaited result.

    Make one before waiting and call `check` after it.
    """

    __slots__ = ("_count", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._count = self._task.cancelling() if self._task is not None else 0

    def check(self) -> None:
        """Raise `asyncio.CancelledError` if the current task was cancelled meanwhile."""
        if self._task is not None and self._task.cancelling() > self._count:
            raise asyncio.CancelledError


class ClientSettings(Struct, frozen=True):
    """The settings of a client. Time-outs are set here because setting them for each request is slower."""

    connect_timeout_seconds: float = 10.0
    total_timeout_seconds: float | None = None
    silence_timeout_seconds: float | None = None
    """The longest time in which nothing arrives."""
    idle_timeout_seconds: float = 90.0
    pinned: tuple[str, str] | None = None
    """A host name, and the only address that it may have. Such a client uses no proxy."""


@lru_cache(maxsize=256)
def client_for(settings: ClientSettings) -> "Client":
    """Return the process's pooled client with these settings. It follows no redirect.

    Raises: `ConfigError` in a forked child of a process that has used one.
    """
    from pyreqwest.client import ClientBuilder

    builder = ClientBuilder().user_agent("treadle").tcp_keepalive(timedelta(seconds=60))
    builder = builder.connect_timeout(timedelta(seconds=settings.connect_timeout_seconds))
    builder = builder.pool_idle_timeout(timedelta(seconds=settings.idle_timeout_seconds)).follow_redirects(
        False
    )
    if settings.total_timeout_seconds is not None:
        builder = builder.timeout(timedelta(seconds=settings.total_timeout_seconds))
    if settings.silence_timeout_seconds is not None:
        builder = builder.read_timeout(timedelta(seconds=settings.silence_timeout_seconds))
    if settings.pinned is not None:
        host, address = settings.pinned
        builder = builder.no_proxy().resolve(host, address, 0)
    try:
        client = builder.build()
    except RuntimeError as error:
        if _of_parent:
            raise ConfigError(
                "this process was forked from one that had sent HTTPS requests already, and the HTTP client does "
                "not work after a fork; start processes with 'spawn', or fork before the first request"
            ) from error
        raise
    _forget_in_forks(client)
    return client


_of_parent: list["Client"] = []


def _forget_in_forks(client: "Client") -> None:
    """Keep a forked child from waiting forever for the client's threads, which do not exist in it."""

    def forget() -> None:
        _of_parent.append(client)
        client_for.cache_clear()

    in_child(forget)


class Stage(Enum):
    """The stage of a request at which it failed."""

    LOOKING_UP = auto()
    """The look-up of the host's addresses."""
    CONNECTING = auto()
    SECURING = auto()
    """The TLS handshake."""
    ASKING = auto()
    """Sending the request, or reading the answer."""


def stage_of(error: "PyreqwestError", *, is_https: bool) -> Stage:
    """Return the stage at which a request failed.

    This reads the texts of the error's causes, because neither its type nor a code tells the stage:
    `ConnectError` is also raised for a reset after the request was sent, and `ConnectTimeoutError` for any
    time-out before the answer's head. The texts are constants of hyper-util's client and of its connector.
    """
    causes = _causes_of(error)
    if "client error (Connect)" not in causes:
        return Stage.ASKING
    if "dns error" in causes:
        return Stage.LOOKING_UP
    return Stage.SECURING if is_https and "tcp connect error" not in causes else Stage.CONNECTING


def describe(error: "PyreqwestError") -> str:
    """Return the innermost cause of an error, which names no URL."""
    causes = _causes_of(error)
    return causes[-1].split(" (os error")[0].lower() if causes else type(error).__name__


def _causes_of(error: "PyreqwestError") -> list[str]:
    details = getattr(error, "details", None) or {}
    return [str(cause["message"]) for cause in details.get("causes") or ()]


async def read_body(response: "Response", max_bytes: int, cancelled: CancellationCheck) -> bytes | None:
    """Return the whole body of a response, or `None` if it is larger than `max_bytes` after decompression."""
    # One byte more than allowed is read, to distinguish a body that is too long from one that just fits.
    content = await response.body_reader.read(max_bytes + 1)
    cancelled.check()
    if content is None:
        return b""
    return None if len(content) > max_bytes else content.to_bytes()


class ReqwestTransport:
    """HTTP through pyreqwest. Transports with the same time-outs share one connection pool in a process.

    A cancelled task ends at once. If a streamed answer had begun, its connection is closed. Before that,
    pyreqwest cannot close the connection, so it stays open until the server answers or the time-out.
    """

    def __init__(self, timeouts: transport_errors.Timeouts | None = None) -> None:
        self._timeouts = timeouts = timeouts or transport_errors.Timeouts()
        self._settings = ClientSettings(timeouts.connect, timeouts.total, timeouts.silence)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return await self._ask("POST", url, headers, body)

    async def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        return await self._ask("GET", url, headers, None)

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[StreamedAnswer]:
        asked: tuple[str, ...] = ()
        cancelled = CancellationCheck()
        while True:
            started = time.monotonic()
            # With the default limit a piece is held back until the buffer is full.
            builder = self._request("POST", url, headers, body).streamed_read_buffer_limit(0)
            request = builder.build_streamed()
            try:
                response = await request.__aenter__()
            except Exception as error:
                raise self._explain(url, error, started) from None
            if response.status not in transport_errors.STATUSES:
                break
            await request.__aexit__(None, None, None)
            cancelled.check()
            asked = (*asked, url)
            url = transport_errors.follow("POST", asked, Answer(response.status, b"", response.get_header))

        async def chunks() -> AsyncIterator[bytes]:
            read_chunk = response.body_reader.read_chunk
            size = 0
            try:
                while (chunk := await read_chunk()) is not None:
                    cancelled.check()
                    size += len(chunk)
                    if size > MAX_ANSWER_BYTES:
                        raise _too_long(url)
                    yield chunk.to_bytes()
                cancelled.check()
            except Exception as error:
                raise self._explain(url, error, started) from None

        try:
            cancelled.check()
            yield StreamedAnswer(response.status, response.get_header, chunks())
        finally:
            await request.__aexit__(None, None, None)
        cancelled.check()

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        asked: tuple[str, ...] = ()
        while True:
            cancelled, started = CancellationCheck(), time.monotonic()
            try:
                async with self._request(method, url, headers, body).build_streamed() as response:
                    content = await read_body(response, MAX_ANSWER_BYTES, cancelled)
                    status, header = response.status, response.get_header
            except Exception as error:
                raise self._explain(url, error, started) from None
            cancelled.check()
            if content is None:
                raise _too_long(url)
            answer = Answer(status, content, header)
            if status not in transport_errors.STATUSES:
                return answer
            asked = (*asked, url)
            url = transport_errors.follow(method, asked, answer)

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> "RequestBuilder":
        client = client_for(self._settings)
        try:
            builder = client.request(method, url)
        except ValueError as error:
            raise transport_errors.invalid_url(url, str(error)) from None
        try:
            builder = builder.headers(headers)
        except ValueError:
            # The text of the error quotes the header's value.
            raise transport_errors.invalid_header(transport_errors.origin_of(url)) from None
        return builder if body is None else builder.body_bytes(body)

    def _explain(self, url: str, error: Exception, started: float) -> Exception:
        """Return the typed error for an error of pyreqwest, and any other error unchanged. `started` is the time at
        which the request was sent, by the monotonic clock."""
        from pyreqwest import exceptions

        if not isinstance(error, exceptions.PyreqwestError):
            return error
        if isinstance(error, exceptions.BuilderError):
            return transport_errors.invalid_url(url, describe(error))
        stage = stage_of(error, is_https=url.startswith("https:"))
        origin = transport_errors.origin_of(url)
        if isinstance(error, exceptions.RequestTimeoutError):
            if stage is not Stage.ASKING and self._timeouts.connect <= min(
                self._timeouts.silence, self._timeouts.total
            ):
                return transport_errors.connect_timeout(origin, self._timeouts)
            # Nothing in the error says which of the two it was.
            is_total = time.monotonic() - started >= self._timeouts.total
            return transport_errors.answer_timeout(origin, self._timeouts, is_total=is_total)
        return _explain_failure(origin, stage, error)

    def __repr__(self) -> str:
        return f"ReqwestTransport({self._timeouts!r})"


_HINTS = {
    Stage.LOOKING_UP: transport_errors.UNKNOWN_HOST,
    Stage.CONNECTING: transport_errors.SERVER_DOWN,
}


def _explain_failure(origin: str, stage: Stage, error: "PyreqwestError") -> ProviderError:
    from pyreqwest import exceptions

    if stage is Stage.SECURING:
        return transport_errors.no_tls(origin, describe(error))
    if stage in _HINTS:
        return transport_errors.cannot_connect(origin, describe(error), _HINTS[stage])
    if isinstance(error, exceptions.BodyDecodeError):
        return transport_errors.bad_body(origin, describe(error))
    if isinstance(error, exceptions.DecodeError):
        return transport_errors.not_http(origin, describe(error))
    return transport_errors.broken(origin, describe(error))


def _too_long(url: str) -> RequestError:
    return transport_errors.too_long(transport_errors.origin_of(url))
