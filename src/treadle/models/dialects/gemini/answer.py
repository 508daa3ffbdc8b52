"""The reader of answers of the Gemini API: a raw object becomes a `Completion`.

In a raw object the `args` of a call are their exact text. Parts that the fields of a message cannot hold are kept
opaque, in their order, together with the signatures of thoughts.
"""

from collections.abc import Callable

import msgspec

from treadle.core.errors import RefusedError
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
from treadle.models.wire.body_reader import StreamCollector, is_blank, mend
from treadle.models.wire.fitting import exact_text, fields_of, rest_of, text_of_value
from treadle.models.wire.messages import part_of_base64
from treadle.models.wire.provider import TokenCounts, read_usage
from treadle.models.wire.server import BadCallError, Server, UnfinishedError, reason_of, reasons_of

KEY = "gemini"
"""The key under which a message keeps data that Treadle has no field for."""
_KNOWN, _REASONS = fields_of(KEY), reasons_of(KEY)
_SAID = frozenset(("STOP", "MAX_TOKENS", None))
"""The API's reasons that `FinishReason` expresses without loss."""

_encode = msgspec.json.Encoder().encode


keep_arguments = exact_text(
    "candidates", "*", "content", "parts", "*", "functionCall", "args", mark=b"functionCall"
)
_BAD_CALLS = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS")
"""The finish reasons of answers that the server discarded because of a call in them."""


def read_completion(raw: Json, server: Server) -> Completion:
    """Return the completion for `raw`, a whole answer or one that was joined from a stream.

    Raises: `RefusedError` for a prompt that was blocked, `BadCallError` for a call that the server discarded,
    `UnfinishedError` for an answer that it discarded, and `TypeError`, `LookupError`, `AttributeError` or
    `ValueError` if it makes no sense.
    """
    if not raw.get("candidates"):
        if (blocked := (raw.get("promptFeedback") or {}).get("blockReason")) is not None:
            more = (raw["promptFeedback"].get("blockReasonMessage") or "").strip()
            raise RefusedError(
                f"{server.origin} blocked the prompt: {blocked}{more and ': ' + more}", status=200
            )
        raise ValueError("no candidates")
    candidate = raw["candidates"][0]
    contents: dict[str, bytes] = {}
    message = _message_of((candidate.get("content") or {}).get("parts") or [], contents)
    told = reason_of(candidate.get("finishReason"))
    plain = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    reason = plain if told is None else _REASONS.get(told, plain)
    if reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        is_empty = not message.tool_calls and not message.content and not message.parts
        if told is None and is_empty:
            raise UnfinishedError("it is empty and has no finishReason")
        if told not in ("STOP", None) and (is_empty or (told in _BAD_CALLS and not message.tool_calls)):
            more = server.excerpt(candidate.get("finishMessage") or "")
            fault = f"discarded the model's answer ({told}){more and ': ' + more}"
            if told in _BAD_CALLS:
                raise BadCallError(f"{server.origin} {fault}", status=200, written=more, said=told)
            raise UnfinishedError(f"it {fault}")
        reason = plain
    opaque = {key: value for key, value in raw.items() if key not in _KNOWN["answer"] and value}
    opaque |= {key: value for key, value in candidate.items() if key not in _KNOWN["candidate"] and value}
    if told not in _SAID:
        opaque["finish_reason"] = told
    return Completion(
        message,
        reason,
        read_usage(raw.get("usageMetadata"), _Usage),
        model=raw.get("modelVersion"),
        response_id=raw.get("responseId"),
        tokens=_read_tokens(candidate),
        opaque=opaque or None,
        contents=contents or None,
    )


