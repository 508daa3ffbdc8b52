"""MCP servers that the client of a run named: each tool has the label of its server, and the client can choose
among the tools. What the client gave to prove who it is stays in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, Json, ToolOrigin, ToolSpec
from treadle.tools.mcp.server_entries import read_servers
from treadle.tools.mcp.servers import MCPServer, MCPServers
from treadle.tools.protocol import Tool

CLIENT_MCP = "client-mcp"
"""The name of the toolset in the spec of an agent."""


class ToolChoice(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A choice among the tools of a server. A tool must fit all that is given."""

    tool_names: tuple[str, ...] | None = None
    """The names of tools on the server."""
    read_only: bool | None = None
    """True for the tools that the server declares to be read-only, false for the others."""

    def fits(self, spec: ToolSpec) -> bool:
        """Return whether a tool with an origin is chosen."""
        assert spec.origin is not None
        is_named = self.tool_names is None or spec.origin.name in self.tool_names
        return is_named and self.read_only in (None, spec.effect is Effect.PURE)


class ClientServers(MCPServers):
    """The servers that a client named, as one toolset."""

    def __init__(self, servers: Sequence[MCPServer], choices: Mapping[str, ToolChoice] = {}) -> None:
        """Make a toolset of `servers`. `choices` says which tools a server gives; without one, it gives all.

        Raises: `ConfigError` if two servers have the same name.
        """
        super().__init__(servers)
        self.choices = choices

    @property
    def part(self) -> PartSpec:
        """The toolset by name and settings, without secrets."""
        part = super().part
        settings = None if part.settings is None else {**part.settings, "choices": self.choices}
        return PartSpec(name=CLIENT_MCP, settings=msgspec.to_builtins(settings), missing=part.missing)

    def _join(self) -> tuple[Tool, ...]:
        found: list[Any] = list(super()._join())
        for tool in found:
            tool.spec = replace(tool.spec, origin=ToolOrigin(tool.server.name, tool.remote_name))
        all_tools = ToolChoice()
        return tuple(
            [tool for tool in found if self.choices.get(tool.server.name, all_tools).fits(tool.spec)]
        )


def client_servers(mcpServers: Json = None, choices: Json = None) -> ClientServers:  # noqa: N803
    """The MCP servers that a client of a server named.

    This returns the toolset that the part of a `ClientServers` describes. Raises: `ConfigError`.
    """
    found = (
        read_servers({"mcpServers": mcpServers}, "the settings of 'client-mcp'").servers if mcpServers else ()
    )
    try:
        chosen = msgspec.convert(choices or {}, dict[str, ToolChoice])
    except msgspec.ValidationError as error:
        raise ConfigError(f"the choices of 'client-mcp' cannot be read: {error}") from None
    return ClientServers(found, chosen)
