"""The MCP servers of a task, as toolsets of its agent.

Treadle connects to a server that has an address of its own in the public network. One that the task's environment
has to start, over standard input or as another container, is refused.
"""

import json
from collections.abc import Mapping, Sequence

from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.http.guarded import host_of, special_kind
from treadle.http.plain.dial import read_address
from treadle.tasks.foreign.harbor_folder import HarborTurn


def find_servers(turns: Sequence[HarborTurn]) -> list[str]:
    """Return the toolset of `environment.mcp_servers`; nothing without servers. Raises: `ConfigError`."""
    environment = turns[0].section("environment")
    given = environment.get("mcp_servers") or []
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise ConfigError(f"its environment.mcp_servers are {given!r:.80}; write tables")
    named = {str(item.get("name")): _read_entry(item) for item in given if isinstance(item, dict)}
    if not named:
        return []
    modes = [
        section.get("network_mode") for turn in turns for section in (environment, turn.section("agent"))
    ]
    if environment.get("allow_internet") is False or any(mode not in (None, "public") for mode in modes):
        raise ConfigError("its environment.mcp_servers need a network, which its network_mode does not give")
    return [f"mcp:{json.dumps({'mcpServers': named})}"]


def _read_entry(item: Mapping[str, Json]) -> dict[str, Json]:
    """Return the server as MCP clients write it. Raises: `ConfigError`."""
    what = f"its environment.mcp_servers has {str(item.get('name'))!r}"
    url, transport = item.get("url"), item.get("transport", "sse")
    if transport == "stdio":
        raise ConfigError(f"{what} with the transport 'stdio', which Treadle cannot start in its environment")
    if transport not in ("sse", "http", "streamable-http") or not isinstance(url, str):
        raise ConfigError(f"{what} with the transport {transport!r} and the url {url!r:.80}")
    if not _is_public(url):
        raise ConfigError(f"{what} at {url!r:.80}, which only its containers can reach")
    headers = item.get("headers") or {}
    if "${" in url or "${" in str(headers):
        raise ConfigError(f"{what} with variables from outside, and no secret is sent to a server of a task")
    made = {"url": url, "type": transport, "publicOnly": True}
    return {**made, **({"headers": headers} if headers else {})}


def _is_public(url: str) -> bool:
    """Return whether the host of an address is a name with a domain, or a public number. Where a name leads to is
    checked when its server is connected to. Raises: `ConfigError` if it is not the URL of a server."""
    host = host_of(url).rpartition(":")[0].strip("[]")
    if read_address(host):
        return special_kind(host) is None
    return "." in host and host.rpartition(".")[2] not in ("local", "internal", "localhost")
