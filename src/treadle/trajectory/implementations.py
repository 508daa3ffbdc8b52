"""The implementations of the tools of recorded runs."""

import contextlib
from collections.abc import Iterable, Sequence

from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.spec import PartSpec
from treadle.core.types import Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool, ToolLike
from treadle.tools.read_result import NAME, ReadResult
from treadle.tools.resolve import resolve_tools
from treadle.tools.schema.validation import ArgumentChecker
from treadle.tools.toolbox import Toolbox


class Unavailable:
    """A tool whose definition is known, but not its implementation."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.find_fault = ArgumentChecker(spec.parameters).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        raise AssertionError("a tool without its implementation is not run")


class Implementations:
    """The implementations of recorded tools. Runs one after another with the same tools share what was found."""

    def __init__(self, tools: Iterable[ToolLike] | None = None, *, is_trusted: bool = True) -> None:
        """Keep `tools`. If the runs are trusted, tools that they name are used too."""
        self._given = () if tools is None else resolve_tools(tools)
        self._is_trusted = is_trusted
        self._found: Sequence[Tool] = ()
        self._found_for: tuple[tuple[PartSpec, ...], set[str]] | None = None
        """The agent's parts and the names of the tools that `_found` was looked up for."""
        self._toolbox = Toolbox({})
        self._toolbox_for: tuple[tuple[PartSpec, ...], tuple[ToolSpec, ...], Policy] | None = None

    def toolbox(self, parts: tuple[PartSpec, ...], specs: tuple[ToolSpec, ...], policy: Policy) -> Toolbox:
        """Return the tools with the definitions `specs`, for an agent with these parts."""
        if (parts, specs, policy) != self._toolbox_for:
            given = {tool.spec.name: tool for tool in self._find(parts, {spec.name for spec in specs})}
            tools = {
                spec.name: given[spec.name]
                if spec.name in given and given[spec.name].spec.parameters == spec.parameters
                else Unavailable(spec)
                for spec in specs
            }
            self._toolbox = Toolbox(tools, policy)
            self._toolbox_for = parts, specs, policy
        return self._toolbox

    def _find(self, parts: tuple[PartSpec, ...], names: set[str]) -> Sequence[Tool]:
        """Return the implementations at hand; those that were found for the same agent before stay as they are."""
        if not self._is_trusted:
            return self._given
        if (parts, names) != self._found_for:
            given = {tool.spec.name for tool in self._given}
            named = resolve_tools([part for part in parts if part.missing is None]) if names - given else ()
            others = _built_in(names - given - {tool.spec.name for tool in named})
            if NAME in names:
                others = (ReadResult(), *others)
            # A given tool replaces another one of the same name.
            self._found = tuple({tool.spec.name: tool for tool in (*others, *named, *self._given)}.values())
            self._found_for = parts, names
        return self._found


def _built_in(names: set[str]) -> tuple[Tool, ...]:
    """Return the tools of the protected built-in toolsets that can be loaded, until all `names` are found."""
    found: dict[str, Tool] = {}
    for toolset in ("files", "shell", "python"):
        if names <= found.keys():
            break
        with contextlib.suppress(ConfigError):
            found = {**{tool.spec.name: tool for tool in resolve_tools([toolset])}, **found}
    return tuple(found.values())
