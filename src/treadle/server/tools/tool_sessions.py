"""The sessions of clients that call Treadle's tools from outside. Each session has its own files.

The calls of one session run one after another; calls of different sessions run at the same time.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence

from treadle.core.errors import ConfigError
from treadle.core.types import ToolCall, ToolResult, ToolSpec
from treadle.loop.calls.results import Order
from treadle.loop.calls.workbench import Workbench
from treadle.loop.outbox import Collected
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.protocol import Tool
from treadle.tools.toolbox import Toolbox
from treadle.tools.vfs import VfsToolset

VFS = Toolbox({tool.spec.name: tool for tool in VfsToolset().tools()})
"""DeepFabric's file tools, which each session has besides the tools that are served."""


class ToolSession:
    """The files of one client, and the resources that tools hold for it."""

    def __init__(self, session_id: str, sandbox: MemorySandbox, toolbox: Toolbox) -> None:
        self.session_id = session_id
        self.sandbox = sandbox
        self.bench = Workbench(toolbox, run_id=session_id, sandbox=sandbox)
        self.vfs_bench = Workbench(VFS, run_id=session_id, sandbox=sandbox)
        self.lock = asyncio.Lock()
        self.used_at = time.monotonic()
        self.calls = 0


class ToolSessions:
    """The sessions of a server. A session that was not used for `idle_seconds` is freed."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        files: MemorySandbox | None = None,
        idle_seconds: float = 3600.0,
        max_sessions: int = 1000,
    ) -> None:
        """Make an object without sessions. Each session begins with a copy of `files`. Raises: `ConfigError` for
        limits that are too small."""
        if idle_seconds <= 0 or max_sessions < 1:
            raise ConfigError("a server needs an idle time above 0 seconds and at least one session")
        self._toolbox = Toolbox({tool.spec.name: tool for tool in tools})
        self.tools: Mapping[str, Tool] = self._toolbox.tools
        self.specs: tuple[ToolSpec, ...] = self._toolbox.specs
        self._files = files or MemorySandbox()
        self.idle_seconds = idle_seconds
        self.max_sessions = max_sessions
        self._sessions: dict[str, ToolSession] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, session_id: str) -> ToolSession:
        """Return the session with this id, made if it does not exist.

        If there are too many sessions, the longest unused one is freed.
        """
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep())
        session = self._sessions.get(session_id)
        if session is None:
            while len(self._sessions) >= self.max_sessions:
                idle = [item for item in self._sessions.values() if not item.lock.locked()]
                oldest = min(idle or self._sessions.values(), key=lambda item: item.used_at)
                await self.free(oldest.session_id)
            session = self._sessions[session_id] = ToolSession(session_id, self._files.copy(), self._toolbox)
        session.used_at = time.monotonic()
        return session

    async def free(self, session_id: str) -> bool:
        """End a session. Return whether it existed."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return False
        async with session.lock:
            await session.bench.scope.close()
        return True

    async def call(self, session_id: str, call: ToolCall, *, is_vfs: bool = False) -> ToolResult:
        """Make one call in a session and return its result, which is never cut. With `is_vfs`, the call is one of
        `VFS`."""
        session = await self.open(session_id)
        async with session.lock:
            session.used_at = time.monotonic()
            session.calls += 1
            bench = session.vfs_bench if is_vfs else session.bench
            return await bench.make(Order(call, session.calls), Collected())

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        for session_id in list(self._sessions):
            await self.free(session_id)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self.idle_seconds / 4))
            limit = time.monotonic() - self.idle_seconds
            for session in list(self._sessions.values()):
                if session.used_at < limit and not session.lock.locked():
                    await self.free(session.session_id)
