"""The meanings of servers' errors: tables of the codes and texts that servers use, for all dialects.

The tables are tried in order, so that a rate limit which speaks of tokens is not taken for a prompt that is too
long. Source: documentation of the APIs and reports of their users, 2023 to 2026.
"""

import re

import msgspec
from msgspec import Struct

from treadle.core.errors import (
    AuthenticationError,
    ContextOverflowError,
    ProviderError,
    RateLimitError,
    RefusedError,
    RequestError,
    ServerError,
)
from treadle.core.types import Json


class Meaning(Struct, frozen=True):
    """The meaning of an error."""

    kind: type[ProviderError]
    status: int
    """The HTTP status to report if the error came with status 200."""
    advice: str = ""
    """What to do next. `{key}` stands for how to set the key, `{model}` and `{url}` for the model and the URL of
    the request."""


class FaultRule(Struct, frozen=True):
    """The texts and codes of servers that have one meaning."""

    meaning: Meaning
    pattern: re.Pattern[str]
    statuses: frozenset[int] | None = None
    """The statuses with which the texts have this meaning; `None`: all. Status 200 has every meaning."""

    def matches(self, status: int, text: str) -> bool:
        """Return whether an error with this status and text has the rule's meaning."""
        is_apt = self.statuses is None or status == 200 or status in self.statuses
        return is_apt and self.pattern.search(text) is not None


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_REFUSED = Meaning(RefusedError, 400)
_QUOTA = Meaning(RequestError, 429, " - the account has nothing left to spend: add credit or use another key")
_BUSY = Meaning(RateLimitError, 429)
_TOO_BIG = Meaning(
    RateLimitError,
    429,
    " - this request alone is larger than the limit: shorten the messages, or raise the limit",
)
_KEY = Meaning(AuthenticationError, 401, " - check the key{key} or give another one")
_OUTPUT = Meaning(RequestError, 400, " - ask for fewer tokens of output (max_output_tokens)")
_OVERFLOW = Meaning(ContextOverflowError, 400, " - shorten the messages, or compact them earlier")
_MODEL = Meaning(RequestError, 404, " - model not found? check the name {model!r} and the base URL {url}")
_BAD = Meaning(RequestError, 400)
_BROKEN = Meaning(ServerError, 500)

_CLIENT = frozenset((400, 402, 403, 404, 409, 413, 422, 429))
_TOO_LONG = frozenset((400, 409, 413, 422, 500, 502, 503))
_MAX_TOKENS = r"(?<!`)\bmax_(?:completion_|new_|output_)?tokens\b"
_LIMITED = re.compile(r"limit:? (\d+),?.{0,40}?requested:? (\d+)", re.IGNORECASE)

RULES = (
    FaultRule(
        _REFUSED,
        _any_of(
            r"content[_ ](?:policy|filter|management)|contentfilter|moderation|responsible ?ai|safety system",
            # OpenAI's responses, Azure, xAI, DeepSeek, DashScope, MiniMax, Moonshot, Zhipu.
            r"violat\w+ (?:our |the )?usage (?:policy|policies|guidelines)|flagged as potentially violating",
            r"content violates|content exists risk|data_?inspection_?failed|new_sensitive|considered high risk",
            r"unsafe or sensitive content|不安全或敏感|blocked by content",
        ),
        frozenset((400, 403, 422, 451, 500)),
    ),
    FaultRule(
        _QUOTA,
        _any_of(
            r"insufficient[_ .]?(?:quota|balance|funds|credits?)|exceeded[ _](?:your )?current[ _]quota",
            r"credit balance is too low|(?:no|not enough|out of) credits?\b|billing_(?:error|hard_limit)",
            r"spending limit|account is in arrears|arrearage|余额不足",
        ),
        _CLIENT,
    ),
    FaultRule(
        _BUSY,
        _any_of(
            r"tokens?[- ]per[- ](?:min|hour|day|second)|\b(?:TPM|TPD|RPM|RPD)\b|rate[ _-]?limit|throttl",
            r"too many (?:requests|tokens, please wait)|requests?[- ]per[- ](?:min|hour|day|second)",
            r"速率限制|RESOURCE_EXHAUSTED|concurrency limit",
        ),
        frozenset((400, 413, 422, 429, 500, 503)),
    ),
    FaultRule(
        _OUTPUT,
        _any_of(
            rf"{_MAX_TOKENS}['`\"]?(?: value)?,? (?:must|should|cannot|can't|may not)",
            rf"invalid {_MAX_TOKENS}|range of max_tokens|max_tokens: \d+ > \d+, which is the max",
            rf"{_MAX_TOKENS}=\d+ cannot be|at most \d+ (?:completion|output) tokens",
            r"exceed\w* .{0,40}\b(?:output|completion) tokens|maxOutputTokens",
        ),
        frozenset((400, 413, 422)),
    ),
    FaultRule(
        _OVERFLOW,
        _any_of(
            # Codes of OpenAI, llama.cpp, Zhipu, GitHub Copilot.
            r"context[_ ]length[_ ]exceeded|exceed_context_size|model_context_window_exceeded",
            r"model_max_prompt_tokens_exceeded|contextwindowexceeded",
            # OpenAI, Azure, vLLM, OpenRouter, DeepSeek, Mistral, Fireworks, NVIDIA; LM Studio, llama.cpp, Ollama.
            r"(?:maximum|max|model) context (?:length|window|size)|model's maximum (?:input|prompt)",
            r"(?:exceed(?:s|ed|ing)?|longer than|greater than|larger than) (?:(?:the|this|its|model'?s?|available"
            r"|maximum|max|configured|allowed) )*(?:context|prompt|window)\b",
            r"context (?:window|length|size|limit)\W{0,2} ?(?:is |was |has been )?(?:exceed|overflow)",
            r"configured context size|context length (?:is|of) only|overflows? the context|context overflow",
            r"maximum (?:prompt|model|input|allowed input) length|max_model_len|max(?:imum)?[ _]seq\w*[ _]len",
            r"(?:prompt|input|request|messages?)(?: \([^)]{0,40}\))?(?: is| are)? too (?:long|large)\b",
            r"reduce the length of",
            # Gemini, Vertex, Copilot, Cohere, Moonshot, Databricks.
            r"token count\b.{0,60}\bexceed|exceed\w* the (?:maximum|limit|max) (?:of |number of )?.{0,30}\btokens",
            r"model token limit|token limit exceeded|too many (?:input )?tokens",
            r"tokens in request more than max tokens|input tokens exceed",
            r"input length\b.{0,60}\bexceed.{0,60}(?:token|length)",
            # DashScope, Zhipu, TGI, Together, Anthropic.
            r"range of input length|prompt exceeds max|exceeds max length|超长|输入长度超过",
            r"`inputs` (?:must have less than|tokens \+ `max_new_tokens`)|request_too_large|entity too large",
            r"input length and `max_tokens`",
        ),
        _TOO_LONG,
    ),
    FaultRule(
        _KEY,
        _any_of(
            r"api[ _]key (?:not valid|is invalid|expired)|(?:invalid|incorrect|wrong|missing)[ _](?:api[ _]?)key",
            r"API_KEY_INVALID|invalid_authentication|unauthenticated",
        ),
        frozenset((400, 403)),
    ),
    FaultRule(
        _MODEL,
        _any_of(
            r"model[ _]?not[ _](?:exist|found)|(?:no such|unknown|invalid|unsupported) model\b|模型不存在",
            r"model\b.{0,100}(?:does not exist|not found|is not a valid model)|not a valid model id",
        ),
        frozenset((400, 403, 422)),
    ),
)
"""The rules; the first one that matches decides."""

