"""`treadle tools serve`: tools for other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle tools serve --tools files --tools python --port 3000",
    "treadle tools serve --tools python --mcp stdio",
)


class Mcp(StrEnum):
    """How MCP is spoken."""

    STDIO = "stdio"
    HTTP = "http"


def serve(
    tools: o.Tools = None,
    mcp: Annotated[
        Mcp | None,
        typer.Option(
            "--mcp",
            help="stdio: MCP alone, on standard input and output. http: MCP alone. Neither: both protocols.",
        ),
    ] = None,
    has_spin: Annotated[
        bool, typer.Option("--spin", help="The Spin protocol alone, as DeepFabric speaks it.")
    ] = False,
    host: Annotated[str, typer.Option(metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 picks a free one.")] = 3000,
    mount: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder whose files each session begins with; never written to."),
    ] = None,
    idle: Annotated[
        float,
        typer.Option("--idle", metavar="SECONDS", help="A session that is not used for so long is freed."),
    ] = 3600.0,
    max_sessions: Annotated[int, typer.Option("--max-sessions", metavar="N", min=1)] = 1000,
    is_json: o.IsJson = False,
) -> None:
    """Serve tools over MCP and over the Spin protocol. Each session has files of its own."""
    from treadle.cli.tool_server import Service, serve_http, serve_stdio
    from treadle.core.errors import ConfigError

    if has_spin and mcp is not None:
        raise ConfigError("--spin and --mcp are each for one protocol alone; leave both away to serve both")
    service = Service(tools or ["files"], mount, idle, max_sessions)
    if mcp is Mcp.STDIO:
        serve_stdio(service)
    else:
        serve_http(service, host, port, has_mcp=not has_spin, has_spin=mcp is None, is_json=is_json)
