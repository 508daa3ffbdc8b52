"""Tools whose calls are made by the program that uses a run, such as the client of a server.

The run pauses at such a call. Whoever makes the call posts a `GiveResult` to the run's inbox, and the run can go
on.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from treadle.core.errors import ToolError
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.schema.tool_definitions import parse_definitions
from treadle.tools.schema.validation import ArgumentChecker


class ClientTool:
    """A tool that the client runs. Treadle checks the arguments."""

    takes_context = False

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = replace(spec, is_external=True, effect=Effect.PURE)
        self.find_fault = ArgumentChecker(spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext[Any]) -> str:
        """Raise an error, because only a run can wait for its client."""
        raise ToolError(f"{self.spec.name} is run by the client of a run")


class ClientTools:
    """The tools of a client. See `Toolset`."""

    def __init__(self, tools: Sequence[dict[str, Json]] = ()) -> None:
        """Make the tools from their definitions, in any shape that `treadle tools import` reads.

        Raises: `ConfigError` that names the first definition which cannot be used.
        """
        found = parse_definitions(list(tools), "the client's tools").tools if tools else ()
        self._tools = [ClientTool(spec) for spec in found]
        self.part = PartSpec(name="client", settings={"tools": list(tools)})

    def tools(self) -> Sequence[ClientTool]:
        return self._tools
