"""The oracle as a server that speaks OpenAI's chat completions, for demonstrations, tests and benchmarks.

It plays the oracle of the task set `files`: its model `oracle` solves any task of the set, over any number of
connections, and keeps nothing between requests. `oracle:0.3` makes a mistake at three steps in ten.
Source: OpenAI API reference, chat completions, 2025.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, RequestError
from treadle.core.types import Json
from treadle.tasks.draw import fraction
from treadle.tasks.files import find_solver
from treadle.teacher.http import Head, HttpFault, Parser, encode_chunk, encode_head
from treadle.teacher.oracle import OracleModel
from treadle.teacher.wire import decode_request, to_events, to_message, to_wire

MODEL_NAME = "oracle"
_MAX_PENDING_BYTES = 256 * 1024
_MAX_REMEMBERED = 10_000
_ROUTES = {"/v1/chat/completions": "POST", "/v1/models": "GET", "/health": "GET"}

_encode = msgspec.json.Encoder().encode


class ServerSettings(Struct, frozen=True, kw_only=True):
    """How the server behaves."""

    mistake_rate: float = 0.0
    """Of the model `oracle`; a rate in the model's name wins."""
    latency_seconds: float = 0.0
    """Before each completion."""
    chunk_seconds: float = 0.0
    """Between the events of a stream."""
    failure_rate: float = 0.0
    """The share of completions answered with 429 or 503 instead; trying again draws anew."""
    seed: int = 0
    """Of the failures, which depend on it, on the request and on how often it came."""

    def __post_init__(self) -> None:
        for name in ("mistake_rate", "failure_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number from 0 to 1")
        for name in ("latency_seconds", "chunk_seconds"):
            if not 0.0 <= getattr(self, name) < 86_400.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number of seconds from 0")


class Reply(Struct, frozen=True):
    """An answer before it is sent."""

    status: int
    pieces: Sequence[bytes]
    """The body; of a stream, its events."""
    headers: dict[str, str]
    is_stream: bool = False
    is_completion: bool = False
    """Waits for `latency_seconds`."""


