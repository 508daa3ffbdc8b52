"""The dialect `openai_responses`: OpenAI's Responses API.

This module writes requests: each message is encoded once as input items, and a body is joined from them. Source:
OpenAI API reference, Responses, 2026.
"""

import asyncio
import hashlib
import re
import time
from functools import partial
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from treadle.core.errors import (
    ConfigError,
    ProviderError,
    ProviderTimeoutError,
    RequestError,
    UnavailableError,
)
from treadle.core.log import Log
from treadle.core.parts import base64_of
from treadle.core.types import Artifact, Completion, Json, Message, Request, Role, ToolCall, ToolSpec
from treadle.http.transport import Answer, StreamedAnswer
from treadle.models.dialects.openai_responses.answer import KEY, ResponseCollector, read_completion
from treadle.models.protocol import Watch
from treadle.models.wire.endpoint import join_url
from treadle.models.wire.fitting import fit_arguments, fit_id, fit_name, is_strict, kept_in
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.messages import (
    AcceptedParts,
    Contents,
    data_url,
    file_name,
    join_body,
    text_of_part,
    text_or_placeholder,
    with_attached,
)
from treadle.models.wire.openai_style import OPENAI

STATES = ("none", "previous_response_id", "conversation")
_MAX_GONE = 1024
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS, _POLL_SECONDS = 0.25, 10.0, 1800.0
"""The first and the longest delay between two questions for a response, and how long it may take by default."""
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
"""Types of tools that the caller has to run, which cannot be server tools."""
_THINKS_NOT = re.compile(r"(?:ft:|openai/)?(?:gpt-[34]|chatgpt-|gpt-5[\d.]*-chat)")
"""The names of OpenAI's models without reasoning, which refuse to be asked for it."""
_GONE = re.compile(rb"previous[_ ]response|response with id", re.IGNORECASE)
"""Texts in the errors of servers that no longer have a response. Source: OpenAI 2026, vLLM 0.11."""

_encode = msgspec.json.Encoder().encode


class ResponseGoneError(RequestError):
    """A request that referred to a response which the server no longer has."""


