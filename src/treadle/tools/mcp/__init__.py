"""Servers of the Model Context Protocol as toolsets: `MCPServer`, `MCPServers`, and `mcp` from text."""

from treadle.tools.mcp.config import mcp
from treadle.tools.mcp.server import MCPServer
from treadle.tools.mcp.servers import MCPServers

__all__ = ["MCPServer", "MCPServers", "mcp"]