def _message_of(parts: list[Json], contents: dict[str, bytes]) -> Message:
    """Return the message that parts form. Parts that its fields cannot hold are kept in their order. Large
    contents, such as images in the answer, are added to `contents` by hash."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    lookups: list[ServerCall] = []
    attached: list[Artifact] = []
    kept: list[Json] = []
    is_plain = True
    for part in map(without_empty, parts):
        signature = part.get("thoughtSignature")
        if part.get("thought"):
            thoughts.append(part.get("text") or "")
            if signature is None:
                continue
            is_plain = False
            if "inlineData" in part:
                part = {**part, "inlineData": None}
        elif (function := part.get("functionCall")) is not None:
            calls.append(read_call(part, function))
            kept.append({"functionCall": None})
            continue
        elif isinstance(part.get("text"), str):
            if part["text"] == "" and signature is None:
                continue
            is_plain = is_plain and part.keys() == {"text"} and not kept
            texts.append(part["text"])
        elif (data := part.get("inlineData")) is not None:
            is_plain = False
            attached.append(
                part_of_base64(data["data"], data["mimeType"], contents, name=data.get("displayName"))
            )
            part = {**part, "inlineData": None}
        else:
            is_plain = False
            _look(part, lookups, sum(map(len, texts)))
        kept.append(part)
    return Message(
        Role.ASSISTANT,
        "".join(texts),
        tuple(calls),
        reasoning="".join(thoughts) or None,
        opaque=None if is_plain else {KEY: {"parts": kept}},
        server_calls=tuple(lookups),
        parts=tuple(attached),
    )


def without_empty(part: dict[str, Json]) -> dict[str, Json]:
    """Return a part without its empty fields, which the API refuses beside its text or call."""
    return {key: value for key, value in part.items() if key == "text" or not is_blank(value)}


def read_call(part: dict[str, Json], function: dict[str, Json]) -> ToolCall:
    """Return the call in a part. Raises: `ValueError` if its arguments are split over several pieces."""
    if function.get("partialArgs") or function.get("willContinue"):
        raise ValueError("arguments in pieces were not asked for")
    arguments = text_of_value(function.get("args")) or "{}"
    rest = rest_of(part, _KNOWN["part"])
    if more := rest_of(function, _KNOWN["function"]):
        rest["functionCall"] = more
    return ToolCall(function.get("id") or "", function["name"], arguments, {KEY: rest} if rest else None)


def _look(part: dict[str, Json], lookups: list[ServerCall], offset: int) -> int | None:
    """Add code and calls that the server ran to `lookups`. Return the position of the part's call, or `None`."""
    if (code := part.get("executableCode")) is not None:
        arguments = {"language": code.get("language"), "code": code.get("code")}
        lookups.append(
            ServerCall(code.get("id") or "", "code_execution", _encode(arguments).decode(), offset=offset)
        )
    elif (made := part.get("toolCall")) is not None:
        name = str(made.get("toolType") or "tool").lower()
        lookups.append(
            ServerCall(made.get("id") or "", name, _encode(made.get("args") or {}).decode(), offset=offset)
        )
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
        return at
    else:
        return None
    return len(lookups) - 1


def _read_tokens(candidate: dict[str, Json]) -> TokenRecord | None:
    if "logprobsResult" not in candidate:
        return None
    try:
        chosen = candidate["logprobsResult"]["chosenCandidates"]
        return TokenRecord.of(
            logprobs=[float(item.get("logProbability", 0.0)) for item in chosen],
            tokens=tuple([str(item.get("token", "")) for item in chosen]),
        )
    except (AttributeError, TypeError, LookupError, ValueError):
        return None


class _Usage(TokenCounts, gc=False, rename="camel"):
    """The token counts of an answer. In the API, output tokens do not include those of thoughts."""

    prompt_token_count: int
    candidates_token_count: int = 0
    thoughts_token_count: int = 0
    cached_content_token_count: int = 0
    tool_use_prompt_token_count: int = 0

    def read(self) -> Usage:
        return Usage(
            self.prompt_token_count + self.tool_use_prompt_token_count,
            self.candidates_token_count + self.thoughts_token_count,
            self.cached_content_token_count,
            self.thoughts_token_count,
        )


class GeminiCollector(StreamCollector):
    """A collector for one streamed answer. Each chunk has the form of an answer."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._candidate: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._pieces: list[str] = []
        """The pieces of the last part's text."""
        self._logprobs: list[Json] = []
        self._calls = 0
        self._lookups: list[ServerCall] = []
        self._chars = 0
        """The number of characters of the answer's text."""

    @property
    def is_complete(self) -> bool:
        return bool(
            reason_of(self._candidate.get("finishReason"))
            or (self._head.get("promptFeedback") or {}).get("blockReason")
        )

    def add(self, event: Json) -> None:
        for key, value in event.items():
            if key != "candidates" and value is not None:
                self._head[key] = value
        for candidate in (event.get("candidates") or ())[:1]:
            for key, value in candidate.items():
                if key == "logprobsResult":
                    self._logprobs += (value or {}).get("chosenCandidates") or ()
                elif key != "content" and value is not None and value != "":
                    self._candidate[key] = value
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._add_part(without_empty(part))

    def _add_part(self, part: dict[str, Json]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            if text:
                self._chars += 0 if part.get("thought") else len(text)
                self._on_delta(ReasoningDelta(text) if part.get("thought") else TextDelta(text))
            last = self._parts[-1] if self._parts else {}
            # A part with a signature stays separate.
            if self._pieces and part.keys() == last.keys() and "thoughtSignature" not in part:
                self._pieces.append(text)
                return
            self._close_part()
            self._pieces = [text]
        else:
            self._close_part()
            if (function := part.get("functionCall")) is not None:
                call = read_call(part, function)
                self._on_delta(ToolCallDelta(self._calls, call.call_id, call.name, call.arguments))
                self._calls += 1
            elif (at := _look(mend(part), self._lookups, self._chars)) is not None:
                is_done = "executableCode" not in part and "toolCall" not in part
                self._on_delta(ServerCallDelta(at, self._lookups[at], is_done))
        self._parts.append(part)

    def _close_part(self) -> None:
        if self._pieces:
            self._parts[-1] = {**self._parts[-1], "text": "".join(self._pieces)}
            self._pieces = []

    def raw(self) -> Json:
        self._close_part()
        if not self._candidate and not self._parts:
            return self._head
        candidate = {**self._candidate, "content": {"parts": self._parts}}
        if self._logprobs:
            candidate["logprobsResult"] = {"chosenCandidates": self._logprobs}
        return {**self._head, "candidates": [candidate]}
