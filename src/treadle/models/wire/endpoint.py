"""An endpoint of a server: its address, its engine, the decoding of answers, the explanation of errors."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, TypeAlias
from urllib.parse import urlsplit, urlunsplit
from zlib import crc32

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ProviderError, ServerError, TransportError
from treadle.core.events import Delta
from treadle.core.texts.documents import UNREADABLE, decode_or
from treadle.core.texts.masking import hide_in_url
from treadle.core.types import Json
from treadle.http.transport import Answer, HttpTransport, StreamedAnswer, Transport
from treadle.models.protocol import Watch
from treadle.models.wire.body_reader import BodyReader, StreamCollector, drop_blanks, read_stream
from treadle.models.wire.server import Server, explain_error, find_error, read_rate_limits

if TYPE_CHECKING:
    from treadle.models.tokens.weights import Weights


TOKEN_PATHS = {
    "vllm": {"vllm_completions": "/v1/completions", "vllm_generate": "/inference/v1/generate"},
    "sglang": {"sglang_generate": "/generate"},
}
"""The endpoints of an engine that may take token ids, below the server's root, by the names of `ENGINES`."""
_MAX_SEED = 2**31 - 1
"""The largest seed that all servers take."""
_READ_BYTES = 4096
"""How much of a request determines its seed, beside its length."""
_MAY_BE_DISABLED = "/inference/v1/generate"
"""An endpoint that refuses every request unless the server was started for it, as an option of vLLM 0.32 says."""
_ABSENT = (502, 503, 504)
"""The statuses of a server that is starting, or of a gateway without a server behind it."""
_VERSION_PATHS = {"vllm": ("/version",), "sglang": ("/server_info", "/get_server_info")}
"""The endpoints that say the version of an engine, the newest first."""
PAUSE_PATHS = {"vllm": "/pause", "sglang": "/pause_generation"}
"""The endpoint that pauses an engine."""
_GIVES_IDS = {"vllm": (0, 10, 2), "sglang": (0, 5, 13)}
"""The first version whose chat returns the ids of prompt and answer."""
_TELLS_VERSIONS = {"vllm": (0, 33), "sglang": (0, 5, 13)}
"""The first version that tells which weights sampled which token."""

Get: TypeAlias = Callable[[str], Awaitable[Json]]
"""A function that returns the JSON at a path of a server; `None` if there is none."""


class EngineInfo(Struct, frozen=True):
    """An inference engine."""

    name: str
    """The name of the engine: `vllm` or `sglang`."""
    version: str | None = None
    """The version; `None` if the server does not say it."""
    weight_version: str | None = None
    """The version of the weights, if the server says it."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The first numbers of the version, such as (0, 11, 2); empty if it is not known."""
        return tuple(map(int, re.findall(r"\d+", self.version or "")[:3]))

    @property
    def gives_ids(self) -> bool:
        """True if the engine is known to return token ids from its chat endpoint."""
        return self.numbers >= _GIVES_IDS.get(self.name, (99,))

    @property
    def tells_versions(self) -> bool:
        """True if the engine is known to tell which weights sampled which token of an answer."""
        return self.numbers >= _TELLS_VERSIONS.get(self.name, (99,))

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"


async def find_engine(get: Get) -> EngineInfo | None:
    """Return the engine behind a server; `None` if it is neither vLLM nor SGLang, or if it does not say so.

    Source: vLLM 0.11, `owned_by` of `/v1/models` and `/version`; SGLang 0.5, `owned_by` and `/server_info`, before
    `/get_server_info`. Raises: `TransportError`.
    """
    listed = await get("/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    owners = (
        {item.get("owned_by") for item in models if isinstance(item, dict)}
        if isinstance(models, list)
        else set()
    )
    name = next((item for item in _VERSION_PATHS if item in owners), None)
    info: Json = None
    for path in () if name is None else _VERSION_PATHS[name]:
        try:
            info = info or await get(path)
        except TransportError as error:
            # A server that lists its models has started, so a gateway does not pass this path on.
            if error.status is None:
                raise
    return None if name is None else EngineInfo(name, _text(info, "version"), _text(info, "weight_version"))


def _text(raw: Json, name: str) -> str | None:
    value = raw.get(name) if isinstance(raw, dict) else None
    return value if isinstance(value, str) else None


