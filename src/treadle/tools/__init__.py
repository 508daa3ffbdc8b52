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
    from treadle.http.guarded import GuardedHttp as GuardedHttp
    from treadle.sandbox.protocol import Limits as Limits
    from treadle.tools.file_tools import FilesToolset as FilesToolset
    from treadle.tools.mcp import MCPServer as MCPServer
    from treadle.tools.mcp import MCPServers as MCPServers
    from treadle.tools.mock.mocks import Mock as Mock
    from treadle.tools.openapi import OpenAPI as OpenAPI
    from treadle.tools.python import Python as Python
    from treadle.tools.shell import Shell as Shell
    from treadle.tools.spin import Spin as Spin
    from treadle.tools.vfs import VfsToolset as VfsToolset


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)
