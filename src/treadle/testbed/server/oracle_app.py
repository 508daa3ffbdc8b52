"""The answers of the mock server, without the network.

Source: OpenAI API reference, chat completions, 2025.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Protocol
from zlib import crc32

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, RequestError
from treadle.core.types import Json, Message, Role
from treadle.models.dialects.openai_chat.served import read_request, to_events, to_specs, to_wire
from treadle.models.wire.served import AUTO, NONE, REQUIRED, ServedRequest, read_form
from treadle.tasks.draws import fraction
from treadle.tasks.files import find_solver
from treadle.testbed.built_in import BuiltInModel, BuiltInRequest, stream
from treadle.testbed.echo import EchoModel
from treadle.testbed.oracle import OracleModel, read_rate
from treadle.testbed.teacher import TEACHER, TeacherModel

ORACLE = "oracle"
ECHO = "echo"
_MAX_REMEMBERED = 10_000

_encode = msgspec.json.Encoder().encode


class FailureMode(StrEnum):
    """A way in which the server fails on purpose."""

    RATE_LIMIT = "rate_limit"
    """The server answers with status 429 and Retry-After."""
    OVERLOADED = "overloaded"
    """The server answers with status 503."""
    DROPPED = "dropped"
    """The connection is closed without an answer."""
    TRUNCATED = "truncated"
    """The connection is closed in the middle of the answer."""
    STALLED = "stalled"
    """There is no answer for `stall_seconds`, and then the connection is closed."""


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The behaviour of the server."""

    mistake_rate: float = 0.0
    """The probability, from 0 to 1, of a mistake at each step of `oracle`, if its name has no rate."""
    latency_seconds: float = 0.0
    """The time before each completion."""
    slow_latency_seconds: float = 0.0
    """The time before the completions that are slow."""
    slow_share: float = 0.0
    """The share of completions that are slow."""
    chunk_seconds: float = 0.0
    """The time between the events of a stream."""
    failure_rate: float = 0.0
    """The share of requests that get a failure instead of a completion. Each retry is drawn again."""
    failure_kinds: tuple[FailureMode, ...] = (FailureMode.RATE_LIMIT, FailureMode.OVERLOADED)
    """The kinds of failures, which are equally frequent."""
    stall_seconds: float = 60.0
    """How long a request of the kind `stalled` waits."""
    seed: int = 0
    """The seed of failures and slow completions, which also depend on the request and its retries."""

    def __post_init__(self) -> None:
        for name in ("mistake_rate", "failure_rate", "slow_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number from 0 to 1")
        for name in ("latency_seconds", "slow_latency_seconds", "chunk_seconds", "stall_seconds"):
            if not 0.0 <= getattr(self, name) < 86_400.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number of seconds from 0")
        if self.failure_rate and not self.failure_kinds:
            raise ConfigError("failure_kinds is empty; name a kind of failure, or set failure_rate to 0")


class HttpReply(Struct):
    """A response before it is sent."""

    status: int
    pieces: Sequence[bytes]
    """The body, in one piece or as the events of a stream."""
    headers: dict[str, str]
    is_stream: bool = False
    delay_seconds: float = 0.0
    """The time before the response is sent."""
    failure: FailureMode | None = None
    """`dropped`, `truncated` or `stalled` if the response is not sent completely."""
    pending: "PendingReply | None" = None
    """The work that makes the response later, in place of all fields but `failure`; `None`: no work."""


class PendingReply(Protocol):
    """Work that makes a response later."""

    def start(self, done: "Callable[[HttpReply], None]") -> None:
        """Begin the work. `done` is called with the response, perhaps at once."""

    def cancel(self) -> None:
        """Give up the work, because the client is gone."""


