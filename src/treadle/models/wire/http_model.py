"""The base of all models behind a server: sending a request, and reading the answer.

A dialect is a subclass: it says where to post, how a request is written, and how an answer is read. An answer,
whole or streamed, becomes one raw object that one function reads. A plain answer is instead decoded directly into
typed structs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec

from treadle.core.errors import ConfigError, ProviderError, RequestError, ServerError, TransportError
from treadle.core.events import Delta
from treadle.core.log import Log
from treadle.core.masking import hide_in_url
from treadle.core.types import (
    UNREADABLE_CALL,
    Artifact,
    Completion,
    FinishReason,
    Json,
    Message,
    OutputMode,
    Request,
    Role,
    Settings,
    ToolCall,
    Usage,
)
from treadle.http.transport import Answer, HttpTransport, StreamedAnswer, Transport
from treadle.models.protocol import Watch
from treadle.models.wire.parts import AcceptedParts, check_part
from treadle.models.wire.plain import PlainReader
from treadle.models.wire.preset import Preset
from treadle.models.wire.price import Price, cost_of
from treadle.models.wire.server import (
    BadCallError,
    Server,
    UnfinishedError,
    explain_error,
    find_error,
    read_rate_limits,
)
from treadle.models.wire.stream import BodyReader, Collector, read_stream

_MAX_PREFIXES = 1024
_MAX_BAD_CALLS = 4
"""How many unreadable calls in a row go back to the model."""
_BYTES_PER_TOKEN = 4

OnDelta: TypeAlias = Callable[[Delta], None]

_Prefix: TypeAlias = tuple[Request, tuple[bool, ...], bytes]
"""The beginning of request bodies, with the tools, schema and flags that it was made for."""

_decode = msgspec.json.Decoder().decode


class HttpModel(ABC):
    """A model behind a server. It streams if and only if the caller wants deltas."""

    DIALECT: ClassVar[str]
    PRESET: ClassVar[Preset]
    """The provider that defined the dialect."""
    BASE_URL: ClassVar[str]
    PATH: ClassVar[str]
    """The path of the API for inferences, below the base URL."""
    READER: ClassVar[type[PlainReader]]
    """The reader of plain answers."""
    COLLECTOR: ClassVar[type[Collector]]
    """The class that joins the pieces of a streamed answer."""
    HAS_LINES: ClassVar[bool] = False
    """True if a stream is lines of JSON, false if it is server-sent events."""
    PARTS: ClassVar[AcceptedParts] = {}
    """The parts of messages that the dialect can send."""
    RESERVED: ClassVar[frozenset[str]]
    """Fields of the body that `Settings.extra` must not contain, because the dialect sets them itself."""
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Additional keyword arguments that a user may give."""
    has_window: bool = True
    """False if the server keeps the transcript, so that the window does not limit what is sent."""
    UNKNOWN_SETTINGS: ClassVar[tuple[str, ...]] = ()
    """Fields of `Settings` that the API does not have."""

    def __init__(
        self,
        model: str,
        *,
        settings: Settings | None = None,
        price: Price | None = None,
        name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        key_variable: str | None = None,
        output_mode: OutputMode | str | None = None,
        decodes_beside_tools: bool = True,
        context_tokens: int | None = None,
    ) -> None:
        """Make a model. `headers` are sent with every request and override those made here.

        `name` is for the journal. `context_tokens` is the model's context window, as the user says it.
        `decodes_beside_tools` says whether the server accepts a schema for the answer in a request that has tools.
        """
        self.tells_window = False
        """True if the server is asked for the context window when a run begins."""
        self.name = name or f"{self.DIALECT}:{model}"
        self.model = model
        self.settings = settings or Settings()
        self.context_tokens = context_tokens
        """The model's context window, as the user says it; `None` if it was not given."""
        self.output_mode = OutputMode(output_mode or self.PRESET.output_mode)
        self._decodes_beside_tools = decodes_beside_tools
        self._price = price
        self._base_url = check_base_url(self.BASE_URL if base_url is None else base_url, self.BASE_URL)
        self._endpoint = self._stream_endpoint = join_url(self._base_url, self.PATH)
        self._headers = merge_headers(self._key_headers(api_key) if api_key is not None else {}, headers)
        key_variable = key_variable or self.PRESET.key_variable
        self.server = Server(model, self._base_url, tuple(self._headers.items()), key_variable)
        self._transport = transport or HttpTransport()
        self._read_plain = self.READER(self.settings, price).read
        self._newest: _Prefix = (Request(Log()), (), b"")
        self._prefixes: dict[tuple[object, ...], _Prefix] = {}
        if reserved := sorted(self.RESERVED & (self.settings.extra or {}).keys()):
            raise ConfigError(f"Settings.extra may not hold {reserved}: the request has its own")
        for setting in self.UNKNOWN_SETTINGS:
            if getattr(self.settings, setting):
                raise ConfigError(f"the dialect {self.DIALECT} has no {setting}: leave it out for {model!r}")

    @property
    def identity(self) -> str:
        """The server, the model and the settings that answers depend on; see `identity_of`."""
        asked = [self.DIALECT, self.server.address, self.model, self.settings]
        return msgspec.json.encode(asked, order="sorted").decode()

    @property
    def max_output_tokens(self) -> int | None:
        """The longest answer that requests allow; `None` if that is left to the server."""
        return self.settings.max_output_tokens

    @property
    def has_price(self) -> bool:
        """True if the user gave a price, or the server reports the cost."""
        return self._price is not None

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """Return whether the server decodes within `schema`."""
        return self._decodes_beside_tools or not has_tools

    def check_part(self, part: Artifact) -> None:
        """Check that the dialect can send `part`. Raises: `UnsupportedPartError` if it cannot."""
        check_part(part, self.DIALECT, self.PARTS)

    def estimate_cost_usd(self, usage: Usage) -> float | None:
        """Return what `usage` would cost; `None` if the model has no price."""
        return cost_of(usage, self._price)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the server's answer; see `Model.infer`.

        If the server could not read a call, the answer has that call, so that the model is told what is wrong with
        it.
        """
        try:
            if watch.on_delta is not None:
                return await self._stream(request, watch, watch.on_delta)
            body = self._body(request, is_stream=False)
            answer = await self._transport.post(self._endpoint, self._headers, body)
            if watch.on_rate_limits is not None:
                _tell_rate_limits(answer, watch)
            if is_success(answer.status) and (plain := self._read_plain(answer.body)) is not None:
                return plain
            return self.read(self._raw(answer), answer.body)
        except BadCallError as error:
            return self._read_bad_call(request, error)

    def _read_bad_call(self, request: Request, error: BadCallError) -> Completion:
        """Return an answer with the call that the server could not read. Its tokens are estimated.

        Raises: `RequestError` if no tools were offered, or if the model's last answers were such calls too.
        """
        said = [item for item in list(request.messages)[-2 * _MAX_BAD_CALLS :] if item.tool_calls]
        bad = [item for item in said if item.tool_calls[0].name == UNREADABLE_CALL]
        if not request.tools or len(bad) >= _MAX_BAD_CALLS:
            times = f" (the {len(bad) + 1}th time in a row)" if bad else ""
            raise RequestError(f"{error}{times}", status=error.status) from None
        call = ToolCall("", UNREADABLE_CALL, error.written or error.said, {UNREADABLE_CALL: error.said})
        usage = Usage(
            len(self._body(request, is_stream=False)) // _BYTES_PER_TOKEN,
            len(call.arguments) // _BYTES_PER_TOKEN + 1,
        )
        return Completion(
            Message(Role.ASSISTANT, "", (call,)),
            FinishReason.TOOL_CALLS,
            usage,
            cost_of(usage, self._price),
            self.model,
            settings=self.settings,
            opaque={"is_usage_estimated": True},
        )

    async def _stream(self, request: Request, watch: Watch, on_delta: OnDelta) -> Completion:
        """Return the completion of a streamed answer."""
        body = self._body(request, is_stream=True)
        async with self._transport.stream(self._stream_endpoint, self._headers, body) as streamed:
            if watch.on_rate_limits is not None:
                _tell_rate_limits(streamed, watch)
            if not is_success(streamed.status):
                raise self._error(streamed.status, streamed, await _rest(streamed))
            reader = self._reader(on_delta)
            return self.read(await read_stream(streamed, reader), reader.begin)

    def read(self, raw: Json, body: bytes | None = None) -> Completion:
        """Return the completion for the raw object of a whole answer; `body` is how it came, for error messages.

        Raises: `ProviderError` if it contains an error, `ServerError` if it cannot be read.
        """
        try:
            if raw.get("error"):
                raise self._nonsense(raw, body)
            completion = self._read(raw)
            _check_types(completion.message)
            return completion
        except ProviderError:
            raise
        except UnfinishedError as error:
            raise ServerError(
                f"{self.server.origin} did not give a whole answer, because {error}: "
                f"{self.server.excerpt(body or msgspec.json.encode(raw))}",
                status=200,
            ) from None
        except (TypeError, LookupError, AttributeError, ValueError):
            raise self._nonsense(raw, body) from None

    async def find_context_tokens(self) -> int | None:
        """Return how many tokens the model's context holds; `None` if the server does not say.

        Raises: `TransportError`.
        """
        url = self._models_url()
        raw = await self._get(url) if url is not None else None
        found = find_context_tokens(raw, self.model)
        if found is not None and b"n_ctx_train" in msgspec.json.encode(raw):
            # llama.cpp lists how long contexts the model was trained on, and the server may have less room.
            props = await self._get(join_url(self._base_url.removesuffix("/").removesuffix("/v1"), "/props"))
            settings = props.get("default_generation_settings") if isinstance(props, dict) else None
            used = settings.get("n_ctx") if isinstance(settings, dict) else None
            return used if type(used) is int else found
        return found

    async def _get(self, url: str) -> Json:
        """Return the JSON at `url`; `None` if the server refuses, or sends none. Raises: `TransportError`."""
        answer = await self._transport.get(url, self._headers)
        try:
            return _decode(answer.body) if is_success(answer.status) else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _models_url(self) -> str | None:
        """Return the URL under which the server describes its models; `None` if it has none."""
        return join_url(self._base_url, "/models")

    def _key_headers(self, api_key: str) -> dict[str, str]:
        """Return the headers that carry the key."""
        return {"authorization": f"Bearer {api_key.strip()}"}

    @abstractmethod
    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        """Return the request body. `Log.map` and `Log.scan` keep the encoded messages, so none is encoded again."""

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        """Return the body up to the first message, which depends on tools, schema and settings alone."""
        raise NotImplementedError

    def _kept_prefix(self, request: Request, *flags: bool) -> bytes:
        """Return `_prefix`, computed once for the same tools and schema."""
        kept, known, prefix = self._newest
        if (
            known == flags
            and prefix
            and kept.tools is request.tools
            and kept.output_schema is request.output_schema
            and kept.required_tool == request.required_tool
        ):
            return prefix
        key = (id(request.tools), id(request.output_schema), request.required_tool, *flags)
        entry = self._prefixes.get(key)
        if entry is None:
            if len(self._prefixes) >= _MAX_PREFIXES:
                self._prefixes.clear()
            # The entry keeps the tools and the schema alive, so that their ids stay theirs.
            kept = Request(Log(), request.tools, request.output_schema, request.required_tool)
            entry = self._prefixes[key] = (kept, flags, self._prefix(request, *flags))
        self._newest = entry
        return entry[2]

    @abstractmethod
    def _read(self, raw: Json) -> Completion:
        """Return the completion. `read` turns `LookupError`, `TypeError`, `AttributeError` and `ValueError` into
        a `ServerError`."""

    def _decode_answer(self, body: bytes) -> Json:
        """Return the raw object of a whole answer. Raises: `msgspec.DecodeError`, `UnicodeDecodeError`."""
        return _decode(body)

    def _decode_event(self, event: bytes) -> Json:
        """Return one event of a stream. Raises: `msgspec.DecodeError`, `UnicodeDecodeError`."""
        return _decode(event)

    def _reader(self, on_delta: OnDelta) -> BodyReader:
        """Return a reader of an answer in pieces."""
        return BodyReader(self.COLLECTOR, on_delta, self.server, self._decode_event, has_lines=self.HAS_LINES)

    def _nonsense(self, raw: Json, body: bytes | None) -> ProviderError:
        """Return the error in an answer, or an error that says that the answer cannot be read."""
        if (error := find_error(raw)) is not None:
            return explain_error(self.server, 200, error)
        excerpt = self.server.excerpt(body or msgspec.json.encode(raw))
        return ServerError(f"the answer of {self.server.origin} makes no sense: {excerpt}", status=200)

    def _raw(self, answer: Answer) -> Json:
        """Return the answer as one object. Raises: `ProviderError` for an error, or if it is not an answer."""
        if not is_success(answer.status):
            raise self._error(answer.status, answer, answer.body)
        try:
            raw = self._decode_answer(answer.body)
            if not isinstance(raw, list) or not raw:
                return raw
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        # Some servers stream although the request did not ask for it, and some send damaged JSON.
        reader = self._reader(lambda _: None)
        try:
            reader.feed(answer.body)
            return reader.close()
        except TransportError as error:
            # The whole body came, so the server is to blame and not the connection.
            raise ServerError(str(error), status=answer.status) from None

    def _error(self, status: int, answer: Answer | StreamedAnswer, body: bytes) -> ProviderError:
        """Return the typed error for an answer whose status is an error."""
        try:
            raw = find_error(_decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raw = None
        return explain_error(self.server, status, raw or body, answer.header)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self.server.origin!r})"


def _check_types(message: Message) -> None:
    """Check the types that decoding into untyped values does not check. Raises: `TypeError`."""
    texts = [message.content, message.reasoning or ""]
    for call in message.tool_calls:
        texts += (call.call_id, call.name, call.arguments)
    if not all(type(text) is str for text in texts):
        raise TypeError("a value that must be text is not")


def is_success(status: int) -> bool:
    """Return whether the status is a success."""
    return 200 <= status < 300


_CONTEXT_FIELDS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
    "inputTokenLimit",
)


def find_context_tokens(raw: Json, model: str) -> int | None:
    """Return the context length in a description of one model or of several; `None` if it is not there.

    Source: vLLM and SGLang (`max_model_len`), OpenRouter (`context_length`), Groq (`context_window`), Mistral
    (`max_context_length`), Anthropic (`max_input_tokens`), Gemini (`inputTokenLimit`), llama.cpp (`meta.n_ctx`).
    """
    if not isinstance(raw, dict):
        return None
    items = raw.get("data", raw.get("models", [raw]))
    known = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    named = [item for item in known if model in (item.get("id"), item.get("name"), item.get("root"))]
    for item in named or (known if len(known) == 1 else ()):
        meta = item.get("meta")
        for values in (item, meta if isinstance(meta, dict) else {}):
            for field in (*_CONTEXT_FIELDS, "n_ctx", "n_ctx_train"):
                if type(values.get(field)) is int:
                    return int(values[field])
    return None


def _tell_rate_limits(answer: Answer | StreamedAnswer, watch: Watch) -> None:
    limits = read_rate_limits(answer.header)
    if limits is not None and watch.on_rate_limits is not None:
        watch.on_rate_limits(limits)


async def _rest(streamed: StreamedAnswer) -> bytes:
    return b"".join([chunk async for chunk in streamed.chunks])


def check_base_url(base_url: str, example: str) -> str:
    """Return `base_url` without blanks and fragment. Raises: `ConfigError` if it is not an HTTP URL."""
    parts = urlsplit(base_url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"base_url is {hide_in_url(base_url)!r}; give one such as {example!r}")
    return urlunsplit(parts._replace(fragment=""))


def join_url(base_url: str, path: str, query: str = "") -> str:
    """Return the URL of `path` below `base_url`. A query in the base URL, which some gateways need, stays at the
    end."""
    parts = urlsplit(base_url)
    queries = "&".join([item for item in (parts.query, query) if item])
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path, query=queries))


def merge_headers(made: Mapping[str, str], given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers `made` by the dialect and those `given` by the user, with names in lower case.

    Raises: `ConfigError`, without the value, for a header that HTTP does not allow.
    """
    merged = {"content-type": "application/json", **made}
    merged |= {name.lower(): value for name, value in (given or {}).items()}
    for name, value in merged.items():
        if not name.isascii() or not value.isascii() or not value.isprintable():
            raise ConfigError(
                f"the header {name!r} holds a character that HTTP does not allow; check the API key and headers"
            )
    return merged
