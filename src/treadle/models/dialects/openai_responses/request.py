"""The dialect `openai_responses`: OpenAI's Responses API.

Owns the request: each message becomes input items once for its whole history, and a body is joined from them.
Source: OpenAI API reference, Responses, 2026.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, RequestError
from treadle.core.types import Completion, Json, Request, Role, Settings, ToolSpec
from treadle.models.dialects.openai_responses.answer import KEY, ResponseReader, encode_items, read_completion
from treadle.models.dialects.openai_responses.stream import ResponseCollector
from treadle.models.protocol import Watch
from treadle.models.wire.http_model import HttpModel, OnDelta, join_url
from treadle.models.wire.schema import is_strict
from treadle.models.wire.stream import Collector

STATES = ("none", "previous_response_id", "conversation")
_MAX_GONE = 1024
_CALLERS_TOOLS = frozenset(
    (
        "function",
        "custom",
        "namespace",
        "local_shell",
        "shell",
        "apply_patch",
        "computer",
        "computer_use_preview",
    )
)
"""Types of tools that the caller runs."""

_encode = msgspec.json.Encoder().encode


class OpenAIResponsesModel(HttpModel):
    """A model behind a Responses server.

    `state` says who remembers. `none`: each request holds the whole transcript, reasoning included, which comes
    encrypted, and the server stores nothing. `previous_response_id`: the server stores each response, and a request
    holds what is new since the last one; where the transcript before it was changed, or the server no longer has
    it, the whole is sent. `conversation`: the server keeps a conversation, whose id is given; such a run cannot be
    forked, and is not to be shared by runs.
    """

    DIALECT = "openai_responses"
    BASE_URL = "https://api.openai.com/v1"
    RESERVED = frozenset(("model", "input", "stream", "tools", "previous_response_id", "conversation"))
    OPTIONS = ("state", "conversation", "server_tools")
    UNKNOWN_SETTINGS = ("seed", "stop", "return_token_ids")

    def __init__(
        self,
        model: str,
        *,
        state: str = "none",
        conversation: str | None = None,
        server_tools: Iterable[dict[str, Json]] = (),
        **options: Any,
    ) -> None:
        """`options` are those of `HttpModel`. `server_tools` are tools that the server runs, as the API wants them:
        `{"type": "web_search"}`.

        Raises: `ConfigError` for a tool that the caller would have to run or to approve.
        """
        options.setdefault("key_variable", "OPENAI_API_KEY")
        super().__init__(model, **options)
        if state not in STATES:
            raise ConfigError(f"state is {state!r}; use {', '.join(map(repr, STATES))}")
        if (state == "conversation") != (conversation is not None):
            raise ConfigError(
                "state='conversation' and conversation='conv_…' belong together: give both or none"
            )
        self._endpoint = join_url(self._base_url, "/responses")
        self._state = state
        self._conversation = conversation
        self._server_tools = tuple(server_tools)
        for item in self._server_tools:
            _check_server_tool(item)
        self._fields = _fields(model, self.settings, state, conversation)
        self._plain = ResponseReader(self.settings, self._price)
        self._gone: set[str] = set()
        """Ids of responses that the server does not have."""

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        more = [self._server_tools, self._conversation]
        return super().identity + (msgspec.json.encode(more, order="sorted").decode() if any(more) else "")

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        try:
            completion = await super().infer(request, watch)
        except RequestError as error:
            known = self._known(request)
            if known is None or self._state != "previous_response_id" or "revious" not in str(error):
                raise
            if len(self._gone) >= _MAX_GONE:
                self._gone.clear()
            self._gone.add(known[1])
            completion = await super().infer(request, watch)
        if self._state == "none":
            return completion
        if self._state == "conversation":
            mark = {"conversation": self._conversation}
        else:
            mark = {"id": completion.response_id, "after": _digest(request.messages.map(encode_items))}
        message = completion.message
        opaque = message.opaque or {}
        kept = {**opaque, KEY: {**opaque.get(KEY, {}), **mark}}
        return replace(completion, message=replace(message, opaque=kept))

    def _url(self, *, is_stream: bool) -> str:
        return self._endpoint

    def _key_headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key.strip()}"}

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        prefix = self._kept_prefix(request, is_stream)
        items = request.messages.map(encode_items)
        if self._state != "none" and (known := self._known(request)) is not None:
            items = items[known[0] + 1 :]
            if self._state == "previous_response_id":
                prefix = prefix.replace(
                    b'"input":[', b'"previous_response_id":' + _encode(known[1]) + b',"input":['
                )
        return b"".join((prefix, b",".join([item for item in items if item]), b"]}"))

    def _known(self, request: Request) -> tuple[int, str] | None:
        """The position of the newest message up to which the server knows the transcript, and its response's id."""
        messages = request.messages
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.role is not Role.ASSISTANT:
                continue
            kept = (message.opaque or {}).get(KEY) or {}
            if self._state == "conversation":
                if kept.get("conversation") == self._conversation:
                    return index, ""
                continue
            response_id = kept.get("id")
            if not isinstance(response_id, str) or response_id in self._gone:
                return None
            before = messages.map(encode_items)[:index]
            return (index, response_id) if kept.get("after") == _digest(before) else None
        return None

    def _prefix(self, request: Request, *flags: bool) -> bytes:
        """The body up to the first item."""
        fields = dict(self._fields)
        if flags[0]:
            fields["stream"] = True
        tools = [*self._server_tools, *[_encode_tool(tool) for tool in request.tools]]
        if tools:
            fields["tools"] = tools
        if request.required_tool is not None:
            fields["tool_choice"] = {"type": "function", "name": request.required_tool}
        if request.output_schema is not None:
            schema = request.output_schema
            asked = {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}
            fields["text"] = {**fields.get("text", {}), "format": asked}
        return _encode(fields)[:-1] + b',"input":['

    def _read_plain(self, body: bytes) -> Completion | None:
        return self._plain.read(body)

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self.settings, self._price, self.server)

    def _collector(self, on_delta: OnDelta) -> Collector:
        return ResponseCollector(on_delta, self.server)


def _digest(items: list[bytes]) -> str:
    """Of a transcript, to know it again."""
    return hashlib.blake2b(b",".join(items), digest_size=12).hexdigest()


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    # Strict decoding, which is the API's default, takes only some schemas, and a tool's is not known to be one.
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _check_server_tool(item: dict[str, Json]) -> None:
    kind = item.get("type")
    if kind in _CALLERS_TOOLS:
        raise ConfigError(f"server_tools has {kind!r}, which the caller runs: give it to the agent as a tool")
    if kind == "mcp" and item.get("require_approval") != "never":
        raise ConfigError(
            f"the MCP server {item.get('server_label')!r} in server_tools would ask for approvals: set "
            '"require_approval": "never", or give it to the agent as tools (mcp:…), whose approvals Treadle has'
        )


def _fields(model: str, settings: Settings, state: str, conversation: str | None) -> dict[str, Json]:
    """What every request body has beside input, tools and the stream flag."""
    fields = {
        "model": model,
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "include": ["message.output_text.logprobs"] if settings.logprobs else None,
        "store": state != "none",
        "conversation": conversation,
    }
    return {name: value for name, value in fields.items() if value is not None} | (settings.extra or {})
