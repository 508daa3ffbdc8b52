"""Wire formats that all servers in OpenAI's style share: tools, token counts, token ids, logprobs, and plain
answers with their fast reader.

Most answers are plain: they have no fields that Treadle has no type for. A typed decoder reads them, and the
dialect's `read_completion` reads all others. For a plain answer both give the same completion.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.texts.documents import UNREADABLE
from treadle.core.tokens.packed import count_packed
from treadle.core.tokens.token_record import Prior, TokenRecord
from treadle.core.types import Completion, FinishReason, Json, Message, Settings, ToolSpec, Usage
from treadle.models.wire.provider import Preset, Price, TokenCounts, cost_of
from treadle.models.wire.server import UnfinishedError, reason_of, reasons_of
from treadle.models.wire.token_records import PromptCutter, has_named_ids, make_record, read_versions

OPENAI = Preset(
    dialect="openai_chat",
    key_variable="OPENAI_API_KEY",
    base_url_variable="OPENAI_BASE_URL",
    header_variables={"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"},
    price_provider="openai",
)
"""The preset of OpenAI."""

_REASONS = reasons_of("openai")
_FAILED = re.compile(
    r"error|abort|fail|cancel|interrupt|malformed|time.?out|insufficient|unavailable|overload"
)
"""A pattern for finish reasons of engines that failed, such as `abort` and `network_error`."""


def read_reason(told: Json, *, has_calls: bool, is_empty: bool) -> FinishReason | None:
    """Return the finish reason of a server; `None` if it sent none, or one that is not known.

    An answer without a known finish reason counts as finished if it has any content.

    Raises: `UnfinishedError` for an answer that is not whole.
    """
    told = reason_of(told)
    reason = _REASONS.get(told)
    if reason is None:
        if isinstance(told, str) and told:
            reason = _REASONS.get(told.lower())
            if reason is None and _FAILED.search(told.lower()):
                raise UnfinishedError(f"the finish reason is {told!r}")
        if reason is None and is_empty:
            raise UnfinishedError(
                "it is empty and has no finish reason"
                if not told
                else f"it is empty, and {told!r} is not a known finish reason"
            )
    if reason is FinishReason.TOOL_CALLS and not has_calls:
        raise UnfinishedError(f"the finish reason is {told!r}, but there are no calls")
    return reason


def read_logprobs(found: Json) -> TokenRecord | None:
    """Return the log probabilities in a list of `{"token": …, "logprob": …}`; `None` if it is not such a list."""
    if not found:
        return None
    try:
        return TokenRecord.of(
            logprobs=[float(item["logprob"]) for item in found],
            tokens=tuple([str(item["token"]) for item in found]),
        )
    except (AttributeError, TypeError, LookupError, ValueError):
        return None


def encode_tool(tool: ToolSpec, **more: Json) -> dict[str, Json]:
    """Return a tool as an element of `tools`; `more` are further fields of its function."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, **more}
    return {"type": "function", "function": function}


class _InputDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class ChatUsage(TokenCounts, gc=False):
    """The token counts of a chat completion. Source: OpenAI; DeepSeek for `prompt_cache_hit_tokens`."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None

    def read(self) -> Usage:
        before, after = self.prompt_tokens_details, self.completion_tokens_details
        cached = self.prompt_cache_hit_tokens if before is None else before.cached_tokens
        thought = None if after is None else after.reasoning_tokens
        return Usage(self.prompt_tokens or 0, self.completion_tokens or 0, cached or 0, thought or 0)


class PlainUsage(ChatUsage, gc=False, kw_only=True):
    """The token counts of a plain answer."""

    prompt_tokens: int
    completion_tokens: int
    cost: None = None


class PlainAnswer(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """The fields of a plain answer except `choices`."""

    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    usage: PlainUsage | None = None
    error: None = None
    service_tier: None = None
    system_fingerprint: None = None
    prompt_logprobs: None = None
    prompt_token_ids: None = None
    kv_transfer_params: None = None


Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
"""The name in a plain call. A call without a name is not plain."""
_FINISHES = {reason.value: reason for reason in FinishReason}
_MAX_MISSES = 16
"""After this many consecutive answers that are not plain, the fast decoder is no longer tried."""


class PlainReader(ABC):
    """The fast reader for one model's answers. A subclass defines what a plain answer is."""

    ANSWER: ClassVar[Any] = None
    """The type of a plain answer, which refuses unknown fields. `None`: only answers with token ids are plain."""
    TOKEN_ANSWER: ClassVar[Any]
    """The type of a plain answer with token ids, which servers return if the settings ask for them."""

    def __init__(self, settings: Settings, price: Price | None) -> None:
        self._has_ids = bool(settings.return_token_ids)
        kind = self.TOKEN_ANSWER if self._has_ids else self.ANSWER
        self._decode = None if kind is None else msgspec.json.Decoder(kind).decode
        self._settings = settings
        self._price = price
        self._cutter = PromptCutter()
        self._misses = 0

    def read(self, body: bytes, prior: Prior | None = None) -> Completion | None:
        """Return the completion, or `None` if the answer is not plain or is damaged.

        `prior` has the ids of the inference before.
        """
        if self._decode is None or self._misses >= _MAX_MISSES:
            return None
        if self._has_ids:
            if has_named_ids(body):
                return None
            body = self._cutter.cut(self._shorten(body), b"" if prior is None else prior.token_ids)
        try:
            answer = self._decode(body)
        except (*UNREADABLE, ValueError):
            self._misses += 1
            return None
        if self._misses:
            self._misses = 0
        return self._read(answer)

    def _shorten(self, body: bytes) -> bytes:
        """Return an answer without what a subclass reads by itself."""
        return body

    @abstractmethod
    def _read(self, answer: Any) -> Completion | None:
        """Return the completion for a decoded answer; `None` if it is not plain because of its values."""

    def _complete(
        self,
        answer: Any,
        message: Message,
        usage: Usage,
        tokens: TokenRecord | None = None,
        opaque: dict[str, Json] | None = None,
        weight_version: str | None = None,
    ) -> Completion:
        return Completion(
            message,
            _FINISHES[answer.choices[0].finish_reason],
            usage,
            None if self._price is None else cost_of(usage, self._price),
            answer.model,
            answer.id,
            self._settings,
            tokens,
            opaque,
            weight_version=weight_version,
        )

    def _complete_tokens(
        self,
        answer: Any,
        message: Message,
        usage: Usage,
        logprobs: Sequence[float | None] | None,
        *,
        weight_version: str | None = None,
        opaque: dict[str, Json] | None = None,
    ) -> Completion | None:
        """Return a completion with the token ids of a `TOKEN_ANSWER`; `None` if they cannot be read.
        `weight_version` is the version of the weights if the choice does not say one."""
        choice = answer.choices[0]
        # vLLM's chat has the prompt's ids beside the choices, other endpoints have them in the choice.
        asked = choice.prompt_token_ids if answer.prompt_token_ids is None else answer.prompt_token_ids
        try:
            prompt, ids = self._cutter.join(asked, choice.token_ids)
        except OverflowError:
            return None
        versions, newest = read_versions(choice.weight_versions, count_packed(ids))
        counted, known = (usage.output_tokens, usage.input_tokens) if usage.is_reported else (None, None)
        record = make_record(prompt, ids, logprobs, counted=counted, counted_prompt=known, versions=versions)
        return self._complete(answer, message, usage, record, opaque, newest or weight_version)
