"""Servers of the Model Context Protocol as toolsets: `MCPServer`, `MCPServers`, and `mcp`, which reads a text."""

from treadle.tools.mcp.config import mcp
from treadle.tools.mcp.toolset import MCPServer, MCPServers

__all__ = ["MCPServer", "MCPServers", "mcp"]
