"""A server that asks the user, made with the official SDK: `python elicit_server.py ERA [PORT_FILE]`.

`ERA` is `modern`, or `legacy` for a server that knows only protocol versions with a handshake.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import ElicitRequestURLParams, ToolAnnotations
from pydantic import BaseModel, Field

app = MCPServer("desk")
log = Path(os.environ.get("CALLS", os.devnull))
PURE = ToolAnnotations(read_only_hint=True)


class Booking(BaseModel):
    """The form of a booking."""

    name: str = Field(description="Your name.")
    seats: int = Field(ge=1)


def note(text: str) -> None:
    with log.open("a") as file:
        file.write(f"{text}\n")


def describe(result: Any) -> str:
    note(f"answered {result.action}")
    if isinstance(result, AcceptedElicitation):
        return f"booked {result.data.seats} for {result.data.name}"
    return f"not booked: {result.action}"


def ask(day: str) -> Elicit[Booking]:
    note("asked")
    return Elicit(f"Who comes on {day}?", Booking)


if sys.argv[1] == "modern":
    Found = Annotated[ElicitationResult[Booking], Resolve(ask)]

    @app.tool(annotations=PURE)
    async def book(day: str, found: Found) -> str:
        """Books a table that may be booked twice."""
        return describe(found)

    @app.tool()
    async def book_once(day: str, found: Found) -> str:
        """Books a table."""
        return describe(found)

else:
    app._lowlevel_server._request_handlers.pop("server/discover")

    async def ask_now(ctx: Context[Any, Any], day: str) -> str:
        note("asked")
        return describe(await ctx.elicit(f"Who comes on {day}?", Booking))

    @app.tool(annotations=PURE)
    async def book(ctx: Context[Any, Any], day: str) -> str:
        """Books a table that may be booked twice."""
        return await ask_now(ctx, day)

    @app.tool()
    async def book_once(ctx: Context[Any, Any], day: str) -> str:
        """Books a table."""
        return await ask_now(ctx, day)

    @app.tool()
    async def pay(ctx: Context[Any, Any]) -> str:
        """Sends the user to a page."""
        result = await ctx.elicit_url("Pay here", "https://pay.example/1?key=planted/key-00077", "e1")
        return f"payment: {result.action}"

    paid: list[str] = []

    @app.tool()
    async def pay_first() -> str:
        """Wants the user to open a page before the call."""
        if not paid:
            paid.append("asked")
            page = ElicitRequestURLParams(message="Log in", url="https://login.example/", elicitation_id="e2")
            raise UrlElicitationRequiredError([page])
        return "paid"


async def serve_handshake_only() -> None:
    """Serve stdio as servers did that know no newer protocol version."""
    server = app._lowlevel_server
    async with stdio_server() as (reading, writing), server.lifespan(server) as state:
        await serve_loop(server, reading, writing, lifespan_state=state)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] == "legacy":
        asyncio.run(serve_handshake_only())
    elif len(sys.argv) == 2:
        app.run("stdio")
    else:
        import socket

        import uvicorn

        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        Path(sys.argv[2]).write_text(str(listener.getsockname()[1]))
        uvicorn.Server(uvicorn.Config(app.streamable_http_app(), log_level="error")).run(sockets=[listener])
