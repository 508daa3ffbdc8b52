"""Tools that a model may call. Each toolset is imported when it is first used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.http.guarded import GuardedHttp
    from treadle.sandbox.protocol import Limits
    from treadle.tools.file_tools import FilesToolset
    from treadle.tools.mcp import MCPServer, MCPServers
    from treadle.tools.mock.mocks import Mock
    from treadle.tools.openapi import OpenAPI
    from treadle.tools.python import Python
    from treadle.tools.shell import Shell
    from treadle.tools.spin import Spin
    from treadle.tools.vfs import VfsToolset

_WHERE = {
    "FilesToolset": "treadle.tools.file_tools",
    "GuardedHttp": "treadle.http.guarded",
    "Limits": "treadle.sandbox.protocol",
    "MCPServer": "treadle.tools.mcp",
    "MCPServers": "treadle.tools.mcp",
    "Mock": "treadle.tools.mock.mocks",
    "OpenAPI": "treadle.tools.openapi",
    "Python": "treadle.tools.python",
    "Shell": "treadle.tools.shell",
    "Spin": "treadle.tools.spin",
    "VfsToolset": "treadle.tools.vfs",
}

__all__ = [
    "FilesToolset",
    "GuardedHttp",
    "Limits",
    "MCPServer",
    "MCPServers",
    "Mock",
    "OpenAPI",
    "Python",
    "Shell",
    "Spin",
    "VfsToolset",
]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name, _WHERE)