class OracleApp:
    """What the server answers, without the network."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._failures: dict[int, int] = {}
        """How often a request that has failed did so, by its hash."""

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """The answer to one request."""
        expected = _ROUTES.get(path)
        if expected is None:
            known = ", ".join(f"{verb} {route}" for route, verb in _ROUTES.items())
            return _error(404, f"there is no route {path!r}; there are {known}", "unknown_url")
        if method != expected and (method, expected) != ("HEAD", "GET"):
            reply = _error(405, f"{path} takes {expected}, not {method}", "method_not_allowed")
            return msgspec.structs.replace(reply, headers={**reply.headers, "Allow": expected})
        if path == "/health":
            return _json(200, {"status": "ok"})
        if path == "/v1/models":
            entry = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "treadle"}
            return _json(200, {"object": "list", "data": [entry]})
        return self._fail(body) or self._complete(body)

    def _fail(self, body: bytes) -> Reply | None:
        rate = self.settings.failure_rate
        if not rate:
            return None
        key = hash(body)
        attempt = self._failures.pop(key, 0)
        draw = fraction(self.settings.seed, attempt, body.decode("latin-1"))
        if draw >= rate:
            return None
        if len(self._failures) >= _MAX_REMEMBERED:
            self._failures.clear()
        self._failures[key] = attempt + 1
        if draw < rate / 2:
            reply = _error(429, "rate limit reached (made up by failure_rate)", "rate_limit_exceeded")
            retry = {"Retry-After": "0", "Retry-After-Ms": "20"}
            return msgspec.structs.replace(reply, headers={**reply.headers, **retry})
        return _error(503, "the server is overloaded (made up by failure_rate)", "server_error")

    def _complete(self, body: bytes) -> Reply:
        try:
            asked = decode_request(body)
            messages = [to_message(item) for item in asked.messages]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _error(400, f"the body is not a chat completion request: {error}", "invalid_body")
        if asked.n not in (None, 1):
            return _error(400, f"n is {asked.n}; the oracle has one answer, so leave it out", "invalid_n")
        try:
            oracle = self._find_model(asked.model)
        except ConfigError as error:
            return _error(404, str(error), "model_not_found")
        has_tools = bool(asked.tools) and asked.tool_choice != "none"
        max_calls = 1 if asked.parallel_tool_calls is False else None
        try:
            completion = oracle.complete(messages, has_tools=has_tools, max_calls=max_calls)
        except RequestError as error:
            return _error(400, str(error), "unknown_prompt")
        if not asked.stream:
            return _json(200, to_wire(completion, asked.model), is_completion=True)
        has_usage = asked.stream_options is not None and asked.stream_options.include_usage
        events = [b"data: %b\n\n" % _encode(item) for item in to_events(completion, asked.model, has_usage)]
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        return Reply(200, [*events, b"data: [DONE]\n\n"], headers, is_stream=True, is_completion=True)

    def _find_model(self, name: str) -> OracleModel:
        stem, colon, rate = name.partition(":")
        try:
            if stem == MODEL_NAME:
                mistake_rate = float(rate) if colon else self.settings.mistake_rate
                return OracleModel(find_solver, mistake_rate=mistake_rate, name=name)
        except ValueError:
            pass
        raise ConfigError(
            f"there is no model {name!r}; there are {MODEL_NAME!r}, and '{MODEL_NAME}:RATE' with a rate of "
            "mistakes from 0 to 1"
        )


def _json(status: int, value: Json, *, is_completion: bool = False) -> Reply:
    headers = {"Content-Type": "application/json"}
    return Reply(status, [_encode(value)], headers, is_completion=is_completion)


def _error(status: int, message: str, code: str) -> Reply:
    kind = "invalid_request_error"
    if status == 429 or status >= 500:
        kind = "rate_limit_error" if status == 429 else "server_error"
    return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


class Connection(asyncio.Protocol):
    """One client: its requests are answered in the order in which they came."""

    def __init__(self, app: OracleApp, connections: "set[Connection]") -> None:
        self._app = app
        self._connections = connections
        self._parser = Parser()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Set while an answer is on its way."""
        self._is_blocked = False
        self._is_ended = False
        """The client sends no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by isinstance: uvloop's transports are no subclass.
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        self._is_ended = True
        return self._timer is not None or self._is_blocked

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._advance()

    def abort(self) -> None:
        """Drop the client."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        """Answer what has come in whole, unless the client has to wait."""
        transport = self._transport
        while transport is not None and not transport.is_closing():
            if self._timer is not None or self._is_blocked:
                if self._parser.buffered_bytes > _MAX_PENDING_BYTES:
                    transport.pause_reading()
                return
            try:
                request = self._parser.next_request()
            except HttpFault as fault:
                self._refuse(transport, fault)
                return
            if request is None:
                if self._parser.take_continue():
                    transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                transport.resume_reading()
                if self._is_ended:
                    transport.close()
                return
            self._answer(*request)

    def _refuse(self, transport: asyncio.Transport, fault: HttpFault) -> None:
        reply = _error(fault.status, fault.message, "bad_http")
        headers = {**reply.headers, "Content-Length": str(len(reply.pieces[0])), "Connection": "close"}
        transport.write(encode_head(fault.status, headers) + reply.pieces[0])
        transport.close()

    def _answer(self, head: Head, body: bytes) -> None:
        reply = self._app.answer(head.method, head.path, body)
        settings = self._app.settings
        is_closing = not head.is_kept_alive
        headers = dict(reply.headers)
        pieces = list(reply.pieces)
        if not reply.is_stream:
            headers["Content-Length"] = str(sum(map(len, pieces)))
        elif head.is_http_11:
            headers["Transfer-Encoding"] = "chunked"
            pieces = [*map(encode_chunk, pieces), b"0\r\n\r\n"]
        else:
            is_closing = True
        if is_closing or not head.is_http_11:
            headers["Connection"] = "close" if is_closing else "keep-alive"
        parts = [encode_head(reply.status, headers), *([] if head.method == "HEAD" else pieces)]
        delay = settings.latency_seconds if reply.is_completion else 0.0
        gap = settings.chunk_seconds if reply.is_stream else 0.0
        if delay or gap:
            self._send_later(iter(parts if gap else [b"".join(parts)]), delay, gap, is_closing)
            return
        assert self._transport is not None
        self._transport.write(b"".join(parts))
        if is_closing:
            self._transport.close()

    def _send_later(self, parts: Iterator[bytes], delay: float, gap: float, is_closing: bool) -> None:
        """Write the next part after `delay`, and each further one after `gap`."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, self._send_next, parts, gap, is_closing)

    def _send_next(self, parts: Iterator[bytes], gap: float, is_closing: bool) -> None:
        part = next(parts, None)
        if self._transport is not None and part is not None:
            self._transport.write(part)
            self._send_later(parts, gap, gap, is_closing)
            return
        self._timer = None
        if self._transport is not None and is_closing:
            self._transport.close()
        self._advance()


class OracleServer:
    """A running server."""

    def __init__(self, server: asyncio.Server, host: str, connections: set[Connection]) -> None:
        self._server = server
        self._connections = connections
        self.port: int = server.sockets[0].getsockname()[1]
        reachable = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        name = f"[{reachable}]" if ":" in reachable else reachable
        self.url = f"http://{name}:{self.port}/v1"
        """What a client takes as its base URL."""

    async def close(self) -> None:
        """Stop listening and drop every client."""
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._server.wait_closed()


async def serve(
    host: str = "127.0.0.1", port: int = 0, settings: ServerSettings | None = None
) -> OracleServer:
    """Start the server; port 0 picks a free one.

    Raises: `ConfigError` if it cannot listen there.
    """
    app = OracleApp(settings or ServerSettings())
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(lambda: Connection(app, connections), host, port, backlog=4096)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({error}); choose another port, or 0") from error
    return OracleServer(server, host, connections)
