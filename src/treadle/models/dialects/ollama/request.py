"""The dialect `ollama`: Ollama's own API, `/api/chat`.

Source: Ollama API documentation and client 0.6, 2026.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ProviderError
from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import (
    Completion,
    FinishReason,
    Json,
    Message,
    Request,
    Role,
    Settings,
    TokenRecord,
    ToolCall,
    ToolSpec,
    Usage,
)
from treadle.http.sse import LineReader
from treadle.http.transport import Answer, StreamedAnswer
from treadle.models.wire.arguments import object_of, text_of
from treadle.models.wire.http_model import HttpModel, OnDelta, join_url
from treadle.models.wire.server import Server, explain_error
from treadle.models.wire.stream import Collector

_KEY = "ollama"
_PORT = 11434
_KNOWN = frozenset(
    ("model", "message", "done", "done_reason", "prompt_eval_count", "eval_count", "created_at", "logprobs")
)
_MESSAGE_FIELDS = frozenset(("role", "content", "thinking", "tool_calls"))
_CALL_FIELDS = frozenset(("id", "function"))
_FUNCTION_FIELDS = frozenset(("name", "arguments", "index"))

_encode = msgspec.json.Encoder().encode


class OllamaModel(HttpModel):
    """A model behind an Ollama server.

    Ollama cuts a prompt that is longer than its context off at the front, and does not say so: set `num_ctx` to
    what the runs need. With it, an answer to a prompt that filled the context has `prompt_may_be_cut` in
    `Completion.opaque`. A tool cannot be forced: where one is required, only that one is offered.
    """

    DIALECT = "ollama"
    BASE_URL = "http://localhost:11434"
    RESERVED = frozenset(("model", "messages", "stream", "tools"))
    OPTIONS = ("num_ctx", "think", "keep_alive")
    UNKNOWN_SETTINGS = ("return_token_ids",)

    def __init__(
        self,
        model: str,
        *,
        num_ctx: int | None = None,
        think: bool | str | None = None,
        keep_alive: float | str | None = None,
        base_url: str | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of `HttpModel`. `base_url` may be what OLLAMA_HOST may be: `host`, or `:port`.

        `num_ctx` is the context in tokens, `think` turns thinking on or off (or says how much), `keep_alive` is how
        long the server keeps the model in memory, in seconds or as `"10m"`.
        """
        options.setdefault("key_variable", "OLLAMA_API_KEY")
        super().__init__(model, base_url=None if base_url is None else read_host(base_url), **options)
        self._num_ctx = num_ctx
        self._endpoint = join_url(self._base_url, "/api/chat")
        more = {"think": think, "keep_alive": keep_alive}
        self._fields = _fields(model, self.settings, num_ctx) | {
            name: value for name, value in more.items() if value is not None
        }

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return super().identity + _encode(self._fields).decode()

    async def find_context_tokens(self) -> int | None:
        """`num_ctx`, if it was set. Ollama tells what a model was made for, and not what it will be loaded with."""
        return self._num_ctx

    def _url(self, *, is_stream: bool) -> str:
        return self._endpoint

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key.strip()}"}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        prefix = self._kept_prefix(request, is_stream)
        return b"".join((prefix, b",".join(request.messages.map(encode_message)), b"]}"))

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        """The body up to the first message."""
        fields = {**self._fields, "stream": flags[0]}
        required = request.required_tool
        tools = [tool for tool in request.tools if required is None or tool.name == required]
        if tools:
            fields["tools"] = [_encode_tool(tool) for tool in tools]
        if request.output_schema is not None:
            fields["format"] = request.output_schema
        return _encode(fields)[:-1] + b',"messages":['

    def _decode_answer(self, body: bytes) -> Json:
        return keep_arguments(super()._decode_answer(body), body)

    def _decode_event(self, event: bytes) -> Json:
        return keep_arguments(super()._decode_event(event), event)

    def _read(self, raw: Json) -> Completion:
        completion = read_completion(raw, self.settings)
        usage = completion.usage
        if usage is None:
            return completion
        opaque = completion.opaque
        if self._num_ctx is not None and usage.total_tokens >= self._num_ctx:
            opaque = {**(opaque or {}), "prompt_may_be_cut": True}
        return replace(completion, cost_usd=self._cost(usage), opaque=opaque)

    def _collector(self, on_delta: OnDelta) -> Collector:
        return OllamaCollector(on_delta, self.server)

    def _reader(self) -> LineReader:
        return LineReader()

    def _error(self, status: int, answer: Answer | StreamedAnswer, body: bytes) -> ProviderError:
        error = super()._error(status, answer, body)
        if status != 404:
            return error
        return type(error)(
            f"{error}. To get it: ollama pull {self.model}",
            status=status,
            retry_after_seconds=error.retry_after_seconds,
        )


def read_host(host: str) -> str:
    """The base URL that OLLAMA_HOST means, as Ollama's own client takes it."""
    host = host.strip()
    has_scheme = "://" in host
    parts = urlsplit(host if has_scheme else f"http://{host}")
    name = parts.hostname or "localhost"
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"
    port = parts.port or (None if has_scheme else _PORT)
    where = f"[{name}]" if ":" in name else name
    return urlunsplit(
        (parts.scheme, where if port is None else f"{where}:{port}", parts.path, parts.query, "")
    )


