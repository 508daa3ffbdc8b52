"""The compression of answers. Streams of events are never compressed, because their pieces would wait."""

import asyncio
import gzip
from collections.abc import Iterable
from typing import Any

from treadle.server.admission.access import Receive, Scope, Send

_LEAST_BYTES = 1024
"""Shorter answers fit into one packet as they are."""
_AT_ONCE_BYTES = 16_384
"""Longer answers are compressed in a thread."""
_LEVEL = 2
_TYPES = (b"application/json", b"application/x-ndjson", b"text/")
_STREAM = b"text/event-stream"


def takes_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a client reads answers in gzip."""
    given = b",".join([value for name, value in headers if name == b"accept-encoding"]).decode("latin-1")
    ranks = {}
    for part in given.lower().split(","):
        name, _, rest = part.partition(";")
        ranks[name.strip()] = rest.replace(" ", "").removeprefix("q=").strip("0.") != "" or not rest
    return ranks.get("gzip", ranks.get("*", False))


class Compressed:
    """ASGI middleware that compresses the answers to GET requests, for clients that take them so."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_get = scope["type"] == "http" and scope["method"] == "GET"
        if not (is_get and takes_gzip(scope["headers"])):
            await self._app(scope, receive, send)
            return
        head: Any = None

        async def send_packed(message: Any) -> None:
            nonlocal head
            if message["type"] == "http.response.start" and _is_packable(message["headers"]):
                head = message
                return
            if head is not None:
                begun, head = head, None
                body = message.get("body", b"")
                if not message.get("more_body", False) and len(body) >= _LEAST_BYTES:
                    packed = (
                        _pack(body) if len(body) <= _AT_ONCE_BYTES else await asyncio.to_thread(_pack, body)
                    )
                    begun, message = _with_length(begun, len(packed)), {**message, "body": packed}
                await send(begun)
            await send(message)

        await self._app(scope, receive, send_packed)


def _pack(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)


def _is_packable(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    given = dict(headers)
    kind = given.get(b"content-type", b"")
    return kind.startswith(_TYPES) and not kind.startswith(_STREAM) and b"content-encoding" not in given


def _with_length(begun: Any, length: int) -> Any:
    """Return the head of a compressed answer."""
    vary = [value for name, value in begun["headers"] if name == b"vary"]
    kept = [item for item in begun["headers"] if item[0] not in (b"content-length", b"vary")]
    told = [(b"content-length", b"%d" % length), (b"content-encoding", b"gzip")]
    return {**begun, "headers": [*kept, *told, (b"vary", b", ".join([*vary, b"accept-encoding"]))]}
