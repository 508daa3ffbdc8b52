"""The dialect `anthropic`: Anthropic's Messages API, as implemented by Anthropic and compatible servers.

This module writes requests: each message is encoded once as content blocks, and a body is joined from them.
Source: Anthropic API reference, Messages, version 2023-06-01, 2026.
"""

import re
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ServerError
from treadle.core.parts import base64_of, content_of
from treadle.core.prompts.fence import neutralise
from treadle.core.types import (
    Artifact,
    Completion,
    Json,
    Message,
    Request,
    Role,
    Settings,
    ToolCall,
    ToolSpec,
)
from treadle.models.dialects.anthropic.answer import (
    KEY,
    MessageCollector,
    MessageReader,
    keep_inputs,
    message_of,
    read_completion,
)
from treadle.models.protocol import Watch
from treadle.models.wire.endpoint import join_url
from treadle.models.wire.fitting import fit_id, fit_name, is_closed, kept_in, object_of, without_bounds
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.messages import (
    NO_TURNS,
    AcceptedParts,
    Contents,
    TurnWriter,
    attached,
    is_link,
    text_or_placeholder,
)
from treadle.models.wire.provider import Preset

VERSION = "2023-06-01"
_PAUSED = "pause_turn"
_MAX_PAUSES = 16
"""How often one inference is continued after the server paused it."""
_DEFAULT_MAX_TOKENS = 32_000
_SMALL_MAX_TOKENS = (
    ("claude-3-haiku", 4096),
    ("claude-3-opus", 4096),
    ("claude-3-sonnet", 4096),
    ("claude-3-5", 8192),
    ("claude-2", 4096),
    ("claude-instant", 4096),
)
_EPHEMERAL: Json = {"type": "ephemeral"}
_NO_THINKING: Json = {"type": "disabled"}

_encode = msgspec.json.Encoder().encode


class AnthropicModel(HttpModel):
    """A model behind a Messages server.

    The API requires a limit on the output: `Settings.max_output_tokens`, or else 32,000 (4,096 or 8,192 for models
    before Claude 3.7, which allow no more). With `cache` the server is asked to keep the prefix of a run's requests
    (tools, instructions and messages), so that each step pays a tenth for the tokens of earlier steps.
    """

    DIALECT = "anthropic"
    BASE_URL = "https://api.anthropic.com"
    PRESET = Preset(
        dialect="anthropic",
        key_variable="ANTHROPIC_API_KEY",
        base_url_variable="ANTHROPIC_BASE_URL",
        price_provider="anthropic",
    )
    PATH = "/v1/messages"
    COLLECTOR = MessageCollector
    READER = MessageReader
    LINKS: ClassVar = "image document"
    PARTS: ClassVar[AcceptedParts] = {
        "image": frozenset(("image/jpeg", "image/png", "image/gif", "image/webp")),
        "document": frozenset(("application/pdf",)),
    }
    RESERVED = frozenset(("model", "messages", "stream", "tools", "system"))
    OPTIONS = ("cache", "server_tools")
    SETTINGS: ClassVar[dict[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "stop": "stop_sequences",
        "max_output_tokens": "max_tokens",
    }

    def __init__(
        self,
        model: str,
        *,
        cache: bool = True,
        **options: Any,
    ) -> None:
        """Make a model; `options` are those of `HttpModel`, such as `server_tools`:
        `{"type": "web_search_20250305", "name": "web_search"}`."""
        super().__init__(model, **options)
        _check_sampling(model, self.settings)
        self._root = join_url(self._base_url, "/v1")
        if self._base_url.partition("?")[0].rstrip("/").endswith("/v1"):
            self._root = self._base_url
            self._endpoint = self._stream_endpoint = join_url(self._base_url, "/messages")
        self._headers.setdefault("anthropic-version", VERSION)
        self._fields = {
            **self._name_settings({"model": model, "max_tokens": self.max_output_tokens}),
            **(self.settings.extra or {}),
        }
        self._cache = cache

    @property
    def max_output_tokens(self) -> int | None:
        """The longest answer that requests allow, which the API requires."""
        return self.settings.max_output_tokens or _default_max_tokens(self.model)

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """Return whether the server can decode within `schema`: its objects are closed, and the model is new."""
        version = _version_of(self.model)
        is_new = version is None or version >= (4, 1)
        return is_new and is_closed(schema) and super().takes_schema(schema, has_tools=has_tools)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the server's answer; see `Model.infer`. If the server pauses, the answer is continued."""
        completion = await super().infer(request, watch)
        pauses = 0
        while completion.opaque is not None and completion.opaque.get("finish_reason") == _PAUSED:
            pauses += 1
            if pauses > _MAX_PAUSES:
                raise ServerError(
                    f"{self.server.origin} paused its answer {pauses} times and did not finish it",
                    status=200,
                )
            asked = replace(request, messages=request.messages.append(completion.message))
            completion = _join_completions(completion, await super().infer(asked, watch))
        return completion

    async def find_input_tokens(self, fields: dict[str, Json]) -> int:
        """Return the tokens of a request, as the server counts them. Raises: `ProviderError`."""
        asked = {name: value for name, value in fields.items() if name not in ("max_tokens", "stream")}
        body = _encode({**asked, "model": self.model})
        answer = await self._transport.post(
            join_url(self._root, "/messages/count_tokens"), self._headers, body
        )
        raw = self._raw(answer)
        counted = raw.get("input_tokens") if isinstance(raw, dict) else None
        if type(counted) is not int:
            raise self._nonsense(raw, answer.body)
        return counted

    def _models_url(self) -> str | None:
        return join_url(self._root, f"/models/{self.model}")

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"x-api-key": api_key.strip()}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        messages = request.messages
        turns, state = messages.join(_WRITER, NO_TURNS, request.contents)
        if not request.tools and (names := messages.scan(_note_names, _NO_NAMES)[1]):
            request = replace(request, tools=_past_tools(names))
        # A run of one step would pay for a cache that is never used.
        is_kept = self._cache and (bool(request.tools) or len(messages) > 2)
        prefix = self._kept_prefix(request, is_stream, is_kept)
        instructions = state[1]
        if instructions:
            mark = b',"cache_control":{"type":"ephemeral"}' if is_kept else b""
            text = _encode("\n\n".join(instructions))
            prefix += b'"system":[{"type":"text","text":' + text + mark + b"}],"
        return b"".join([prefix, b'"messages":[', *turns, _WRITER.close(state), b"}"])

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        is_stream, is_kept = flags
        fields = dict(self._fields)
        if is_stream:
            fields["stream"] = True
        offered, required = request.tools, request.required_tool
        if required is not None and (fields.get("thinking") or _NO_THINKING).get("type") != "disabled":
            # The API forces no call of a model that thinks.
            offered, required = tuple([tool for tool in offered if tool.name == required]), None
        tools = [*self._server_tools, *[_encode_tool(tool) for tool in offered]]
        if is_kept:
            # The first cache mark covers what all runs share; the second one is always at the last message.
            if tools:
                tools[-1] = {**tools[-1], "cache_control": _EPHEMERAL}
            fields.setdefault("cache_control", _EPHEMERAL)
        if tools:
            fields["tools"] = tools
        if request.tools and all(tool.max_calls == 0 for tool in request.tools):
            fields["tool_choice"] = {"type": "none"}
        if required is not None:
            fields["tool_choice"] = {"type": "tool", "name": required}
        if request.output_schema is not None:
            # The API refuses bounds; the answer is held against the whole schema.
            schema = without_bounds(request.output_schema)
            config = {"format": {"type": "json_schema", "schema": schema}}
            fields["output_config"] = {**fields.get("output_config", {}), **config}
        return _encode(fields)[:-1] + b","

    def _decode_answer(self, body: bytes) -> Json:
        return keep_inputs(super()._decode_answer(body), body)

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw)


