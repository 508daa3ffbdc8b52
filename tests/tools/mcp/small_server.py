"""A small MCP server, written from the protocol, whose tools add, fail, and never end. It starts quickly."""

import json
import sys

INTEGER = {"type": "integer"}
TOOLS = [
    {
        "name": "add",
        "description": "Add two numbers.",
        "inputSchema": {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "show",
        "description": "Fail.",
        "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
    {
        "name": "wait",
        "description": "Wait for ever.",
        "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}},
    },
]


def answer(method, params):
    if method == "initialize":
        info = {"name": "small", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    name, arguments = params["name"], params["arguments"]
    if name == "add":
        return {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}
    text = f"there is no {arguments['what']!r} to show"
    return {"content": [{"type": "text", "text": text}], "isError": True}


for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if "id" not in message or params.get("name") == "wait":
        continue
    if method in ("initialize", "tools/list", "tools/call"):
        reply = {"result": answer(method, params)}
    else:
        reply = {"error": {"code": -32601, "message": "no such method"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}) + "\n")
    sys.stdout.flush()
