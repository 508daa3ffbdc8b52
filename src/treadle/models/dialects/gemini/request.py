"""The dialect `gemini`: Google's Gemini API, `generateContent`.

This module writes requests: each message is encoded once as parts, and a body is joined from them. Source: Gemini
API reference, v1beta, 2026.
"""

import re
from functools import partial
from typing import Any, ClassVar

import msgspec

from treadle.core.parts import base64_of
from treadle.core.types import Artifact, Completion, Json, Message, Request, Role, ToolCall, ToolSpec
from treadle.models.dialects.gemini.answer import KEY, GeminiCollector, keep_arguments, read_completion
from treadle.models.wire.endpoint import join_url
from treadle.models.wire.fitting import fit_name, kept_in, object_of
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.messages import (
    NO_TURNS,
    AcceptedParts,
    Contents,
    TurnWriter,
    attached,
    is_link,
    text_of_part,
    text_or_placeholder,
)
from treadle.models.wire.provider import Preset

_NO_SIGNATURE = "skip_thought_signature_validator"
"""The value to send instead of a signature for calls that another model made. Source: Gemini API documentation of
thought signatures."""

_encode = msgspec.json.Encoder().encode


class GeminiModel(HttpModel):
    """A model behind the Gemini API.

    The API sends the model's thoughts only on request: `extra={"generationConfig": {"thinkingConfig":
    {"includeThoughts": True}}}`. Fields of `generationConfig` and `toolConfig` in `Settings.extra` are merged
    with those made here, and win.
    """

    DIALECT = "gemini"
    BASE_URL = "https://generativelanguage.googleapis.com/v1beta"
    PRESET = Preset(
        dialect="gemini",
        key_variable="GEMINI_API_KEY",
        base_url_variable="GEMINI_BASE_URL",
        # Most Gemini models refuse it.
        decodes_beside_tools=False,
        price_provider="google",
    )
    PATH = ""
    COLLECTOR = GeminiCollector
    LINKS: ClassVar = "image audio document"
    PARTS: ClassVar[AcceptedParts] = {"image": None, "audio": None, "document": None}
    RESERVED = frozenset(("contents", "tools", "systemInstruction"))
    OPTIONS = ("server_tools",)
    SETTINGS: ClassVar[dict[str, str]] = {
        "temperature": "temperature",
        "top_p": "topP",
        "max_output_tokens": "maxOutputTokens",
        "seed": "seed",
        "stop": "stopSequences",
        "logprobs": "responseLogprobs",
    }

    def __init__(self, model: str, **options: Any) -> None:
        """Make a model; `options` are those of `HttpModel`, such as `server_tools`: `{"googleSearch": {}}`."""
        super().__init__(model, **options)
        self._path = f"/{model}" if "/" in model else f"/models/{model}"
        self._endpoint = join_url(self._base_url, f"{self._path}:generateContent")
        self._stream_endpoint = join_url(self._base_url, f"{self._path}:streamGenerateContent", "alt=sse")
        extra = dict(self.settings.extra or {})
        self._generation = self._name_settings() | extra.pop("generationConfig", {})
        self._extra = extra
        version = re.search(r"gemini-(\d+)", model)
        # From Gemini 3 on, calls need a signature or a replacement for it, and results may contain images.
        self._writer = _STRICT if version is not None and int(version[1]) >= 3 else _WRITER

    def _models_url(self) -> str | None:
        return join_url(self._base_url, self._path)

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"x-goog-api-key": api_key.strip()}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        turns, state = request.messages.join(self._writer, NO_TURNS, request.contents)
        told = b""
        instructions = state[1]
        if instructions:
            told = b',"systemInstruction":' + _encode({"parts": [{"text": "\n\n".join(instructions)}]})
        return b"".join([self._kept_prefix(request), *turns, self._writer.close(state), told, b"}"])

    def _prefix(self, request: Request, *flags: bool) -> bytes:
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

    def _shape(self, raw: Json, body: bytes) -> Json:
        return keep_arguments(super()._shape(raw, body), body)

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self.server)


