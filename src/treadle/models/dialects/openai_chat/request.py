"""The dialect `openai_chat`: OpenAI's chat completions, as OpenAI and nearly every other server speak it.

Owns the request: each message is encoded once for its whole history, and a body is joined from the pieces.
An answer, whole or streamed, becomes one raw object that one function reads.
Source: OpenAI API reference, chat completions, 2025; vLLM 0.11 for token ids.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from treadle.core.types import Completion, Json, Message, Request, Role, Settings, ToolCall, ToolSpec
from treadle.models.config.presets import Quirks
from treadle.models.dialects.openai_chat.answer import read_completion
from treadle.models.dialects.openai_chat.plain_answer import ChatReader
from treadle.models.dialects.openai_chat.stream import ChatCollector
from treadle.models.wire.http_model import HttpModel, OnDelta, join_url
from treadle.models.wire.schema import is_strict
from treadle.models.wire.stream import Collector

OPENAI_BASE_URL = "https://api.openai.com/v1"
OTHER_DIALECTS = frozenset(("anthropic", "completions", "gemini", "ollama", "openai_responses"))
"""Whose keys in what a message keeps opaque are not sent to a chat-completions server."""

_encode = msgspec.json.Encoder().encode


class OpenAIChatModel(HttpModel):
    """A model behind a chat-completions server."""

    DIALECT = "openai_chat"
    BASE_URL = OPENAI_BASE_URL
    RESERVED = frozenset(("model", "messages", "stream", "tools"))

    def __init__(
        self, model: str, *, name: str | None = None, quirks: Quirks = Quirks(), **options: Any
    ) -> None:
        """`options` are those of `HttpModel`."""
        options.setdefault("key_variable", "OPENAI_API_KEY")
        super().__init__(model, name=name or f"openai:{model}", **options)
        self._endpoint = join_url(self._base_url, "/chat/completions")
        self._plain = ChatReader(self.settings, self._price)
        is_openai = urlsplit(self._endpoint).hostname == "api.openai.com"
        self._fields = _fields(model, self.settings, quirks, is_openai=is_openai)
        self._encode_message = encoder_for(quirks)

    def _url(self, *, is_stream: bool) -> str:
        return self._endpoint

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key.strip()}"}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        prefix = self._kept_prefix(request, is_stream)
        return b"".join((prefix, b",".join(request.messages.map(self._encode_message)), b"]}"))

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        """The body up to the first message."""
        fields = dict(self._fields)
        if flags[0]:
            fields["stream"] = True
            fields.setdefault("stream_options", {"include_usage": True})
        if request.tools:
            fields["tools"] = [_encode_tool(tool) for tool in request.tools]
        if request.required_tool is not None:
            fields["tool_choice"] = {"type": "function", "function": {"name": request.required_tool}}
        if request.output_schema is not None:
            fields["response_format"] = _encode_schema(request.output_schema)
        return _encode(fields)[:-1] + b',"messages":['

    def _read_plain(self, body: bytes) -> Completion | None:
        return self._plain.read(body)

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self.settings, self._price, self.server)

    def _collector(self, on_delta: OnDelta) -> Collector:
        return ChatCollector(on_delta, self.server)


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
        raw.update(of_this_dialect(message.opaque))
    return _encode(raw)


def encoder_for(quirks: Quirks) -> Callable[[Message], bytes]:
    """How messages are encoded for a server; the same function for the same quirks, so that histories keep it."""
    if quirks.has_reasoning and not quirks.has_short_ids:
        return encode_message
    # Quirks that differ in what they rename alone encode messages alike.
    return _odd_encoder(quirks.has_reasoning, quirks.has_short_ids)


@lru_cache
def _odd_encoder(has_reasoning: bool, has_short_ids: bool) -> Callable[[Message], bytes]:
    def encode(message: Message) -> bytes:
        if not has_reasoning and message.reasoning is not None:
            message = replace(message, reasoning=None)
        if has_short_ids and (message.tool_calls or message.call_id is not None):
            calls = tuple([replace(call, call_id=shorten_id(call.call_id)) for call in message.tool_calls])
            call_id = None if message.call_id is None else shorten_id(message.call_id)
            message = replace(message, tool_calls=calls, call_id=call_id)
        return encode_message(message)

    return encode


def shorten_id(call_id: str) -> str:
    """An id of nine letters and digits, which stays as it is, or one that stands for another."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _encode_call(call: ToolCall) -> dict[str, Json]:
    function = {"name": call.name, "arguments": call.arguments}
    raw: dict[str, Json] = {"id": call.call_id, "type": "function", "function": function}
    if call.opaque:
        opaque = of_this_dialect(call.opaque)
        function.update(opaque.pop("function", ()))
        raw.update(opaque)
    return raw


def of_this_dialect(opaque: dict[str, Json]) -> dict[str, Json]:
    """A copy without what other dialects keep for themselves."""
    return {key: value for key, value in opaque.items() if key not in OTHER_DIALECTS}


def _encode_schema(schema: dict[str, Json]) -> Json:
    named = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
    return {"type": "json_schema", "json_schema": named}


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _fields(model: str, settings: Settings, quirks: Quirks, *, is_openai: bool) -> dict[str, Any]:
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
    fields = {quirks.renamed.get(name, name): value for name, value in fields.items() if value is not None}
    extra = settings.extra or {}
    return fields | extra
