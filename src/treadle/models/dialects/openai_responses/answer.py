"""The reader of answers of the Responses API: a raw object becomes a `Completion`.

The items of an answer are kept in their order, except for data that the fields of a message hold already.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from treadle.core.errors import RequestError
from treadle.core.events import Delta, ReasoningDelta, ServerCallDelta, TextDelta, ToolCallDelta
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import (
    Artifact,
    Completion,
    FinishReason,
    Json,
    Message,
    Role,
    ServerCall,
    ToolCall,
    Usage,
)
from treadle.models.wire.body_reader import StreamCollector, mend
from treadle.models.wire.fitting import rest_of, text_of_value
from treadle.models.wire.messages import part_of_base64
from treadle.models.wire.openai_style import read_logprobs
from treadle.models.wire.provider import TokenCounts, read_usage
from treadle.models.wire.server import Server, UnfinishedError, explain_error

KEY = "openai_responses"
"""The key under which a message keeps data that Treadle has no field for."""
_TOLD = ("service_tier", "moderation", "input_transformations")
"""Fields of a response that do not repeat the request."""
_REASONS = {"max_output_tokens": FinishReason.LENGTH, "content_filter": FinishReason.CONTENT_FILTER}

_encode = msgspec.json.Encoder().encode


def read_completion(raw: Json, server: Server) -> Completion:
    """Return the completion for `raw`, a whole answer or the one at a stream's end.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it contains an error or cannot be
    read; `RequestError` if the server waits for an approval.
    """
    status = raw.get("status")
    if raw.get("error") or status in ("failed", "cancelled", "queued", "in_progress"):
        raise UnfinishedError(f"the status is {status!r}")
    output = raw["output"]
    contents: dict[str, bytes] = {}
    message, is_refused = _read_message(output, server, contents)
    opaque = {name: raw[name] for name in _TOLD if raw.get(name)}
    reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    if is_refused:
        reason = FinishReason.CONTENT_FILTER
    elif status == "incomplete":
        told = str((raw.get("incomplete_details") or {}).get("reason") or "incomplete")
        reason = _REASONS.get(told, FinishReason.LENGTH)
        if told not in _REASONS:
            opaque["finish_reason"] = told
    elif status != "completed" and not message.content and not message.tool_calls and not message.parts:
        raise UnfinishedError(f"it is empty, and its status is {status!r}")
    return Completion(
        message,
        reason,
        read_usage(raw.get("usage"), _Usage),
        model=raw.get("model"),
        response_id=raw.get("id"),
        tokens=_read_tokens(output),
        opaque=opaque or None,
        contents=contents or None,
    )


def _read_message(output: list[Json], server: Server, contents: dict[str, bytes]) -> tuple[Message, bool]:
    """Return the message, and whether it is a refusal. Large contents of its parts are added to `contents`."""
    texts: list[str] = []
    refusals: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    lookups: list[ServerCall] = []
    parts: list[Artifact] = []
    kept: list[Json] = []
    is_plain = True
    messages = sum(item["type"] == "message" for item in output)
    for item in output:
        kind = item["type"]
        if kind == "message":
            said = item["content"]
            is_single = messages == 1 and len(said) == 1 and _is_plain(said[0])
            for part in said:
                if part["type"] == "refusal":
                    refusals.append(part["refusal"])
                elif part["type"] == "output_text":
                    texts.append(part["text"])
            kept.append(rest_of(item, ("content", "role") if is_single else ()))
            is_plain = is_plain and is_single and not item.get("phase")
        elif kind == "function_call":
            calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
            kept.append(rest_of(item, ("call_id", "name", "arguments")))
            is_plain = is_plain and not item.get("namespace") and not item.get("caller")
        elif kind == "mcp_approval_request":
            raise RequestError(
                f"{server.origin} waits for an approval of the MCP tool {item.get('name')!r}: set "
                '"require_approval": "never" in server_tools, or give the server to the agent as tools',
                status=200,
            )
        else:
            is_plain = False
            if kind == "image_generation_call" and item.get("result"):
                kind_of_image = f"image/{item.get('output_format') or 'png'}"
                parts.append(part_of_base64(item["result"], kind_of_image, contents))
                item = {**item, "result": ""}
            kept.append(item)
            if kind == "reasoning":
                thoughts += [part["text"] for part in item.get("content") or item.get("summary") or ()]
            elif _is_lookup(kind):
                lookups.append(_read_lookup(kind, item, sum(map(len, texts))))
    opaque = None if is_plain else {KEY: {"output": kept}}
    is_refused = bool(refusals) and not texts
    message = Message(
        Role.ASSISTANT,
        "".join(refusals if is_refused else texts),
        tuple(calls),
        reasoning="\n\n".join(thoughts) or None,
        opaque=opaque,
        server_calls=tuple(lookups),
        parts=tuple(parts),
    )
    return message, is_refused


def _is_plain(part: dict[str, Json]) -> bool:
    return part["type"] == "output_text" and not part.get("annotations") and not part.get("logprobs")


def _is_lookup(kind: str) -> bool:
    return kind.endswith("_call") and kind != "function_call"


def _read_lookup(kind: str, item: dict[str, Json], offset: int) -> ServerCall:
    name, arguments, result = kind.removesuffix("_call"), "", ""
    if kind == "mcp_call":
        name, arguments = item["name"], item.get("arguments") or ""
        result = text_of_value(item.get("error") or item.get("output"))
    elif kind == "web_search_call":
        action = dict(item.get("action") or {})
        result = text_of_value(action.pop("sources", None))
        arguments = text_of_value(action)
    elif kind == "file_search_call":
        arguments = text_of_value({"queries": item.get("queries")})
        result = text_of_value(item.get("results"))
    elif kind == "code_interpreter_call":
        arguments, result = text_of_value({"code": item.get("code")}), text_of_value(item.get("outputs"))
    elif kind == "image_generation_call":
        arguments = text_of_value({"prompt": item.get("revised_prompt")})
    else:
        arguments = text_of_value(item.get("arguments") or item.get("action"))
    is_error = item.get("status") == "failed" or bool(item.get("error"))
    return ServerCall(str(item.get("id") or ""), name, arguments, result, is_error, offset)


def _read_tokens(output: list[Json]) -> TokenRecord | None:
    """Return the log probabilities of the text; the API gives none for reasoning and calls."""
    found = [
        logprob
        for item in output
        if item["type"] == "message"
        for part in item["content"]
        for logprob in part.get("logprobs") or ()
    ]
    return read_logprobs(found)


class _InputDetails(Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


_NO_INPUT, _NO_OUTPUT = _InputDetails(), _OutputDetails()


class _Usage(TokenCounts, gc=False):
    input_tokens: int
    output_tokens: int
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None

    def read(self) -> Usage:
        before = self.input_tokens_details or _NO_INPUT
        after = self.output_tokens_details or _NO_OUTPUT
        return Usage(
            self.input_tokens,
            self.output_tokens,
            before.cached_tokens or 0,
            after.reasoning_tokens or 0,
            before.cache_write_tokens or 0,
        )


_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed"))
_TEXTS = frozenset(("response.output_text.delta", "response.refusal.delta"))
_THOUGHTS = frozenset(("response.reasoning_summary_text.delta", "response.reasoning_text.delta"))


class ResponseCollector(StreamCollector):
    """A collector for one streamed response."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._items: dict[int, Json] = {}
        self._raw: Json = None
        self._calls: dict[int, tuple[int, str, str]] = {}
        """The position, id and name of each call, by the index of its item."""
        self._lookups: dict[int, int] = {}
        """The position of each call of the server, by the index of its item."""
        self._chars = 0
        """The number of characters of the answer's text."""
        self._told: set[int] = set()
        """The positions of calls whose arguments arrived in pieces."""
        self._thought_at: tuple[str, int, int] | None = None
        """The part of the reasoning that is being streamed: its event, item and part."""

    @property
    def is_complete(self) -> bool:
        return self._raw is not None

    def add(self, event: Json) -> None:
        kind = event["type"]
        if kind in _TEXTS:
            if event["delta"]:
                self._chars += len(event["delta"])
                self._on_delta(TextDelta(event["delta"]))
        elif kind == "response.function_call_arguments.delta":
            position, call_id, name = self._calls[event["output_index"]]
            if event["delta"]:
                self._told.add(position)
                self._on_delta(ToolCallDelta(position, call_id, name, event["delta"]))
        elif kind in _THOUGHTS:
            self._think(event)
        elif kind == "response.output_item.added":
            self._start(event["output_index"], event["item"])
            self._look(event["output_index"], event["item"], is_done=False)
        elif kind == "response.output_item.done":
            index, item = event["output_index"], event["item"]
            self._items[index] = item
            self._start(index, item)
            self._look(index, item, is_done=True)
            if index in self._calls and self._calls[index][0] not in self._told and item["arguments"]:
                self._on_delta(ToolCallDelta(*self._calls[index], item["arguments"]))
        elif kind in _ENDS:
            self._end(event["response"])

    def add_whole(self, raw: Json) -> None:
        if isinstance(raw.get("output"), list):
            for index, item in enumerate(raw["output"]):
                self._start(index, item)
                self._look(index, item, is_done=True)
                for part in item["content"] if item["type"] == "message" else ():
                    self._on_delta(TextDelta(part.get("text") or part.get("refusal") or ""))
                if index in self._calls:
                    self._on_delta(ToolCallDelta(*self._calls[index], item["arguments"]))
        self._end(raw)

    def _start(self, index: int, item: dict[str, Json]) -> None:
        if item["type"] == "function_call" and index not in self._calls:
            self._calls[index] = (len(self._calls), item["call_id"], item["name"])
            self._on_delta(ToolCallDelta(*self._calls[index], ""))

    def _look(self, index: int, item: dict[str, Json], *, is_done: bool) -> None:
        if _is_lookup(item["type"]):
            at = self._lookups.setdefault(index, len(self._lookups))
            self._on_delta(ServerCallDelta(at, _read_lookup(item["type"], mend(item), self._chars), is_done))

    def _think(self, event: dict[str, Json]) -> None:
        part: int = event["summary_index" if "summary_index" in event else "content_index"]
        at: tuple[str, int, int] = (event["type"], event["output_index"], part)
        if self._thought_at is not None and at != self._thought_at:
            self._on_delta(ReasoningDelta("\n\n"))
        self._thought_at = at
        if event["delta"]:
            self._on_delta(ReasoningDelta(event["delta"]))

    def _end(self, response: dict[str, Json]) -> None:
        if response.get("error") or response.get("status") == "failed":
            raise explain_error(self._server, 200, response.get("error") or response)
        self._raw = response
        self.is_done = True

    def raw(self) -> Json:
        if not self._raw.get("output") and self._items:
            # Some servers send the items only in earlier events.
            return {**self._raw, "output": [item for _, item in sorted(self._items.items())]}
        return self._raw