OnDelta: TypeAlias = Callable[[Delta], None]

_UNASKED = EngineInfo("")
"""The engine of a server that was not asked yet."""

_decode = msgspec.json.Decoder().decode


class HttpEndpoint:
    """An endpoint of a server that answers inferences, whole or streamed."""

    BASE_URL: ClassVar[str]
    PATH: ClassVar[str]
    """The path of the API for inferences, below the base URL."""
    COLLECTOR: type[StreamCollector]
    """The class that joins the pieces of a streamed answer."""
    HAS_LINES: ClassVar[bool] = False
    """True if a stream is lines of JSON, false if it is server-sent events."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        key_variable: str | None = None,
    ) -> None:
        """Make an endpoint. `headers` are sent with every request and override those made here."""
        self.model = model
        self._base_url = check_base_url(self.BASE_URL if base_url is None else base_url, self.BASE_URL)
        self._endpoint = self._stream_endpoint = join_url(self._base_url, self.PATH)
        self._headers = merge_headers(self._key_headers(api_key) if api_key is not None else {}, headers)
        self.server = Server(model, self._base_url, tuple(self._headers.items()), key_variable)
        self._transport = transport or HttpTransport()
        self._engine: EngineInfo | None = _UNASKED
        self.weights: Weights | None = None
        """The weights that change while this server answers; `None` if they are not known to change."""

    async def find_context_tokens(self) -> int | None:
        """Return how many tokens the model's context holds; `None` if the server does not say.

        Raises: `TransportError`.
        """
        url = self._models_url()
        raw = await self._get(url) if url is not None else None
        found = find_context_tokens(raw, self.model)
        if found is not None and b"n_ctx_train" in msgspec.json.encode(raw):
            # llama.cpp lists how long contexts the model was trained on, and the server may have less room.
            props = await self._get(join_url(self.root, "/props"))
            settings = props.get("default_generation_settings") if isinstance(props, dict) else None
            used = settings.get("n_ctx") if isinstance(settings, dict) else None
            return used if type(used) is int else found
        return found

    @property
    def root(self) -> str:
        """The URL of the server itself. Paths that are not part of OpenAI's API are below it."""
        parts = urlsplit(self._base_url)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/").removesuffix("/v1")))

    async def find_engine(self) -> EngineInfo | None:
        """Return the engine of the server; `None` if it is not known. The server is asked only once.

        Raises: `TransportError`.
        """
        if self._engine is _UNASKED:
            self._engine = await find_engine(lambda path: self._get(join_url(self.root, path)))
        return self._engine

    async def find_paths(self, paths: Iterable[str]) -> frozenset[str]:
        """Return which of `paths`, below the server's root, are endpoints for POST. Raises: `TransportError`."""
        return frozenset([path for path in paths if await self._has_path(join_url(self.root, path))])

    async def _has_path(self, url: str) -> bool:
        # Such an endpoint answers GET with 405, and nothing is sampled.
        if (await self._look_up(url)).status != 405:
            return False
        if not url.endswith(_MAY_BE_DISABLED):
            return True
        return (await self._transport.post(url, self._headers, b"{}")).status != 403

    async def find_text(self, token_ids: Sequence[int]) -> str | None:
        """Return the text that the server decodes from token ids; `None` if it does not say. Raises:
        `TransportError`.

        Source: vLLM 0.11 (`prompt`) and SGLang 0.5 (`text`), `/detokenize`.
        """
        asked = {"model": self.model, "tokens": list(token_ids), "skip_special_tokens": False}
        url = join_url(self.root, "/detokenize")
        raw = json_of(await self._transport.post(url, self._headers, msgspec.json.encode(asked)))
        text = raw.get("prompt", raw.get("text")) if isinstance(raw, dict) else None
        return text if isinstance(text, str) else None

    async def _get(self, url: str) -> Json:
        """Return the JSON at `url`; `None` if the server refuses, or sends none. Raises: `TransportError`."""
        return json_of(await self._look_up(url))

    async def _look_up(self, url: str) -> Answer:
        """Return the answer at `url`. Raises: `TransportError`, also if the server is starting or gone."""
        answer = await self._transport.get(url, self._headers)
        if answer.status in _ABSENT:
            said = f"{self.server.origin} answered {answer.status} at {urlsplit(url).path}: is the model's server "
            said += "still starting, or does a gateway not pass this path on?"
            raise TransportError(said, status=answer.status)
        return answer

    def _models_url(self) -> str | None:
        """Return the URL under which the server describes its models; `None` if it has none."""
        return join_url(self._base_url, "/models")

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key.strip()}"}

    def _decode_answer(self, body: bytes) -> Json:
        """Return the raw object of a whole answer. Raises: one of `UNREADABLE`."""
        return self._shape(_decode(body), body)

    def _shape(self, raw: Json, body: bytes) -> Json:
        """Return `raw`, an answer or an event of one that was decoded from `body`, in the form that is read."""
        return drop_blanks(raw, body)

    def _reader(self, on_delta: OnDelta) -> BodyReader:
        """Return a reader of an answer in pieces."""
        return BodyReader(self.COLLECTOR, on_delta, self.server, self._shape, has_lines=self.HAS_LINES)

    def _nonsense(self, raw: Json, body: bytes | None) -> ProviderError:
        """Return the error in an answer, or an error that says that the answer cannot be read."""
        if (error := find_error(raw)) is not None:
            return explain_error(self.server, 200, error)
        excerpt = self.server.excerpt(body or msgspec.json.encode(raw))
        return ServerError(f"the answer of {self.server.origin} makes no sense: {excerpt}", status=200)

    async def _read_streamed(self, body: bytes, watch: Watch, reader: BodyReader) -> Json:
        """Return the raw object of the streamed answer to a request. Raises: `ProviderError`."""
        async with self._transport.stream(self._stream_endpoint, self._headers, body) as streamed:
            if watch.on_rate_limits is not None:
                tell_rate_limits(streamed, watch)
            if not is_success(streamed.status):
                rest = b"".join([chunk async for chunk in streamed.chunks])
                raise self._error(streamed.status, streamed, rest)
            return await read_stream(streamed, reader)

    def _raw(self, answer: Answer) -> Json:
        """Return the answer as one object. Raises: `ProviderError` for an error, or if it is not an answer."""
        if not is_success(answer.status):
            raise self._error(answer.status, answer, answer.body)
        try:
            raw = self._decode_answer(answer.body)
            if not isinstance(raw, list) or not raw:
                return raw
        except UNREADABLE:
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
        return explain_error(self.server, status, find_error(decode_or(body)) or body, answer.header)


