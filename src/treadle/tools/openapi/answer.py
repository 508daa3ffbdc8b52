"""The conversion of an HTTP response to a tool's result."""

import re
from typing import Any

import msgspec

from treadle.core.types import Json
from treadle.http.guarded import HttpAnswer
from treadle.tools.protocol import Attachment, ToolOutput

_JSON = re.compile(r"application/json|[^/]+/[^/]+\+json")
_TEXT = re.compile(
    r"text/.+|[^/]+/[^/]+\+(xml|yaml)|"
    r"application/(xml|yaml|x-yaml|javascript|x-ndjson|jsonl|json-seq|x-www-form-urlencoded|graphql|toml)"
)
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_MAX_RETRY_CHARS = 40


def read(answer: HttpAnswer) -> ToolOutput:
    """Return the result of a response. A status of 400 or more is an error, with the status before its text."""
    kind = answer.headers.get("content-type", "")
    media = kind.partition(";")[0].strip().lower()
    is_error = answer.status >= 400
    head = f"HTTP {answer.status}"
    wait = answer.headers.get("retry-after")
    if is_error and wait:
        head += f" (retry after {wait[:_MAX_RETRY_CHARS]}{' s' if wait.isdecimal() else ''})"
    value: Json = None
    text: str | None = None
    if _JSON.fullmatch(media) and answer.body:
        try:
            value = msgspec.json.decode(answer.body)
            text = msgspec.json.encode(value).decode()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            text = _decode(answer.body, kind)
    elif _TEXT.fullmatch(media) or is_error or not answer.body:
        text = _decode(answer.body, kind)
    elif not media and b"\0" not in answer.body:
        text = _decode_strictly(answer.body)
    if text is None:
        what = next((item for item in ("image", "audio") if media.startswith(f"{item}/")), "resource")
        note = f"[{what}, {media or 'of unknown type'}, {len(answer.body):,} bytes]"
        return ToolOutput(note, attachments=(Attachment(what, answer.body, media or None),))
    if is_error:
        return ToolOutput(f"{head}\n{text}".strip(), is_error=True)
    return ToolOutput(text or head, structured=value)


def _decode(body: bytes, content_type: str) -> str:
    found: Any = _CHARSET.search(content_type)
    try:
        return body.decode(found[1] if found else "utf-8", errors="replace")
    except (LookupError, UnicodeError):
        return body.decode(errors="replace")


def _decode_strictly(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
