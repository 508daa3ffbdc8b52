"""The wire formats of the gateway, and the requests to it as ASGI calls.

They do not go through FastAPI, whose checks of a request take longer than everything that is done here.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.inbox import check_labels
from treadle.core.texts.hiding import hide_servers
from treadle.core.types import Completion, Json
from treadle.models.dialects.anthropic import served as anthropic
from treadle.models.dialects.openai_chat import served as openai_chat
from treadle.models.dialects.openai_responses import served as openai_responses
from treadle.models.wire.served import ServedRequest
from treadle.server.admission.access import (
    LeavingWatch,
    Receive,
    RequestRefused,
    Scope,
    Send,
    check_scope,
    error_body,
    is_of_anthropic,
    read_body,
    send_whole,
)
from treadle.server.admission.idempotency import KeyedRequest
from treadle.server.event_stream import EventStream, to_sse, write_named
from treadle.server.gateway import response_wire
from treadle.server.gateway.client_turn import ClientTurn, RunNaming
from treadle.server.gateway.gateway_host import GatewayHost, result_of
from treadle.server.gateway.token_counts import COUNT_PATH, count_tokens

DirectAnswer: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[Any]]
"""What answers a request of ASGI, or returns the application that does. Raises: what prevents the answer, before
anything was sent."""
RUN_HEADER = "x-treadle-run"
"""The header with the id of the run that records a request, in both directions."""
LABELS_HEADER = "x-treadle-labels"
"""The header of a request with labels for a new run, as `name=value, name=value`."""
_RUN_HEADER, _LABELS_HEADER = RUN_HEADER.encode(), LABELS_HEADER.encode()
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,119}")
_encode = msgspec.json.Encoder().encode


class Stream(Protocol):
    """The events of one streamed answer, in a wire format."""

    def begin(self) -> Iterable[dict[str, Json]]:
        """Return the first events."""

    def add(self, piece: e.Delta) -> Iterable[dict[str, Json]]:
        """Return the events for a piece of the answer."""

    def end(self, completion: Completion) -> Iterable[dict[str, Json]]:
        """Return the last events."""


class Wire(Struct, frozen=True):
    """A wire format of the gateway."""

    read: Callable[[bytes], ServedRequest]
    write: Callable[[str, Completion, ServedRequest], dict[str, Json]]
    """A function of the answer's id, the answer and its request that returns the body of the response."""
    stream: Callable[[str, ServedRequest], Stream]
    """A function of the answer's id and its request that returns the stream of the answer."""
    frame: Callable[[dict[str, Json]], bytes]
    """A function that returns an event of a stream as bytes."""
    error: Callable[[int, str, str], dict[str, Json]]
    """A function of a status, a message and a code that returns an error as an event."""
    last: bytes = b""
    """What follows the last event of a stream."""


WIRES = {
    "/v1/chat/completions": Wire(
        openai_chat.read_request,
        openai_chat.write_answer,
        openai_chat.ChatStream.of,
        lambda event: to_sse(_encode(event)),
        error_body,
        b"data: [DONE]\n\n",
    ),
    "/v1/messages": Wire(
        anthropic.read_request,
        anthropic.write_answer,
        anthropic.MessageStream.of,
        write_named,
        lambda status, message, code: anthropic.write_error(status, message),
    ),
    "/v1/responses": Wire(
        response_wire.read_request,
        openai_responses.write_answer,
        openai_responses.ResponseStream.of,
        write_named,
        lambda status, message, code: {"type": "error", "code": code, "message": message, "param": None},
    ),
}
"""The wire formats, by the path of their requests. `treadle serve` has an API of its own for `/v1/responses`."""


