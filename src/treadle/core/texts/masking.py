"""Hiding secrets in texts, in all the forms in which servers and programs repeat them."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from treadle.core.texts.documents import decode_or
from treadle.core.types import Json

MIN_SECRET_CHARS = 8
"""The length from which a secret is recognised. A shorter one could also be ordinary text."""
MASK = "***"

_HTML = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_SECRET_NAME = re.compile(r"auth|cookie|key|secret|token|passw|credential", re.IGNORECASE)
_SECRET_FIELD = re.compile(
    r"(?:.*[_-])?(?:secret|password|passwd|credentials?|bearer|api[_-]?key|(?:access|private|session)[_-]?key|"
    r"(?:access|auth|api|bearer|id|refresh|session|user|hf)[_-]?token)|authorization|headers|cookies?|token",
    re.IGNORECASE,
)
"""Names of fields whose texts may be secret."""
_SECRET_VARIABLE = re.compile(
    r"(?:.*_)?(?:SECRET|PASS|PWD|PASSPHRASE|CREDENTIALS?|[A-Z]*(?:PASSWORD|PASSWD|TOKEN|KEY))(?:_?[0-9]+)?",
    re.IGNORECASE,
)
"""Names of environment variables whose values may be secret."""
_ORDINARY = re.compile(r"^[/~.]|://|\s")
"""What paths, URLs and sentences have."""
_CODED = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9+/=]{32,}")
"""Base64, which may begin with a slash as a path does. Paths of this length have a dot, a hyphen or no digits."""
_WORD = re.compile(r"(?=.{0,15}$)[^\W\d_]{3,}(?:_[^\W\d_]+)*")
"""What could be an ordinary word, or the name of a field such as `created_at`."""
_KEY = re.compile(r"\bBearer\s+\S+|\b(?:sk|pk|rk|hf|gsk|ghp|xai|key)[-_][\w-]{16,}")
"""The form of keys of servers."""
_PIECE_CHARS = 8
_ALPHANUMERIC = re.compile(r"[A-Za-z0-9]+")
_WORDS = re.compile(r"[\s;,=\"']+")
_CODES = (
    "%{:02X}",
    "%{:02x}",
    "\\u{:04x}",
    "\\u{:04X}",
    "\\x{:02x}",
    "&#{};",
    "&#x{:x};",
    "&#x{:X};",
    "&#{:03};",
)
"""The ways to escape a character that is neither a letter nor a digit, by its number."""


class Mask:
    """A set of secrets and the replacement of them in texts. Its `repr` contains no secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Collect the forms of `secrets`. Those shorter than `MIN_SECRET_CHARS` are ignored."""
        forms = {form for secret in set(secrets) for form in forms_of(secret)}
        self._forms = sorted(forms, key=len, reverse=True)
        self._marks: list[str] = []
        """Texts of which each form contains one. They are few, since escaping changes no letter."""
        for form in reversed(self._forms):
            if not any(mark in form for mark in self._marks):
                self._marks.append(max(_ALPHANUMERIC.findall(form), key=len, default=form))

    def __bool__(self) -> bool:
        return bool(self._forms)

    def hide(self, text: str) -> str:
        """Return `text` without the secrets that it contains completely."""
        for mark in self._marks:
            if mark in text:
                break
        else:
            return text
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def hide_bytes(self, data: bytes) -> bytes:
        """Return `data`, which may be any file, without the secrets that it contains completely."""
        if not any(mark.encode(errors="surrogatepass") in data for mark in self._marks):
            return data
        for form in self._forms:
            data = data.replace(form.encode(errors="surrogatepass"), MASK.encode())
        return data

    def hide_value(self, value: Json) -> Json:
        """Return a JSON value without the secrets in its texts; `None` if it holds one as a number."""
        data = msgspec.json.encode(value)
        hidden = self.hide_bytes(data)
        return value if hidden == data else decode_or(hidden)

    def hide_pieces(self, text: str) -> str:
        """Return `text` without the secrets and without their beginnings and ends, which somebody may have cut off.

        This is for errors. A piece is at least half of a secret, or 8 characters; ordinary text may contain such
        pieces too.
        """
        text = self.hide(text)
        backwards, size = text[::-1], len(text)
        spans = [span for form in self._forms for span in _find_beginnings(text, form)]
        for form in self._forms:
            spans += [(size - end, size - start) for start, end in _find_beginnings(backwards, form[::-1])]
        # From the end, so that the positions before it stay valid; spans that overlap become one.
        start = size
        for first, last in sorted(spans, key=lambda span: (-span[1], span[0])):
            if first < start:
                text = text[:first] + (MASK if last <= start else "") + text[min(last, start) :]
                start = first
        return text


def forms_of(secret: str) -> set[str]:
    """Return the forms of `secret`: unchanged, and escaped for JSON, HTML, URLs, Python and base64."""
    if len(secret) < MIN_SECRET_CHARS:
        return set()
    quoted = json.dumps(secret, ensure_ascii=False)[1:-1]
    forms = {secret, repr(secret)[1:-1], quoted, json.dumps(secret)[1:-1], unquote(secret)}
    forms |= {json.dumps(quoted)[1:-1], quoted.replace("/", "\\/")}
    once = quote(secret, safe="", errors="surrogatepass")
    forms |= {quote(secret, errors="surrogatepass"), once, quote(once), once.replace("%20", "+")}
    forms |= {secret.translate(_HTML), secret.translate({**_HTML, ord('"'): "&quot;", ord("'"): "&#x27;"})}
    for code in _CODES:
        for kept in ("", "-_.~"):
            chars = [char if char.isalnum() or char in kept else code.format(ord(char)) for char in secret]
            forms.add("".join(chars))
    data = secret.encode(errors="surrogatepass")
    # The text may be part of a longer one, such as `user:password`: three alignments, without the outer characters.
    for shift, first in enumerate((0, 2, 3)):
        last = -1 if (len(data) + shift) % 3 else None
        whole = base64.b64encode(bytes(shift) + data).rstrip(b"=").decode()[first:last]
        forms |= {whole, whole.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) >= MIN_SECRET_CHARS}


def words_of(value: str) -> list[str]:
    """Return the parts of a header's value, such as the token of `Bearer TOKEN` and the values of cookies."""
    words = [*value.split(), *_WORDS.split(value)]
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "basic":
        try:
            plain = base64.b64decode(rest).decode()
        except ValueError:
            return words
        words += [plain, plain.partition(":")[2]]
    return words


