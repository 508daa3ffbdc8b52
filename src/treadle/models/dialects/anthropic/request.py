"""The dialect `anthropic`: Anthropic's Messages API, as Anthropic and those who follow it speak it.

Owns the request: each message becomes content blocks once for its whole history, and a body is joined from them.
Source: Anthropic API reference, Messages, version 2023-06-01, 2026.
"""

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ServerError
from treadle.core.log import Log
from treadle.core.types import Completion, Json, Message, Request, Role, Settings, ToolSpec
from treadle.models.dialects.anthropic.answer import (
    PAUSED,
    MessageReader,
    encode_blocks,
    join_completions,
    keep_inputs,
    read_completion,
)
from treadle.models.dialects.anthropic.stream import MessageCollector
from treadle.models.protocol import Watch
from treadle.models.wire.http_model import HttpModel, OnDelta, join_url
from treadle.models.wire.schema import is_closed
from treadle.models.wire.stream import Collector

VERSION = "2023-06-01"
MAX_PAUSES = 16
"""How often one inference goes on after the server paused it."""
DEFAULT_MAX_TOKENS = 32_000
_SMALL_MAX_TOKENS = (
    ("claude-3-haiku", 4096),
    ("claude-3-opus", 4096),
    ("claude-3-sonnet", 4096),
    ("claude-3-5", 8192),
    ("claude-2", 4096),
    ("claude-instant", 4096),
)
_EPHEMERAL: Json = {"type": "ephemeral"}

_encode = msgspec.json.Encoder().encode


