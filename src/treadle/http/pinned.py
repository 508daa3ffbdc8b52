"""One connection to a server, which is never replaced by another.

A caller that asks something and then acts on the answer needs to know that both requests reach the same
process. The transports of `treadle.http.transport` open a new connection whenever an old one is lost; this one
fails instead. It does not use proxies.
"""

import asyncio
import gzip
import ssl
from urllib.parse import urlsplit

from treadle.http import transport_errors
from treadle.http.plain.dial import explain_tls, tls_context
from treadle.http.plain.http_connection import HttpConnection
from treadle.http.protocol import Answer

_MIN_GZIP_BYTES = 1024
"""Smaller bodies are sent as they are."""


class PinnedConnection:
    """A connection to a server, made by `open`. It is the `ConnectionOwner` of its only connection."""

    def __init__(self, url: str, timeouts: transport_errors.Timeouts) -> None:
        parts = urlsplit(url)
        self.loop = asyncio.get_running_loop()
        self.origin = transport_errors.origin_of(url)
        self._prefix = parts.path.rstrip("/")
        self._host = parts.netloc.rpartition("@")[2]
        self._timeouts = timeouts
        self._connection = HttpConnection(self)

    @classmethod
    async def open(cls, url: str, timeouts: transport_errors.Timeouts | None = None) -> "PinnedConnection":
        """Connect to the server at `url`, whose path comes before the paths of all requests.

        Raises: `ConfigError` for an invalid URL; `TransportError` if there is no connection.
        """
        limits, parts = timeouts or transport_errors.Timeouts(), urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise transport_errors.invalid_url(url, "it needs http:// or https:// and a host")
        made, is_secure = cls(url, limits), parts.scheme == "https"
        try:
            async with asyncio.timeout(limits.connect):
                await made.loop.create_connection(
                    lambda: made._connection,
                    parts.hostname,
                    parts.port or (443 if is_secure else 80),
                    ssl=tls_context() if is_secure else None,
                )
        except TimeoutError:
            raise transport_errors.connect_timeout(made.origin, limits) from None
        except ssl.SSLError as error:
            raise transport_errors.no_tls(made.origin, explain_tls(error)) from error
        except OSError as error:
            raise transport_errors.cannot_connect(
                made.origin, str(error), transport_errors.SERVER_DOWN
            ) from error
        return made

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
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
        payload = "\r\n".join([*head, "", ""]).encode() + (body or b"")
        now = self.loop.time()
        try:
            async with asyncio.timeout(self._timeouts.silence):
                answer: Answer = await self._connection.ask(payload, b"", now, now, False)
                return answer
        except TimeoutError:
            self.close()
            raise transport_errors.answer_timeout(self.origin, self._timeouts, is_total=False) from None
        except asyncio.CancelledError:
            # The answer may still come, and would be taken for the answer to the next request.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.drop()

    def send(self, connection: HttpConnection, payload: bytes) -> None:
        """See `ConnectionOwner`; `ask` limits the time itself."""
        connection.write(payload)

    def release(self, connection: HttpConnection) -> None:
        """See `ConnectionOwner`."""

    def forget(self, connection: HttpConnection) -> None:
        """See `ConnectionOwner`."""
