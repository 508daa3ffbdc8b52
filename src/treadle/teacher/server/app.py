"""The answers of the mock server, without the network.

Source: OpenAI API reference, chat completions, 2025.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, RequestError
from treadle.core.types import Json
from treadle.tasks.draw import fraction
from treadle.tasks.files import find_solver
from treadle.teacher.echo import EchoModel
from treadle.teacher.oracle import OracleModel
from treadle.teacher.server.chat import decode_request, to_events, to_message, to_tools, to_wire
from treadle.teacher.teacher import TEACHER, TeacherModel, make_teacher

ORACLE = "oracle"
ECHO = "echo"
_MAX_REMEMBERED = 10_000
_ROUTES = {"/v1/chat/completions": "POST", "/v1/models": "GET", "/health": "GET"}

_encode = msgspec.json.Encoder().encode


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The behaviour of the server."""

    mistake_rate: float = 0.0
    """The probability of a mistake at each step, from 0 to 1, for the model `oracle`. A rate in the model's
    name overrides it."""
    latency_seconds: float = 0.0
    """The time before each completion."""
    chunk_seconds: float = 0.0
    """The time between the events of a stream."""
    failure_rate: float = 0.0
    """The share of requests that are answered with 429 or 503 instead of a completion. Each retry is drawn
    again."""
    seed: int = 0
    """The seed of the failures. Each also depends on the request and on the number of its retries."""

    def __post_init__(self) -> None:
        for name in ("mistake_rate", "failure_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number from 0 to 1")
        for name in ("latency_seconds", "chunk_seconds"):
            if not 0.0 <= getattr(self, name) < 86_400.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number of seconds from 0")


class Reply(Struct, frozen=True):
    """A response before it is sent."""

    status: int
    pieces: Sequence[bytes]
    """The body, in one piece or as the events of a stream."""
    headers: dict[str, str]
    is_stream: bool = False
    is_completion: bool = False
    """True if the response is sent after `latency_seconds`."""


class OracleApp:
    """An application that answers the requests to the mock server. It does no network I/O."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._failures: dict[int, int] = {}
        """The number of failures of each request that has failed, by the hash of its body."""

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """Return the response to one request."""
        expected = _ROUTES.get(path)
        if expected is None:
            known = ", ".join(f"{verb} {route}" for route, verb in _ROUTES.items())
            return error_reply(404, f"there is no route {path!r}; there are {known}", "unknown_url")
        if method != expected and (method, expected) != ("HEAD", "GET"):
            reply = error_reply(405, f"{path} takes {expected}, not {method}", "method_not_allowed")
            return msgspec.structs.replace(reply, headers={**reply.headers, "Allow": expected})
        if path == "/health":
            return _json(200, {"status": "ok"})
        if path == "/v1/models":
            entry = {"object": "model", "created": 0, "owned_by": "treadle"}
            return _json(
                200, {"object": "list", "data": [{"id": name, **entry} for name in (ORACLE, TEACHER, ECHO)]}
            )
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
            reply = error_reply(
                429, "rate limit reached (simulated, see --failure-rate)", "rate_limit_exceeded"
            )
            retry = {"Retry-After": "0", "Retry-After-Ms": "20"}
            return msgspec.structs.replace(reply, headers={**reply.headers, **retry})
        return error_reply(503, "the server is overloaded (simulated, see --failure-rate)", "server_error")

    def _complete(self, body: bytes) -> Reply:
        try:
            asked = decode_request(body)
            messages = [to_message(item) for item in asked.messages]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_reply(400, f"the body is not a chat completion request: {error}", "invalid_body")
        if asked.n not in (None, 1):
            return error_reply(
                400, f"n is {asked.n}, but this server gives one answer; leave n out", "invalid_n"
            )
        has_tools = bool(asked.tools) and asked.tool_choice != "none"
        max_calls = 1 if asked.parallel_tool_calls is False else None
        try:
            if is_oracle(asked.model):
                oracle = self._find_oracle(asked.model)
                completion = oracle.complete(messages, has_tools=has_tools, max_calls=max_calls)
            else:
                completion = self._find_model(asked.model).complete(
                    messages,
                    to_tools(asked) if has_tools else (),
                    max_calls=max_calls,
                    schema=asked.output_schema,
                    required=asked.required_tool,
                )
        except ConfigError as error:
            return error_reply(404, str(error), "model_not_found")
        except RequestError as error:
            return error_reply(400, str(error), "unknown_prompt")
        except msgspec.DecodeError as error:
            return error_reply(400, f"a tool of the request is malformed: {error}", "invalid_body")
        if not asked.stream:
            return _json(200, to_wire(completion, asked.model), is_completion=True)
        has_usage = asked.stream_options is not None and asked.stream_options.include_usage
        events = [b"data: %b\n\n" % _encode(item) for item in to_events(completion, asked.model, has_usage)]
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        return Reply(200, [*events, b"data: [DONE]\n\n"], headers, is_stream=True, is_completion=True)

    def _find_oracle(self, name: str) -> OracleModel:
        _, colon, rate = name.partition(":")
        try:
            mistake_rate = float(rate) if colon else self.settings.mistake_rate
            return OracleModel(find_solver, mistake_rate=mistake_rate, name=name)
        except ValueError:
            raise ConfigError(
                f"there is no model {name!r}; there are {ORACLE!r}, and '{ORACLE}:RATE' with a rate of mistakes "
                "from 0 to 1"
            ) from None

    def _find_model(self, name: str) -> "EchoModel | TeacherModel":
        stem, colon, _ = name.partition(":")
        if stem != TEACHER:
            return EchoModel(name)
        return make_teacher(name) if colon else TeacherModel(mistake_rate=self.settings.mistake_rate)


def is_oracle(model: str) -> bool:
    """Return whether the server answers as the oracle if it is asked for `model`."""
    return model.partition(":")[0] == ORACLE


def _json(status: int, value: Json, *, is_completion: bool = False) -> Reply:
    headers = {"Content-Type": "application/json"}
    return Reply(status, [_encode(value)], headers, is_completion=is_completion)


def error_reply(status: int, message: str, code: str) -> Reply:
    kind = "invalid_request_error"
    if status == 429 or status >= 500:
        kind = "rate_limit_error" if status == 429 else "server_error"
    return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})