_NO_NAMES: tuple[str, ...] = ()
_PAST = "Was called before, and can no longer be called."


def _note_names(names: tuple[str, ...], message: Message) -> tuple[tuple[str, ...], None]:
    """Return the names of the tools that were called up to `message`; a function for `Log.scan`. The API requires
    the definitions of these tools even if no tool may be called any more."""
    made = [fit_name(call.name) for call in message.tool_calls]
    return (tuple(dict.fromkeys([*names, *made])) if made else names), None


@lru_cache(maxsize=256)
def _past_tools(names: tuple[str, ...]) -> tuple[ToolSpec, ...]:
    """Return tools with these names; for equal names the same tuple, so that the encoded prefix can be reused."""
    return tuple([ToolSpec(name, _PAST, {"type": "object"}, max_calls=0) for name in names])


def _encode_blocks(message: Message, contents: Contents) -> bytes:
    role = message.role
    if role is Role.TOOL:
        result = {"type": "tool_result", "tool_use_id": fit_id(message.call_id or "")}
        content = _encode_content(message, contents) if message.parts else message.content
        marks = {"is_error": True} if message.is_error else {}
        return _encode({**result, **({"content": content} if content else {}), **marks})
    if role is Role.ASSISTANT:
        return _encode(_blocks_of(message))[1:-1]
    if not message.parts:
        return _encode(_text(text_or_placeholder(message.content)))
    return _encode(_encode_content(message, contents))[1:-1]


def _encode_content(message: Message, contents: Contents) -> list[Json]:
    blocks: list[Json] = [_text(message.content)] if message.content else []
    return [*blocks, *[_encode_part(part, contents) for part in message.parts]]


def _text(content: str) -> dict[str, Json]:
    return {"type": "text", "text": content}


