"""Reads an answer of the Gemini API, whole or streamed, and writes messages back as the parts that they came as.

In a raw object the `args` of a call are their text: exact, whole or streamed. The signatures of thoughts go back in
the part that they came with.
"""

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from treadle.core.errors import RefusedError, ServerError
from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import (
    Completion,
    FinishReason,
    Json,
    Message,
    Role,
    ServerCall,
    Settings,
    TokenRecord,
    ToolCall,
    Usage,
)
from treadle.models.wire.arguments import object_of, text_of
from treadle.models.wire.plain import PlainReader
from treadle.models.wire.price import Price
from treadle.models.wire.server import Server, explain_error, find_error

_KEY = "gemini"
_NO_SIGNATURE = "skip_thought_signature_validator"
"""Source: Gemini API documentation of thought signatures, for calls that another model made."""
_PART_FIELDS = frozenset(("functionCall",))
_FUNCTION_FIELDS = frozenset(("id", "name", "args"))
_CANDIDATE_FIELDS = frozenset(("content", "finishReason", "index", "logprobsResult", "avgLogprobs"))
_RESPONSE_FIELDS = frozenset(
    ("candidates", "usageMetadata", "modelVersion", "responseId", "createTime", "sdkHttpResponse")
)
_REASONS = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "SAFETY": FinishReason.CONTENT_FILTER,
    "RECITATION": FinishReason.CONTENT_FILTER,
    "LANGUAGE": FinishReason.CONTENT_FILTER,
    "BLOCKLIST": FinishReason.CONTENT_FILTER,
    "PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "SPII": FinishReason.CONTENT_FILTER,
    "IMAGE_SAFETY": FinishReason.CONTENT_FILTER,
    "IMAGE_PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "IMAGE_RECITATION": FinishReason.CONTENT_FILTER,
    "MODEL_ARMOR": FinishReason.CONTENT_FILTER,
}
_SAID = frozenset(("STOP", "MAX_TOKENS", None))
"""Reasons of which `FinishReason` says all."""

_encode = msgspec.json.Encoder().encode


# Reading.


class _ExactCall(Struct):
    args: msgspec.Raw = msgspec.Raw()


class _ExactPart(Struct, rename="camel"):
    function_call: _ExactCall | None = None


class _ExactContent(Struct):
    parts: list[_ExactPart] = []


class _ExactCandidate(Struct):
    content: _ExactContent | None = None


class _Exact(Struct):
    candidates: list[_ExactCandidate] = []


_decode_exact = msgspec.json.Decoder(_Exact).decode


def keep_arguments(raw: Json, body: bytes) -> Json:
    """`raw`, decoded from `body`, with the arguments of its calls as the text that stands there."""
    if b"functionCall" not in body:
        return raw
    try:
        for candidate, exact in zip(raw["candidates"], _decode_exact(body).candidates, strict=True):
            if exact.content is None:
                continue
            for part, exact_part in zip(candidate["content"]["parts"], exact.content.parts, strict=True):
                if exact_part.function_call is not None:
                    part["functionCall"]["args"] = text_of(exact_part.function_call.args)
    except (TypeError, LookupError, AttributeError, ValueError):
        pass  # It makes no sense, as reading it will tell.
    return raw


