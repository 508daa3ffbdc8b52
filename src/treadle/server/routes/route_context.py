"""What the routes of a request get: the host, the caller, and streams of events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, model_validator

from treadle.core.types import Json
from treadle.server.access import ApiCaller, Receive, RequestRefused, Scope, Send, to_sse
from treadle.server.run_host import RunHost

KEEP_ALIVE_SECONDS = 15.0
"""How often a stream in which nothing happens says that it is alive."""
encode = msgspec.json.Encoder().encode


# The dependencies are coroutines, because FastAPI calls each plain function in a thread.
async def get_host(request: Request) -> RunHost:
    """Return the host that the application serves."""
    host: RunHost = request.app.state.host
    return host


def get_caller(request: Request) -> ApiCaller:
    """Return the caller, whom the gate has found."""
    caller: ApiCaller = request.state.caller
    return caller


def need(scope: str) -> Callable[[Request], Awaitable[ApiCaller]]:
    """Return a dependency: the caller, whose key must have the scope."""

    async def check(request: Request) -> ApiCaller:
        caller = get_caller(request)
        if scope not in caller.scopes:
            raise RequestRefused(403, f"this key does not have the scope {scope!r}", "forbidden")
        return caller

    return check


TheHost = Annotated[RunHost, Depends(get_host)]
Reader = Annotated[ApiCaller, Depends(need("read"))]
check_runner = need("run")
Runner = Annotated[ApiCaller, Depends(check_runner)]


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


class EventStream(StreamingResponse):
    """A stream of server-sent events."""

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        on_close: Callable[[], None] | None = None,
        more_headers: Mapping[str, str] | None = None,
        waiting: "set[asyncio.Task[bytes]] | None" = None,
    ) -> None:
        """Make a stream. `on_close` is called if the client leaves before the end, or before the beginning.

        The stream has its task in `waiting` while nothing comes, and ends if the task is cancelled.
        """
        self._is_complete = False
        self._on_close = on_close
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", **(more_headers or {})}
        super().__init__(self._body(lines, waiting), media_type="text/event-stream", headers=headers)

    async def _body(
        self, lines: AsyncIterator[bytes], waiting: "set[asyncio.Task[bytes]] | None"
    ) -> AsyncIterator[bytes]:
        async for line in _alive(lines, waiting):
            yield line
        self._is_complete = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if not self._is_complete and self._on_close is not None:
                self._on_close()


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


def write_named(event: dict[str, Json]) -> bytes:
    """Return an event whose name is its `type` as a server-sent event."""
    return to_sse(encode(event), event["type"])