class Gateway:
    """ASGI middleware that answers the requests to the gateway, and passes all others on.

    So it does with other POST requests that must be quick: `direct` has what answers them, by their paths.
    """

    def __init__(
        self,
        app: Any,
        host: GatewayHost,
        to_response: Callable[[Exception], Any],
        direct: Mapping[str, DirectAnswer] = {},
    ) -> None:
        """Keep the application for other requests. `to_response` returns the response for an error."""
        self._app = app
        self._host = host
        self._to_response = to_response
        self._direct: dict[str, DirectAnswer] = {
            path: partial(self._answer, wire) for path, wire in WIRES.items()
        }
        self._direct[COUNT_PATH] = partial(count_tokens, host)
        self._direct.update(direct)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        answer = self._direct.get(scope["path"]) if is_post else None
        if answer is None:
            return self._app(scope, receive, send)  # type: ignore[no-any-return]
        return self._serve(answer, scope, receive, send)

    async def _serve(self, answer: DirectAnswer, scope: Scope, receive: Receive, send: Send) -> None:
        response: Any = None
        try:
            response = await answer(scope, receive, send)
        except Exception as error:
            response = self._to_response(error)
        if response is not None:
            await response(scope, receive, send)

    async def _answer(self, wire: Wire, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises: what prevents that, before anything was sent."""
        host, caller = self._host, check_scope(scope["state"]["caller"], "run")
        asked = _read(wire, await read_body(receive))
        named = _read_headers(scope["headers"], scope["state"].get("keyed"))
        if asked.previous is not None:
            await response_wire.recall(host, caller, asked)
        turn = ClientTurn(host, caller, asked, named)
        with LeavingWatch(scope, lambda: host.start_quietly(turn.cancel())):
            if asked.is_stream:
                outlet = _Outlet(wire, turn, asked)
                task = host.start(turn.answer())
                task.add_done_callback(lambda _: turn.note())
                await outlet.begin(task)
                stream = EventStream(outlet.pieces(task), more_headers={RUN_HEADER: turn.run_id})
                await stream(scope, receive, send)
                return
            try:
                completion = await host.do(turn.answer())
                body = wire.write(turn.answer_id, completion, asked)
                await send_whole(send, 200, body, {RUN_HEADER: turn.run_id})
            finally:
                # The client cannot go on before it has the answer, and need not wait for this.
                turn.note()


class _Outlet:
    """The events of a streamed answer, on their way to the client."""

    def __init__(self, wire: Wire, turn: ClientTurn, asked: ServedRequest) -> None:
        self._wire = wire
        self._turn = turn
        self._asked = asked
        self._stream: Stream | None = None
        self._waiting: list[bytes] = []
        self._wake: asyncio.Future[None] | None = None
        turn.on_delta = self._add

    def _add(self, piece: e.Delta) -> None:
        self._put(self._open().add(piece))

    def _open(self) -> Stream:
        if self._stream is None:
            self._stream = self._wire.stream(self._turn.answer_id, self._asked)
            self._put(self._stream.begin())
        return self._stream

    def _put(self, events: Iterable[dict[str, Json]]) -> None:
        self._waiting += map(self._wire.frame, events)
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _wait(self, task: "asyncio.Task[Completion]") -> None:
        """Wait until something can be sent, or the task has ended."""
        while not self._waiting and not task.done():
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    async def begin(self, task: "asyncio.Task[Completion]") -> None:
        """Wait until `pieces` has something. Raises: what prevents the answer, if nothing has come yet."""
        task.add_done_callback(lambda _: self._ring())
        await self._wait(task)
        if task.done():
            await result_of(task)

    async def pieces(self, task: "asyncio.Task[Completion]") -> AsyncIterator[bytes]:
        """Yield the pieces of the answer as they come. An error is the last of them."""
        while not task.done():
            await self._wait(task)
            if self._waiting:
                yield self._take()
        try:
            completion = await result_of(task)
            self._put(self._open().end(completion))
        except Exception as error:
            self._waiting.append(self._wire.frame(self._wire.error(*_explain(error))))
        self._waiting.append(self._wire.last)
        yield self._take()

    def _take(self) -> bytes:
        pieces, self._waiting = self._waiting, []
        return b"".join(pieces)


def _explain(error: Exception) -> tuple[int, str, str]:
    """Return the status, the message and the code for an error in the middle of a stream."""
    if isinstance(error, RequestRefused):
        return error.status_code, error.detail, error.code
    return 500, hide_servers(str(error)), "server_error"


class GatewayErrors:
    """ASGI middleware that gives all errors of Anthropic's routes their form. What it wraps writes OpenAI's."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_other = scope["type"] == "http" and is_of_anthropic(scope["path"]) and scope["method"] != "OPTIONS"
        app = self._answer if is_other else self._app
        return app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Any = None
        written = b""

        async def send_error(message: Any) -> None:
            nonlocal begun, written
            if message["type"] == "http.response.start" and message["status"] >= 400:
                begun = message
            elif begun is None:
                await send(message)
            else:
                written += message.get("body", b"")
                if not message.get("more_body", False):
                    await _send_to_anthropic(send, begun, written)

        await self._app(scope, receive, send_error)


async def _send_to_anthropic(send: Send, begun: Any, written: bytes) -> None:
    """Send an error whose beginning and body have OpenAI's form."""
    body = anthropic.write_error(begun["status"], msgspec.json.decode(written)["error"]["message"])
    given = {name.decode("latin-1"): value.decode("latin-1") for name, value in begun["headers"]}
    kept = {name: value for name, value in given.items() if not name.startswith("content-")}
    await send_whole(send, begun["status"], body, {**kept, "request-id": body["request_id"]})


def _read(wire: Wire, body: bytes) -> ServedRequest:
    try:
        return wire.read(body)
    except ConfigError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"the request cannot be read: {error!r:.200}") from None


def _read_headers(headers: Iterable[tuple[bytes, bytes]], keyed: KeyedRequest | None) -> RunNaming:
    """Return what headers say about the run. Raises: `ConfigError`."""
    given, run_id, labels = dict(headers), None, {}
    if (name := given.get(_RUN_HEADER)) is not None:
        run_id = name.decode("latin-1").strip()
        if not _RUN_ID.fullmatch(run_id):
            raise ConfigError(f"{RUN_HEADER} is {run_id!r:.150}; give letters, digits and -_.: alone")
    if (told := given.get(_LABELS_HEADER)) is not None:
        # Clients write other characters than those of ASCII as UTF-8, as far as they can.
        pairs = [item.partition("=") for item in told.decode("utf-8", "replace").split(",") if item.strip()]
        if wrong := next((key for key, equals, _ in pairs if not equals), None):
            raise ConfigError(f"{LABELS_HEADER} has {wrong.strip()!r:.100}; give NAME=VALUE, NAME=VALUE")
        labels = {key.strip(): said.strip() for key, _, said in pairs}
        check_labels(labels)
    return RunNaming(run_id, labels, keyed)