class OpenAIResponsesModel(HttpModel):
    """A model behind a Responses server.

    `state` says who keeps the transcript. With `none`, each request contains all of it, encrypted reasoning
    included, and the server stores nothing. With `previous_response_id`, the server stores each response, and a
    request contains only what is new since the last one; the whole transcript is sent if its earlier part was
    changed or the server no longer has it. With `conversation`, the server keeps the conversation with the given
    id; only one run can use it, and the run cannot be forked.
    """

    DIALECT = "openai_responses"
    BASE_URL = "https://api.openai.com/v1"
    PRESET = replace(OPENAI, dialect="openai_responses")
    PATH = "/responses"
    COLLECTOR = ResponseCollector
    LINKS: ClassVar = "image document"
    PARTS: ClassVar[AcceptedParts] = {"image": None, "document": None}
    RESERVED = frozenset(("model", "input", "stream", "tools", "previous_response_id", "conversation"))
    OPTIONS = ("state", "conversation", "server_tools")
    SETTINGS: ClassVar[dict[str, str]] = {
        "max_output_tokens": "max_output_tokens",
        "temperature": "temperature",
        "top_p": "top_p",
        "logprobs": "include",
    }

    def __init__(
        self,
        model: str,
        *,
        state: str = "none",
        conversation: str | None = None,
        **options: Any,
    ) -> None:
        """Make a model; `options` are those of `HttpModel`, such as `server_tools`: `{"type": "web_search"}`.

        Raises: `ConfigError` for a tool that the caller would have to run or to approve.
        """
        super().__init__(model, **options)
        if state not in STATES:
            raise ConfigError(f"state is {state!r}; use {', '.join(map(repr, STATES))}")
        if (state == "conversation") != (conversation is not None):
            raise ConfigError(
                "state='conversation' and conversation='conv_…' belong together: give both or none"
            )
        self._state = state
        self._step = _UNSTORED if state == "none" else _STORED
        self.has_window = state != "conversation"
        self._conversation = conversation
        for item in self._server_tools:
            _check_server_tool(item)
        kept = {"model": model, "store": state != "none", "conversation": conversation}
        fields = self._name_settings(kept)
        include = ["message.output_text.logprobs"] if fields.pop("include", False) else []
        if state == "none" and not _THINKS_NOT.match(model):
            include.append("reasoning.encrypted_content")
        if include:
            fields["include"] = include
        self._fields = fields | (self.settings.extra or {})
        self._gone: set[str] = set()
        """Ids of responses that the server no longer has."""

    @property
    def identity(self) -> str:
        """The server, the model and the settings that answers depend on; see `identity_of`."""
        return super().identity + (self._conversation or "")

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the server's answer; see `Model.infer`."""
        try:
            completion = await super().infer(request, watch)
        except ResponseGoneError:
            known = self._known(request)
            if known is None or self._state != "previous_response_id":
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
            mark = {"id": completion.response_id, "after": _digest(request)}
        message = completion.message
        opaque = message.opaque or {}
        kept = {**opaque, KEY: {**opaque.get(KEY, {}), **mark}}
        return replace(completion, message=replace(message, opaque=kept))

    def _body(self, request: Request, *, is_stream: bool) -> bytes:
        prefix = self._kept_prefix(request, is_stream)
        messages = request.messages
        if self._state != "none" and (known := self._known(request)) is not None:
            if self._state == "previous_response_id":
                prefix = prefix.replace(
                    b'"input":[', b'"previous_response_id":' + _encode(known[1]) + b',"input":['
                )
            messages = Log(list(messages)[known[0] + 1 :])
        return join_body(prefix, messages, self._step, request.contents)

    def _known(self, request: Request) -> tuple[int, str] | None:
        """Return the newest message that the server has, by position, and the id of its response; else `None`."""
        messages = request.messages
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.role is not Role.ASSISTANT:
                continue
            kept = kept_in(message.opaque, KEY)
            if self._state == "conversation":
                if kept.get("conversation") == self._conversation:
                    return index, ""
                continue
            response_id = kept.get("id")
            if not isinstance(response_id, str) or response_id in self._gone:
                return None
            return (index, response_id) if kept.get("after") == _digest(request, index) else None
        return None

    def _error(self, status: int, answer: Answer | StreamedAnswer, body: bytes) -> ProviderError:
        error = super()._error(status, answer, body)
        if type(error) in (RequestError, UnavailableError) and _GONE.search(body):
            return ResponseGoneError(str(error), status=status)
        return error

    async def _settle(self, raw: Json, watch: Watch) -> Json:
        """Ask for a response that is made in the background until it is finished."""
        delay, left = _FIRST_POLL_SECONDS, watch.left_seconds
        end = time.monotonic() + (_POLL_SECONDS if left is None else left)
        while isinstance(raw, dict) and raw.get("status") in ("queued", "in_progress") and raw.get("id"):
            if time.monotonic() + delay > end:
                raise ProviderTimeoutError(
                    f"{self.server.origin} did not finish the response {raw['id']!r}, whose status is "
                    f"{raw['status']!r}, in time; raise total_timeout_seconds"
                )
            await asyncio.sleep(delay)
            delay = min(1.5 * delay, _MAX_POLL_SECONDS)
            url = join_url(self._base_url, f"/responses/{raw['id']}")
            raw = self._raw(await self._transport.get(url, self._headers))
        return raw

    def _prefix(self, request: Request, *flags: bool) -> bytes:
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

    def _read(self, raw: Json) -> Completion:
        return read_completion(raw, self.server)


def _digest(request: Request, count: int | None = None) -> str:
    """Return a hash that identifies the transcript, or its first `count` messages."""
    items = request.messages.map(encode_items, request.contents)[:count]
    return hashlib.blake2b(b",".join(items), digest_size=12).hexdigest()