def _fields(model: str, settings: Settings, num_ctx: int | None) -> dict[str, Json]:
    """What every request body has beside messages, tools and the stream flag."""
    known = {
        "num_ctx": num_ctx,
        "num_predict": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "stop": settings.stop,
    }
    extra = dict(settings.extra or {})
    given: dict[str, Json] = {name: value for name, value in known.items() if value is not None}
    given |= extra.pop("options", {})
    fields: dict[str, Json] = {"model": model}
    if given:
        fields["options"] = given
    if settings.logprobs:
        fields["logprobs"] = True
    return fields | extra


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def encode_message(message: Message) -> bytes:
    """One element of `messages`, as bytes. Pure, so that a history keeps it."""
    raw: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.role is Role.TOOL:
        # Ollama before 0.12 joins results by name and order, later ones by id.
        raw["tool_name"] = message.name or ""
        raw["tool_call_id"] = message.call_id
    elif message.tool_calls:
        if message.reasoning:
            raw["thinking"] = message.reasoning
        raw["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    own = (message.opaque or {}).get(_KEY)
    return _encode(raw | own if isinstance(own, dict) else raw)


def _encode_call(call: ToolCall) -> dict[str, Json]:
    function = {"name": call.name, "arguments": object_of(call.arguments)}
    own = (call.opaque or {}).get(_KEY)
    raw: dict[str, Json] = {"id": call.call_id, "function": function}
    return {**own, **raw} if isinstance(own, dict) else raw


# Reading.


class _ExactFunction(Struct):
    arguments: msgspec.Raw = msgspec.Raw()


class _ExactCall(Struct):
    function: _ExactFunction


class _ExactMessage(Struct):
    tool_calls: list[_ExactCall] | None = None


class _Exact(Struct):
    message: _ExactMessage


_decode_exact = msgspec.json.Decoder(_Exact).decode


def keep_arguments(raw: Json, body: bytes) -> Json:
    """`raw`, decoded from `body`, with the arguments of its calls as the text that stands there."""
    if b"tool_calls" not in body:
        return raw
    try:
        calls = raw["message"].get("tool_calls") or ()
        for call, exact in zip(calls, _decode_exact(body).message.tool_calls or (), strict=True):
            call["function"]["arguments"] = text_of(exact.function.arguments)
    except (TypeError, LookupError, AttributeError, ValueError):
        pass  # It makes no sense, as reading it will tell.
    return raw


def read_completion(raw: Json, settings: Settings) -> Completion:
    """What `raw`, a whole answer or one put together from a stream, says.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it makes no sense.
    """
    if "error" in raw or not raw.get("done", True):
        raise ValueError("not an answer")
    said = raw["message"]
    rest = {key: value for key, value in said.items() if key not in _MESSAGE_FIELDS and value}
    calls = tuple([_read_call(call) for call in said.get("tool_calls") or ()])
    message = Message(
        Role.ASSISTANT,
        said.get("content") or "",
        calls,
        reasoning=said.get("thinking") or None,
        opaque={_KEY: rest} if rest else None,
    )
    told = raw.get("done_reason")
    opaque = {key: value for key, value in raw.items() if key not in _KNOWN and value is not None}
    if told not in ("stop", "length", None):
        opaque["finish_reason"] = told
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    if told == "length":
        reason = FinishReason.LENGTH
    return Completion(
        message,
        reason,
        _read_usage(raw),
        None,
        raw.get("model"),
        None,
        settings,
        _read_tokens(raw.get("logprobs")),
        opaque or None,
    )


def _read_call(raw: dict[str, Json]) -> ToolCall:
    function = raw["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else _encode(arguments).decode()
    rest = {key: value for key, value in raw.items() if key not in _CALL_FIELDS and value is not None}
    return ToolCall(raw.get("id") or "", function["name"], arguments, {_KEY: rest} if rest else None)


def _read_usage(raw: dict[str, Json]) -> Usage | None:
    """`None` where the prompt was still in the server's memory, of which it then tells no count."""
    before, after = raw.get("prompt_eval_count"), raw.get("eval_count")
    return Usage(before, after) if type(before) is int and type(after) is int else None


def _read_tokens(found: Json) -> TokenRecord | None:
    if not found:
        return None
    try:
        return TokenRecord(
            logprobs=tuple([float(item["logprob"]) for item in found]),
            tokens=tuple([str(item["token"]) for item in found]),
        )
    except (TypeError, LookupError, ValueError):
        return None


class OllamaCollector:
    """The answer so far."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        self.is_done = False
        self._on_delta = on_delta
        self._server = server
        self._head: dict[str, Json] = {}
        self._message: dict[str, Json] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Json] = []
        self._logprobs: list[Json] = []

    @property
    def is_complete(self) -> bool:
        """See `Collector.is_complete`."""
        return self.is_done

    def end(self) -> None:
        """See `Collector.end`."""

    def add(self, event: Json) -> None:
        """See `Collector.add`."""
        if "error" in event:
            raise explain_error(self._server, 200, event["error"])
        message = event["message"]
        if text := message.get("thinking"):
            self._thoughts.append(text)
            self._on_delta(ReasoningDelta(text))
        if text := message.get("content"):
            self._texts.append(text)
            self._on_delta(TextDelta(text))
        for raw in message.get("tool_calls") or ():
            call = _read_call(raw)
            self._on_delta(ToolCallDelta(len(self._calls), call.call_id, call.name, call.arguments))
            self._calls.append(raw)
        self._logprobs += event.get("logprobs") or ()
        self._message |= {key: value for key, value in message.items() if key not in _MESSAGE_FIELDS}
        self._head |= {key: value for key, value in event.items() if key not in ("message", "logprobs")}
        self.is_done = bool(event.get("done"))

    add_whole = add
    """A whole answer is one chunk."""

    def raw(self) -> Json:
        """See `Collector.raw`."""
        message = {
            **self._message,
            "content": "".join(self._texts),
            "thinking": "".join(self._thoughts),
            "tool_calls": self._calls,
        }
        return {**self._head, "message": message, "logprobs": self._logprobs}