def _encode_parts(message: Message, contents: Contents, *, is_strict: bool) -> bytes:
    """Return a message's parts, joined by commas. If `is_strict`, calls are signed and results hold images."""
    role = message.role
    if role is Role.TOOL:
        said = {"error" if message.is_error else "output": message.content}
        response: dict[str, Json] = {"name": fit_name(message.name or ""), "response": said}
        if message.call_id:
            response["id"] = message.call_id
        if message.parts and is_strict:
            response["parts"] = [_encode_part(part, contents) for part in message.parts]
        return _encode({"functionResponse": response})
    if role is not Role.ASSISTANT:
        text = message.content if message.parts else text_or_placeholder(message.content)
        parts: list[Json] = [{"text": text}] if text else []
        parts += [_encode_part(part, contents) for part in message.parts]
        return _encode(parts)[1:-1]
    calls = [_encode_call(call) for call in message.tool_calls]
    if is_strict and calls and not any("thoughtSignature" in call for call in calls):
        calls[0]["thoughtSignature"] = _NO_SIGNATURE
    kept = kept_in(message.opaque, KEY).get("parts")
    if isinstance(kept, list) and _fits(kept, message):
        if all([part.get("thought") or not part.get("text", "-").strip() for part in kept]):
            return b""
        return _encode(_restore(kept, calls, message, contents))[1:-1]
    has_text = bool(message.content if calls else message.content.strip())
    told: list[Json] = [{"text": message.content}] if has_text else []
    # Unlike other APIs, this one accepts images in an assistant's message.
    told += [_encode_part(part, contents) for part in message.parts]
    return _encode([*told, *calls])[1:-1]


def _restore(kept: list[Json], calls: list[Json], message: Message, contents: Contents) -> list[Json]:
    """Return the parts of an answer as the API sent them, including its calls and images, in their order."""
    remaining, images = iter(calls), iter(message.parts)
    parts: list[Json] = []
    for part in kept:
        if "functionCall" in part:
            parts.append(next(remaining))
        elif "inlineData" not in part:
            parts.append(part)
        elif not part.get("thought"):
            parts.append({**part, **_encode_part(next(images), contents)})
    return parts


def _encode_part(part: Artifact, contents: Contents) -> dict[str, Json]:
    """Return an artifact as a part of the API. Raises: `UnsupportedPartError` if the API has none for it."""
    GeminiModel.check_part(part)
    if part.kind == "text":
        return {"text": text_of_part(part, contents)}
    mime_type = part.mime_type or "application/octet-stream"
    if is_link(part):
        return {"fileData": {"mimeType": mime_type, "fileUri": part.uri}}
    return {"inlineData": {"mimeType": mime_type, "data": base64_of(part, contents)}}


def _attach(message: Message, contents: Contents) -> bytes:
    """Return the images of a tool result as parts of a user message, for models whose results are text only."""
    if message.role is not Role.TOOL:
        return b""
    return _encode_parts(attached(message, message.parts), contents, is_strict=False)


def _fits(kept: list[Json], message: Message) -> bool:
    """Return whether kept parts still match the message. They do not if the message was edited."""
    calls = sum("functionCall" in part for part in kept)
    images = sum("inlineData" in part and not part.get("thought") for part in kept)
    text = "".join([part["text"] for part in kept if "text" in part and not part.get("thought")])
    return (calls, images, text) == (len(message.tool_calls), len(message.parts), message.content)


def _encode_call(call: ToolCall) -> dict[str, Json]:
    function: dict[str, Json] = {"name": fit_name(call.name), "args": object_of(call.arguments)}
    if call.call_id:
        function["id"] = call.call_id
    rest = kept_in(call.opaque, KEY)
    return {**rest, "functionCall": {**rest.get("functionCall", {}), **function}}


_USER = b'{"role":"user","parts":['
_make_writer = partial(
    TurnWriter,
    {Role.USER: _USER, Role.TOOL: _USER, Role.ASSISTANT: b'{"role":"model","parts":['},
    merges=lambda role: role is Role.TOOL,
)
_WRITER = _make_writer(partial(_encode_parts, is_strict=False), attach=_attach)
_STRICT = _make_writer(partial(_encode_parts, is_strict=True), attach=lambda message, contents: b"")


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
