"""The seam between a dialect and the network: a POST with a whole or a streamed answer, and a GET.

`HttpTransport` speaks HTTP over one connection pool per process; `InProcessTransport` asks a function, for
tests. Whatever goes wrong below HTTP leaves here as a `TransportError` that names the host and what to check;
a status is the dialect's to judge. No header ever enters an error or a repr.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from treadle.core.errors import ConfigError, ProviderTimeoutError, RequestError, TransportError
from treadle.core.types import Json
from treadle.http.cancellation import CancellationCheck

if TYPE_CHECKING:
    from pyreqwest.client import Client
    from pyreqwest.request import RequestBuilder

MAX_ANSWER_BYTES = 64 * 1024 * 1024


class Answer(Struct, frozen=True):
    """A whole answer of any status."""

    status: int
    body: bytes
    header: Callable[[str], str | None]
    """The first header of a name, in any case of letters."""


class StreamedAnswer(Struct, frozen=True):
    """An answer of any status whose body is still on its way."""

    status: int
    header: Callable[[str], str | None]
    chunks: AsyncIterator[bytes]
    """The body as it arrives, in pieces of any size."""


class Transport(Protocol):
    """Takes a POST to a server and brings its answer back."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The whole answer.

        Raises: `TransportError` if none came, or only a part.
        """
        ...

    async def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """The same for a GET, by which servers tell of their models."""
        ...

    def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[StreamedAnswer]:
        """The answer piece by piece; leaving the context closes the connection if the body is not at its end.

        Raises: `TransportError` on entering and from `chunks`.
        """
        ...


class HttpTransport:
    """HTTP over the process's connection pool. Usable from several event loops and threads at a time.

    A cancelled task ends at once. Its connection is closed if a streamed answer had begun; before that
    pyreqwest 0.15 has no way to break it off, so it lingers until the server answers or the time-out.
    """

    def __init__(self, *, timeout_seconds: float = 600.0, connect_timeout_seconds: float = 10.0) -> None:
        for name, value in (
            ("timeout_seconds", timeout_seconds),
            ("connect_timeout_seconds", connect_timeout_seconds),
        ):
            if not 0 < value <= 1e9:
                raise ConfigError(f"{name} is {value!r}; give a positive number of seconds")
        self._timeout_seconds = timeout_seconds
        self._timeout = timedelta(seconds=timeout_seconds)
        self._connect_timeout_seconds = connect_timeout_seconds

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """See `Transport.post`."""
        cancelled = CancellationCheck()
        try:
            async with self._request(url, headers, body).build_streamed() as response:
                # One byte more than allowed tells an answer that is too long from one that just fits.
                content = await response.body_reader.read(MAX_ANSWER_BYTES + 1)
                answer = Answer(response.status, content.to_bytes() if content else b"", response.get_header)
        except Exception as error:
            raise self._explain(url, error) from None
        cancelled.check()
        if len(answer.body) > MAX_ANSWER_BYTES:
            raise _too_long(url)
        return answer

    async def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """The whole answer to a GET. Raises: `TransportError` if none came, or only a part."""
        cancelled = CancellationCheck()
        try:
            request = _pooled_client(self._connect_timeout_seconds).get(url).headers(headers)
            async with request.timeout(self._timeout).build_streamed() as response:
                content = await response.body_reader.read(MAX_ANSWER_BYTES + 1)
                answer = Answer(response.status, content.to_bytes() if content else b"", response.get_header)
        except Exception as error:
            raise self._explain(url, error) from None
        cancelled.check()
        return answer

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[StreamedAnswer]:
        """See `Transport.stream`."""
        # With the default limit a piece is held back until the buffer is full.
        request = self._request(url, headers, body).streamed_read_buffer_limit(0).build_streamed()
        cancelled = CancellationCheck()
        try:
            response = await request.__aenter__()
        except Exception as error:
            raise self._explain(url, error) from None

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
            except Exception as error:
                raise self._explain(url, error) from None

        try:
            cancelled.check()
            yield StreamedAnswer(response.status, response.get_header, chunks())
        finally:
            await request.__aexit__(None, None, None)

    def _request(self, url: str, headers: Mapping[str, str], body: bytes) -> "RequestBuilder":
        client = _pooled_client(self._connect_timeout_seconds)
        try:
            return client.post(url).headers(headers).timeout(self._timeout).body_bytes(body)
        except ValueError as error:
            # What pyreqwest says may quote a header's value.
            what = (
                str(error) if "URL" in str(error) or "host" in str(error) else "a header's value is not valid"
            )
            raise ConfigError(f"cannot send a request to {origin_of(url)}: {what}") from None

    def _explain(self, url: str, error: Exception) -> Exception:
        """The typed error for what pyreqwest raised; other errors are passed on."""
        from pyreqwest import exceptions as http

        if not isinstance(error, http.PyreqwestError):
            return error
        causes = [
            str(cause["message"]) for cause in (getattr(error, "details", None) or {}).get("causes") or ()
        ]
        detail = causes[-1].split(" (os error")[0].lower() if causes else str(error.message)
        where = origin_of(url)
        is_connecting = "client error (Connect)" in causes
        if isinstance(error, http.RequestTimeoutError):
            return _explain_timeout(where, is_connecting, self)
        if isinstance(error, http.BuilderError):
            return ConfigError(f"cannot send a request to {where}: {detail}; check base_url")
        if is_connecting:
            hint = "is the server running? check base_url"
            if "dns error" in causes:
                hint = "the host name is not known; check base_url and the network"
            elif url.startswith("https:") and "tcp connect error" not in causes:
                hint = "check that base_url is right to say https, and the server's certificate"
            return TransportError(f"cannot connect to {where} ({detail}): {hint}")
        if isinstance(error, http.DecodeError):
            return TransportError(f"{where} did not answer in HTTP ({detail}); check base_url")
        return TransportError(f"the connection to {where} broke before the whole answer came ({detail})")

    def __repr__(self) -> str:
        return f"HttpTransport(timeout_seconds={self._timeout_seconds!r})"


def _explain_timeout(where: str, is_connecting: bool, transport: HttpTransport) -> ProviderTimeoutError:
    if is_connecting:
        return ProviderTimeoutError(
            f"cannot connect to {where} within {transport._connect_timeout_seconds:g} s; check base_url and "
            "the network, or raise connect_timeout_seconds"
        )
    return ProviderTimeoutError(
        f"{where} did not give its whole answer within {transport._timeout_seconds:g} s; raise "
        "timeout_seconds if the model needs longer"
    )


def _too_long(url: str) -> RequestError:
    return RequestError(f"the answer of {origin_of(url)} is longer than {MAX_ANSWER_BYTES} bytes")


def origin_of(url: str) -> str:
    """Scheme, host and port of `url`, and nothing that may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@lru_cache(maxsize=8)