def read_completion(raw: Json, settings: Settings, price: Price | None, server: Server) -> Completion:
    """What `raw`, a whole answer or one put together from a stream, says.

    Raises: `RefusedError` for a prompt that was blocked, `ServerError` for a call that came out damaged, and
    `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it makes no sense.
    """
    if not raw.get("candidates"):
        if (blocked := (raw.get("promptFeedback") or {}).get("blockReason")) is not None:
            more = (raw["promptFeedback"].get("blockReasonMessage") or "").strip()
            raise RefusedError(
                f"{server.origin} blocked the prompt: {blocked}{more and ': ' + more}", status=200
            )
        raise ValueError("no candidates")
    candidate = raw["candidates"][0]
    message = message_of((candidate.get("content") or {}).get("parts") or [])
    told = candidate.get("finishReason")
    plain = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    reason = _REASONS.get(told, plain)
    if reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        if told not in ("STOP", None) and not message.tool_calls and not message.content:
            more = server.excerpt(candidate.get("finishMessage") or "")
            raise ServerError(
                f"{server.origin} threw the model's answer away ({told}){more and ': ' + more}", status=200
            )
        reason = plain
    opaque = {key: value for key, value in raw.items() if key not in _RESPONSE_FIELDS and value}
    opaque |= {key: value for key, value in candidate.items() if key not in _CANDIDATE_FIELDS and value}
    if told not in _SAID:
        opaque["finish_reason"] = told
    usage = read_usage(raw.get("usageMetadata"))
    cost = None if usage is None or price is None else price.cost_usd(usage)
    return Completion(
        message,
        reason,
        usage,
        cost,
        raw.get("modelVersion"),
        raw.get("responseId"),
        settings,
        _read_tokens(candidate),
        opaque or None,
    )


def message_of(parts: list[Json]) -> Message:
    """The message that parts are; what has no field is kept, in place."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    lookups: list[ServerCall] = []
    kept: list[Json] = []
    is_plain = True
    for part in parts:
        signature = part.get("thoughtSignature")
        if part.get("thought"):
            thoughts.append(part.get("text") or "")
            if signature is None:
                continue
            is_plain = False
        elif (function := part.get("functionCall")) is not None:
            calls.append(_read_call(part, function))
            kept.append({"functionCall": None})
            continue
        elif isinstance(part.get("text"), str):
            if part["text"] == "" and signature is None:
                continue
            is_plain = is_plain and part.keys() == {"text"} and not kept
            texts.append(part["text"])
        else:
            is_plain = False
            _look(part, lookups)
        kept.append(part)
    return Message(
        Role.ASSISTANT,
        "".join(texts),
        tuple(calls),
        reasoning="".join(thoughts) or None,
        opaque=None if is_plain else {_KEY: {"parts": kept}},
        server_calls=tuple(lookups),
    )


def _read_call(part: dict[str, Json], function: dict[str, Json]) -> ToolCall:
    if "partialArgs" in function or function.get("willContinue"):
        raise ValueError("arguments in pieces were not asked for")
    arguments = function.get("args")
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else _encode(arguments).decode()
    rest = {key: value for key, value in part.items() if key not in _PART_FIELDS and value is not None}
    if more := {
        key: value for key, value in function.items() if key not in _FUNCTION_FIELDS and value is not None
    }:
        rest["functionCall"] = more
    return ToolCall(function.get("id") or "", function["name"], arguments, {_KEY: rest} if rest else None)


def _look(part: dict[str, Json], lookups: list[ServerCall]) -> None:
    """What the server did itself: code that it ran, and tools of its own."""
    if (code := part.get("executableCode")) is not None:
        arguments = {"language": code.get("language"), "code": code.get("code")}
        lookups.append(ServerCall(code.get("id") or "", "code_execution", _encode(arguments).decode()))
    elif (made := part.get("toolCall")) is not None:
        name = str(made.get("toolType") or "tool").lower()
        lookups.append(ServerCall(made.get("id") or "", name, _encode(made.get("args") or {}).decode()))
    elif (result := part.get("codeExecutionResult") or part.get("toolResponse")) is not None:
        call_id = result.get("id") or ""
        at = next(
            (at for at, item in enumerate(lookups) if item.call_id == call_id and not item.result), None
        )
        if at is not None:
            text = result.get("output")
            text = text if isinstance(text, str) else _encode(result.get("response") or {}).decode()
            is_error = result.get("outcome") not in (None, "OUTCOME_OK")
            lookups[at] = msgspec.structs.replace(lookups[at], result=text, is_error=is_error)


def read_usage(raw: Json) -> Usage | None:
    """The API's output tokens are without those of thoughts."""
    try:
        thoughts = raw.get("thoughtsTokenCount") or 0
        prompt = raw["promptTokenCount"] + (raw.get("toolUsePromptTokenCount") or 0)
        output = (raw.get("candidatesTokenCount") or 0) + thoughts
        return Usage(prompt, output, raw.get("cachedContentTokenCount") or 0, thoughts)
    except (AttributeError, TypeError, LookupError):
        return None


