"""One session with a server: opened, watched and closed in the thread `SESSIONS`.

A session's scopes must be left in the task that entered them, and one server may serve runs of several event loops,
so the loop of that thread runs all sessions, and every call is passed to it.
"""

import asyncio
import atexit
import contextlib
import functools
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from msgspec import Struct

from treadle.core.errors import ToolError
from treadle.core.registry import require
from treadle.core.types import Json
from treadle.http.background import LoopThread
from treadle.http.locks import in_child
from treadle.tools.mcp.elicitation import Elicit, open_first
from treadle.tools.mcp.failure import (
    KEY,
    EndedError,
    FailureMeaning,
    Trip,
    UnreachableError,
    describe,
    first_leaf,
    judge,
    make_client,
)
from treadle.tools.mcp.target import Target
from treadle.tools.mcp.watched import Watched, WatchedSender

MAX_PAGES = 200
MAX_ROUNDS = 10
"""How often, during one call, a server may ask to make the call again with the server's state."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
STDERR_LINES = 20
MAX_LINE_CHARS = 500
_LISTEN_AGAIN_SECONDS = 5.0
_HEADER_MISMATCH = -32020
_URLS_FIRST = -32042
"""The error of a server that wants the user to open addresses before it takes the call."""

SESSIONS = LoopThread("treadle-mcp", asyncio.new_event_loop)
"""The thread of all sessions. uvloop would notice that a server has closed its output only when the server ends."""
_open: "set[Connection]" = set()
"""The sessions to be closed before the process ends."""

Progress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]


class RemoteCall(Struct, frozen=True):
    """A call of a server's tool."""

    name: str
    arguments: dict[str, Json]
    key: str
    """The idempotency key."""
    progress: Progress | None
    elicit: Elicit
    can_repeat: bool
    """True if the call may be made again after it may have run."""