def _encode_tool(tool: ToolSpec) -> dict[str, Json]:
    # The API decodes strictly by default, but it cannot do that for every schema of a tool.
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


def encode_items(message: Message, contents: Contents, *, is_stored: bool = True) -> bytes:
    """Return the input items of a message, joined by commas. If the server stored none of them, it cannot look up
    reasoning by its id."""
    role = message.role
    if role is Role.TOOL:
        call_id, output = fit_id(message.call_id or ""), _encode_content(message, contents)
        return _encode({"type": "function_call_output", "call_id": call_id, "output": output})
    if role is not Role.ASSISTANT:
        return _encode({"role": role, "content": _encode_content(message, contents)})
    items = _restore(message, contents, is_stored=is_stored)
    return _encode(_plain_items(message) if items is None else items)[1:-1]


def _encode_content(message: Message, contents: Contents) -> Json:
    if not message.parts:
        return message.content
    parts: list[Json] = [{"type": "input_text", "text": message.content}] if message.content else []
    return [*parts, *[_encode_part(part, contents) for part in message.parts]]


def _encode_part(part: Artifact, contents: Contents) -> dict[str, Json]:
    """Return a content part. Raises: `UnsupportedPartError` if the API has none for it."""
    OpenAIResponsesModel.check_part(part)
    if part.kind == "text":
        return {"type": "input_text", "text": text_of_part(part, contents)}
    url = data_url(part, contents)
    if part.kind == "image":
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if part.digest is None and part.data is None:
        return {"type": "input_file", "file_url": url}
    return {"type": "input_file", "filename": file_name(part), "file_data": url}


def _parts_apart(message: Message) -> tuple[Artifact, ...]:
    """Return the parts of an answer of another dialect, which are sent in a following user message."""
    return message.parts if message.role is Role.ASSISTANT and KEY not in (message.opaque or {}) else ()


_STORED = with_attached(encode_items, _parts_apart)
_UNSTORED = with_attached(partial(encode_items, is_stored=False), _parts_apart)


def _plain_items(message: Message) -> list[Json]:
    calls: list[Json] = [_encode_call(call) for call in message.tool_calls]
    if calls and not message.content:
        return calls
    return [{"role": Role.ASSISTANT, "content": text_or_placeholder(message.content)}, *calls]


def _restore(message: Message, contents: Contents, *, is_stored: bool) -> list[Json] | None:
    """Return the items as the server sent them; `None` if they were not kept or the message was edited later."""
    kept = kept_in(message.opaque, KEY).get("output")
    if not isinstance(kept, list):
        return None
    calls = iter(message.tool_calls)
    images = iter(message.parts)
    items: list[Json] = []
    texts: list[str] = []
    for item in kept:
        if item["type"] == "reasoning" and not (
            is_stored or item.get("encrypted_content") or item.get("content")
        ):
            continue
        if item["type"] == "function_call":
            if (call := next(calls, None)) is None:
                return None
            items.append(item | _encode_call(call))
        elif item["type"] == "message" and "content" not in item:
            texts.append(message.content)
            part = {"type": "output_text", "text": message.content, "annotations": []}
            items.append({**item, "role": Role.ASSISTANT, "content": [part]})
        elif item["type"] == "image_generation_call" and item.get("result") == "":
            image = next(images, None)
            items.append({**item, "result": None if image is None else base64_of(image, contents)})
        else:
            if item["type"] == "message":
                texts += [part.get("text") or part.get("refusal") or "" for part in item["content"]]
            items.append(item)
    if not message.content.strip() and all([item["type"] in ("reasoning", "message") for item in items]):
        return None  # the API refuses reasoning that nothing follows
    return items if next(calls, None) is None and "".join(texts) == message.content else None


def _encode_call(call: ToolCall) -> dict[str, Json]:
    call_id = fit_id(call.call_id)
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": fit_name(call.name),
        "arguments": fit_arguments(call.arguments),
    }
