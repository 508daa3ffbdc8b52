"""The MCP servers that clients name in their requests: whether they may, and how the servers are asked.

What a client gives to prove who it is to such a server is kept in memory only. So nobody can go on with a turn
whose process has ended; it ends, and the next request of the client can continue the run.
"""

import posixpath
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treadle.core import events as e
from treadle.core.calls import abandon_turn
from treadle.core.errors import ConfigError
from treadle.core.policy import Approval, Policy
from treadle.core.registry import did_you_mean
from treadle.core.state import State
from treadle.core.texts.masking import MASK
from treadle.core.texts.mistakes import Keys
from treadle.core.types import Fault, Json, ToolSpec
from treadle.models.config.tables import ServeTable
from treadle.server.admission.access import RequestRefused
from treadle.tools.mcp import MCPServer
from treadle.tools.mcp.client_servers import CLIENT_MCP, ClientServers, ToolChoice
from treadle.tools.mcp.server_entries import read_servers
from treadle.tools.toolset_parts import may_hold_secret

MCP = "mcp"
"""The type of the tools that name servers."""
_MAX_SERVERS = 16
_MAX_HEADER_CHARS = 8192
"""How long the headers for a server are at most. Each text of a server is searched for what they say."""
_ADDRESS = re.compile(r"https?://[^/?#@\\\s]+(?P<path>/[^?#\\\s]*)(?:\?[^#\\\s]*)?")
_SECRET = ("authorization", "headers")
"""The fields of a tool that no response repeats."""


class ChosenTools(BaseModel):
    """A choice among the tools of a server."""

    model_config = ConfigDict(extra="forbid")

    tool_names: list[str] | None = None
    read_only: bool | None = None


class ApprovalFilters(BaseModel):
    """Which calls need an approval. Tools that neither filter fits need one."""

    model_config = ConfigDict(extra="forbid")

    always: ChosenTools | None = None
    never: ChosenTools | None = None


class McpTool(BaseModel):
    """A tool of the type `mcp`, as a client gives it: all tools of a server."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["mcp"]
    server_label: Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
    server_url: str | None = None
    """The address of the server. Default: the server of the label that the operator named."""
    connector_id: str | None = None
    """The name of the operator's server, if that is not the label."""
    server_description: str | None = None
    """Ignored: the server itself describes its tools."""
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[str] | ChosenTools | None = None
    require_approval: Literal["always", "never"] | ApprovalFilters | None = None


class GivenServer(Struct, frozen=True, kw_only=True):
    """A server that a client has named and may use."""

    label: str
    url: str | None
    """The address of the server; `None`: the operator named it."""
    connector: str
    """The name of the operator's server."""
    headers: dict[str, str]
    choice: ToolChoice
    always: ToolChoice | None
    """The tools whose calls need an approval; `None`: none is named."""
    never: ToolChoice | None
    """The tools whose calls need none, unless `always` fits them."""

    def asks(self, spec: ToolSpec) -> bool:
        """Return whether the client wants to approve the calls of a tool."""
        is_named = self.always is not None and self.always.fits(spec)
        return is_named or self.never is None or not self.never.fits(spec)


def read_given_servers(tools: list[dict[str, Json]], table: ServeTable) -> tuple[GivenServer, ...]:
    """Return the servers that the tools of a request name.

    Raises: `ConfigError`; `RequestRefused` for a server that clients may not name.
    """
    found: dict[str, GivenServer] = {}
    for tool in tools:
        try:
            read = McpTool.model_validate(tool)
        except ValidationError as error:
            told = Keys(McpTool.model_json_schema, {}).explain(error.errors(include_input=False), tool)[0]
            raise ConfigError(f"a tool of the type 'mcp': {told}") from None
        if read.server_label in found:
            raise ConfigError(f"two MCP servers have the server_label {read.server_label!r}")
        found[read.server_label] = _check(read, table)
    if len(found) > _MAX_SERVERS:
        raise ConfigError(f"the request names {len(found)} MCP servers; give {_MAX_SERVERS} at most")
    return tuple(found.values())


