"""The dialect `openai_chat`: OpenAI's chat completions, as OpenAI and nearly every other server speak it.

Owns the request: each message is encoded once for its whole history, and a body is joined from the pieces.
An answer, whole or streamed, becomes one raw object that one function reads.
Source: OpenAI API reference, chat completions, 2025; vLLM 0.11 for token ids.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from treadle.core.errors import ConfigError, ProviderError, ServerError
from treadle.core.types import Completion, Json, Message, Request, Role, Settings, ToolCall, ToolSpec
from treadle.models.openai_chat_errors import Server, explain_error, find_error
from treadle.models.openai_chat_plain import PlainReader
from treadle.models.openai_chat_read import read_completion
from treadle.models.openai_chat_stream import read_stream
from treadle.models.price import Price
from treadle.models.protocol import Watch
from treadle.models.transport import Answer, HttpTransport, StreamedAnswer, Transport

OPENAI_BASE_URL = "https://api.openai.com/v1"
_RESERVED = frozenset(("model", "messages", "stream", "tools"))
_MAX_PREFIXES = 1024

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class OpenAIChatModel:
    """A model behind a chat-completions server. Streams exactly when somebody listens."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str = OPENAI_BASE_URL,
        api_key: str | None = None,
        settings: Settings | None = None,
        price: Price | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        name: str | None = None,
    ) -> None:
        """`headers` go with every request and win over those made here; `name` is for the journal."""
        self.name = name or f"openai:{model}"
        self._model = model
        self._settings = settings or Settings()
        self._price = price
        self._url = _endpoint(base_url)
        self._headers = _headers(api_key, headers)
        self._plain = PlainReader(self._settings, price)
        self._server = Server(model, base_url, tuple(self._headers.items()))
        self._transport = transport or HttpTransport()
        self._fields = _fields(
            model, self._settings, is_openai=urlsplit(self._url).hostname == "api.openai.com"
        )
        self._prefixes: dict[tuple[int, bool], tuple[tuple[ToolSpec, ...], bytes]] = {}

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        on_delta = watch.on_delta
        body = self._body(request, on_delta is not None)
        if on_delta is None:
            answer = await self._transport.post(self._url, self._headers, body)
            if answer.status == 200 and (plain := self._plain.read(answer.body)) is not None:
                return plain
            raw = self._raw(answer)
        else:
            async with self._transport.stream(self._url, self._headers, body) as streamed:
                if streamed.status != 200:
                    raise self._error(streamed.status, streamed, await _rest(streamed))
                raw = await read_stream(streamed, on_delta, self._server)
        return read_completion(raw, self._settings, self._price, self._server)

    def _body(self, request: Request, is_stream: bool) -> bytes:
        tools = request.tools
        # The entry keeps the tools alive, so that their id stays theirs.
        entry = self._prefixes.get((id(tools), is_stream))
        prefix = self._prefix(tools, is_stream) if entry is None else entry[1]
        return b"".join((prefix, b",".join(request.messages.map(encode_message)), b"]}"))

    def _prefix(self, tools: tuple[ToolSpec, ...], is_stream: bool) -> bytes:
        """The body up to the first message."""
        fields = dict(self._fields)
        if is_stream:
            fields["stream"] = True
            fields.setdefault("stream_options", {"include_usage": True})
        if tools:
            fields["tools"] = [_encode_tool(tool) for tool in tools]
        prefix = _encode(fields)[:-1] + b',"messages":['
        if len(self._prefixes) >= _MAX_PREFIXES:
            self._prefixes.clear()
        self._prefixes[id(tools), is_stream] = (tools, prefix)
        return prefix

    def _raw(self, answer: Answer) -> Json:
        """The answer as one object.

        Raises: `ProviderError` for an error status, or for what is not JSON.
        """
        if answer.status != 200:
            raise self._error(answer.status, answer, answer.body)
        try:
            return _decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServerError(
                f"{self._server.origin} answered with what is not JSON ({error}): "
                f"{self._server.excerpt(answer.body)}",
                status=200,
            ) from None

    def _error(self, status: int, answer: Answer | StreamedAnswer, body: bytes) -> ProviderError:
        try:
            raw = find_error(_decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raw = None
        return explain_error(self._server, status, raw or body, answer.header)

    def __repr__(self) -> str:
        return f"OpenAIChatModel({self._model!r}, base_url={self._server.origin!r})"


async def _rest(streamed: StreamedAnswer) -> bytes:
    return b"".join([chunk async for chunk in streamed.chunks])


def encode_message(message: Message) -> bytes:
    """One element of `messages`, as bytes. Pure, so that a history keeps it."""
    role = message.role
    raw: dict[str, Json] = {"role": role}
    if role is Role.TOOL:
        raw["tool_call_id"] = message.call_id
        raw["content"] = message.content
    elif message.tool_calls:
        raw["content"] = message.content or None
        if message.reasoning:
            # Servers whose models think between calls want it back, and only then.
            raw["reasoning_content"] = message.reasoning
        raw["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    else:
        raw["content"] = message.content
    if message.opaque:
        raw.update(message.opaque)
    return _encode(raw)


def _encode_call(call: ToolCall) -> dict[str, Json]:
    function = {"name": call.name, "arguments": call.arguments}
    raw: dict[str, Json] = {"id": call.call_id, "type": "function", "function": function}
    if call.opaque:
        opaque = dict(call.opaque)
        function.update(opaque.pop("function", ()))
        raw.update(opaque)
    return raw


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _fields(model: str, settings: Settings, *, is_openai: bool) -> dict[str, Any]:
    """What every request body has beside messages, tools and the stream flag."""
    fields = {
        "model": model,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        # OpenAI's newer models refuse the old name, other servers ignore the new one.
        "max_completion_tokens" if is_openai else "max_tokens": settings.max_output_tokens,
        "seed": settings.seed,
        "stop": settings.stop,
        "logprobs": settings.logprobs,
        "return_token_ids": settings.return_token_ids,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    extra = settings.extra or {}
    if reserved := sorted(_RESERVED & extra.keys()):
        raise ConfigError(f"Settings.extra may not hold {reserved}: the request has its own")
    return fields | extra


def _endpoint(base_url: str) -> str:
    """The URL to post to. A query, as some gateways want it, stays at the end."""
    parts = urlsplit(base_url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"base_url is {base_url!r}; give one such as {OPENAI_BASE_URL!r}")
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/chat/completions", fragment=""))


def _headers(api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    merged = {"content-type": "application/json"}
    if api_key is not None:
        merged["authorization"] = f"Bearer {api_key.strip()}"
    merged |= {name.lower(): value for name, value in (headers or {}).items()}
    for name, value in merged.items():
        if not name.isascii() or not value.isascii() or not value.isprintable():
            raise ConfigError(
                f"the header {name!r} holds a character that HTTP does not allow; check the API key and headers"
            )
    return merged