def is_secret_name(name: str) -> bool:
    """Return whether the value of a header or variable with this name is probably secret."""
    return _SECRET_NAME.search(name) is not None


def mask_of(variables: Mapping[str, str]) -> Mask:
    """Return the mask of the secrets in environment variables.

    They are the values of variables with names such as `API_TOKEN`, and the passwords of URLs. Not among them are
    paths, texts with spaces, and short words such as `postgres`, which a text may contain for other reasons.
    """
    found = [value for name, value in variables.items() if _SECRET_VARIABLE.fullmatch(name)]
    found += [_password_of(value) for value in variables.values() if "://" in value and "@" in value]
    return _mask_of(tuple([value for value in found if _may_be_secret(value)]))


@lru_cache(maxsize=4)
def _mask_of(secrets: tuple[str, ...]) -> Mask:
    return Mask(secrets)


def _may_be_secret(value: str) -> bool:
    is_ordinary = _ORDINARY.search(value) is not None and _CODED.fullmatch(value) is None
    return not is_ordinary and _WORD.fullmatch(value) is None


def _password_of(url: str) -> str:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


def hide_fields(value: Any, found: list[str] | None = None, *, is_secret: bool = False) -> Any:
    """Return JSON without the texts that are probably secret.

    They are those in fields with names such as `api_key`, and those that look like a key. A text that names an
    environment variable, as `${NAME}`, stays. What is hidden is added to `found`.
    """
    if isinstance(value, dict):
        return {
            key: hide_fields(
                item, found, is_secret=is_secret or _SECRET_FIELD.fullmatch(str(key)) is not None
            )
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [hide_fields(item, found, is_secret=is_secret) for item in value]
    if not isinstance(value, str) or not value or "${" in value or not (is_secret or _KEY.search(value)):
        return value
    if found is not None:
        found.append(value)
    return MASK


def hide_keys(text: str) -> str:
    """Return `text` without what has the form of a server's key."""
    return _KEY.sub(MASK, text)


def hide_in_url(url: str) -> str:
    """Return `url`, which need not be valid, without user, password and query."""
    return re.sub(r"\?.*", f"?{MASK}", re.sub(r"//[^/]*@", f"//{MASK}@", url), flags=re.DOTALL)


def hide_password(url: str) -> str:
    """Return `url`, which need not be valid, without its password. The user and the query are left as they are."""
    return re.sub(r"password=[^&]*", f"password={MASK}", re.sub(r"//([^/:]*):[^/]*@", r"//\1@", url))


def secrets_of_url(url: str) -> list[str]:
    """Return the user, the password and the values of the query of a URL, both unchanged and decoded."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    userinfo = parts.netloc.rpartition("@")[0]
    raw = [userinfo, *userinfo.split(":", 1), *[item.partition("=")[2] for item in parts.query.split("&")]]
    decoded = [unquote(item) for item in raw] + [value for _, value in parse_qsl(parts.query)]
    return [item for item in (*raw, *decoded) if item]


def _find_beginnings(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Yield where `text` has a beginning of `form` that is long enough to be a piece of it."""
    size = min(_PIECE_CHARS, (len(form) + 1) // 2)
    at = -1
    while (at := text.find(form[:size], at + 1)) >= 0:
        end = at + size
        while end < len(text) and end - at < len(form) and text[end] == form[end - at]:
            end += 1
        yield at, end
