"""The reader of chat completions: a raw object, or the bytes of a plain answer, becomes a `Completion`.

What Treadle has a field for goes to that field, nulls and empty lists are dropped, and everything else is kept
opaque at the level where it was. An answer that cannot be read is a `ServerError`.
"""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import (
    UNREPORTED,
    Artifact,
    Completion,
    FinishReason,
    Json,
    Message,
    Role,
    Settings,
    ToolCall,
    Usage,
)
from treadle.models.wire.expert_fields import take_fields, with_fields
from treadle.models.wire.fitting import fields_of, rest_of, text_of_value, text_or_none
from treadle.models.wire.messages import part_of_base64
from treadle.models.wire.openai_style import ChatUsage, Name, PlainAnswer, PlainReader, read_reason
from treadle.models.wire.provider import read_usage
from treadle.models.wire.server import reason_of
from treadle.models.wire.token_records import ID_MARK, make_record, read_versions

_KNOWN = fields_of("openai_chat")

_TOKEN_FIELDS = frozenset(("token_ids", "response_token_ids", "prompt_token_ids", "logprobs", "meta_info"))
"""The fields of a choice that say something of its tokens."""
_CUT_SHORT = frozenset((FinishReason.LENGTH, FinishReason.CONTENT_FILTER))
"""Finish reasons that count even if the message contains calls."""
_AUDIO_TYPES = {"mp3": "audio/mpeg", "pcm16": "audio/pcm"}
"""The MIME types of audio formats, if they are not `audio/` and the format's name."""


def read_completion(raw: Json, settings: Settings, *, thinks_in_text: bool = False) -> Completion:
    """Return the completion for `raw`, a whole answer or one that was joined from a stream.

    `settings` are those of the request, and `thinks_in_text` is that of `Quirks`.

    Raises: `TypeError`, `LookupError`, `AttributeError` or `ValueError` if it contains an error or cannot be read.
    """
    choice = raw["choices"][0]
    if raw.get("error") or choice.get("error"):
        raise ValueError("it contains an error")
    contents: dict[str, bytes] = {}
    message, is_refused = _read_message(choice["message"], settings, contents)
    if thinks_in_text and message.reasoning is None:
        thought, said = split_thoughts(message.content)
        message = message if thought is None else replace(message, content=said, reasoning=thought or None)
    finish = reason_of(choice.get("finish_reason"))
    calls = message.tool_calls
    is_empty = not calls and not message.content and not message.parts
    reason = read_reason(finish, has_calls=bool(calls), is_empty=is_empty)
    experts = mask = None
    if "routed_experts" in choice or "meta_info" in choice or "sglext" in raw:  # few answers have one
        experts, mask = take_fields(raw, choice)
    opaque = rest_of(raw, _KNOWN["answer"]) or None
    if rest := rest_of(choice, _KNOWN["choice"]):
        opaque = {**(opaque or {}), "choices": [rest]}
    plain = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    if is_refused:
        reason = FinishReason.CONTENT_FILTER
    elif reason is None or (reason is not plain and reason not in _CUT_SHORT):
        reason = plain
        if finish:
            opaque = {**(opaque or {}), "finish_reason": finish}
    raw_usage = raw.get("usage")
    usage = read_usage(raw_usage, ChatUsage)
    if settings.extra and settings.extra.get("top_logprobs") and choice.get("logprobs"):
        opaque = {**(opaque or {}), "logprobs": choice["logprobs"]}
    tokens = weights = None
    if not choice.keys().isdisjoint(_TOKEN_FIELDS) or "prompt_token_ids" in raw or "metadata" in raw:
        tokens, weights = _read_tokens(raw, choice, usage)
        if tokens is not None and (experts or mask):
            if not {"routed_experts_start_len", "routed_experts_prompt_start"}.isdisjoint(
                settings.extra or ()
            ):
                experts = None  # those of the first tokens are missing
            tokens = with_fields(tokens, usage.input_tokens if usage.is_reported else None, experts, mask)
    return Completion(
        message,
        reason,
        usage,
        _told_cost(usage, raw_usage),
        text_or_none(raw.get("model")),
        text_or_none(raw.get("id")),
        tokens=tokens,
        opaque=opaque,
        contents=contents or None,
        weight_version=weights,
    )


OPEN, CLOSE = "<think>", "</think>"


def split_thoughts(text: str) -> tuple[str | None, str]:
    """Return the reasoning at the beginning of a text, and the rest; `None` if it begins with none. Reasoning that
    never ends is all of the text."""
    begin = text.lstrip()
    if not begin.startswith(OPEN):
        return None, text
    thought, _, rest = begin.removeprefix(OPEN).partition(CLOSE)
    return thought.strip("\n"), rest.lstrip("\n")


