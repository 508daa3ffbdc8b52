"""A model server on a real socket whose answers come from a function."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = Any

USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}

Answer = Callable[[dict[str, Json]], Json]
"""A function that takes a request's body and returns a message, an error status, or a status with its error
text and perhaps the seconds of Retry-After."""


class Scripted:
    """A server that answers with a function, and records the requests."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[dict[str, Json]] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Event()
        self._answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body)
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                outer.asked.set()
                reply = outer._answer(body)
                status, text, seconds = 200, "no such key", None
                if isinstance(reply, int):
                    status = reply
                elif isinstance(reply, tuple):
                    status, text, seconds = (*reply, None)[:3]
                kind, data = "application/json", json.dumps({"error": {"message": text}}).encode()
                if status == 200 and body.get("stream"):
                    kind, data = "text/event-stream", _stream(reply)
                elif status == 200:
                    data = json.dumps(_whole(reply)).encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                if seconds is not None:
                    self.send_header("retry-after", str(seconds))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Ignore errors of connections, because some tests close them early."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _whole(message: dict[str, Json]) -> Json:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return {"id": "1", "model": "m", "choices": [choice], "usage": message.get("usage", USAGE)}


def _stream(message: dict[str, Json]) -> bytes:
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))]
    reason = "tool_calls" if calls else "stop"
    delta = {
        "role": "assistant",
        "content": message.get("content"),
        **({"tool_calls": calls} if calls else {}),
    }
    chunks = [
        {"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"id": "1", "model": "m", "choices": [], "usage": message.get("usage", USAGE)},
    ]
    return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


def say(text: str) -> Json:
    """Return an answer with this text."""
    return {"content": text}


def call(name: str, call_id: str = "call_1", **arguments: Json) -> Json:
    """Return a tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def call_once(name: str, **arguments: Json) -> Answer:
    """Answer with a tool call, and then with its result."""

    def answer(body: dict[str, Json]) -> Json:
        last = body["messages"][-1]
        return say(f"done: {last['content']}") if last["role"] == "tool" else call(name, **arguments)

    return answer


Script = Callable[[Answer], Scripted]
"""A function that starts a server; the server is stopped after the test."""
