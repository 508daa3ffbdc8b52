"""The dialect `openai_chat`: OpenAI's chat completions, as implemented by OpenAI and nearly every other server.

This module writes requests: each message is encoded once, and a body is joined from the pieces. Source: OpenAI
API reference, chat completions, 2026; vLLM 0.11 for token ids.
"""

import hashlib
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.types import UNREADABLE_CALL, Artifact, Completion, Json, Message, Request, Role, ToolCall
from treadle.models.dialects.openai_chat.answer import ChatReader, ThoughtReader, read_completion, read_parts
from treadle.models.dialects.openai_chat.stream import ChatCollector, ThoughtCollector
from treadle.models.protocol import Watch, pass_on
from treadle.models.wire.fitting import fit_arguments, fit_id, fit_name, is_strict
from treadle.models.wire.http_model import HttpModel, read_nothing
from treadle.models.wire.messages import (
    AUDIO_FORMATS,
    AcceptedParts,
    Contents,
    Encode,
    data_url,
    file_name,
    join_body,
    parts_apart,
    text_of_part,
    text_or_placeholder,
    with_attached,
)
from treadle.models.wire.openai_style import OPENAI, encode_tool
from treadle.models.wire.provider import Quirks

_FOREIGN_KEYS = frozenset(
    ("anthropic", "completions", "gemini", "ollama", "openai_responses", UNREADABLE_CALL, "content")
)
"""Keys under which other dialects keep data that Treadle has no field for. They are not sent. Neither is content of
parts, which only the server can read that wrote it."""
_OPENAI = Quirks(
    # Its newer models refuse the old name, and other servers ignore the new one.
    renamed={"max_output_tokens": "max_completion_tokens"},
    reasoning="never",
    message_fields=("annotations", "audio", "name", "refusal"),
)
"""What OpenAI's own server wants, and servers that speak its API do not."""
_MAX_ID_CHARS = 40
_ABOUT_TOOLS = frozenset(("tool_choice", "parallel_tool_calls"))
"""Settings that servers refuse in a request without tools, such as one for a summary or for the last answer."""

_encode = msgspec.json.Encoder().encode


class OpenAIChatModel(HttpModel):
    """A model behind a chat-completions server."""

    DIALECT = "openai_chat"
    BASE_URL = "https://api.openai.com/v1"
    PRESET = OPENAI
    PATH = "/chat/completions"
    READER = ChatReader
    COLLECTOR = ChatCollector
    LINKS: ClassVar = "image"
    PARTS: ClassVar[AcceptedParts] = {"image": None, "audio": frozenset(AUDIO_FORMATS), "document": None}
    RESERVED = frozenset(("model", "messages", "stream", "tools"))
    OPTIONS = ("strict_tools",)

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        quirks: Quirks = Quirks(),
        strict_tools: bool = False,
        **options: Any,
    ) -> None:
        """Make a model; `options` are those of `HttpModel`.

        With `strict_tools`, the server is asked to decode calls within the schemas of the tools, where it can.
        """
        super().__init__(model, name=name or f"openai:{model}", **options)
        self._strict: dict[str, Json] = {"strict": True} if strict_tools else {}
        if quirks == Quirks() and urlsplit(self._endpoint).hostname == "api.openai.com":
            quirks = _OPENAI
        for setting, sent in quirks.renamed.items():
            if not sent and getattr(self.settings, setting):
                raise ConfigError(f"{self.server.origin} has no {setting}: leave it out for {model!r}")
        ids = dict.fromkeys(quirks.id_fields, True) if self.settings.return_token_ids else {}
        self._fields = self._name_settings({"model": model, **ids}, dict(quirks.renamed))
        self._fields |= self.settings.extra or {}
        self._step = with_attached(encoder_for(quirks), _parts_apart, answers_results=quirks.answers_results)
        self._asks_usage = quirks.asks_usage
        self._forces_calls = quirks.forces_calls
        self._reports_cost = quirks.reports_cost
        self._thinks_in_text = quirks.thinks_in_text
        if quirks.thinks_in_text:
            self.COLLECTOR = ThoughtCollector
            self._read_plain = ThoughtReader(self._told, self._price).read
        if (self.settings.extra or {}).get("top_logprobs"):
            self._read_plain = read_nothing
        self._answers_whole = bool(self.settings.return_token_ids) and not quirks.streams_ids

    @property
    def identity(self) -> str:
        return super().identity + ("strict_tools" if self._strict else "")

    @property
    def has_price(self) -> bool:
        return self._reports_cost or super().has_price

    async def _infer_tokens(self, request: Request, watch: Watch) -> Completion:
        on_delta = watch.on_delta
        if on_delta is None or not self._answers_whole:
            return await super()._infer_tokens(request, watch)
        # The server has no ids for a stream, so that the answer is passed on in one piece.
        completion = await super()._infer_tokens(request, replace(watch, on_delta=None))
        pass_on(completion.message, on_delta)
        return completion

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        return join_body(
            self._kept_prefix(request, is_stream), request.messages, self._step, request.contents
        )

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        fields = dict(self._fields)
        if flags[0]:
            fields["stream"] = True
            if self._asks_usage:
                fields.setdefault("stream_options", {"include_usage": True})
        tools, required = request.tools, request.required_tool
        if not tools:
            fields = {name: value for name, value in fields.items() if name not in _ABOUT_TOOLS}
        if required is not None:
            if self._forces_calls == "by_name":
                fields["tool_choice"] = {"type": "function", "function": {"name": required}}
            else:
                tools = tuple([tool for tool in tools if tool.name == required])
                if self._forces_calls == "required":
                    fields["tool_choice"] = "required"
        if tools:
            fields["tools"] = [encode_tool(tool, **self._strict) for tool in tools]
        if request.output_schema is not None:
            schema = request.output_schema
            named = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        return _encode(fields)[:-1] + b',"messages":['

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self._told, thinks_in_text=self._thinks_in_text)


