"""A server made with the official SDK: `python sdk_server.py [stdio | PORT_FILE [PORT [sse]]]`."""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations
from pydantic import BaseModel

app = MCPServer("sdk")


class Who(BaseModel):
    """What `ask` asks for."""

    name: str


log = Path(os.environ.get("CALLS", os.devnull))


def note(text: str) -> None:
    with log.open("a") as file:
        file.write(f"{text}\n")


@app.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
def put(value: str) -> str:
    """Note a value."""
    note(f"put {value} {os.getpid()}")
    return f"put {value}"


@app.tool()
async def report(ctx: Context[Any, Any], steps: int) -> str:
    """Report progress."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    return "reported"


def grown() -> str:
    """A tool that is added later."""
    return "grown"


@app.tool()
async def grow(ctx: Context[Any, Any]) -> str:
    """Add a tool."""
    app.add_tool(grown)
    await ctx.notify_tools_changed()
    return "added"


@app.tool()
def show(what: str) -> Any:
    """Show a thing."""
    if what == "image":
        return Image(data=b"\x89PNG", format="png")
    if what == "link":
        return types.ResourceLink(
            type="resource_link", name="page", uri="file:///page.txt", mime_type="text/plain"
        )
    if what == "resource":
        blob = base64.b64encode(b"\x00\x01").decode()
        inner = types.BlobResourceContents(uri="file:///blob", mime_type="application/x", blob=blob)
        return types.EmbeddedResource(type="resource", resource=inner)
    if what == "text resource":
        text = types.TextResourceContents(uri="file:///t", mime_type="text/plain", text="inside")
        return types.EmbeddedResource(type="resource", resource=text)
    raise ValueError(f"there is no {what}")


@app.tool(name="odd.name/with spaces")
def odd() -> str:
    """Has a name that providers refuse."""
    return "odd"


@app.tool()
async def wait(seconds: float) -> str:
    """Wait, and note that the call came and that it was cancelled."""
    import anyio

    note("waiting")
    try:
        await anyio.sleep(seconds)
    except BaseException:
        note("cancelled")
        raise
    return "waited"


@app.tool()
def key(ctx: Context[Any, Any]) -> str:
    """The idempotency key that came with the request."""
    meta = ctx.request_context.meta
    extra = meta if isinstance(meta, dict) else getattr(meta, "model_extra", None) or {}
    return str(extra.get("treadle/idempotency_key"))


@app.tool()
async def ask(ctx: Context[Any, Any]) -> str:
    """Asks the user, whom it does not have."""
    answer = await ctx.elicit("Who are you?", Who)
    return str(answer)


@app.tool()
def fill(size: int) -> str:
    """A long text."""
    return "x" * size


@app.tool()
def forget(name: str) -> str:
    """Remove a tool."""
    app.remove_tool(name)
    return f"removed {name}"


@app.tool()
def end() -> str:
    """End the server without an answer."""
    note("end")
    os._exit(3)


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["stdio"]):
        app.run("stdio")
    else:
        import socket

        import uvicorn

        port_file, port, kind = (*sys.argv[1:], *("0", "http")[len(sys.argv) - 2 :])
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        # The reader of the port connects immediately.
        listener.listen(100)
        served = app.sse_app() if kind == "sse" else app.streamable_http_app()
        Path(port_file).write_text(str(listener.getsockname()[1]))
        uvicorn.Server(uvicorn.Config(served, log_level="error")).run(sockets=[listener])
