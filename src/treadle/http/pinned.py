"""One connection to a server, which is never replaced by another.

A caller that asks something and then acts on the answer needs to know that both requests reach the same
process. The transports of `treadle.http.transport` open a new connection whenever an old one is lost; this one
fails instead. It does not use proxies.
"""

import asyncio
import contextlib
import gzip
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct

from treadle.http import transport_errors
from treadle.http.protocol import MAX_ANSWER_BYTES

_READ_BYTES = 256 * 1024
_MIN_GZIP_BYTES = 1024
"""Smaller bodies are sent as they are."""


class PinnedAnswer(Struct, frozen=True):
    """The answer to a request."""

    status: int
    body: bytes


class PinnedConnection:
    """A connection to a server; made by `open`."""

    def __init__(
        self,
        origin: str,
        prefix: str,
        host: str,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        timeouts: transport_errors.Timeouts,
    ) -> None:
        self._origin = origin
        self._prefix = prefix
        self._host = host
        self._reader, self._writer = streams
        self._timeouts = timeouts

    @classmethod
    async def open(cls, url: str, timeouts: transport_errors.Timeouts | None = None) -> "PinnedConnection":
        """Connect to the server at `url`, whose path comes before the paths of all requests.

        Raises: `ConfigError` for an invalid URL; `TransportError` if there is no connection.
        """
        limits = timeouts or transport_errors.Timeouts()
        origin = transport_errors.origin_of(url)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise transport_errors.invalid_url(url, "it needs http:// or https:// and a host")
        is_secure = parts.scheme == "https"
        try:
            async with asyncio.timeout(limits.connect):
                streams = await asyncio.open_connection(
                    parts.hostname, parts.port or (443 if is_secure else 80), ssl=is_secure or None
                )
        except TimeoutError:
            raise transport_errors.connect_timeout(origin, limits) from None
        except OSError as error:
            raise transport_errors.cannot_connect(origin, str(error), transport_errors.SERVER_DOWN) from error
        host = parts.netloc.rpartition("@")[2]
        return cls(origin, parts.path.rstrip("/"), host, streams, limits)

    async def ask(self, method: str, path: str, body: bytes | None = None) -> PinnedAnswer:
        """Send a request with a JSON body, and return the answer. A large body is sent in gzip.

        Raises: `TransportError` if the connection is lost or the answer takes too long. It is then closed, and it
        is not known whether the server has received the request.
        """
        head = [f"{method} {self._prefix}{path} HTTP/1.1", f"host: {self._host}", "accept: application/json"]
        if body is not None:
            packed = gzip.compress(body, 1) if len(body) >= _MIN_GZIP_BYTES else body
            if len(packed) < len(body):
                head.append("content-encoding: gzip")
                body = packed
            head += ["content-type: application/json", f"content-length: {len(body)}"]
        try:
            async with asyncio.timeout(self._timeouts.silence):
                self._writer.write("\r\n".join([*head, "", ""]).encode() + (body or b""))
                await self._writer.drain()
                return await self._read()
        except TimeoutError:
            self.close()
            raise transport_errors.answer_timeout(self._origin, self._timeouts, is_total=False) from None
        except HttpParserError as error:
            self.close()
            raise transport_errors.not_http(self._origin, str(error)) from error
        except OSError as error:
            self.close()
            raise transport_errors.broken(self._origin, str(error) or type(error).__name__) from error
        except asyncio.CancelledError:
            # The answer may still come, and would be taken for the answer to the next request.
            self.close()
            raise

    async def _read(self) -> PinnedAnswer:
        collector = _Collector()
        parser = collector.parser = HttpResponseParser(collector)
        size = 0
        while not collector.is_complete:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed it")
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                self.close()
                raise transport_errors.too_long(self._origin)
            parser.feed_data(data)
        if not collector.is_kept:
            self.close()
        return PinnedAnswer(collector.status, b"".join(collector.pieces))

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(Exception):
            self._writer.close()


class _Collector:
    """The callbacks of the parser."""

    def __init__(self) -> None:
        self.parser: HttpResponseParser | None = None
        self.pieces: list[bytes] = []
        self.status = 0
        self.is_complete = self.is_kept = False

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        # The parser forgets these when it begins with the next answer.
        if self.parser is not None:
            self.status, self.is_kept = self.parser.get_status_code(), self.parser.should_keep_alive()
        self.is_complete = True
