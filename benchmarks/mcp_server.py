"""A server with one tool, made with the official SDK."""

from mcp.server.mcpserver import MCPServer

app = MCPServer("bench")


@app.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    app.run("stdio")
