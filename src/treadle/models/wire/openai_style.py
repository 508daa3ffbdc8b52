"""Wire formats that all servers in OpenAI's style share: tools, token counts, token ids, logprobs, plain
answers."""

import re

from msgspec import Struct

from treadle.core.token_record import TokenRecord
from treadle.core.types import FinishReason, Json, ToolSpec, Usage
from treadle.models.wire.plain import TokenCounts
from treadle.models.wire.provider import Preset
from treadle.models.wire.server import UnfinishedError, reason_of, reasons_of

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
"""A pattern for finish reasons of engines that failed, such as `abort`, `insufficient_system_resource` and
`network_error`."""


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
        """See `TokenCounts.read`."""
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