class Connection:
    """A session with a server. `mode` is an argument of the SDK that says how the protocol version is chosen."""

    def __init__(self, target: Target, mode: str, on_tools_changed: Callable[[], None]) -> None:
        self._target = target
        self._mode = mode
        self._on_tools_changed = on_tools_changed
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._last = Trip()
        self._failed_trips: dict[str, Trip] = {}
        """Failed requests by the idempotency key of their call."""
        self._client: Any = None
        self._failure: BaseException | None = None
        """The error that ended the session."""
        self.is_over = False
        """True if the session has ended, by the server or by `close`."""
        self.is_closed = False
        """True if the session was closed on purpose."""
        self.is_suspect = False
        """True if a call was abandoned, so that the server may hang."""
        self.is_leaving = False
        """True if the session is to be closed when no call uses it any more."""
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._asking: list[Elicit] = []
        """The functions that put the questions of the running calls to the user."""

    @property
    def is_usable(self) -> bool:
        """Whether a call can be made on this session."""
        return self._client is not None and not self.is_over

    @property
    def is_busy(self) -> bool:
        """Whether a call that somebody waits for uses this session."""
        return any(task is None or not task.cancelling() for task in self._calls)

    @property
    def can_change_tools(self) -> bool:
        """True if the server says that it may add and remove tools."""
        tools = getattr(getattr(self._client, "server_capabilities", None), "tools", None)
        return bool(getattr(tools, "list_changed", None))

    @property
    def is_legacy(self) -> bool:
        """Whether the session began with the handshake of older protocol versions."""
        return self._client is not None and self._client.session.initialize_result is not None

    async def open(self) -> None:
        """Connect to the server. Raises: `UnreachableError`."""
        ready: asyncio.Future[None] = self.loop.create_future()
        if not _open:
            atexit.register(_close_all)  # before the thread is stopped, because it was registered after it
        _open.add(self)
        self._owner = asyncio.ensure_future(self._own(ready))
        try:
            await asyncio.shield(ready)
        except Exception as error:
            await self.close()
            raise self.explain(error) from error

    async def close(self) -> None:
        """End the session and the server's process, if it has one. Idempotent."""
        self._stop.set()
        self.is_over = True
        if self._owner is not None and not self._owner.done():
            if self._client is None:
                self._owner.cancel()
            _, unended = await asyncio.wait([self._owner], timeout=10)
            for task in unended:  # the server is silent
                task.cancel()

    async def list_tools(self) -> list[Any]:
        """Return all pages of the server's tools. Raises: `UnreachableError`."""
        tools: list[Any] = []
        cursor: str | None = None
        seen: set[str] = set()
        try:
            for _ in range(MAX_PAGES):
                page = await self._live().list_tools(cursor=cursor, cache_mode="bypass")
                tools += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return tools
                if cursor in seen:
                    break
                seen.add(cursor)
        except Exception as error:
            if getattr(error, "code", None) == -32601 and not self.is_over:
                return []
            raise self.explain(error) from error
        raise UnreachableError(self.tell(f"lists its tools endlessly (it repeated the cursor {cursor!r})"))

    async def call(self, call: RemoteCall) -> Any:
        """Return the SDK's result of a call. It may break the tool's output schema.

        Raises: what the SDK raises, for `judge_failure`; `ToolError` if the server asks for something that
        Treadle cannot give.
        """
        self._asking.append(call.elicit)
        try:
            return await self._call(call)
        finally:
            self._asking.remove(call.elicit)

    async def _call(self, call: RemoteCall) -> Any:
        types, state, responses = require("mcp_types", "mcp"), None, None
        is_listed_again = False
        for _ in range(MAX_ROUNDS):
            params = types.CallToolRequestParams(
                name=call.name,
                arguments=call.arguments,
                _meta={KEY: call.key},
                request_state=state,
                input_responses=responses,
            )
            request = types.CallToolRequest(params=params)
            try:
                result = await self._live().session.send_request(
                    request, _result_adapter(), progress_callback=call.progress
                )
            except Exception as error:
                if getattr(error, "code", None) == _URLS_FIRST:
                    await open_first(call.name, error, call.elicit)
                    continue
                if getattr(error, "code", None) != _HEADER_MISMATCH or is_listed_again:
                    raise
                is_listed_again = True
                await self.list_tools()
                continue
            if isinstance(result, types.CallToolResult):
                return result
            wanted = result.input_requests or {}
            unknown = {item.method for item in wanted.values()} - {"elicitation/create"}
            if unknown:
                methods = ", ".join(sorted(unknown))
                raise ToolError(
                    f"{call.name} asks its caller for something ({methods}), which nobody can give here"
                )
            responses = {key: await call.elicit(item.params) for key, item in wanted.items()} or None
            state = result.request_state
            if responses is None:
                await asyncio.sleep(0.1)
        raise ToolError(f"{call.name} asked to be called again {MAX_ROUNDS} times, which is the limit")

    @contextlib.contextmanager
    def counted(self, key: str) -> Iterator[None]:
        """Count the current task as a call on this session while the `with` block runs."""
        task = asyncio.current_task()
        self._calls.add(task)
        try:
            yield
        finally:
            self._calls.discard(task)
            self._failed_trips.pop(key, None)
            if self.is_leaving and not self._calls:
                self._stop.set()

    async def judge_failure(self, error: BaseException, key: str) -> tuple[FailureMeaning, str]:
        """Return the meaning of a failed call, and why it failed. A session that has ended is closed first."""
        trip = self._failed_trips.get(key, Trip())
        if self.is_over:
            await self.close()
        is_refused = self._target.transport == "sse" and 400 <= (trip.status or 0) < 500
        if trip.is_unsent or is_refused:
            return FailureMeaning.NOT_RUN, self._describe(trip.error or error, trip.status)
        verdict = judge(error, is_over=self.is_over, status=trip.status)
        return verdict, self._describe(error, trip.status)

    def _describe(self, error: BaseException, status: int | None = None) -> str:
        leaf = first_leaf(error)
        return self._target.hide(describe(leaf, status if hasattr(leaf, "code") else None))

    def tell(self, what: str) -> str:
        """Return a message about the server, with the last lines of its standard error."""
        said = "\n".join(self._stderr).strip()
        tail = f"; its standard error ends with:\n{said}" if said else ""
        return self._target.hide(f"the MCP server {self._target.name!r} {what}{tail}")

    def explain(self, error: BaseException) -> UnreachableError:
        """Return what went wrong and what helps, in words."""
        leaf, target = first_leaf(error), self._target
        if isinstance(leaf, UnreachableError):
            return leaf
        if isinstance(leaf, FileNotFoundError | NotADirectoryError | PermissionError) and target.command:
            if target.cwd is not None and not os.path.isdir(target.cwd):
                return UnreachableError(
                    self.tell(f"cannot be started in {target.cwd!r}: there is no such folder")
                )
            return UnreachableError(target.explain_command(is_absent=isinstance(leaf, FileNotFoundError)))
        status, cause = self._last.status, self._last.error or self._failure
        if judge(leaf, is_over=False, status=status) is not FailureMeaning.LOST:
            return UnreachableError(self.tell(f"cannot be used: {self._describe(leaf, status)}"))
        if target.url is None or (cause is None and hasattr(leaf, "code")):
            return EndedError(self.tell("ended before it answered"))
        return UnreachableError(self.tell(f"cannot be used: {self._describe(cause or leaf)}"))

    def _live(self) -> Any:
        if self._client is None:
            raise ConnectionResetError("the session is over")
        return self._client

    async def _own(self, ready: "asyncio.Future[None]") -> None:
        """Run the session from beginning to end in one task: its scopes are left where they were entered."""
        try:
            async with self._connect() as client:
                self._client = client
                if not ready.done():
                    ready.set_result(None)
                listening = asyncio.ensure_future(self._listen(client))
                try:
                    await self._stop.wait()
                finally:
                    listening.cancel()
                    await asyncio.wait([listening])
        except asyncio.CancelledError:
            ready.cancel()
        except BaseException as error:
            self._failure = error
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                ready.exception()
        finally:
            self._client = None
            self.is_over = True
            _open.discard(self)

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        sdk, target = require("mcp", "mcp"), self._target
        _keep_quiet()
        async with contextlib.AsyncExitStack() as stack:
            if target.transport == "memory":
                where: Any = target.server
            elif target.transport == "stdio":
                errors = await stack.enter_async_context(self._collect_stderr())
                parameters = sdk.StdioServerParameters(
                    command=target.command,
                    args=list(target.args),
                    env={**target.env, **target.variables},
                    cwd=target.cwd,
                    encoding_error_handler="replace",
                )
                where = self._watch(sdk.stdio_client(parameters, errors))
            elif target.transport == "sse":
                sse = require("mcp.client.sse", "mcp")
                where = self._watch(sse.sse_client(target.url, httpx_client_factory=self._make_client))
            elif target.transport == "http":
                http = require("mcp.client.streamable_http", "mcp")
                client = await stack.enter_async_context(self._make_client())
                where = self._watch(
                    http.streamable_http_client(
                        target.url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES
                    )
                )
            yield await stack.enter_async_context(
                sdk.Client(
                    where,
                    mode=self._mode,
                    message_handler=self._on_message,
                    elicitation_callback=self._on_elicit,
                    cache=None,
                )
            )

    def _make_client(self, *_: Any, **__: Any) -> Any:
        return make_client(self._target.headers, self._note_trip, is_public_only=self._target.is_public_only)

    def _note_trip(self, trip: Trip) -> None:
        self._last = trip
        if trip.key is not None:
            self._failed_trips[trip.key] = trip
        if self._target.transport == "sse" and (trip.error is not None or trip.status is not None):
            # The SDK sends nothing more, and its requests would wait for their limits: the events of a server
            # that has been started again end only if every machine on the way says so.
            self._on_end()

    @contextlib.asynccontextmanager
    async def _watch(self, transport: Any) -> AsyncIterator[Any]:
        async with transport as (read, write):
            received = Watched(read, self._on_end)
            yield received, WatchedSender(write, received)

    def _on_end(self) -> None:
        self.is_over = True
        # Answers that arrived just before the end must still reach their callers.
        self.loop.call_later(0.05, self._stop.set)

    async def _listen(self, client: Any) -> None:
        """Subscribe to changes of the tools, which servers of newer protocol versions tell only to subscribers."""
        while not self.is_legacy and self.can_change_tools:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._on_tools_changed()
            except Exception as error:
                if getattr(error, "code", None) is not None:
                    return  # the server refuses
            self._on_tools_changed()  # what it told meanwhile is lost
            await asyncio.sleep(_LISTEN_AGAIN_SECONDS)

    async def _on_message(self, message: Any) -> None:
        if type(message).__name__ == "ToolListChangedNotification":
            self._on_tools_changed()

    async def _on_elicit(self, context: Any, params: Any) -> Any:
        """Answer a question that an older server asks during a call. It does not say during which one."""
        if len(self._asking) == 1:
            return await self._asking[0](params)
        types = require("mcp_types", "mcp")
        told = f"{len(self._asking)} calls are running, so it is not known which of them asks"
        return types.ErrorData(code=types.INVALID_REQUEST, message=told)

    @contextlib.asynccontextmanager
    async def _collect_stderr(self) -> AsyncIterator[Any]:
        """Return a file for the server's standard error. Its last lines are kept for messages."""
        read_end, write_end = os.pipe()
        with os.fdopen(write_end, "wb", buffering=0) as file:
            keep = _Tail(self._stderr)
            pipe = os.fdopen(read_end, "rb", buffering=0)
            transport, _ = await self.loop.connect_read_pipe(lambda: keep, pipe)
            try:
                yield file
            finally:
                file.close()
                # The last lines may still be in the pipe, which a child of the server may hold open.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(keep.is_over.wait(), 0.2)
                transport.close()


