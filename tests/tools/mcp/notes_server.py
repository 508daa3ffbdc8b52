"""An MCP server, written from the protocol, that keeps notes in a run's files.

Neither the end of its input nor SIGTERM ends it.
"""

import json
import os
import signal
import sys
import time

FILE = os.path.join(os.environ["TREADLE_RUN_FILES"], "notes.txt")
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"name": name, "inputSchema": TEXT} for name in ("note", "note_and_exit", "note_and_wait", "who")]
signal.signal(signal.SIGTERM, signal.SIG_IGN)


def call(name, arguments):
    if name == "who":
        return f"{os.getpid()} {os.environ['TREADLE_RUN_ID']}"
    with open(FILE, "a") as file:
        file.write(f"{arguments['text']}\n")
    if name == "note_and_exit":
        os._exit(1)
    if name == "note_and_wait" and not os.path.exists(os.environ["WAITED"]):
        with open(f"{os.environ['WAITED']}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, os.environ["WAITED"])
        time.sleep(1000)
    with open(FILE) as file:
        return file.read()


def answer(message):
    method, params = message["method"], message.get("params") or {}
    if "id" not in message:
        return None
    result = {"tools": TOOLS}
    if method == "initialize":
        info = {"name": "notes", "version": "1"}
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": call(params["name"], params["arguments"])}]}
    elif method != "tools/list":
        error = {"code": -32601, "message": "no such method"}
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error})
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})


for line in sys.stdin:
    if (told := answer(json.loads(line))) is not None:
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()
while True:
    time.sleep(1)
