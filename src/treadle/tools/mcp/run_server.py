"""The MCP server of one run: a process of its own, with the run's files in a folder on disk.

Before a call, what other tools have changed is written to the folder. After it, what the server has changed is in
the run's files, and so in the next snapshot. What a call without a result has changed is undone: the server is
started again over the run's files. If this process is killed, the shell of `sandbox.commands.home` ends the server,
which has the folder in its environment.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from treadle.http.background import see_out
from treadle.sandbox.commands.home import make_root
from treadle.sandbox.commands.run_folder import RunFolder
from treadle.sandbox.commands.untrusted import remove_tree
from treadle.sandbox.protocol import Limits
from treadle.tools.context import ToolContext
from treadle.tools.mcp.connection import SESSIONS
from treadle.tools.mcp.server_link import ServerLink
from treadle.tools.mcp.target import RUN_FILES, RUN_ID, Target

T = TypeVar("T")
LIMITS = Limits()
"""Of these, the disk space and the number of files are limited for a run's folder."""


class RunServer:
    """The connection of one run to its server, and the server's folder, if it has one."""

    def __init__(self, link: ServerLink, folder: RunFolder | None) -> None:
        self.link = link
        self._folder = folder
        self._is_spoiled = False
        """True if the folder is not what the run's files are, because a call got no result."""

    @asynccontextmanager
    async def lend(self, context: ToolContext) -> AsyncIterator[None]:
        """Keep the folder as the run's files are, before and after the call within the `with` block.

        Raises: `ToolError` if the run has no files; `SandboxError` if they cannot hold the changes.
        """
        folder = self._folder
        if folder is None:
            yield
            return
        sandbox = context.files
        if self._is_spoiled or folder.is_other(sandbox):
            await SESSIONS.hop(self.link.close())
            await _in_thread(folder.clear)
        self._is_spoiled = True
        await _in_thread(partial(folder.push, sandbox))
        yield
        await _in_thread(partial(folder.pull, sandbox, LIMITS.files, LIMITS.disk_bytes))
        self._is_spoiled = False


@asynccontextmanager
async def open_run_server(target: Target, run_id: str, *, has_files: bool) -> AsyncIterator[RunServer]:
    """Make the server of a run, which is started by its first call and ended on exit. Raises: `SandboxError`."""
    if target.command is not None:
        target = target.fill({RUN_ID: run_id})
    if not has_files:
        server = RunServer(ServerLink(target), None)
        try:
            yield server
        finally:
            await SESSIONS.hop(server.link.close())
        return
    root: Path = await _in_thread(partial(make_root, ("work",), None))
    try:
        server = RunServer(ServerLink(target.fill({RUN_FILES: str(root / "work")})), RunFolder(root / "work"))
        try:
            yield server
        finally:
            await SESSIONS.hop(server.link.close())
    finally:
        await _in_thread(partial(remove_tree, root))


async def _in_thread(function: Callable[[], T]) -> T:
    """Call `function` in a thread, and wait for its end even if cancelled."""
    return await see_out(asyncio.ensure_future(asyncio.to_thread(function)))