def _pooled_client(connect_timeout_seconds: float) -> "Client":
    """The process's client; only another connect time-out needs another."""
    from pyreqwest.client import ClientBuilder

    builder = ClientBuilder().connect_timeout(timedelta(seconds=connect_timeout_seconds))
    try:
        client = builder.tcp_keepalive(timedelta(seconds=60)).user_agent("treadle").build()
    except RuntimeError as error:
        if _of_parent:
            raise ConfigError(
                "this process was forked from one that had asked a model already, and HTTP does not survive "
                "that; start processes with 'spawn', or fork before the first request"
            ) from error
        raise
    _forget_in_forks(client)
    return client


_of_parent: list["Client"] = []


def _forget_in_forks(client: "Client") -> None:
    """A forked child has none of the client's threads, and would wait for them for ever."""

    def forget() -> None:
        _of_parent.append(client)
        _pooled_client.cache_clear()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


class HttpRequest(Struct, frozen=True):
    """What an in-process handler is asked."""

    url: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Json:
        """The body decoded."""
        return msgspec.json.decode(self.body)


class HttpResponse(Struct, frozen=True):
    """What an in-process handler answers."""

    body: bytes | list[bytes] | Json = b""
    """Bytes, a list of byte chunks as a stream delivers them, or a value to encode as JSON."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def chunks(self) -> list[bytes]:
        """The body in the pieces in which it arrives."""
        if isinstance(self.body, bytes):
            return [self.body]
        if isinstance(self.body, list) and self.body and all(isinstance(piece, bytes) for piece in self.body):
            return self.body
        return [msgspec.json.encode(self.body)]


Handler: TypeAlias = Callable[[HttpRequest], "HttpResponse | Awaitable[HttpResponse]"]


class InProcessTransport:
    """Asks a function instead of a server. It may be async, and may raise a `TransportError`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[HttpRequest] = []
        """What was asked, in order."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """See `Transport.post`."""
        response = await self._ask(url, headers, body)
        return Answer(response.status, b"".join(response.chunks()), _header_of(response))

    async def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """See `Transport.get`."""
        response = await self._ask(url, headers, b"")
        return Answer(response.status, b"".join(response.chunks()), _header_of(response))

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[StreamedAnswer]:
        """See `Transport.stream`."""
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
