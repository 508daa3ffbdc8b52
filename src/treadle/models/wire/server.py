"""The server of a model, and its errors: typed, with advice what to do next, and without keys."""

import re
import time
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from treadle.core.errors import ProviderError, RateLimitError, RequestError
from treadle.core.texts.documents import read_data
from treadle.core.texts.masking import MASK, Mask, secrets_of_url, words_of
from treadle.core.types import FinishReason, Json
from treadle.http.transport import address_of, origin_of
from treadle.models.protocol import RateLimits
from treadle.models.wire.faults import find_bad_call, find_meaning, status_of_code

_MAX_CHARS = 400
_MAX_READ_BYTES = 65_536
"""The length of the part of a body from which an excerpt is made."""
_PLAIN_HEADERS = frozenset(("accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta"))
"""Headers whose values are no secrets."""
_SECRET_TEXT = re.compile(r"\b(?:Bearer\s+\S+|sk-[\w-]{6,})|(?<=://)[^/\s@\"'<>]+(?=@)")
_DURATION = re.compile(r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_MAX_READ_CHARS = 8192
"""The length of the part of an error's text that is searched for its meaning."""


class BadCallError(RequestError):
    """A call that the model wrote and that the server could not read."""

    def __init__(self, message: str, *, status: int | None = None, written: str = "", said: str = "") -> None:
        super().__init__(message, status=status)
        self.written = written
        """The text that the model wrote; empty if the server does not show it."""
        self.said = said
        """The server's message about it."""


class UnfinishedError(ValueError):
    """Raised if the server did not say that an answer is complete, or if announced calls are missing."""


_NO_REASONS = frozenset(("", "null", "none", "undefined", "finish_reason_unspecified"))


def reason_of(told: Json) -> Json:
    """Return the finish reason that a server wrote; `None` for what means that there is none, such as `"null"`."""
    return None if isinstance(told, str) and told.lower() in _NO_REASONS else told


def reasons_of(dialect: str) -> dict[Json, FinishReason]:
    """Return the finish reasons of a dialect by the words that servers write."""
    table = read_data(__package__, "answers")["reasons"][dialect]
    return {word: FinishReason(reason) for reason, words in table.items() for word in words}


class Server(Struct, frozen=True, repr_omit_defaults=True):
    """The server of a model, with the data that error messages need."""

    model: str
    base_url: str
    headers: tuple[tuple[str, str], ...] = ()
    key_variable: str | None = None
    """The environment variable that the key is read from."""
    secrets: tuple[str, ...] = ()
    """Secrets in the bodies of requests."""

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
        text = Mask([*words, *self.secrets, *secrets_of_url(self.base_url)]).hide_pieces(text)
        for item in urlsplit(self.base_url).query.split("&"):
            # A short value is recognised by its name.
            text = text.replace(item, f"{item.partition('=')[0]}={MASK}") if "=" in item else text
        return _SECRET_TEXT.sub(MASK, text)

    def excerpt(self, body: bytes | str) -> str:
        """Return the beginning of an answer, for an error message."""
        text = (body if isinstance(body, str) else body.decode(errors="replace"))[:_MAX_READ_BYTES]
        # Mask the keys before cutting the text, so that no part of a key remains.
        text = " ".join(self.mask(text).split())
        cut = text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…"
        return cut if cut.isprintable() else "".join(map(_escape, cut))


def _escape(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def find_error(raw: Json) -> Json | None:
    """Return the error in an answer or a chunk; `None` if there is none.

    Source: `{"error": {...}}` of OpenAI, `[{"error": {...}}]` of Google, `{"error": "text"}` of Ollama and xAI,
    `{"object": "error", ...}` of vLLM up to 0.9, `{"detail": ...}` of FastAPI, `{"base_resp": {...}}` of MiniMax,
    `{"errors": [...]}` of Cloudflare.
    """
    if isinstance(raw, list) and raw:
        raw = raw[0]
    if not isinstance(raw, dict):
        return None
    if error := raw.get("error"):
        return error
    if isinstance(base := raw.get("base_resp"), dict) and base.get("status_code"):
        return {"code": base["status_code"], "message": base.get("status_msg")}
    if isinstance(errors := raw.get("errors"), list) and errors:
        return errors[0]
    if choices := raw.get("choices"):
        first = choices[0] if isinstance(choices, list) else None
        return (first.get("error") or None) if isinstance(first, dict) else None
    return raw.get("detail") or (raw if "message" in raw else None)


def explain_error(
    server: Server, status: int, error: Json, header: Callable[[str], str | None] | None = None
) -> ProviderError:
    """Return the typed error for an answer with `status`; `error` is its body, decoded or as bytes.

    An error in an answer of status 200 is classified by the code and the text of the error itself.
    """
    said = error if isinstance(error, dict) else {}
    text = said.get("message") if said else error
    if not isinstance(text, str | bytes):
        text = msgspec.json.encode(error)
    told = server.excerpt(text) or "(no message)"
    searched = _text_of(said, text)
    if (written := find_bad_call(said, searched)) is not None:
        return BadCallError(
            f"{server.origin} could not read a call that model {server.model!r} made: {told}",
            status=status,
            written=server.mask(written),
            said=told,
        )
    if status == 200:
        status = _status_of(said)
    meaning = find_meaning(status, searched)
    if status == 200:
        status = meaning.status
    retry_after = retry_after_seconds(header) if header is not None else None
    delay = _find_retry_delay(said.get("details"))
    kind, advice = meaning.kind, meaning.advice
    if status == 429 and delay is not None:
        # Google calls every limit a quota; if it says when the quota is available again, waiting helps.
        kind, advice = RateLimitError, ""
    key = f", set {server.key_variable}," if server.key_variable else ""
    advice = advice.format(key=key, model=server.model, url=server.address) if advice else ""
    return kind(
        f"{server.origin} answered {status} for model {server.model!r}: {told}{advice}",
        status=status,
        retry_after_seconds=retry_after if retry_after is not None else delay,
    )


def _text_of(error: dict[str, Json], text: str | bytes) -> str:
    """Return the codes and texts of an error in one string."""
    told = text if isinstance(text, str) else text[:_MAX_READ_CHARS].decode(errors="replace")
    metadata = error.get("metadata")
    # OpenRouter puts the error of the provider there.
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    codes = [error.get("code"), error.get("type"), error.get("status"), error.get("error_code")]
    return " ".join([str(item) for item in (*codes, told[:_MAX_READ_CHARS], raw) if item])[
        : 2 * _MAX_READ_CHARS
    ]


def _find_retry_delay(details: Json) -> float | None:
    """Return the delay in seconds in Google's error details. Source: `google.rpc.RetryInfo`, as "17.5s"."""
    for item in details if isinstance(details, list) else ():
        if isinstance(item, dict) and isinstance(delay := item.get("retryDelay"), str):
            return _read_reset(delay)
    return None


def _status_of(error: dict[str, Json]) -> int:
    """Return the HTTP status that an error inside an answer with status 200 names; 200 if it names none."""
    for name in ("type", "status", "code"):
        if (status := status_of_code(str(error.get(name)))) is not None:
            return status
    for name in ("code", "status", "status_code", "http_status"):
        value = error.get(name)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return 200


def retry_after_seconds(header: Callable[[str], str | None]) -> float | None:
    """Return how long the headers ask to wait, in seconds; `None` if they do not say it, or are not understood."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = header(name)
        if text is None:
            continue
        try:
            if text.strip()[:1].isdecimal():
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
        if text[:1].isdecimal() and ("T" in text or "t" in text):
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