_BY_STATUS = {
    401: _KEY,
    402: _QUOTA,
    403: _KEY,
    404: _MODEL,
    413: _OVERFLOW,
    429: _BUSY,
    **dict.fromkeys((408, 409, 425), _BROKEN),
}

STATUS_OF_CODE = {
    # Anthropic.
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
    # OpenAI's responses.
    "rate_limit_exceeded": 429,
    "invalid_prompt": 400,
    "server_error": 500,
    # Google.
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP statuses by the code that an error names, for errors within a stream, whose own status was 200."""

_SUMS = (
    # OpenAI and vLLM; newer vLLM; TGI and Together. The limit, and the tokens of output that were asked for.
    re.compile(
        r"context length is (?P<limit>\d+) tokens.{0,80}?(?P<output>\d+) (?:in|for) the completion", re.I
    ),
    re.compile(r"is too large: (?P<output>\d+)\..{0,80}?context length is (?P<limit>\d+)", re.I),
    re.compile(r"must be <= (?P<limit>\d+)\. Given: \d+ `inputs` tokens and (?P<output>\d+)", re.I),
)


def find_meaning(status: int, text: str) -> Meaning:
    """Return the meaning of an error, given its status and its codes and texts in one string."""
    for rule in RULES:
        if rule.matches(status, text):
            return _refine(rule.meaning, text)
    if status == 200:
        return _BAD if re.search(r"invalid[_ ]request|BadRequest", text) else _BROKEN
    return _BY_STATUS.get(status, _BROKEN if status >= 500 else _BAD)


def _refine(meaning: Meaning, text: str) -> Meaning:
    """Return the exact meaning, by the numbers in the text."""
    if meaning is _BUSY and (asked := _LIMITED.search(text)) and int(asked[2]) > int(asked[1]):
        return _TOO_BIG
    if meaning is _OVERFLOW:
        for pattern in _SUMS:
            found = pattern.search(text)
            if found is not None and int(found["output"]) >= int(found["limit"]):
                # No prompt, however short, leaves room for that much output.
                return _OUTPUT
    return meaning


_BAD_CALL_CODES = frozenset(("tool_use_failed", "output_parse_failed"))
_BAD_CALL = _any_of(
    # Groq, llama.cpp, Ollama, and gateways in front of them.
    r"failed to (?:call a function|parse (?:the )?(?:tool|function)[ _]calls?|parse input at pos)",
    r"error parsing (?:the )?(?:tool|function)[ _]call|tool call validation failed|XML syntax error on line",
    r"output that does not match the expected [\w-]+ format",
)
_WRITTEN = (
    re.compile(r"raw='(.*)', err=", re.DOTALL),
    re.compile(r"failed to parse input at pos \d+: (.*)", re.DOTALL | re.IGNORECASE),
)


def find_bad_call(error: dict[str, Json], text: str) -> str | None:
    """Return a call that the server could not read: what the model wrote, or what the server says about it. Return
    `None` for any other error.

    Source: Groq, `{"code": "tool_use_failed", "failed_generation": "…"}`; Ollama, `error parsing tool call:
    raw='…', err=…`; llama.cpp, `Failed to parse input at pos 12: …`.
    """
    if error.get("code") not in _BAD_CALL_CODES and _BAD_CALL.search(text) is None:
        return None
    written = error.get("failed_generation")
    if written:
        return written if isinstance(written, str) else msgspec.json.encode(written).decode()
    for pattern in _WRITTEN:
        if (found := pattern.search(text)) is not None:
            return found[1]
    return ""