def _check(tool: McpTool, table: ServeTable) -> GivenServer:
    headers = dict(tool.headers or {})
    if tool.authorization is not None:
        if "authorization" in [name.lower() for name in headers]:
            raise ConfigError("give authorization or a header Authorization, not both")
        headers["Authorization"] = f"Bearer {tool.authorization}"
    label = tool.server_label
    if (size := sum([len(name) + len(value) for name, value in headers.items()])) > _MAX_HEADER_CHARS:
        raise ConfigError(
            f"the headers for the MCP server {label!r} have {size:,} characters; give {_MAX_HEADER_CHARS:,} at most"
        )
    connector = tool.connector_id or label
    if tool.server_url is not None:
        if tool.connector_id is not None:
            raise ConfigError("give server_url or connector_id, not both")
        _check_address(tool.server_url, table.mcp_addresses)
    elif connector not in table.mcp_servers:
        hint = did_you_mean(connector, table.mcp_servers, "give its server_url")
        raise RequestRefused(403, f"this server knows no MCP server {connector!r:.100}{hint}", "forbidden")
    elif headers:
        raise ConfigError(f"the MCP server {label!r} is the operator's, so it takes no headers of clients")
    needs = tool.require_approval or table.mcp_approval
    allowed = tool.allowed_tools
    return GivenServer(
        label=label,
        url=tool.server_url,
        connector=connector,
        headers=headers,
        choice=_choice(ChosenTools(tool_names=allowed) if isinstance(allowed, list) else allowed)
        or ToolChoice(),
        always=_choice(needs.always) if isinstance(needs, ApprovalFilters) else None,
        never=_choice(needs.never)
        if isinstance(needs, ApprovalFilters)
        else ToolChoice()
        if needs == "never"
        else None,
    )


def _choice(given: ChosenTools | None) -> ToolChoice | None:
    if given is None:
        return None
    names = None if given.tool_names is None else tuple(given.tool_names)
    return ToolChoice(tool_names=names, read_only=given.read_only)


def _check_address(url: str, allowed: list[str]) -> None:
    """Check that clients may name the MCP server at an address. Raises: `RequestRefused`."""
    # A path that leads out of the allowed one, and a host behind a user, would be other places.
    found = _ADDRESS.fullmatch(url)
    path = "" if found is None else unquote(found["path"])
    is_plain = path != "" and "\\" not in path and posixpath.normpath(path) in (path, path.rstrip("/"), "/")
    address = url.partition("?")[0]
    if not is_plain or not any(
        [address == place or (place.endswith("/") and address.startswith(place)) for place in allowed]
    ):
        raise RequestRefused(
            403,
            f"clients may not name the MCP server {address!r:.200}; the operator of this server allows addresses "
            "by serve.mcp_addresses",
            "forbidden",
        )


async def open_servers(given: tuple[GivenServer, ...], table: ServeTable) -> ClientServers:
    """Connect to servers, and list their tools. Raises: `ConfigError`; `RequestRefused` if one cannot be used."""
    servers: list[MCPServer] = []
    for item in given:
        if item.url is None:
            entry = {"mcpServers": {item.label: table.mcp_servers[item.connector]}}
            servers += read_servers(entry, "serve.mcp_servers").servers
        else:
            transport = "sse" if urlsplit(item.url).path.endswith("/sse") else "http"
            servers.append(
                MCPServer(url=item.url, headers=item.headers, name=item.label, transport=transport)
            )
    found = ClientServers(servers, {item.label: item.choice for item in given})
    try:
        return await found.open()
    except ConfigError as error:
        raise RequestRefused(424, str(error), "external_connector_error") from None


def approvals_of(
    given: tuple[GivenServer, ...], servers: ClientServers, policy: Policy
) -> dict[str, Literal["ask"]]:
    """Return the rules of approval that a client wants, as far as `policy` would run the calls."""
    by_label = {item.label: item for item in given}
    asked = [spec for tool in servers.tools() if (spec := tool.spec).origin is not None]
    return {
        spec.name: "ask"
        for spec in asked
        if by_label[spec.origin.server].asks(spec)  # type: ignore[union-attr]
        and policy.approval_of(spec.name, spec.effect) is Approval.ALWAYS
    }


def end_without_servers(state: State) -> Sequence[e.DurableBody]:
    """Return the events that end a turn with which no process can go on, because what the client gave for its
    servers is kept nowhere; nothing for any other turn."""
    parts = () if state.agent is None else state.agent.tools
    if not state.turn.is_open or not any([part.name == CLIENT_MCP and part.missing for part in parts]):
        return ()
    labels = dict.fromkeys([repr(spec.origin.server) for spec in state.tools if spec.origin is not None])
    error = (
        f"the server was interrupted, and does not keep what the client gave for {', '.join(labels)} "
        "(authorization, headers): send the request again, or continue this response with the servers"
    )
    ended = [
        replace(body, error=error, fault=Fault.INFRASTRUCTURE)
        if isinstance(body, e.TurnCompleted | e.RunFinished)
        else body
        for body in abandon_turn(state)
    ]
    return (e.RunResumed(), *ended)


def write_tool(tool: dict[str, Any]) -> dict[str, Json]:
    """Return a tool of a request as its response repeats it: without secrets."""
    if tool.get("type") != MCP:
        return tool
    shown: dict[str, Json] = {name: value for name, value in tool.items() if name not in _SECRET}
    url = shown.get("server_url")
    if isinstance(url, str) and may_hold_secret(f"{MCP}:{url}"):
        shown["server_url"] = f"{'/'.join(url.split('/')[:3])}/{MASK}"
    return shown
