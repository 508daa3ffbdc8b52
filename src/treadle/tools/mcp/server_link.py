"""The connection to one server: a session that is opened when needed, and opened again after it has ended."""

import asyncio
import re
from typing import Any

from treadle.core.errors import NoResultError, ToolError, TreadleError
from treadle.tools.mcp.connection import Connection, RemoteCall
from treadle.tools.mcp.failure import EndedError, FailureMeaning, UnreachableError
from treadle.tools.mcp.target import Target

PROBE_SECONDS = 5.0
"""How long a server that did not answer a call has to prove that it is alive."""
QUIET_SECONDS = 1.0
"""How long a call waits for a new session with a server at a URL that is known to be silent."""

_UNKNOWN_TOOL = re.compile(r"unknown tool|no such tool|tool .{0,100}not found", re.I | re.S)


class ServerLink:
    """Successive sessions with one server. It is used on the worker thread only."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.listing: list[Any] = []
        """The server's tools as it last listed them."""
        self._names: frozenset[str] = frozenset()
        self.can_change = True
        """False if the server said that its tools do not change."""
        self.is_listing_old = False
        """True if the server said that its tools changed."""
        self._is_legacy = False
        """True if the server knows only older protocol versions, so that newer ones need not be tried."""
        self._connection: Connection | None = None
        self._renewing: asyncio.Task[Connection] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_silent = False
        """True if the server at a URL did not answer when it was last asked whether it is alive."""
        self._waits: set[asyncio.Timeout] = set()
        """The time limits of the calls that wait for a session."""

    @property
    def has_session(self) -> bool:
        """True if there is a session, open or not."""
        return self._connection is not None

    async def get(self) -> Connection:
        """Return an open session. Raises: `UnreachableError`."""
        found = self._connection
        if found is not None and found.loop is not asyncio.get_running_loop():
            # The session belongs to the process that this one was forked from.
            found = self._connection = self._renewing = None
        # A server that was silent must prove that it is alive before a call, unless it serves other calls.
        has_doubts = self.is_listing_old or (found is not None and found.is_suspect and not found.is_busy)
        if found is not None and found.is_usable and not has_doubts:
            return found
        if self._renewing is None:
            # The task is separate because others may wait for it too when this caller is cancelled.
            self._renewing = asyncio.ensure_future(self._renew(found))
            self._renewing.add_done_callback(self._renewed)
        renewing = self._renewing
        try:
            return await asyncio.shield(renewing)
        except asyncio.CancelledError:
            if renewing.cancelled():
                raise UnreachableError(f"the MCP server {self.target.name!r} was closed") from None
            raise

    async def _get_soon(self) -> Connection:
        """Return an open session. A server that is known to be silent is waited for only shortly, while its session
        is opened further. Raises: `UnreachableError`."""
        timer = asyncio.timeout(QUIET_SECONDS if self._is_silent else None)
        self._waits.add(timer)
        try:
            async with timer:
                return await self.get()
        except TimeoutError:
            told = (
                "does not answer, so the call was not made. A new session is being opened; call again later"
            )
            raise UnreachableError(f"the MCP server {self.target.name!r} {told}") from None
        finally:
            self._waits.discard(timer)

    def _note_silence(self) -> None:
        """Let calls no longer wait for a server at a URL. A process is started anew, which may take long."""
        if self.target.url is None:
            return
        self._is_silent = True
        for timer in self._waits:
            if timer.when() is None:
                timer.reschedule(asyncio.get_running_loop().time() + QUIET_SECONDS)

    async def call(self, call: RemoteCall) -> Any:
        """Return the SDK's result of a call. It is made again if that is harmless and the session has ended.

        Raises: `ToolError`.
        """
        is_again = False
        while True:
            try:
                connection = await self._get_soon()
            except UnreachableError as error:
                raise NoResultError(str(error)) from error
            self._check_name(call.name)
            try:
                with connection.counted(call.key):
                    result = await self._try(connection, call)
            except _LostError as lost:
                is_closed = connection.is_closed
                await self._leave(connection)
                if is_closed or is_again or not (call.can_repeat or lost.is_not_run):
                    told = _explain_end(connection, call.name, lost, is_closed)
                    raise NoResultError(told) from lost.__cause__
                is_again = True
                continue
            if result.is_error and any(
                _UNKNOWN_TOOL.search(item.text[:1000]) for item in result.content if item.type == "text"
            ):
                await self._list_and_check(connection, call.name)
            return result

    def suspect(self) -> None:
        """Record that a call was abandoned: before the next call the server must prove that it is alive."""
        if self._connection is not None:
            self._connection.is_suspect = True

    async def _try(self, connection: Connection, call: RemoteCall) -> Any:
        try:
            return await connection.call(call)
        except ToolError:
            raise
        except Exception as error:
            verdict, told = await connection.judge_failure(error, call.key)
            if verdict is FailureMeaning.ANSWERED:
                raise await self._refused(connection, call.name, error, told) from error
            raise _LostError(told, is_not_run=verdict is FailureMeaning.NOT_RUN) from error

    async def leave(self) -> None:
        """End the session once no call uses it. `get` opens a new one."""
        found = self._connection
        if found is not None and found.loop is asyncio.get_running_loop():
            await self._leave(found)

    async def close(self) -> None:
        """End the session. `get` opens a new one."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None and renewing.get_loop() is asyncio.get_running_loop():
            renewing.cancel()
            await asyncio.wait([renewing])
        found, self._connection = self._connection, None
        if found is not None and found.loop is asyncio.get_running_loop():
            found.is_closed = True
            await found.close()

    async def _renew(self, found: Connection | None) -> Connection:
        if found is not None and found.is_usable:
            seconds = self.target.start_timeout_seconds
            if found.is_suspect:
                seconds = min(seconds, PROBE_SECONDS)
            try:
                async with asyncio.timeout(seconds):
                    self._take(await found.list_tools())
                found.is_suspect = self._is_silent = False
                return found
            except TimeoutError:
                self._note_silence()
            except UnreachableError:
                pass
        if found is not None:
            # To end a session at a URL takes as long as the server is silent.
            self._closing = asyncio.ensure_future(found.close())
            if self.target.url is None:
                await self._closing
        self._connection = await self._start()
        self._is_silent = False
        return self._connection

    def _renewed(self, task: "asyncio.Task[Connection]") -> None:
        if self._renewing is task:
            self._renewing = None
        if not task.cancelled():
            # All tasks that waited for it may have been cancelled.
            task.exception()

    async def _start(self) -> Connection:
        """Open a new session. Raises: `UnreachableError`."""
        deadline = asyncio.get_running_loop().time() + self.target.start_timeout_seconds
        if self._is_legacy:
            return await self._start_as("legacy", deadline)
        try:
            connection = await self._start_as("auto", deadline)
        except EndedError:
            # Some servers exit if the first message is not the handshake of older protocol versions.
            if self.target.transport != "stdio":
                raise
            connection = await self._start_as("legacy", deadline)
        self._is_legacy, self.can_change = connection.is_legacy, connection.can_change_tools
        return connection

    async def _start_as(self, mode: str, deadline: float) -> Connection:
        connection = Connection(self.target, mode, self._on_tools_changed)
        timer = asyncio.timeout_at(deadline)
        try:
            async with timer:
                await connection.open()
                # The SDK would also request them, to learn which arguments go into headers.
                self._take(await connection.list_tools())
        except TimeoutError as error:
            await connection.close()
            if not timer.expired():
                raise connection.explain(error) from error
            self._note_silence()
            seconds = self.target.start_timeout_seconds
            raise UnreachableError(
                connection.tell(
                    f"did not answer within {seconds:g} s of being started; is it an MCP server? To wait "
                    "longer, set start_timeout_seconds (startTimeout in a file)"
                )
            ) from None
        except BaseException:
            await connection.close()
            raise
        return connection

    def _take(self, listing: list[Any]) -> None:
        self.listing = listing
        self._names = frozenset(item.name for item in listing)
        self.is_listing_old = False

    def _on_tools_changed(self) -> None:
        self.is_listing_old = True

    async def _leave(self, connection: Connection) -> None:
        """Stop using a session. Calls that still run on it may finish."""
        if self._connection is connection:
            self._connection = None
        if connection.is_over or not connection.is_busy:
            await connection.close()
        else:
            connection.is_leaving = True

    def _check_name(self, name: str) -> None:
        """Check that the server still has a tool. Raises: `ToolError`."""
        if name not in self._names:
            known = ", ".join(sorted(self._names)) or "none"
            raise ToolError(
                f"the MCP server {self.target.name!r} has no tool {name!r} any more; now it has: {known}"
            )

    async def _list_and_check(self, connection: Connection, name: str) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                self._take(await connection.list_tools())
        except (UnreachableError, TimeoutError):
            return
        self._check_name(name)

    async def _refused(self, connection: Connection, name: str, error: BaseException, told: str) -> ToolError:
        """Return the message for the model about a request that got an error or an invalid answer."""
        if getattr(error, "code", None) in (-32601, -32602) or _UNKNOWN_TOOL.search(str(error)[:1000]):
            try:
                await self._list_and_check(connection, name)
            except ToolError as gone:
                return gone
        return ToolError(f"{name} of the MCP server {self.target.name!r} failed: {told}")


class _LostError(TreadleError):
    """A call will get no answer. The message is for the model."""

    def __init__(self, told: str, *, is_not_run: bool) -> None:
        super().__init__(told)
        self.is_not_run = is_not_run


def _explain_end(connection: Connection, name: str, lost: _LostError, is_closed: bool) -> str:
    if lost.is_not_run:
        return connection.tell(f"could not be reached, so {name!r} was not run: {lost}")
    how = "was closed" if is_closed else "ended"
    return connection.tell(
        f"{how} while {name!r} was running, so its outcome is unknown: it may or may not have taken effect. "
        "Check before you call it again, which begins a new session with the server"
    )
