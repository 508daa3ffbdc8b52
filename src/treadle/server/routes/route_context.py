"""What the routes of a request get: the host, the caller, and streams of events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, model_validator

from treadle.core.types import Json
from treadle.server.access import ApiCaller, RequestRefused
from treadle.server.run_host import RunHost

KEEP_ALIVE_SECONDS = 15.0
"""How often a stream in which nothing happens says that it is alive."""
encode = msgspec.json.Encoder().encode


def get_host(request: Request) -> RunHost:
    """Return the host that the application serves."""
    host: RunHost = request.app.state.host
    return host


def get_caller(request: Request) -> ApiCaller:
    """Return the caller, whom the gate has found."""
    caller: ApiCaller = request.state.caller
    return caller


def need(scope: str) -> Callable[[Request], ApiCaller]:
    """Return a dependency: the caller, whose key must have the scope."""

    def check(request: Request) -> ApiCaller:
        caller = get_caller(request)
        if scope not in caller.scopes:
            raise RequestRefused(403, f"this key does not have the scope {scope!r}", "forbidden")
        return caller

    return check


TheHost = Annotated[RunHost, Depends(get_host)]
Reader = Annotated[ApiCaller, Depends(need("read"))]
Runner = Annotated[ApiCaller, Depends(need("run"))]


class ClientBody(BaseModel):
    """The base of the bodies of requests."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _check_characters(cls, value: Any) -> Any:
        try:
            encode(value)
        except UnicodeEncodeError:
            raise ValueError("the request has half of a surrogate pair, which is no character") from None
        return value


class Fast(JSONResponse):
    """A response whose body is encoded by msgspec."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return encode(content)


def event_stream(
    lines: AsyncIterator[bytes],
    on_close: Callable[[], None] | None = None,
    more_headers: Mapping[str, str] | None = None,
    waiting: "set[asyncio.Task[bytes]] | None" = None,
) -> StreamingResponse:
    """Return a stream of server-sent events. `on_close` is called if the client leaves before the end.

    The stream has its task in `waiting` while nothing comes, and ends if the task is cancelled.
    """

    async def body() -> AsyncIterator[bytes]:
        is_complete = False
        try:
            async for line in _alive(lines, waiting):
                yield line
            is_complete = True
        finally:
            if not is_complete and on_close is not None:
                on_close()

    headers = {"cache-control": "no-store", "x-accel-buffering": "no", **(more_headers or {})}
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


async def _alive(
    lines: AsyncIterator[bytes], waiting: "set[asyncio.Task[bytes]] | None"
) -> AsyncIterator[bytes]:
    """Yield lines, with a comment whenever nothing came for a while."""
    coming: asyncio.Task[bytes] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(lines))
            if waiting is not None:
                waiting.add(coming)
                coming.add_done_callback(waiting.discard)
            done, _ = await asyncio.wait([coming], timeout=KEEP_ALIVE_SECONDS)
            if not done:
                yield b": still here\n\n"
                continue
            finished, coming = coming, None
            try:
                line = finished.result()
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                return  # the server is stopping
            yield line
    finally:
        if coming is not None:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await coming
        with contextlib.suppress(Exception):
            await lines.aclose()  # type: ignore[attr-defined]


def to_sse(event: dict[str, Json]) -> bytes:
    """Return an event whose name is its `type`."""
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), encode(event))


__all__ = [
    "ClientBody",
    "Fast",
    "Reader",
    "Response",
    "Runner",
    "TheHost",
    "encode",
    "event_stream",
    "get_host",
    "need",
    "to_sse",
]
