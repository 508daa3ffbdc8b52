"""Sessions with servers: opened, watched, closed and opened again, all on the worker thread."""

import asyncio
import contextlib
import logging
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from msgspec import Struct

from treadle.core.errors import TreadleError
from treadle.registry import require
from treadle.tools.mcp import worker

MAX_PAGES = 200
STDERR_LINES = 20
_SECRET = "***"


class UnreachableError(TreadleError):
    """A server could not be connected to, or did not answer as one should."""


class Target(Struct, frozen=True):
    """Where a server is. Its `repr` holds no secrets."""

    name: str
    command: str | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    url: str | None
    headers: Mapping[str, str]
    server: Any
    """An SDK server object in this process."""
    start_timeout_seconds: float

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    def hide(self, text: str) -> str:
        """`text` without the values of the environment, the headers, and the URL's user and query."""
        parts = re.findall(r"//([^/@]+)@|[?&][^=&]+=([^&#]+)", self.url or "")
        secrets = [*self.env.values(), *self.headers.values(), *[item for pair in parts for item in pair]]
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= 4:
                text = text.replace(secret, _SECRET)
        return text


class Connection:
    """One session."""

    def __init__(self, target: Target, on_tools_changed: Callable[[], None]) -> None:
        self._target = target
        self._on_tools_changed = on_tools_changed
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.client: Any = None
        """The SDK's, while the session is open."""
        self.is_over = False
        """The server ended it, or it was closed."""

    async def open(self) -> None:
        """Connect. Raises: `UnreachableError`."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.ensure_future(self._own(ready))
        seconds = self._target.start_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(ready)
        except TimeoutError:
            await self.close()
            raise UnreachableError(
                self._describe(f"did not answer within {seconds:g} s of being started")
            ) from None
        except asyncio.CancelledError:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            raise self._explain(error) from error

    async def close(self) -> None:
        """End the session, and the server's process if it has one. Idempotent."""
        self._stop.set()
        self.is_over = True
        if self._owner is not None and not self._owner.done():
            if self.client is None:
                self._owner.cancel()
            await asyncio.wait([self._owner], timeout=10)

    async def list_tools(self) -> list[Any]:
        """All pages of the server's tools. Raises: `UnreachableError`."""
        tools: list[Any] = []
        cursor: str | None = None
        seen: set[str] = set()
        try:
            for _ in range(MAX_PAGES):
                page = await self.client.list_tools(cursor=cursor, cache_mode="bypass")
                tools += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return tools
                if cursor in seen:
                    break
                seen.add(cursor)
        except Exception as error:
            raise self._explain(error) from error
        raise UnreachableError(
            self._describe(f"lists its tools without an end (the cursor {cursor!r} came again)")
        )

    async def _own(self, ready: "asyncio.Future[None]") -> None:
        """Hold the session from beginning to end, in one task, as its scopes must be."""
        try:
            async with self._connect() as client:
                self.client = client
                if not ready.done():
                    ready.set_result(None)
                worker.remember(self.close)
                await self._stop.wait()
        except asyncio.CancelledError:
            if not ready.done():
                ready.cancel()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                ready.exception()
        finally:
            self.client = None
            self.is_over = True
            worker.forget(self.close)

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        sdk, target = require("mcp", "mcp"), self._target
        # Without a handler of the program's, what the SDK logs would be printed.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        options = {"message_handler": self._on_message, "cache": None}
        async with contextlib.AsyncExitStack() as stack:
            if target.server is not None:
                where: Any = target.server
            elif target.command is not None:
                errors = await stack.enter_async_context(self._collect_stderr())
                parameters = sdk.StdioServerParameters(
                    command=target.command,
                    args=list(target.args),
                    env=dict(target.env),
                    cwd=target.cwd,
                    encoding_error_handler="replace",
                )
                where = self._watch(sdk.stdio_client(parameters, errors))
            else:
                http = require("mcp.shared._httpx_utils", "mcp")
                streamable = require("mcp.client.streamable_http", "mcp")
                client = http.create_mcp_http_client(headers=dict(target.headers))
                await stack.enter_async_context(client)
                where = self._watch(streamable.streamable_http_client(target.url, http_client=client))
            yield await stack.enter_async_context(sdk.Client(where, **options))

    @contextlib.asynccontextmanager
    async def _watch(self, transport: Any) -> AsyncIterator[Any]:
        async with transport as (read, write):
            yield _Watched(read, self._on_end), write

    def _on_end(self) -> None:
        self.is_over = True
        # Answers that came just before the end have still to reach those who wait for them.
        asyncio.get_running_loop().call_later(0.05, self._stop.set)

    async def _on_message(self, message: Any) -> None:
        if type(message).__name__ == "ToolListChangedNotification":
            self._on_tools_changed()

    @contextlib.asynccontextmanager
    async def _collect_stderr(self) -> AsyncIterator[Any]:
        """A file for the server's standard error, of which the end is kept for messages."""
        read_end, write_end = os.pipe()
        loop = asyncio.get_running_loop()
        keep = _Tail(self._stderr)
        transport, _ = await loop.connect_read_pipe(lambda: keep, os.fdopen(read_end, "rb", buffering=0))
        with os.fdopen(write_end, "wb", buffering=0) as file:
            try:
                yield file
            finally:
                # What the server said last may still be in the pipe.
                await asyncio.sleep(0.01)
                transport.close()

    def _describe(self, what: str) -> str:
        said = "\n".join(self._stderr).strip()
        tail = f"; its standard error ends with:\n{said}" if said else ""
        return self._target.hide(f"the MCP server {self._target.name!r} {what}{tail}")

    def _explain(self, error: Exception) -> UnreachableError:
        """What went wrong, in words that say what to do."""
        leaf = first_leaf(error)
        if isinstance(leaf, UnreachableError):
            return leaf
        if isinstance(leaf, FileNotFoundError) and self._target.command is not None:
            place = f" in {self._target.cwd!r}" if self._target.cwd else ""
            return UnreachableError(
                f"the command {self._target.command!r} of the MCP server {self._target.name!r} is not "
                f"there{place}; install it, or give its whole path"
            )
        if is_closed(leaf):
            return UnreachableError(self._describe("ended before it answered"))
        return UnreachableError(self._describe(f"cannot be used: {describe(leaf)}"))