class AnthropicModel(HttpModel):
    """A model behind a Messages server.

    The API wants a bound on the output: `Settings.max_output_tokens`, or else 32,000 (4,096 or 8,192 for the models
    before Claude 3.7, which allow no more). With `cache` the server is asked to keep the prefix of a run's requests
    (tools, instructions and messages), so that each step pays a tenth for what it has read before.
    """

    DIALECT = "anthropic"
    BASE_URL = "https://api.anthropic.com"
    RESERVED = frozenset(("model", "messages", "stream", "tools", "system"))
    OPTIONS = ("cache", "server_tools")
    UNKNOWN_SETTINGS = ("seed", "logprobs", "return_token_ids")

    def __init__(
        self,
        model: str,
        *,
        cache: bool = True,
        server_tools: "list[dict[str, Json]] | tuple[dict[str, Json], ...]" = (),
        **options: Any,
    ) -> None:
        """`options` are those of `HttpModel`. `server_tools` are tools that the server runs, as the API wants them:
        `{"type": "web_search_20250305", "name": "web_search"}`."""
        options.setdefault("key_variable", "ANTHROPIC_API_KEY")
        super().__init__(model, **options)
        _check_sampling(model, self.settings)
        stem = self._base_url if self._base_url.partition("?")[0].rstrip("/").endswith("/v1") else None
        self._root = stem or join_url(self._base_url, "/v1")
        self._endpoint = join_url(self._root, "/messages")
        self._headers.setdefault("anthropic-version", VERSION)
        self._plain = MessageReader(self.settings, self._price)
        self._fields = _fields(model, self.settings)
        self._cache = cache
        self._server_tools = tuple(server_tools)

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        if not self._server_tools:
            return super().identity
        return super().identity + msgspec.json.encode(self._server_tools, order="sorted").decode()

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """Whether the server decodes within `schema`: it wants objects closed, and Claude 4.1 or newer."""
        version = _version_of(self.model)
        is_new = version is None or version >= (4, 1)
        return is_new and is_closed(schema) and super().takes_schema(schema, has_tools=has_tools)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`. An answer that the server paused is gone on with, and is one completion."""
        completion = await super().infer(request, watch)
        pauses = 0
        while completion.opaque is not None and completion.opaque.get("finish_reason") == PAUSED:
            pauses += 1
            if pauses > MAX_PAUSES:
                raise ServerError(
                    f"{self.server.origin} paused its answer {pauses} times without coming to an end",
                    status=200,
                )
            asked = replace(request, messages=request.messages.append(completion.message))
            completion = join_completions(completion, await super().infer(asked, watch))
        return completion

    def _url(self, *, is_stream: bool) -> str:
        return self._endpoint

    def _models_url(self) -> str | None:
        return join_url(self._root, f"/models/{self.model}")

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"x-api-key": api_key.strip()}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        told: list[bytes] = []
        parts: list[bytes] = []
        last: Role | None = None
        turns = request.messages.map(_turn)
        if not request.tools and any(_USED in blocks for _, blocks in turns):
            request = replace(request, tools=_tools_used(request.messages))
        for role, blocks in turns:
            if role is Role.SYSTEM:
                if blocks.strip():
                    told.append(blocks)
            elif not blocks:
                continue
            elif role is last:
                parts += (b",", blocks)
            else:
                parts += (_OPENERS[role] if last is None else _NEXT[role], blocks)
                last = role
        # A run of one step would pay for a cache that nobody reads.
        is_kept = self._cache and (bool(request.tools) or len(request.messages) > 2)
        prefix = self._kept_prefix(request, is_stream, is_kept)
        if told:
            mark = b',"cache_control":{"type":"ephemeral"}' if is_kept else b""
            prefix += b'"system":[{"type":"text","text":' + _encode(_joined(told)) + mark + b"}],"
        return b"".join((prefix, b'"messages":[', *parts, b"]}]}" if parts else b"]}"))

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        """The body up to the instructions."""
        is_stream, is_kept = flags
        fields = dict(self._fields)
        if is_stream:
            fields["stream"] = True
        tools = [*self._server_tools, *[_encode_tool(tool) for tool in request.tools]]
        if is_kept:
            # The first is for what all runs share, the second goes with the last message.
            if tools:
                tools[-1] = {**tools[-1], "cache_control": _EPHEMERAL}
            fields.setdefault("cache_control", _EPHEMERAL)
        if tools:
            fields["tools"] = tools
        if request.tools and all(tool.max_calls == 0 for tool in request.tools):
            fields["tool_choice"] = {"type": "none"}
        if request.required_tool is not None:
            fields["tool_choice"] = {"type": "tool", "name": request.required_tool}
        if request.output_schema is not None:
            config = {"format": {"type": "json_schema", "schema": request.output_schema}}
            fields["output_config"] = {**fields.get("output_config", {}), **config}
        return _encode(fields)[:-1] + b","

    def _decode_answer(self, body: bytes) -> Json:
        return keep_inputs(super()._decode_answer(body), body)

    def _read_plain(self, body: bytes) -> Completion | None:
        return self._plain.read(body)

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self.settings, self._price)

    def _collector(self, on_delta: OnDelta) -> Collector:
        return MessageCollector(on_delta, self.server)


_USED = b'"type":"tool_use"'
"""No text holds this, since quotes within one are escaped."""
_PAST = "Was called before, and can no longer be called."


def _tools_used(messages: Log[Message]) -> tuple[ToolSpec, ...]:
    """The tools that were called: the API wants them to be there, even where nothing may be called any more."""
    return _past_tools(
        tuple(dict.fromkeys([call.name for message in messages for call in message.tool_calls]))
    )


@lru_cache(maxsize=256)
def _past_tools(names: tuple[str, ...]) -> tuple[ToolSpec, ...]:
    """The same for the same names, so that what is made of them is kept."""
    return tuple([ToolSpec(name, _PAST, {"type": "object"}, max_calls=0) for name in names])


_OPENERS = {
    Role.USER: b'{"role":"user","content":[',
    Role.ASSISTANT: b'{"role":"assistant","content":[',
}
_NEXT = {role: b"]}," + opener for role, opener in _OPENERS.items()}


def _joined(told: list[bytes]) -> str:
    return "\n\n".join([text.decode() for text in told])


def _turn(message: Message) -> tuple[Role, bytes]:
    """Whose turn a message belongs to and its blocks, joined by commas; instructions as they are."""
    if message.role is Role.SYSTEM:
        return Role.SYSTEM, message.content.encode(errors="replace")
    role = Role.ASSISTANT if message.role is Role.ASSISTANT else Role.USER
    return role, encode_blocks(message)


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _fields(model: str, settings: Settings) -> dict[str, Json]:
    """What every request body has beside messages, tools and the stream flag."""
    fields = {
        "model": model,
        "max_tokens": settings.max_output_tokens or _default_max_tokens(model),
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": settings.stop,
    }
    return {name: value for name, value in fields.items() if value is not None} | (settings.extra or {})


def _default_max_tokens(model: str) -> int:
    for stem, tokens in _SMALL_MAX_TOKENS:
        if stem in model:
            return tokens
    return DEFAULT_MAX_TOKENS


_VERSION = re.compile(
    r"claude-(?:(\d)(?:-(\d))?-)?(opus|sonnet|haiku|fable|mythos)(?:-(\d{1,2})(?!\d)(?:-(\d{1,2})(?!\d))?)?"
)


def _version_of(model: str) -> tuple[int, int] | None:
    """The version in the name of a Claude model; `None` for what is none, or has none."""
    found = _VERSION.search(model)
    if found is None:
        return None
    major, minor = found[4] or found[1], (found[5] if found[4] else found[2])
    return None if major is None else (int(major), int(minor or 0))


def _check_sampling(model: str, settings: Settings) -> None:
    """Raises: `ConfigError` for what the model's API refuses. `Settings.extra` is sent in any case.

    Claude 4.1 and newer take either temperature or top_p; newer than Opus and Sonnet 4.6 or Haiku 4.5, neither.
    """
    given = [name for name in ("temperature", "top_p") if getattr(settings, name) is not None]
    version = _version_of(model)
    if not given or version is None:
        return
    if version > (4, 6):
        raise ConfigError(f"{model} takes no sampling settings: leave out {' and '.join(given)}")
    if version >= (4, 1) and len(given) == 2:
        raise ConfigError(f"{model} takes either temperature or top_p, not both: leave one out")