def _encode_part(part: Artifact, contents: Contents) -> dict[str, Json]:
    """Return the block of a part. Raises: `UnsupportedPartError` if the API has none for it."""
    AnthropicModel.check_part(part)
    title = {"title": neutralise(part.name)} if part.name and part.kind != "image" else {}
    if part.kind == "text":
        text = neutralise(content_of(part, contents).decode(errors="replace"))
        return {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": text},
            **title,
        }
    if is_link(part):
        return {"type": part.kind, "source": {"type": "url", "url": part.uri}, **title}
    source = {"type": "base64", "media_type": part.mime_type, "data": base64_of(part, contents)}
    return {"type": part.kind, "source": source, **title}


def _attach(message: Message, contents: Contents) -> bytes:
    """Return the parts of an answer as content blocks of a user message: only users may send parts."""
    if message.role is not Role.ASSISTANT:
        return b""
    return _encode_blocks(attached(message, message.parts), contents)


_USER = b'{"role":"user","content":['
_WRITER = TurnWriter(
    {Role.USER: _USER, Role.TOOL: _USER, Role.ASSISTANT: b'{"role":"assistant","content":['},
    _encode_blocks,
    merges=lambda _: True,
    attach=_attach,
)


def _blocks_of(message: Message) -> list[Json]:
    opaque = kept_in(message.opaque, KEY)
    calls = [_encode_call(call) for call in message.tool_calls]
    kept = opaque.get("content")
    if isinstance(kept, list) and _fits(kept, message):
        if not any([_says_something(block) for block in kept]):
            return []
        remaining = iter(calls)
        return [next(remaining) if block["type"] == "tool_use" else block for block in kept]
    blocks: list[Json] = []
    if signature := opaque.get("signature"):
        # The API refuses thoughts without a signature, such as those of other servers.
        blocks.append({"type": "thinking", "thinking": message.reasoning or "", "signature": signature})
    if message.content.strip():
        blocks.append(_text(message.content))
    elif not calls:
        return []
    return blocks + calls


def _says_something(block: Json) -> bool:
    """Return whether a block is more than thoughts and white space, after which the API expects something."""
    if block["type"] == "text":
        return bool(block["text"].strip())
    return block["type"] not in ("thinking", "redacted_thinking")


def _fits(kept: list[Json], message: Message) -> bool:
    """Return whether kept blocks still match the message. They do not if the message was edited."""
    calls = sum(block["type"] == "tool_use" for block in kept)
    text = "".join([block["text"] for block in kept if block["type"] == "text"])
    return calls == len(message.tool_calls) and text == message.content


def _encode_call(call: ToolCall) -> Json:
    use = {"id": fit_id(call.call_id), "name": fit_name(call.name), "input": object_of(call.arguments)}
    return {"type": "tool_use", **use, **kept_in(call.opaque, KEY)}


def _join_completions(first: Completion, second: Completion) -> Completion:
    """Return one completion for an answer that the server paused and its continuation."""
    blocks = [*_blocks_of(first.message), *_blocks_of(second.message)]
    message = message_of([_with_text(block) for block in blocks])
    cost = None if first.cost_usd is None or second.cost_usd is None else first.cost_usd + second.cost_usd
    return replace(second, message=message, usage=first.usage + second.usage, cost_usd=cost)


def _with_text(block: Json) -> dict[str, Json]:
    """Return a block as the API sends it, with the input of a call as text."""
    if block["type"] != "tool_use":
        return dict(block)
    return {**block, "input": bytes(block["input"]).decode()}


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _default_max_tokens(model: str) -> int:
    for stem, tokens in _SMALL_MAX_TOKENS:
        if stem in model:
            return tokens
    return _DEFAULT_MAX_TOKENS


_VERSION = re.compile(
    r"claude-(?:(\d)(?:-(\d))?-)?(opus|sonnet|haiku|fable|mythos)(?:-(\d{1,2})(?!\d)(?:-(\d{1,2})(?!\d))?)?"
)


def _version_of(model: str) -> tuple[int, int] | None:
    """Return the version in the name of a Claude model; `None` if the name has none."""
    found = _VERSION.search(model)
    if found is None:
        return None
    major, minor = found[4] or found[1], (found[5] if found[4] else found[2])
    return None if major is None else (int(major), int(minor or 0))


def _check_sampling(model: str, settings: Settings) -> None:
    """Check the sampling settings. `Settings.extra` is always sent, unchecked. Claude 4.1 and newer take either
    temperature or top_p; models newer than Opus and Sonnet 4.6 or Haiku 4.5 take neither. Raises: `ConfigError` for
    settings that the model's API refuses."""
    given = [name for name in ("temperature", "top_p") if getattr(settings, name) is not None]
    version = _version_of(model)
    if not given or version is None:
        return
    if version > (4, 6):
        raise ConfigError(f"{model} takes no sampling settings: leave out {' and '.join(given)}")
    if version >= (4, 1) and len(given) == 2:
        raise ConfigError(f"{model} takes either temperature or top_p, not both: leave one out")