def _read_tokens(candidate: dict[str, Json]) -> TokenRecord | None:
    try:
        chosen = candidate["logprobsResult"]["chosenCandidates"]
        return TokenRecord(
            logprobs=tuple([float(item.get("logProbability", 0.0)) for item in chosen]),
            tokens=tuple([str(item.get("token", "")) for item in chosen]),
        )
    except (AttributeError, TypeError, LookupError, ValueError):
        return None


# Writing.


def encode_parts(message: Message) -> bytes:
    """The parts of a message, joined by commas. Pure, so that a history keeps them."""
    return _encode_parts(message, is_strict=False)


def encode_parts_signed(message: Message) -> bytes:
    """The same for servers that refuse calls without a signature."""
    return _encode_parts(message, is_strict=True)


def _encode_parts(message: Message, *, is_strict: bool) -> bytes:
    if message.role is Role.TOOL:
        key = "error" if message.is_error else "output"
        response: dict[str, Json] = {"name": message.name or "tool", "response": {key: message.content}}
        if message.call_id:
            response["id"] = message.call_id
        return _encode({"functionResponse": response})
    if message.role is not Role.ASSISTANT:
        return _encode({"text": message.content})
    calls = [_encode_call(call) for call in message.tool_calls]
    if is_strict and calls and not any("thoughtSignature" in call for call in calls):
        calls[0]["thoughtSignature"] = _NO_SIGNATURE
    kept = ((message.opaque or {}).get(_KEY) or {}).get("parts")
    if isinstance(kept, list) and _fits(kept, message):
        remaining = iter(calls)
        return _encode([next(remaining) if "functionCall" in part else part for part in kept])[1:-1]
    if message.content:
        calls.insert(0, {"text": message.content})
    return _encode(calls)[1:-1]


def _fits(kept: list[Json], message: Message) -> bool:
    """Whether the parts still are what the message says: it may have been edited."""
    calls = sum("functionCall" in part for part in kept)
    text = "".join([part["text"] for part in kept if "text" in part and not part.get("thought")])
    return calls == len(message.tool_calls) and text == message.content


def _encode_call(call: ToolCall) -> dict[str, Json]:
    function: dict[str, Json] = {"name": call.name, "args": object_of(call.arguments)}
    if call.call_id:
        function["id"] = call.call_id
    rest = (call.opaque or {}).get(_KEY)
    if not isinstance(rest, dict):
        return {"functionCall": function}
    return {**rest, "functionCall": {**rest.get("functionCall", {}), **function}}


# Streams: each chunk is an answer of its own.


