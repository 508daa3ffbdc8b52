"""The reader of answers of Ollama: a raw object, or the bytes of a plain answer, becomes a `Completion`.

In a raw object the `arguments` of a call are their exact text.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from treadle.core.types import Completion, FinishReason, Json, Message, Role, Settings, ToolCall, Usage
from treadle.models.wire.arguments import text_of, text_of_value
from treadle.models.wire.openai import read_logprobs
from treadle.models.wire.plain import PlainReader
from treadle.models.wire.price import Price, cost_of
from treadle.models.wire.server import UnfinishedError

KEY = "ollama"
"""The key under which a message keeps data that Treadle has no field for."""
MESSAGE_FIELDS = frozenset(("role", "content", "thinking", "tool_calls"))
_KNOWN = frozenset(
    ("model", "message", "done", "done_reason", "prompt_eval_count", "eval_count", "created_at", "logprobs")
)
_CALL_FIELDS = frozenset(("id", "function"))
_FUNCTION_FIELDS = frozenset(("name", "arguments", "index"))


class _ExactFunction(Struct):
    arguments: msgspec.Raw = msgspec.Raw()


class _ExactCall(Struct):
    function: _ExactFunction


class _ExactMessage(Struct):
    tool_calls: list[_ExactCall] | None = None


class _Exact(Struct):
    message: _ExactMessage


_decode_exact = msgspec.json.Decoder(_Exact).decode


def keep_arguments(raw: Json, body: bytes) -> Json:
    """Return `raw`, decoded from `body`, with the arguments of its calls as their exact text."""
    if b"tool_calls" not in body:
        return raw
    try:
        calls = raw["message"].get("tool_calls") or ()
        for call, exact in zip(calls, _decode_exact(body).message.tool_calls or (), strict=True):
            call["function"]["arguments"] = text_of(exact.function.arguments)
    except (TypeError, LookupError, AttributeError, ValueError):
        pass  # It makes no sense, as reading it will tell.
    return raw


def read_completion(raw: Json, settings: Settings, price: Price | None) -> Completion:
    """Return the completion for `raw`, a whole answer or one that was joined from a stream.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it contains an error or cannot be read.
    """
    if not raw.get("done", True):
        raise UnfinishedError("it is not done")
    said = raw["message"]
    rest = {key: value for key, value in said.items() if key not in MESSAGE_FIELDS and value}
    calls = tuple([read_call(call) for call in said.get("tool_calls") or ()])
    message = Message(
        Role.ASSISTANT,
        said.get("content") or "",
        calls,
        reasoning=said.get("thinking") or None,
        opaque={KEY: rest} if rest else None,
    )
    told = raw.get("done_reason")
    opaque = {key: value for key, value in raw.items() if key not in _KNOWN and value is not None}
    if told in ("load", "unload") and not message.content and not calls:
        raise UnfinishedError(f"it is empty, and its done_reason is {told!r}")
    if told not in ("stop", "length", None):
        opaque["finish_reason"] = told
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    if told == "length":
        reason = FinishReason.LENGTH
    usage = _read_usage(raw)
    return Completion(
        message,
        reason,
        usage,
        cost_of(usage, price),
        raw.get("model"),
        None,
        settings,
        read_logprobs(raw.get("logprobs")),
        opaque or None,
    )


def read_call(raw: dict[str, Json]) -> ToolCall:
    """Return the tool call for an element of an answer's `tool_calls`."""
    function = raw["function"]
    arguments = text_of_value(function.get("arguments")) or "{}"
    rest = {key: value for key, value in raw.items() if key not in _CALL_FIELDS and value is not None}
    return ToolCall(raw.get("id") or "", function["name"], arguments, {KEY: rest} if rest else None)


def _read_usage(raw: dict[str, Json]) -> Usage | None:
    """Return the token counts; `None` if the server did not count the prompt because it was still in its memory."""
    before, after = raw.get("prompt_eval_count"), raw.get("eval_count")
    return Usage(before, after) if type(before) is int and type(after) is int else None


# Plain answers


class _Function(Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    index: int = 0


class _Call(Struct, forbid_unknown_fields=True):
    function: _Function
    id: str = ""


class _Message(Struct, forbid_unknown_fields=True):
    role: Literal["assistant"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[_Call] | None = None


class _Answer(Struct, forbid_unknown_fields=True):
    message: _Message
    done: Literal[True]
    model: str | None = None
    created_at: str | None = None
    done_reason: Literal["stop"] | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_duration: int | None = None
    eval_duration: int | None = None


_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


class OllamaReader(PlainReader):
    """The reader of plain answers."""

    ANSWER = _Answer

    def _read(self, answer: _Answer) -> Completion | None:
        said = answer.message
        calls: tuple[ToolCall, ...] = ()
        if said.tool_calls:
            calls = tuple(
                [
                    ToolCall(call.id, call.function.name, text_of(call.function.arguments) or "{}")
                    for call in said.tool_calls
                ]
            )
        before, after = answer.prompt_eval_count, answer.eval_count
        usage = None if before is None or after is None else Usage(before, after)
        completion = self._complete(said.content, calls, usage, answer.model, None, said.thinking or None)
        took = {name: value for name in _DURATIONS if (value := getattr(answer, name)) is not None}
        return msgspec.structs.replace(completion, opaque=took) if took else completion