class _Tail(asyncio.Protocol):
    """A reader of lines that keeps the last ones."""

    def __init__(self, lines: deque[str]) -> None:
        self.is_over = asyncio.Event()
        self._lines = lines
        self._rest = ""

    def data_received(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        self._lines.extend(line[:MAX_LINE_CHARS] for line in whole[-STDERR_LINES:])
        self._rest = self._rest[-MAX_LINE_CHARS:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._lines.append(self._rest)
        self.is_over.set()


@functools.cache
def _result_adapter() -> Any:
    types, pydantic = require("mcp_types", "mcp"), require("pydantic", "mcp")
    return pydantic.TypeAdapter(types.CallToolResult | types.InputRequiredResult)


@functools.cache
def _keep_quiet() -> None:
    """Give the SDK's loggers a handler, so that its records are not printed."""
    for name in ("mcp", "client"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def _close_all() -> None:
    """End the open sessions and the servers' processes, while the process ends."""
    atexit.unregister(_close_all)
    if not _open:
        return

    async def close() -> None:
        await asyncio.gather(*[item.close() for item in list(_open)], return_exceptions=True)

    with contextlib.suppress(TimeoutError, RuntimeError):
        asyncio.run_coroutine_threadsafe(close(), SESSIONS.loop).result(timeout=10)


in_child(_open.clear)  # the sessions belong to the parent