def _read_message(
    raw: dict[str, Json], settings: Settings, contents: dict[str, bytes]
) -> tuple[Message, bool]:
    """Return the message, and whether it is a refusal. Large contents of its parts are added to `contents`."""
    content = raw.get("content")
    reasoning = raw.get("reasoning_content") or raw.get("reasoning") or None
    opaque = rest_of(raw, _KNOWN["message"]) or None
    if type(content) is not str:
        if isinstance(content, list):
            content, thought, is_plain = read_parts(content)
            reasoning = reasoning or thought
            if not is_plain:
                opaque = {**(opaque or {}), "content": raw["content"]}
        elif content is None:
            content = ""
        else:
            raise TypeError("'content' is neither a string nor a list of parts")
    refusal = raw.get("refusal")
    if refusal:
        if content:
            opaque = {**(opaque or {}), "refusal": refusal}
        else:
            content = str(refusal)
    parts: list[Artifact] = []
    if audio := raw.get("audio"):
        content = content or audio.get("transcript") or ""
        parts.append(_read_audio(audio, settings, contents))
        opaque = {**(opaque or {}), "audio": {"id": audio["id"]}}
    if images := raw.get("images"):
        parts += [_read_image(image, contents) for image in images]
    raw_calls = raw.get("tool_calls")
    calls = (
        tuple([_read_call(call) for call in raw_calls if call != {"type": "function"}]) if raw_calls else ()
    )
    if raw.get("function_call") and not calls:
        calls = (_read_call({"function": raw["function_call"]}),)
    message = Message(
        Role.ASSISTANT,
        content,
        calls,
        None,
        None,
        False,
        text_or_none(reasoning),
        opaque,
        parts=tuple(parts),
    )
    return message, bool(refusal)


def _read_audio(audio: dict[str, Json], settings: Settings, contents: dict[str, bytes]) -> Artifact:
    """Return the audio of an answer, in the format that the request asked for."""
    asked = (settings.extra or {}).get("audio") or {}
    name = str(asked.get("format") or "wav")
    return part_of_base64(audio["data"], _AUDIO_TYPES.get(name, f"audio/{name}"), contents)


def _read_image(image: dict[str, Json], contents: dict[str, bytes]) -> Artifact:
    """Return an image of an answer. Source: OpenRouter 2026, `images` of a message."""
    url: str = image["image_url"]["url"]
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        return Artifact("image", uri=url)
    return part_of_base64(data, head.removeprefix("data:").partition(";")[0] or "image/png", contents)