def is_success(status: int) -> bool:
    return 200 <= status < 300


def json_of(answer: Answer) -> Json:
    """Return the JSON of a successful answer; `None` for any other answer."""
    with suppress(*UNREADABLE):
        return _decode(answer.body) if is_success(answer.status) else None
    return None


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


def seed_at(seed: int, place: str) -> int:
    """Return the seed of a conversation; see `Request.place`."""
    return seed_for(seed, place.encode(errors="replace")) if place else seed


def seed_for(seed: int, sent: bytes) -> int:
    """Return the seed for a request of which `sent` is what the answer depends on.

    A server draws the same random numbers for the same seed. With one seed for all steps of a run, each step would
    probably repeat the choices of the one before it, and the run would be no sample of the model's policy. Only the
    end and the length of `sent` are read, so that late steps cost no more than early ones.
    """
    return crc32(b"%d %b" % (len(sent), sent[-_READ_BYTES:]), seed & 0xFFFF_FFFF) & _MAX_SEED


def tell_rate_limits(answer: Answer | StreamedAnswer, watch: Watch) -> None:
    """Pass the rate limits in the headers of an answer on, if there are any."""
    limits = read_rate_limits(answer.header)
    if limits is not None and watch.on_rate_limits is not None:
        watch.on_rate_limits(limits)


def check_base_url(base_url: str, example: str) -> str:
    """Return `base_url` without blanks and fragment. Raises: `ConfigError` if it is not an HTTP URL, or if a client
    could read another host from it: a backslash is a slash to some."""
    parts = None
    with suppress(ValueError):
        parts = urlsplit(base_url.strip())
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or "\\" in base_url:
        raise ConfigError(f"base_url is {hide_in_url(base_url)!r}; give one such as {example!r}")
    return urlunsplit(parts._replace(fragment=""))


def join_url(base_url: str, path: str, query: str = "") -> str:
    """Return the URL of `path` below `base_url`. A query in the base URL, as of some gateways, stays at the end."""
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
