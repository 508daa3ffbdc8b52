"""A server of embeddings for tests: `/v1/embeddings` on a real socket.

A vector counts the words and the trigrams of a text in hashed places, after each word was replaced by the first of
its synonyms. The server can also fail in several ways.
"""

import json
import math
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUMBERS = 64
SYNONYMS = (
    ("car", "automobile", "vehicle"),
    ("doctor", "physician"),
    ("dog", "hound", "puppy"),
    ("buy", "purchase"),
)
_FIRST = {word: group[0] for group in SYNONYMS for word in group}


def embed(text: str, numbers: int = NUMBERS) -> list[float]:
    """Return the vector of a text."""
    values = [0.0] * numbers
    for word in text.lower().replace(".", " ").replace("?", " ").split():
        word = _FIRST.get(word, word)
        pieces = [word, *[f" {word} "[place : place + 3] for place in range(len(word))]]
        for piece in pieces:
            hashed = zlib.crc32(piece.encode())
            values[hashed % numbers] += (1 if hashed & 0x8000 else -1) * (3 if piece is word else 1)
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / length for value in values]


class EmbeddingServer:
    """A running server. `mode` says how it answers."""

    def __init__(self) -> None:
        self.mode = "well"
        self.fails_after: int | None = None
        """How many more requests are answered before all fail; `None`: no limit."""
        self.numbers = NUMBERS
        self.inputs: list[list[str]] = []
        """The texts of each request."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, data = outer.answer(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self, path: str, body: dict[str, list[str]]) -> tuple[int, bytes]:
        """Return status and body of the answer to a request."""
        self.inputs.append(body["input"])
        assert path == "/v1/embeddings"
        if self.fails_after is not None:
            self.fails_after -= 1
        if self.mode == "fail" or (self.fails_after or 0) < 0:
            return 500, b'{"error": {"message": "out of memory"}}'
        if self.mode == "slow":
            time.sleep(5)
        vectors = [embed(text, self.numbers) for text in body["input"]]
        if self.mode == "fewer":
            vectors = vectors[1:]
        if self.mode == "zero":
            vectors[0] = [0.0] * self.numbers
        if self.mode == "ragged":
            vectors[0] = vectors[0][1:]
        data = [
            {"object": "embedding", "index": place, "embedding": item} for place, item in enumerate(vectors)
        ]
        text = json.dumps({"object": "list", "data": data[::-1], "model": "m", "usage": {"prompt_tokens": 1}})
        if self.mode == "nan":
            text = text.replace('"embedding": [', '"embedding": [NaN, ', 1)
        if self.mode == "huge":
            text = text.replace('"embedding": [', '"embedding": [1e999, ', 1)
        if self.mode == "junk":
            text = "<html>"
        return 200, text.encode()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving() -> Iterator[EmbeddingServer]:
    """Run a server during the block."""
    server = EmbeddingServer()
    try:
        yield server
    finally:
        server.close()
