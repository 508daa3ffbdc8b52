"""Several MCP servers as one toolset."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Self

from treadle.core.errors import ConfigError
from treadle.tools.mcp import worker
from treadle.tools.mcp.names import safe_name
from treadle.tools.mcp.server import MCPServer
from treadle.tools.protocol import Tool


class MCPServers:
    """Several servers as one toolset; `<server>_<tool>` is the name of a tool that two of them have."""

    def __init__(self, servers: Sequence[MCPServer]) -> None:
        """Raises: `ConfigError` if two have one name."""
        self.servers = tuple(servers)
        name, count = (
            Counter(server.name for server in self.servers).most_common(1)[0] if servers else ("", 0)
        )
        if count > 1:
            raise ConfigError(f"two MCP servers are called {name!r}; give them a name each")

    def tools(self) -> tuple[Tool, ...]:
        """The tools of all, connected to side by side. Raises: `ConfigError`."""
        worker.run(self._open_all())
        return self._join()

    async def open(self) -> Self:
        """Connect to all without blocking. Raises: `ConfigError`."""
        await worker.hop(self._open_all())
        return self

    def close(self) -> None:
        """End all sessions. Idempotent."""
        worker.run(self._close_all())

    async def aclose(self) -> None:
        """`close`, without blocking."""
        await worker.hop(self._close_all())

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _join(self) -> tuple[Tool, ...]:
        counts = Counter(tool.spec.name for server in self.servers for tool in server.tools())
        tools: list[Tool] = []
        for server in self.servers:
            for tool in server.tools():
                name = tool.spec.name
                is_clash = counts[name] > 1
                tools.append(tool.renamed(safe_name(f"{server.name}_{name}")) if is_clash else tool)
        return tuple(tools)

    async def _open_all(self) -> None:
        outcomes = await asyncio.gather(*[server.open() for server in self.servers], return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            await self._close_all()
            raise failures[0]

    async def _close_all(self) -> None:
        await asyncio.gather(*[server.aclose() for server in self.servers])