class OracleApp:
    """An application that answers the requests to the mock server. It does no network I/O."""

    routes: ClassVar[Mapping[str, str]] = {
        "/v1/chat/completions": "POST",
        "/v1/models": "GET",
        "/health": "GET",
    }
    """The method of each path."""
    completing: ClassVar[frozenset[str]] = frozenset(("/v1/chat/completions",))
    """The paths that ask a model. Only they are delayed and fail on purpose."""
    asked: ClassVar[str] = "a chat completion request"
    """What the body of a request to such a path has to be."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._failures: dict[int, int] = {}
        """The number of failures of each request that has failed, by the hash of its body."""
        self.lost = 0
        """How many answers were not sent completely."""

    def answer(self, method: str, target: str, body: bytes) -> HttpReply:
        """Return the response to one request."""
        path, _, query = target.partition("?")
        expected = self.routes.get(path)
        if expected is None:
            known = ", ".join(f"{verb} {route}" for route, verb in self.routes.items())
            return error_reply(404, f"there is no route {path!r}; there are {known}", "unknown_url")
        if method != expected and (method, expected) != ("HEAD", "GET"):
            reply = error_reply(405, f"{path} takes {expected}, not {method}", "method_not_allowed")
            return msgspec.structs.replace(reply, headers={**reply.headers, "Allow": expected})
        if path not in self.completing:
            return self.inform(path, query, body)
        failure = self._draw_failure(body) if self.settings.failure_rate else None
        if failure is not None and failure in _REFUSALS:
            return _REFUSALS[failure]
        reply = self.complete(path, body)
        if reply.status == 200:
            reply.failure = failure
            self.lost += failure is not None
        return reply

    def inform(self, path: str, query: str, body: bytes) -> HttpReply:
        """Return the response to a request that does not ask a model."""
        if path == "/health":
            return json_reply(200, {"status": "ok"})
        entry = {"object": "model", "created": 0, "owned_by": "treadle"}
        data = [{"id": name, **entry} for name in (ORACLE, TEACHER, ECHO)]
        return json_reply(200, {"object": "list", "data": data})

    def complete(self, path: str, body: bytes) -> HttpReply:
        """Return the response to a request that asks a model."""
        try:
            return self.generate(path, body)
        except ConfigError as error:
            return error_reply(404, str(error), "model_not_found")
        except RequestError as error:
            return error_reply(400, str(error), "unknown_prompt")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return error_reply(400, f"the body is not {self.asked.format(path)}: {error}", "invalid_body")

    def _draw_delay(self, body: bytes) -> float:
        """Return the time before a completion."""
        settings = self.settings
        if settings.slow_share and fraction(settings.seed, "slow", crc32(body)) < settings.slow_share:
            return settings.slow_latency_seconds
        return settings.latency_seconds

    def _draw_failure(self, body: bytes) -> FailureMode | None:
        """Return the failure that a request gets; `None` if it does not fail."""
        rate, kinds = self.settings.failure_rate, self.settings.failure_kinds
        key = hash(body)
        attempt = self._failures.pop(key, 0)
        draw = fraction(self.settings.seed, attempt, body.decode("latin-1"))
        if draw >= rate:
            return None
        if len(self._failures) >= _MAX_REMEMBERED:
            self._failures.clear()
        self._failures[key] = attempt + 1
        return kinds[int(draw / rate * len(kinds))]

    def generate(self, path: str, body: bytes) -> HttpReply:
        """Return the response of a model to a request. Raises: `ValueError` for one that cannot be read."""
        _check_needed(body)
        try:
            request, asked = _read(body)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        completion = built_in_model(asked.model, self.settings.mistake_rate).answer(request)
        if asked.is_stream:
            events = to_events(completion, asked.model, stream(completion.message), asked.has_usage)
            reply = stream_reply(events)
        else:
            reply = json_reply(200, to_wire(completion, asked.model))
        reply.delay_seconds = self._draw_delay(body)
        return reply


class _Needed(Struct):
    """The fields that a request must have."""

    model: str
    messages: list[msgspec.Raw]


_check_needed = msgspec.json.Decoder(_Needed).decode


def _read(body: bytes) -> tuple[BuiltInRequest, ServedRequest]:
    """Return what a request asks a built-in model for, and the request. Raises: `ConfigError`."""
    asked = read_request(body)
    form = asked.form or {}
    request = BuiltInRequest(
        [*([Message(Role.SYSTEM, asked.instructions)] if asked.instructions else []), *asked.messages],
        to_specs(asked.tools),
        1 if asked.is_parallel is False else None,
        read_form(form) if form.get("type") == "json_schema" else None,
        None if asked.tool_choice in (AUTO, NONE, REQUIRED) else asked.tool_choice,
    )
    return request, asked


def built_in_model(name: str, mistake_rate: float = 0.0) -> BuiltInModel:
    """Return the model that answers requests for `name`: the oracle of the built-in tasks, the teacher, or one that
    echoes. `mistake_rate` counts if the name has no rate. Raises: `ConfigError` for a rate that is none."""
    stem = name.partition(":")[0]
    if stem == ORACLE:
        return OracleModel(find_solver, mistake_rate=read_rate(name, mistake_rate), name=name)
    if stem == TEACHER:
        return TeacherModel(mistake_rate=read_rate(name, mistake_rate))
    return EchoModel(name)


def json_reply(status: int, value: Json) -> HttpReply:
    return HttpReply(status, [_encode(value)], {"Content-Type": "application/json"})


def stream_reply(events: Iterable[Mapping[str, Json]]) -> HttpReply:
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    lines = [b"data: %b\n\n" % _encode(event) for event in events]
    return HttpReply(200, [*lines, b"data: [DONE]\n\n"], headers, is_stream=True)


def error_reply(status: int, message: str, code: str) -> HttpReply:
    kind = "invalid_request_error"
    if status == 429 or status >= 500:
        kind = "rate_limit_error" if status == 429 else "server_error"
    return json_reply(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


def _rate_limit_reply() -> HttpReply:
    reply = error_reply(429, "rate limit reached (simulated, see --failure-rate)", "rate_limit_exceeded")
    return msgspec.structs.replace(
        reply, headers={**reply.headers, "Retry-After": "0", "Retry-After-Ms": "20"}
    )


_REFUSALS = {
    FailureMode.RATE_LIMIT: _rate_limit_reply(),
    FailureMode.OVERLOADED: error_reply(
        503, "the server is overloaded (simulated, see --failure-rate)", "server_error"
    ),
}
