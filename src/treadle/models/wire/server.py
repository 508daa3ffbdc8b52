"""The server of a model, and its errors: typed, with advice what to do next, and without keys."""

import re
import time
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

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
from treadle.core.masking import MASK, Mask, secrets_of_url, words_of
from treadle.core.types import Json
from treadle.http.transport import address_of, origin_of
from treadle.models.protocol import RateLimits

_MAX_CHARS = 400
_MAX_READ_BYTES = 65_536
"""How much of a body is read for an excerpt of it."""
_PLAIN_HEADERS = frozenset(("accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta"))
"""Headers whose values are no secrets."""
_SECRET_TEXT = re.compile(r"\b(?:Bearer\s+\S+|sk-[\w-]{6,})|(?<=://)[^/\s@\"'<>]+(?=@)")
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|exceeds? the (?:available )?(?:context|model's max)"
    r"|exceed_context_size|context (?:window|length) (?:is )?exceed|prompt is too long|input is too long"
    r"|longer than the model's context|too many (?:input )?tokens",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"content[_ ](?:policy|filter|management)|moderation|responsible ?ai|safety system", re.IGNORECASE
)
_BAD_KEY = re.compile(r"API key not valid|API_KEY_INVALID|invalid api.?key", re.IGNORECASE)
_DURATION = re.compile(r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_QUOTA = re.compile(r"insufficient_quota|exceeded your current quota|insufficient.balance", re.IGNORECASE)


_STATUS_OF_KIND = {
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
"""HTTP statuses by the kind that an error names, for errors within a stream, whose own status was 200."""


class Server(Struct, frozen=True, repr_omit_defaults=True):
    """The server of a model, with the data that error messages need."""

    model: str
    base_url: str
    headers: tuple[tuple[str, str], ...] = ()
    key_variable: str | None = None
    """The environment variable that the key is read from."""

    def __repr__(self) -> str:
        return f"Server({self.model!r}, {self.origin!r})"

    @property
    def origin(self) -> str:
        """The URL's scheme, host and port."""
        return origin_of(self.base_url)

    @property
    def address(self) -> str:
        """The base URL without user, password and query, which may be secret."""
        return address_of(self.base_url)

    def mask(self, text: str) -> str:
        """Return `text` without the keys that were sent, because some servers repeat them or parts of them."""
        sent = [value for name, value in self.headers if name not in _PLAIN_HEADERS]
        words = [word for value in sent for word in words_of(value)]
        text = Mask([*words, *secrets_of_url(self.base_url)]).hide_pieces(text)
        for item in urlsplit(self.base_url).query.split("&"):
            # A short value is recognised by its name.
            text = text.replace(item, f"{item.partition('=')[0]}={MASK}") if "=" in item else text
        return _SECRET_TEXT.sub(MASK, text)

    def excerpt(self, body: bytes | str) -> str:
        """Return the beginning of an answer, for an error message."""
        text = (body if isinstance(body, str) else body.decode(errors="replace"))[:_MAX_READ_BYTES]
        # Mask the keys before cutting the text, so that no part of a key remains.
        text = " ".join(self.mask(text).split())
        return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…"


def find_error(raw: Json) -> Json | None:
    """Return the error in an answer or a chunk; `None` if there is none.

    Source: `{"error": {...}}` of OpenAI, `{"error": "text"}` of Ollama, `{"object": "error", ...}` of
    vLLM up to 0.9, `{"detail": ...}` of FastAPI.
    """
    if not isinstance(raw, dict):
        return None
    if error := raw.get("error"):
        return error
    if choices := raw.get("choices"):
        first = choices[0] if isinstance(choices, list) else None
        return (first.get("error") or None) if isinstance(first, dict) else None
    return raw.get("detail") or (raw if "message" in raw else None)


def nonsense(raw: Json, server: Server) -> ServerError:
    """Return the error for an answer that cannot be read."""
    excerpt = server.excerpt(msgspec.json.encode(raw))
    return ServerError(f"the answer of {server.origin} makes no sense: {excerpt}", status=200)


def explain_error(
    server: Server, status: int, error: Json, header: Callable[[str], str | None] | None = None
) -> ProviderError:
    """Return the typed error for an answer with `status`; `error` is its body, decoded or as bytes.

    An error in an answer of status 200 is classified by the status that the error itself names.
    """
    said = error if isinstance(error, dict) else {}
    text = said.get("message") if said else error
    if not isinstance(text, str | bytes):
        text = msgspec.json.encode(error)
    told = server.excerpt(text) or "(no message)"
    code = f"{said.get('code') or ''} {said.get('type') or ''}"
    kind = f"{code} {text.decode(errors='replace') if isinstance(text, bytes) else text}"
    if status == 200:
        status = _status_of(said, kind)
    retry_after = retry_after_seconds(header) if header is not None else None
    delay = _find_retry_delay(said.get("details"))
    cls, advice = _classify(server, status, kind)
    if status == 429 and delay is not None:
        # Google calls every limit a quota; if it says when the quota is available again, waiting helps.
        cls, advice = RateLimitError, ""
    where = f"{server.origin} answered {status} for model {server.model!r}"
    return cls(
        f"{where}: {told}{advice}",
        status=status,
        retry_after_seconds=retry_after if retry_after is not None else delay,
    )


def _classify(server: Server, status: int, kind: str) -> tuple[type[ProviderError], str]:
    """Return the error's class, and advice to append to its message."""
    if status == 403 and _REFUSED.search(kind):
        return RefusedError, ""
    if status in (401, 403) or (status == 400 and _BAD_KEY.search(kind)):
        variable = f", set {server.key_variable}," if server.key_variable else ""
        return AuthenticationError, f" - check the key{variable} or give another one"
    if status == 402 or (status == 429 and _QUOTA.search(kind)):
        return RequestError, " - the account has nothing left to spend: add credit or use another key"
    if status == 429:
        return RateLimitError, ""
    if status in (408, 409, 425) or status >= 500:
        # llama.cpp and some proxies answer 500 to a prompt that is too long.
        return (ContextOverflowError, "") if _OVERFLOW.search(kind) else (ServerError, "")
    if status == 404:
        return (
            RequestError,
            f" - model not found? check the name {server.model!r} and the base URL {server.address}",
        )
    if status == 413 or _OVERFLOW.search(kind):
        return ContextOverflowError, " - shorten the messages, or compact them earlier"
    if _REFUSED.search(kind):
        return RefusedError, ""
    return RequestError, ""


def _find_retry_delay(details: Json) -> float | None:
    """Return the delay in seconds that Google's error details ask for.

    Source: `google.rpc.RetryInfo`, `{"retryDelay": "17.5s"}`.
    """
    for item in details if isinstance(details, list) else ():
        if isinstance(item, dict) and isinstance(delay := item.get("retryDelay"), str):
            return _read_reset(delay)
    return None


def _status_of(error: dict[str, Json], kind: str) -> int:
    """Return the HTTP status for an error inside an answer with status 200."""
    for name in ("type", "status", "code"):
        if (status := _STATUS_OF_KIND.get(str(error.get(name)))) is not None:
            return status
    for name in ("code", "status", "status_code", "http_status"):
        value = error.get(name)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    if re.search(r"rate.?limit|too many requests", kind, re.IGNORECASE) or _QUOTA.search(kind):
        return 429
    if re.search(r"invalid_request|invalid request|BadRequest", kind) or _OVERFLOW.search(kind):
        return 400
    return 500


def retry_after_seconds(header: Callable[[str], str | None]) -> float | None:
    """Return how long the headers ask to wait, in seconds; `None` if they do not say it or cannot be understood."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = header(name)
        if text is None:
            continue
        try:
            if text.strip()[:1].isdigit():
                seconds = float(text) * unit
            else:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            continue
        if seconds < float("inf"):
            return max(0.0, seconds)
    return None


def read_rate_limits(header: Callable[[str], str | None]) -> RateLimits | None:
    """Return the server's limits as the headers give them; `None` if there are none.

    Source: OpenAI (`x-ratelimit-remaining-requests: 59`, `x-ratelimit-reset-requests: 1m2.5s`), Anthropic
    (`anthropic-ratelimit-requests-remaining`, resets as dates), Groq and OpenRouter (`x-ratelimit-remaining`,
    `x-ratelimit-reset` in seconds, or milliseconds since the epoch).
    """

    def find(kind: str, what: str) -> str | None:
        return (
            header(f"x-ratelimit-{what}-{kind}")
            or header(f"anthropic-ratelimit-{kind}-{what}")
            or (header(f"x-ratelimit-{what}") if kind == "requests" else None)
        )

    limits = RateLimits(
        requests=_read_count(find("requests", "limit")),
        requests_left=_read_count(find("requests", "remaining")),
        requests_reset_seconds=_read_reset(find("requests", "reset")),
        tokens=_read_count(find("tokens", "limit")),
        tokens_left=_read_count(find("tokens", "remaining")),
        tokens_reset_seconds=_read_reset(find("tokens", "reset")),
    )
    return None if limits == RateLimits() else limits


def _read_count(text: str | None) -> int | None:
    try:
        return None if text is None else max(0, int(float(text)))
    except (ValueError, OverflowError):
        return None


def _read_reset(text: str | None) -> float | None:
    """Return the seconds until a reset, given as `1m2.5s`, `250ms`, `12`, a date, or a time since the epoch."""
    if text is None:
        return None
    text = text.strip()
    try:
        if (parts := _DURATION.fullmatch(text)) and text:
            units = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
            return sum(float(part or 0) * unit for part, unit in zip(parts.groups(), units, strict=True))
        if text[:1].isdigit() and ("T" in text or "t" in text):
            seconds = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() - time.time()
        else:
            seconds = float(text)
            # A small number is a span; a large one is a point in time, in seconds or milliseconds.
            if seconds > 1e11:
                seconds /= 1000
            if seconds > 1e8:
                seconds -= time.time()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds) if seconds < float("inf") else None
