"""A small MCP server, written from the protocol, whose tools record each of their effects."""

import json
import os
import sys

WITNESS = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
HINTS = {
    "mcp_once": {},
    "mcp_look": {"readOnlyHint": True},
    "mcp_set": {"idempotentHint": True},
}
EFFECTS = {"mcp_once": "once", "mcp_look": "pure", "mcp_set": "idempotent"}


def answer(method, params):
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "crash", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object"}
        return {"tools": [{"name": n, "inputSchema": schema, "annotations": h} for n, h in HINTS.items()]}
    name, key = params["name"], params["_meta"]["treadle/idempotency_key"]
    os.write(WITNESS, f"effect {EFFECTS[name]} {key}\n".encode())
    return {"content": [{"type": "text", "text": f"did {name}"}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] in ("initialize", "tools/list", "tools/call"):
        reply = {"result": answer(message["method"], message.get("params"))}
    else:
        reply = {"error": {"code": -32601, "message": "no such method"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}) + "\n")
    sys.stdout.flush()
