"""A web server on a real socket whose answers come from a function."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked], tuple[int, dict[str, str], bytes]]


class Web:
    """The server's address, and the requests that it received."""

    def __init__(self, url: str, port: int) -> None:
        self.url = url
        self.port = port
        self.asked: list[Asked] = []


@contextmanager
def serve(answer: Answer, host: str = "127.0.0.1") -> Iterator[Web]:
    """Run the server until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(length))
            web.asked.append(asked)
            status, more, body = answer(asked)
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            if "content-length" not in more:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_one  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Ignore errors of connections, because some tests close them early."""

    server = Server((host, 0), Handler)
    web = Web(f"http://{host}:{server.server_address[1]}", server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