class GeminiCollector:
    """The answer so far."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        self.is_done = False
        self._on_delta = on_delta
        self._server = server
        self._head: dict[str, Json] = {}
        self._candidate: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._pieces: list[str] = []
        """Of the text of the last part."""
        self._logprobs: list[Json] = []
        self._calls = 0

    @property
    def is_complete(self) -> bool:
        """See `Collector.is_complete`."""
        return self._candidate.get("finishReason") is not None or bool(
            (self._head.get("promptFeedback") or {}).get("blockReason")
        )

    def end(self) -> None:
        """See `Collector.end`."""
        self.is_done = True

    def add(self, event: Json) -> None:
        """See `Collector.add`."""
        if isinstance(event, list):
            (event,) = event
        if "error" in event:
            raise explain_error(self._server, 200, find_error(event) or event)
        for key, value in event.items():
            if key != "candidates" and value is not None:
                self._head[key] = value
        for candidate in (event.get("candidates") or ())[:1]:
            for key, value in candidate.items():
                if key == "logprobsResult":
                    self._logprobs += value.get("chosenCandidates") or ()
                elif key != "content" and value is not None:
                    self._candidate[key] = value
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._add_part(part)

    add_whole = add
    """A whole answer is one chunk."""

    def _add_part(self, part: dict[str, Json]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            if text:
                self._on_delta(ReasoningDelta(text) if part.get("thought") else TextDelta(text))
            last = self._parts[-1] if self._parts else {}
            # A part with a signature stays one of its own.
            if self._pieces and part.keys() == last.keys() and "thoughtSignature" not in part:
                self._pieces.append(text)
                return
            self._close_part()
            self._pieces = [text]
        else:
            self._close_part()
            if (function := part.get("functionCall")) is not None:
                call = _read_call(part, function)
                self._on_delta(ToolCallDelta(self._calls, call.call_id, call.name, call.arguments))
                self._calls += 1
        self._parts.append(part)

    def _close_part(self) -> None:
        if self._pieces:
            self._parts[-1] = {**self._parts[-1], "text": "".join(self._pieces)}
            self._pieces = []

    def raw(self) -> Json:
        """See `Collector.raw`."""
        self._close_part()
        if not self._candidate and not self._parts:
            return self._head
        candidate = {**self._candidate, "content": {"parts": self._parts}}
        if self._logprobs:
            candidate["logprobsResult"] = {"chosenCandidates": self._logprobs}
        return {**self._head, "candidates": [candidate]}


# The answers with nothing unusual, by a typed decoder that refuses all others.


class _Call(Struct, forbid_unknown_fields=True):
    name: str
    args: msgspec.Raw = msgspec.Raw()
    id: str = ""


class _Part(Struct, forbid_unknown_fields=True, rename="camel"):
    text: str | None = None
    function_call: _Call | None = None
    thought_signature: str | None = None


class _Content(Struct, forbid_unknown_fields=True):
    parts: list[_Part]
    role: str = "model"


class _Candidate(Struct, forbid_unknown_fields=True, rename="camel"):
    content: _Content
    finish_reason: Literal["STOP"]
    index: int = 0


class _Usage(Struct, gc=False, rename="camel"):
    prompt_token_count: int
    candidates_token_count: int = 0
    thoughts_token_count: int = 0
    cached_content_token_count: int = 0
    tool_use_prompt_token_count: int = 0


class _Answer(Struct, forbid_unknown_fields=True, rename="camel"):
    candidates: tuple[_Candidate]
    usage_metadata: _Usage | None = None
    model_version: str | None = None
    response_id: str | None = None
    create_time: str | None = None


class GeminiReader(PlainReader):
    """See `PlainReader`."""

    ANSWER = _Answer

    def _read(self, answer: _Answer) -> Completion | None:
        content = ""
        calls: list[ToolCall] = []
        for part in answer.candidates[0].content.parts:
            if (call := part.function_call) is not None and part.text is None:
                opaque = None
                if part.thought_signature is not None:
                    opaque = {_KEY: {"thoughtSignature": part.thought_signature}}
                calls.append(ToolCall(call.id, call.name, text_of(call.args) or "{}", opaque))
            elif part.text and part.thought_signature is None and not content and not calls:
                content = part.text
            else:
                return None
        usage = None if answer.usage_metadata is None else _to_usage(answer.usage_metadata)
        return self._complete(content, calls, usage, answer.model_version, answer.response_id)


def _to_usage(raw: _Usage) -> Usage:
    return Usage(
        raw.prompt_token_count + raw.tool_use_prompt_token_count,
        raw.candidates_token_count + raw.thoughts_token_count,
        raw.cached_content_token_count,
        raw.thoughts_token_count,
    )