class _Watched:
    """A stream of messages that says when it has ended."""

    def __init__(self, inner: Any, on_end: Callable[[], None]) -> None:
        self._inner = inner
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise

    async def __aenter__(self) -> "_Watched":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *args: Any) -> Any:
        return await self._inner.__aexit__(*args)


class _Tail(asyncio.Protocol):
    """Keeps the last lines of what is read."""

    def __init__(self, lines: deque[str]) -> None:
        self._lines = lines
        self._rest = ""

    def data_received(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        self._lines.extend(line[:500] for line in whole[-STDERR_LINES:])
        self._rest = self._rest[-500:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._lines.append(self._rest)


class Link:
    """The way to one server: a session that is opened when it is needed, and again after it has ended."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.is_listing_old = False
        """The server said that its tools have changed."""
        self.listing: list[Any] = []
        """The server's tools, as it said last."""
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> Connection:
        """An open session. Raises: `UnreachableError`."""
        async with self._lock:
            found = self._connection
            if found is None or found.is_over or found.client is None:
                if found is not None:
                    await found.close()
                found = Connection(self.target, self._on_tools_changed)
                await found.open()
                try:
                    # The SDK would ask for them after the first call, to know how to check its result.
                    self.listing = await found.list_tools()
                except BaseException:
                    await found.close()
                    raise
                self.is_listing_old = False
                self._connection = found
            return found

    async def list_again(self, connection: Connection) -> None:
        """Ask for the tools anew. Raises: `UnreachableError`."""
        self.listing = await connection.list_tools()
        self.is_listing_old = False

    async def drop(self, connection: Connection) -> None:
        """It is of no use any more."""
        connection.is_over = True
        await connection.close()

    async def close(self) -> None:
        """End the session; `get` opens another."""
        async with self._lock:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None

    def _on_tools_changed(self) -> None:
        self.is_listing_old = True


def first_leaf(error: BaseException) -> BaseException:
    """The first error that is no group of others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def is_closed(error: BaseException) -> bool:
    """Whether the session ended under a request."""
    code = getattr(error, "code", None)
    message = str(getattr(error, "message", error))
    if code == -32000 and "closed" in message.lower():
        return True
    if "Session terminated" in message or "session not found" in message.lower():
        return True
    return type(error).__name__ in (
        "ClosedResourceError",
        "BrokenResourceError",
        "EndOfStream",
        "ConnectionResetError",
    )


def describe(error: BaseException) -> str:
    """One line for a message."""
    message = str(getattr(error, "message", None) or error) or type(error).__name__
    return message if hasattr(error, "code") else f"{type(error).__name__}: {message}"
