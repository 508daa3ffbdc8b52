"""One connection to a server, which is never replaced by another.

A caller that asks something and then acts on the answer needs to know that both requests reach the same
process. The transports of `treadle.http.transport` open a new connection whenever an old one is lost; this one
fails instead. It does not use proxies.
"""

import asyncio
import gzip

from treadle.http import transport_errors
from treadle.http.plain.client import HttpRoute, Pool, frame
from treadle.http.plain.http_connection import HttpConnection
from treadle.http.protocol import Answer

_MIN_GZIP_BYTES = 1024
"""Smaller bodies are sent as they are."""


class PinnedConnection(Pool):
    """A pool of one connection, made by `open`."""

    _connection: HttpConnection | None = None
    """`None` until it is made, which can fail."""
    _url: str

    @classmethod
    async def open(cls, url: str, timeouts: transport_errors.Timeouts | None = None) -> "PinnedConnection":
        """Connect to the server at `url`, whose path comes before the paths of all requests.

        Raises: `ConfigError` for an invalid URL; `TransportError` if there is no connection.
        """
        limits, loop = timeouts or transport_errors.Timeouts(), asyncio.get_running_loop()
        route = HttpRoute("GET", url, {})
        if route.scheme not in ("http", "https"):
            raise transport_errors.invalid_url(url, "it needs http:// or https:// and a host")
        made = cls(loop, route, limits)
        made._url = url.rstrip("/")
        made._connection = await made.connect(loop.time() + limits.total)
        return made

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Send a request with a JSON body, and return the answer. A large body is sent in gzip.

        Raises: `TransportError` if the connection is lost or the answer takes too long. It is then closed, and it
        is not known whether the server has received the request.
        """
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
            packed = gzip.compress(body, 1) if len(body) >= _MIN_GZIP_BYTES else body
            if len(packed) < len(body):
                headers["content-encoding"], body = "gzip", packed
        assert self._connection is not None
        payload, unsent = frame(HttpRoute(method, self._url + path, headers), body)
        now = self.loop.time()
        try:
            answer: Answer = await self._connection.ask(
                payload, unsent, now, now + self._timeouts.total, False
            )
            return answer
        except asyncio.CancelledError:
            # The answer may still come, and would be taken for the answer to the next request.
            self.close()
            raise

    def close(self) -> None:
        super().close()
        if self._connection is not None:
            self._connection.drop()

    def release(self, connection: HttpConnection) -> None:
        """See `Pool.release`. The connection is kept, however long it is idle."""
        self._busy.discard(connection)
