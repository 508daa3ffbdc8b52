"""From a tool's arguments to an HTTP request, and from its answer to a result."""

import base64
import binascii
import secrets
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from treadle.core.errors import ToolError
from treadle.core.types import Json
from treadle.tools.http import HttpAnswer
from treadle.tools.openapi.document import Operation, Parameter
from treadle.tools.protocol import Attachment, ToolOutput


class HttpCall(Struct, frozen=True):
    """What is sent, less what proves who sends it."""

    path: str
    """With its query."""
    headers: dict[str, str]
    body: bytes | None


def build(operation: Operation, arguments: Mapping[str, Json]) -> HttpCall:
    """The request. Raises: `ToolError` for an argument that cannot be written."""
    path, query, headers, cookies = operation.path, [], {}, []
    for parameter in operation.places:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            text = quote(_simple(parameter, value), safe="")
            if text in ("", ".", ".."):
                raise ToolError(f"{parameter.name!r} is {value!r}, which cannot stand in a path")
            path = path.replace(f"{{{parameter.name}}}", text)
        elif parameter.place == "query":
            query += list(_pairs(parameter, value))
        elif parameter.place == "header":
            headers[parameter.name] = _header(parameter.name, _simple(parameter, value))
        else:
            cookies += [f"{name}={quote(text)}" for name, text in _pairs(parameter, value)]
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    body, media = _body(operation, arguments)
    if media is not None:
        headers["content-type"] = media
    headers.setdefault("accept", "application/json, text/*;q=0.8, */*;q=0.5")
    return HttpCall(path + (f"?{urlencode(query, quote_via=quote)}" if query else ""), headers, body)


def read(answer: HttpAnswer) -> ToolOutput:
    """The result that an answer says."""
    media = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_error = answer.status >= 400
    head = f"HTTP {answer.status}"
    wait = answer.headers.get("retry-after")
    if is_error and wait:
        head += f" (retry after {wait})"
    if media == "application/json" or media.endswith("+json"):
        try:
            value = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            return _text(answer, head, is_error=is_error)
        text = msgspec.json.encode(value).decode()
        return ToolOutput(f"{head}\n{text}" if is_error else text, is_error=is_error, structured=value)
    if (
        media.startswith(("text/", "application/xml", "application/javascript"))
        or not answer.body
        or is_error
    ):
        return _text(answer, head, is_error=is_error)
    kind = "image" if media.startswith("image/") else "audio" if media.startswith("audio/") else "resource"
    note = f"[{kind} {media or 'of unknown type'}, {len(answer.body):,} bytes]"
    return ToolOutput(note, attachments=(Attachment(kind, answer.body, media or None),))


def _text(answer: HttpAnswer, head: str, *, is_error: bool) -> ToolOutput:
    text = answer.body.decode(errors="replace")
    if is_error or not text:
        text = f"{head}\n{text}".strip()
    return ToolOutput(text, is_error=is_error)


def _write(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _simple(parameter: Parameter, value: Json) -> str:
    if isinstance(value, list):
        return ",".join(map(_write, value))
    if isinstance(value, dict):
        join = "=" if parameter.is_exploded else ","
        return ",".join(f"{key}{join}{_write(item)}" for key, item in value.items())
    return _write(value)


def _pairs(parameter: Parameter, value: Json) -> Iterator[tuple[str, str]]:
    name = parameter.name
    if isinstance(value, list):
        if parameter.is_exploded and parameter.style == "form":
            yield from ((name, _write(item)) for item in value)
            return
        separator = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
        yield name, separator.join(map(_write, value))
    elif isinstance(value, dict):
        if parameter.style == "deepObject":
            yield from ((f"{name}[{key}]", _write(item)) for key, item in value.items())
        elif parameter.is_exploded:
            yield from ((key, _write(item)) for key, item in value.items())
        else:
            yield name, ",".join(f"{key},{_write(item)}" for key, item in value.items())
    else:
        yield name, _write(value)


def _header(name: str, text: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ToolError(f"{name!r} holds a control character, which a header cannot carry")
    return text


def _body(operation: Operation, arguments: Mapping[str, Json]) -> tuple[bytes | None, str | None]:
    kind, media = operation.body_kind, operation.body_type
    if kind is None:
        return None, None
    if operation.body_arguments:
        value: Any = {name: arguments[name] for name in operation.body_arguments if name in arguments}
    elif "body" in arguments:
        value = arguments["body"]
    else:
        return None, None
    if kind == "json":
        return msgspec.json.encode(value), media
    if kind == "form":
        pairs = [(key, _write(item)) for key, items in value.items() for item in _each(items)]
        return urlencode(pairs).encode(), media
    if kind == "multipart":
        return _multipart(value)
    if kind == "text":
        return _write(value).encode(), media
    try:
        return base64.b64decode(_write(value), validate=True), media
    except (binascii.Error, ValueError) as error:
        raise ToolError(f"the body is not base64: {error}") from None


def _each(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _multipart(value: Mapping[str, Json]) -> tuple[bytes, str]:
    boundary = secrets.token_hex(16)
    lines = []
    for name, items in value.items():
        for item in _each(items):
            safe = name.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "")
            lines.append(
                f'--{boundary}\r\nContent-Disposition: form-data; name="{safe}"\r\n\r\n{_write(item)}\r\n'
            )
    lines.append(f"--{boundary}--\r\n")
    return "".join(lines).encode(), f"multipart/form-data; boundary={boundary}"
