"""A server that misbehaves as its arguments say, written from the protocol alone."""

import json
import os
import signal
import sys
import time

MODE = sys.argv[1]
STATE = sys.argv[2] if len(sys.argv) > 2 else os.devnull


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def note(text):
    with open(STATE, "a") as file:
        file.write(text + "\n")


def tool(name, **more):
    return {"name": name, "inputSchema": {"type": "object"}, **more}


TOOLS = [
    tool("once"),
    tool("look", annotations={"readOnlyHint": True}),
    tool("set", annotations={"idempotentHint": True, "readOnlyHint": False}),
]


def list_tools(cursor):
    if MODE == "pages":
        number = int(cursor or 0)
        page = {"tools": [tool(f"t{number}")]}
        return page if number == 4 else {**page, "nextCursor": str(number + 1)}
    if MODE == "endless":
        return {"tools": [tool("t")], "nextCursor": "again"}
    if MODE == "hangs listing":
        time.sleep(60)
    if MODE == "careless":
        return {
            "tools": [
                tool("empty", inputSchema={}),
                {"name": "none"},
                tool("notes", annotations={"readOnlyHint": "maybe", "idempotentHint": True}),
                tool("output", outputSchema={"type": "object", "properties": {"n": {"type": "integer"}}}),
                tool("output", description="the same name again"),
                tool("nonsense", outputSchema=5, annotations=[]),
                tool("l" * 70 + "1"),
                tool("l" * 70 + "2"),
                {"inputSchema": {}},
                "text",
            ]
        }
    if MODE == "schema":
        bad = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
        return {"tools": [{"name": "bad", "inputSchema": bad}, tool("good")]}
    if MODE == "halves":
        return {"tools": [{**tool("good"), "description": "cut \ud83d"}]}
    if MODE == "changes" and os.path.exists(STATE):
        return {"tools": [tool("other")]}
    return {"tools": TOOLS}


def call(number, name):
    lives = 0
    if os.path.exists(STATE):
        with open(STATE) as file:
            lives = file.read().count("call")
    note(f"call {name}")
    if MODE == "dies" and lives == 0:
        sys.stderr.write("about to die\n")
        sys.stderr.flush()
        os._exit(1)
    if MODE == "hangs" and lives == 0:
        time.sleep(60)
    if MODE == "shuts":
        os.close(1)
        time.sleep(60)
    if MODE == "changes":
        send({"method": "notifications/tools/list_changed"})
    if MODE == "error":
        send({"id": number, "error": {"code": -32603, "message": "the disk is full, secret=hunter22"}})
        return
    if MODE.startswith("unreadable"):
        sys.stdout.write(MODE.partition(" ")[2].replace("NUMBER", json.dumps(number)) + "\n")
        sys.stdout.flush()
        return
    if MODE == "halves":
        text = r"cut \ud83d, \uDE00, whole \ud83d\ude00, no escape \\ud83d"
        answer = json.dumps({"content": [{"type": "text", "text": "TEXT"}]}).replace("TEXT", text)
        sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {answer}}}\n')
        sys.stdout.flush()
        return
    if MODE == "nonsense":
        send({"id": number, "result": {"content": "no list"}})
        return
    if MODE == "noisy":
        sys.stdout.write("debug: here I am\n{not json\n\n")
        sys.stdout.flush()
    if MODE == "large":
        send({"id": number, "result": {"content": [{"type": "text", "text": "x" * 5_000_000}]}})
        return
    text = [{"type": "text", "text": f"did {name} in {os.getpid()}"}]
    if MODE == "careless":
        send({"id": number, "result": {"content": text, "structuredContent": {"n": "no integer"}}})
        return
    send({"id": number, "result": {"content": text, "isError": MODE == "iserror"}})
    if MODE == "dies after":
        os._exit(0)


def main():
    if MODE == "exits":
        sys.stderr.write("no such database: /nowhere\n")
        sys.exit(2)
    if MODE == "silent":
        time.sleep(60)
    if MODE == "slow":
        time.sleep(1.0)
    if MODE == "tells":
        sys.stderr.write(" ".join([*sys.argv[3:], *os.environ.values()]) + "\n")
        sys.exit(2)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE in ("noisy", "stubborn"):
        print("Welcome to the server!", flush=True)
    if MODE == "noisy":
        sys.stdout.buffer.write(
            b"\xff\xfe not text\n[1, 2]\n" + b'{"jsonrpc": "2.0", "id": 77, "result": {}}\n'
        )
        print("noise\n" * 2000)
    if os.devnull != STATE:
        with open(STATE + ".starts", "a") as file:
            file.write(f"{os.getpid()}\n")
    is_first = True
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if MODE == "strict" and is_first and method != "initialize":
            sys.exit("expected initialize")
        is_first = False
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            result = {
                "protocolVersion": version,
                "capabilities": {"tools": {"listChanged": MODE != "fixed"}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
            send({"id": number, "result": result})
        elif method == "tools/list":
            send({"id": number, "result": list_tools((message.get("params") or {}).get("cursor"))})
        elif method == "tools/call":
            call(number, message["params"]["name"])
        elif number is not None:
            send({"id": number, "error": {"code": -32601, "message": f"no method {method}"}})
    if MODE == "stubborn":
        time.sleep(60)


main()
