"""The toolset `vfs`: the four file tools of DeepFabric, with its names, schemas and results, on the files of a run.

Where DeepFabric asks a server, these tools work in the run's own sandbox. Source: DeepFabric 4.13, component `vfs`.
"""

from collections.abc import Sequence

from treadle.core.errors import ConfigError
from treadle.core.registry import name_known
from treadle.core.spec import PartSpec
from treadle.tools import file_tools as files
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import tool
from treadle.tools.protocol import Tool
from treadle.tools.toolset_parts import settings_of


@tool(effect="pure")
async def read_file(context: ToolContext, file_path: str) -> str:
    """Read the content of a file.

    Args:
        file_path: Path of the file.
    """
    return await files.read_file(context, file_path)


@tool(effect="idempotent", concurrent=False)
async def write_file(context: ToolContext, file_path: str, content: str) -> str:
    """Create a file, or replace its whole content.

    Args:
        file_path: Path of the file.
        content: The whole content.
    """
    await files.write_file(context, file_path, content)
    return f"Successfully wrote {len(content.encode())} bytes to {file_path}"


@tool(effect="pure")
async def list_files(context: ToolContext) -> list[str]:
    """List the paths of all files, as a JSON array."""
    return await files.list_files(context)


@tool(effect="idempotent", concurrent=False)
async def delete_file(context: ToolContext, file_path: str) -> str:
    """Delete a file.

    Args:
        file_path: Path of the file.
    """
    await files.delete_file(context, file_path)
    return f"Successfully deleted {file_path}"


_TOOLS: dict[str, Tool] = {item.spec.name: item for item in (read_file, write_file, list_files, delete_file)}
NAMES = tuple(_TOOLS)
"""The names of the tools."""


class VfsToolset:
    """The file tools of DeepFabric."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        """Make a toolset of the tools `names`; `None`: all. Raises: `ConfigError` for an unknown name."""
        for name in names or ():
            if name not in _TOOLS:
                hint = name_known(name, NAMES, "it has")
                raise ConfigError(f"the toolset 'vfs' has no tool {name!r}{hint}")
        self._names = NAMES if names is None else tuple(names)
        self.part = PartSpec(name="vfs", settings=settings_of(VfsToolset, {"names": names}))

    def tools(self) -> Sequence[Tool]:
        return [_TOOLS[name] for name in self._names]
