"""The HTTP request of an operation, and the conversion of the response to a tool's result."""

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from msgspec import Struct

from treadle.core.errors import ToolError
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Json
from treadle.http.guarded import HttpAnswer
from treadle.tools.openapi.document import Operation, Parameter, RequestBody
from treadle.tools.protocol import Attachment, ToolOutput

_RESERVED = ":/?@!$'()*,;[]"
"""Reserved characters, without those that would end the query or begin another pair."""
_ACCEPT = "application/json, text/*;q=0.8, */*;q=0.5"


class HttpCall(Struct, frozen=True):
    """A request without credentials."""

    path: str
    """The path with the query."""
    headers: dict[str, str]
    """Headers by their names in lower case."""
    body: bytes | None


def build(operation: Operation, arguments: Mapping[str, Json]) -> HttpCall:
    """Return the request for an operation. Raises: `ToolError` for an argument that cannot be written."""
    path, query, cookies = operation.path, [], []
    headers = {"accept": _ACCEPT}
    for parameter in operation.places:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            path = path.replace(f"{{{parameter.name}}}", _in_path(parameter, value))
        elif parameter.place == "query":
            query += [f"{_quote(name)}={text}" for name, text in _pairs(parameter, value)]
        elif parameter.place == "header":
            headers[parameter.name.lower()] = _in_header(parameter, value)
        else:
            cookies += [f"{name}={text}" for name, text in _pairs(parameter, value)]
    if any(unquote(part) in (".", "..") for part in path.split("/")):
        raise ToolError(f"the path would be {path!r}, and '.' and '..' are not allowed in a path")
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    body, media = (None, None) if operation.body is None else _write_body(operation.body, arguments)
    if media is not None:
        headers["content-type"] = media
    return HttpCall(path + (f"?{'&'.join(query)}" if query else ""), headers, body)


def _write(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _quote(value: Json, safe: str = "") -> str:
    return quote(_write(value), safe=safe)


def _simple(parameter: Parameter, value: Json, write: Callable[[Json], str]) -> str:
    if parameter.style == "json":
        return write(msgspec.json.encode(value).decode())
    if isinstance(value, list):
        return ",".join(map(write, value))
    if isinstance(value, dict):
        join = "=" if parameter.is_exploded else ","
        return ",".join(f"{write(key)}{join}{write(item)}" for key, item in value.items())
    return write(value)


def _in_path(parameter: Parameter, value: Json) -> str:
    plain = _simple(parameter, value, _quote)
    if not plain:
        raise ToolError(f"{parameter.name!r} is {value!r}, which cannot be part of a path")
    return plain


def _in_header(parameter: Parameter, value: Json) -> str:
    text = _simple(parameter, value, _write)
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ToolError(f"{parameter.name!r} contains a control character, which is not allowed in a header")
    return text


def _pairs(parameter: Parameter, value: Json) -> Iterator[tuple[str, str]]:
    """Return pairs of names and quoted values."""
    safe = _RESERVED if parameter.has_reserved else ""
    name, style = parameter.name, parameter.style
    if style == "json":
        yield name, _quote(msgspec.json.encode(value).decode())
    elif style == "deepObject":
        yield from ((key, _quote(item, safe)) for key, item in _deep(name, value))
    elif isinstance(value, list):
        if parameter.is_exploded:
            yield from ((name, _quote(item, safe)) for item in value)
        elif value:
            yield name, ",".join(_quote(item, safe) for item in value)
    elif isinstance(value, dict):
        if parameter.is_exploded:
            yield from ((key, _quote(item, safe)) for key, item in value.items())
        elif value:
            flat = [part for pair in value.items() for part in pair]
            yield name, ",".join(_quote(part, safe) for part in flat)
    else:
        yield name, _quote(value, safe)


def _deep(name: str, value: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _deep(f"{name}[{key}]", item)
    elif isinstance(value, list):
        for item in value:
            yield from _deep(name, item)
    else:
        yield name, value


def _write_body(body: RequestBody, arguments: Mapping[str, Json]) -> tuple[bytes | None, str | None]:
    """Return the body and its media type, or `None` twice if there is no body."""
    if body.arguments:
        value: Any = {name: arguments[name] for name in body.arguments if name in arguments}
        if not value and not body.is_required:
            return None, None
    elif "body" in arguments:
        value = arguments["body"]
    else:
        return None, None
    if body.kind == "json":
        return msgspec.json.encode(value), body.media
    if body.kind == "text":
        return _write(value).encode(), body.media
    if not isinstance(value, dict):
        raise ToolError(f"the body must be an object to be sent as {body.media}")
    pairs = [
        (key, _write(item))
        for key, items in value.items()
        for item in (items if isinstance(items, list) else [items])
    ]
    return urlencode(pairs).encode(), "application/x-www-form-urlencoded"


_JSON = re.compile(r"application/json|[^/]+/[^/]+\+json")
_TEXT = re.compile(
    r"text/.+|[^/]+/[^/]+\+(xml|yaml)|"
    r"application/(xml|yaml|x-yaml|javascript|x-ndjson|jsonl|json-seq|x-www-form-urlencoded|graphql|toml)"
)
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_NO_CHARSETS = frozenset(("punycode", "idna", "unicode-escape", "raw-unicode-escape"))
"""Codecs of Python that are no encodings of texts. The time of the first grows with the square of the length."""
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
            value = decode_json(answer.body)
            text = msgspec.json.encode(value).decode()
        except msgspec.DecodeError:
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
        name = codecs.lookup(found[1] if found else "utf-8").name
        return body.decode("utf-8" if name in _NO_CHARSETS else name, errors="replace")
    except (LookupError, UnicodeError):
        return body.decode(errors="replace")


def _decode_strictly(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
