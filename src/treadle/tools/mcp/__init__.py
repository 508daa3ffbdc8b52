"""Servers of the Model Context Protocol as toolsets: `MCPServer`, `MCPServers`, and `mcp`, which reads a text."""

from treadle.tools.mcp.server_entries import mcp
from treadle.tools.mcp.servers import MCPServer, MCPServers

__all__ = ["MCPServer", "MCPServers", "mcp"]
