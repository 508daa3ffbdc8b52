"""Tools that a model may call. Each toolset is imported when it is first used.

Read first: `protocol.py` (tools, toolsets and results), `function/decorator.py` (functions as tools),
`resolve.py` (toolsets by name) and `file_tools.py` (a toolset). `context.py` is what a running tool knows.

To add a toolset, write a class with a method `tools`, and with a `part` from which it can be made again. Add a line
to `TOOLSETS` in `resolve.py`, or an entry point of the group `treadle.tools`; its settings are keyword arguments.
If it reaches anything outside the run, say so in `demands_of_tools`, because users trust a journal by that list.
Add its example calls to `KINDS` in `tests/contract/test_toolset.py`, and a line to the table of `docs/tools.md`.
"""

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

    return load_name(__name__, name)