# An attribute of an enum takes longer to look up than a global name.
_TOOL, _ASSISTANT = Role.TOOL, Role.ASSISTANT


def encode_message(message: Message, contents: Contents, known: tuple[str, ...] | None = None) -> bytes:
    """Return a message as an element of `messages`, with its parts and with data that Treadle has no field for.
    `known` are the fields of this data that the server accepts; `None`: all."""
    role, content = message.role, message.content
    raw: dict[str, Json] = {"role": role, "content": content}
    if role is _TOOL:
        raw["tool_call_id"] = _fit_id(message.call_id or "")
    elif message.tool_calls:
        raw["content"] = content or None
        # Servers whose models think between calls need the reasoning sent back, but only between calls.
        if message.reasoning:
            raw["reasoning_content"] = message.reasoning
        raw["tool_calls"] = [_encode_call(call, known) for call in message.tool_calls]
    elif role is _ASSISTANT:
        raw["content"] = text_or_placeholder(content)
    elif message.parts:
        parts: list[Json] = [_encode_part(part, contents) for part in message.parts]
        raw["content"] = [{"type": "text", "text": content}, *parts] if content else parts
    if message.opaque:
        kept = _of_this_server(message.opaque, known)
        if "content" in kept and read_parts(kept["content"])[0] != content:
            del kept["content"]  # the message was edited
        raw.update(kept)
    return _encode(raw)


def _encode_part(part: Artifact, contents: Contents) -> dict[str, Json]:
    """Return a content part. Raises: `UnsupportedPartError` if the API has none for it."""
    OpenAIChatModel.check_part(part)
    if part.kind == "text":
        return {"type": "text", "text": text_of_part(part, contents)}
    url = data_url(part, contents)
    if part.kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    if part.kind == "audio":
        audio = {"data": url.partition(",")[2], "format": AUDIO_FORMATS[part.mime_type or ""]}
        return {"type": "input_audio", "input_audio": audio}
    return {"type": "file", "file": {"filename": file_name(part), "file_data": url}}


def _parts_apart(message: Message) -> tuple[Artifact, ...]:
    """Return the parts to send in a following user message. Audio that the server made is sent by its id."""
    parts = parts_apart(message)
    if parts and "audio" in (message.opaque or {}):
        return tuple([part for part in parts if part.kind != "audio"])
    return parts


def encoder_for(quirks: Quirks) -> Encode:
    """Return the function that encodes messages for a server.

    It is the same function for the same quirks, so that encoded messages can be reused.
    """
    odd = quirks.reasoning, quirks.message_fields, quirks.has_short_ids
    return encode_message if odd == ("calls", None, False) else _odd_encoder(*odd)


@lru_cache
def _odd_encoder(reasoning: str, known: tuple[str, ...] | None, has_short_ids: bool) -> Encode:
    if known is not None:
        known = (*known, "reasoning_content")

    def encode(message: Message, contents: Contents) -> bytes:
        if reasoning == "never" and message.reasoning is not None:
            message = replace(message, reasoning=None)
        elif reasoning == "always" and message.role is _ASSISTANT:
            thoughts = {"reasoning_content": message.reasoning or ""}
            message = replace(message, opaque={**(message.opaque or {}), **thoughts})
        if has_short_ids and (message.tool_calls or message.call_id is not None):
            calls = tuple([replace(call, call_id=_shorten_id(call.call_id)) for call in message.tool_calls])
            call_id = None if message.call_id is None else _shorten_id(message.call_id)
            message = replace(message, tool_calls=calls, call_id=call_id)
        return encode_message(message, contents, known)

    return encode


def _fit_id(call_id: str) -> str:
    """Return the id, or one derived from it if it is longer than OpenAI accepts."""
    return call_id if len(call_id) <= _MAX_ID_CHARS else fit_id(call_id, _MAX_ID_CHARS)


def _shorten_id(call_id: str) -> str:
    """Return the id if it consists of nine letters and digits, else such an id derived from it."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]


def _encode_call(call: ToolCall, known: tuple[str, ...] | None) -> dict[str, Json]:
    function = {"name": fit_name(call.name), "arguments": fit_arguments(call.arguments)}
    raw: dict[str, Json] = {"id": _fit_id(call.call_id), "type": "function", "function": function}
    if call.opaque:
        opaque = _of_this_server(call.opaque, known)
        function.update(opaque.pop("function", ()))
        raw.update(opaque)
    return raw


def _of_this_server(opaque: dict[str, Json], known: tuple[str, ...] | None) -> dict[str, Json]:
    """Return a copy of the opaque data without the keys of other dialects and what the server does not accept."""
    if known is not None:
        return {key: value for key, value in opaque.items() if key in known}
    return {key: value for key, value in opaque.items() if key not in _FOREIGN_KEYS}