def read_parts(parts: list[Json]) -> tuple[str, str | None, bool]:
    """Return the text and the thinking of content that is a list of parts, and whether it has only text parts.

    Source: Mistral API 2025, `{"type": "thinking", "thinking": [{"type": "text", …}]}`.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    is_plain = True
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") in ("text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            is_plain = False
            inner = part.get("thinking")
            if isinstance(inner, list):
                inner = read_parts(inner)[0]
            if isinstance(inner, str):
                thoughts.append(inner)
    return "".join(texts), "".join(thoughts) or None, is_plain


def _read_call(raw: dict[str, Json]) -> ToolCall:
    function = raw["function"]
    arguments = text_of_value(function.get("arguments"))
    opaque = rest_of(raw, _KNOWN["call"]) or None
    if rest := rest_of(function, _KNOWN["function"]):
        opaque = {**(opaque or {}), "function": rest}
    return ToolCall(
        text_or_none(raw.get("id")) or "", text_or_none(function.get("name")) or "", arguments, opaque
    )


def _told_cost(usage: Usage, raw_usage: Json) -> float | None:
    """Return the cost that the server reports (OpenRouter); `None` if it reports none."""
    told = raw_usage.get("cost") if usage.is_reported else None
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else None


def _read_tokens(
    raw: dict[str, Json], choice: dict[str, Json], usage: Usage
) -> tuple[TokenRecord | None, str | None]:
    """Return the tokens of an answer, and the version of the weights that sampled them; `None` if they are missing.

    Source: OpenAI for logprobs; vLLM 0.11 for `prompt_token_ids`, `token_ids` and `token_id:N` texts, and 0.33 for
    `weight_versions`; SGLang 0.5.23 for `response_token_ids`, `prompt_token_ids` and `meta_info` of a choice, and
    for `metadata`.
    """
    ids = choice.get("token_ids")
    ids = choice.get("response_token_ids") if ids is None else ids
    content = (choice.get("logprobs") or {}).get("content")
    tokens = logprobs = None
    places = [
        item for item in (choice, raw.get("metadata"), choice.get("meta_info")) if isinstance(item, dict)
    ]
    sampled = places[-1].get("output_token_logprobs")
    named: list[Json] | None = None
    """The ids beside the log probabilities."""
    try:
        if sampled:
            logprobs, named = [item[0] for item in sampled], [item[1] for item in sampled]
        elif content:
            logprobs, tokens = [item["logprob"] for item in content], [str(item["token"]) for item in content]
            if all([token.startswith(ID_MARK) for token in tokens]):
                named = [int(token.removeprefix(ID_MARK)) for token in tokens]
    except (AttributeError, TypeError, LookupError, ValueError):
        named = logprobs = tokens = None
    if ids is None:
        ids = named
    else:
        tokens = None
        if type(ids) is not list or bool in set(map(type, ids)):
            ids = logprobs = None
        elif named is not None and named != ids:
            # They are those of other tokens, or their positions are not those of the ids.
            logprobs = None
    spans = next((item["weight_versions"] for item in places if item.get("weight_versions")), None)
    versions, newest = read_versions(spans, None if ids is None else len(ids))
    told = next(
        (str(item["weight_version"]) for item in places if item.get("weight_version") is not None), None
    )
    prompt = raw.get("prompt_token_ids") or choice.get("prompt_token_ids")
    record = make_record(
        None if bool in set(map(type, prompt or ())) else prompt,
        ids,
        logprobs,
        counted=usage.output_tokens if usage.is_reported else None,
        counted_prompt=usage.input_tokens if usage.is_reported else None,
        tokens=None if tokens is None else tuple(tokens),
        versions=versions,
    )
    return record, newest or told


# Plain answers


class _Function(Struct, forbid_unknown_fields=True, gc=False):
    name: Name
    arguments: str


class _Call(Struct, forbid_unknown_fields=True, gc=False):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: int = 0


class _Message(Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    reasoning_content: str | None = None
    refusal: None = None
    reasoning: str | None = None
    annotations: tuple[()] | None = None
    audio: None = None
    function_call: None = None


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
    message: _Message
    finish_reason: Literal["stop", "tool_calls"]
    index: int = 0
    logprobs: None = None
    token_ids: None = None
    stop_reason: None = None


class _Answer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    choices: tuple[_Choice]


class _Sampled(Struct, gc=False):
    """One sampled token of `logprobs`, whose text and bytes are not read. An answer whose tokens are named by their
    ids is not plain, so that the ids are compared."""

    logprob: float | None


class _Logprobs(Struct, gc=False):
    content: list[_Sampled] | None = None


class _TokenChoice(Struct, forbid_unknown_fields=True, gc=False):
    message: _Message
    finish_reason: Literal["stop", "tool_calls", "length"]
    token_ids: list[int]
    index: int = 0
    logprobs: _Logprobs | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: list[dict[str, Json]] | None = None
    stop_reason: None = None
    matched_stop: int | str | None = None
    routed_experts: None = None
    hidden_states: None = None


class _Metadata(Struct, forbid_unknown_fields=True, gc=False):
    weight_version: str | None = None


class _TokenAnswer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    choices: tuple[_TokenChoice]
    prompt_token_ids: list[int] | None = None  # type: ignore[assignment]
    prompt_text: None = None
    ec_transfer_params: None = None
    metrics: None = None
    metadata: _Metadata | None = None


_ASSISTANT = Role.ASSISTANT  # an attribute of an enum takes longer to look up than a global name


class ChatReader(PlainReader):
    """The reader of plain chat completions. If the settings ask for token ids, a plain answer may have them."""

    ANSWER = _Answer
    TOKEN_ANSWER = _TokenAnswer

    def _read(self, answer: Any) -> Completion | None:
        choice = answer.choices[0]
        raw = choice.message
        calls: tuple[ToolCall, ...] = ()
        if raw.tool_calls:
            made = []
            for call in raw.tool_calls:
                made.append(ToolCall(call.id, call.function.name, call.function.arguments))
            calls = tuple(made)
        if (choice.finish_reason == "tool_calls") != bool(calls) and choice.finish_reason != "length":
            return None
        usage = UNREPORTED if answer.usage is None else answer.usage.read()
        reasoning = raw.reasoning_content or raw.reasoning or None
        message = Message(_ASSISTANT, raw.content or "", calls, None, None, False, reasoning)
        if not self._has_ids:
            return self._complete(answer, message, usage)
        content = None if choice.logprobs is None else choice.logprobs.content
        matched, metadata = choice.matched_stop, answer.metadata
        return self._complete_tokens(
            answer,
            message,
            usage,
            [item.logprob for item in content] if content else None,
            weight_version=None if metadata is None else metadata.weight_version,
            opaque=None if matched is None else {"choices": [{"matched_stop": matched}]},
        )


class ThoughtReader(ChatReader):
    """The reader of plain chat completions of servers whose texts may begin with reasoning, which is not plain."""

    def _read(self, answer: Any) -> Completion | None:
        content = answer.choices[0].message.content
        return None if content and content.lstrip().startswith(OPEN) else super()._read(answer)
