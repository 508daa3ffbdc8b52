"""The dialect `gemini`: Google's Gemini API, `generateContent`.

Owns the request: each message becomes parts once for its whole history, and a body is joined from them.
Source: Gemini API reference, v1beta, 2026.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from treadle.core.types import Completion, Json, Message, Request, Role, Settings, ToolSpec
from treadle.models.dialects.gemini.answer import (
    GeminiCollector,
    GeminiReader,
    encode_parts,
    encode_parts_signed,
    keep_arguments,
    read_completion,
)
from treadle.models.wire.http_model import HttpModel, OnDelta, join_url
from treadle.models.wire.stream import Collector

_encode = msgspec.json.Encoder().encode


class GeminiModel(HttpModel):
    """A model behind the Gemini API.

    What it thinks is told only if asked for: `extra={"generationConfig": {"thinkingConfig": {"includeThoughts":
    True}}}`. Fields of `generationConfig` and `toolConfig` in `Settings.extra` go beside those made here, and win.
    """

    DIALECT = "gemini"
    BASE_URL = "https://generativelanguage.googleapis.com/v1beta"
    RESERVED = frozenset(("contents", "tools", "systemInstruction"))
    OPTIONS = ("server_tools",)
    UNKNOWN_SETTINGS = ("return_token_ids",)

    def __init__(self, model: str, *, server_tools: Iterable[dict[str, Json]] = (), **options: Any) -> None:
        """`options` are those of `HttpModel`. `server_tools` are tools that the server runs, as the API wants them:
        `{"googleSearch": {}}`."""
        options.setdefault("key_variable", "GEMINI_API_KEY")
        super().__init__(model, **options)
        self._path = f"/{model}" if "/" in model else f"/models/{model}"
        self._urls = {
            False: join_url(self._base_url, f"{self._path}:generateContent"),
            True: join_url(self._base_url, f"{self._path}:streamGenerateContent", "alt=sse"),
        }
        self._server_tools = tuple(server_tools)
        extra = dict(self.settings.extra or {})
        self._generation = _generation(self.settings) | extra.pop("generationConfig", {})
        self._extra = extra
        self._plain = GeminiReader(self.settings, self._price)
        version = re.search(r"gemini-(\d+)", model)
        # From Gemini 3 on, calls of other models are taken only with a mark in place of the signature.
        is_strict = version is not None and int(version[1]) >= 3
        self._encode_parts: Callable[[Message], bytes] = encode_parts_signed if is_strict else encode_parts

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        if not self._server_tools:
            return super().identity
        return super().identity + msgspec.json.encode(self._server_tools, order="sorted").decode()

    def _url(self, *, is_stream: bool) -> str:
        return self._urls[is_stream]

    def _models_url(self) -> str | None:
        return join_url(self._base_url, self._path)

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"x-goog-api-key": api_key.strip()}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        parts = [self._kept_prefix(request)]
        told: list[str] = []
        last: Role | None = None
        for message, encoded in zip(request.messages, request.messages.map(self._encode_parts), strict=True):
            role = message.role
            if role is Role.SYSTEM:
                told.append(message.content)
            elif not encoded:
                continue
            elif role is last and role is Role.TOOL:
                parts += (b",", encoded)
            else:
                parts += (_OPENERS[role] if last is None else _NEXT[role], encoded)
                last = role
        parts.append(b"]}]" if last is not None else b"]")
        if told:
            text = _encode({"parts": [{"text": "\n\n".join(told)}]})
            parts += (b',"systemInstruction":', text)
        parts.append(b"}")
        return b"".join(parts)

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        """The body up to the first content."""
        fields = dict(self._extra)
        generation = dict(self._generation)
        if request.output_schema is not None:
            generation["responseMimeType"] = "application/json"
            generation["responseJsonSchema"] = request.output_schema
        if generation:
            fields["generationConfig"] = generation
        tools = list(self._server_tools)
        if request.tools:
            tools.append({"functionDeclarations": [_encode_tool(tool) for tool in request.tools]})
        if tools:
            fields["tools"] = tools
        if request.required_tool is not None:
            calling = {"mode": "ANY", "allowedFunctionNames": [request.required_tool]}
            fields["toolConfig"] = {**fields.get("toolConfig", {}), "functionCallingConfig": calling}
        return _encode(fields)[:-1] + (b"," if fields else b"") + b'"contents":['

    def _decode_answer(self, body: bytes) -> Json:
        return keep_arguments(super()._decode_answer(body), body)

    def _decode_event(self, event: bytes) -> Json:
        return keep_arguments(super()._decode_event(event), event)

    def _find_error(self, raw: Json) -> Json | None:
        # A stream that is refused may answer with a list.
        return super()._find_error(raw[0] if isinstance(raw, list) and raw else raw)

    def _read_plain(self, body: bytes) -> Completion | None:
        return self._plain.read(body)

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self.settings, self._price, self.server)

    def _collector(self, on_delta: OnDelta) -> Collector:
        return GeminiCollector(on_delta, self.server)


_ROLES = {Role.USER: b"user", Role.TOOL: b"user", Role.ASSISTANT: b"model"}
_OPENERS = {role: b'{"role":"' + name + b'","parts":[' for role, name in _ROLES.items()}
_NEXT = {role: b"]}," + opener for role, opener in _OPENERS.items()}


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}


def _generation(settings: Settings) -> dict[str, Json]:
    fields = {
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "maxOutputTokens": settings.max_output_tokens,
        "seed": settings.seed,
        "stopSequences": settings.stop,
        "responseLogprobs": settings.logprobs,
    }
    return {name: value for name, value in fields.items() if value is not None}
