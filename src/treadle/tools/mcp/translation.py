"""The conversion of a server's definitions and results.

Source: Model Context Protocol, revisions 2025-11-25 and 2026-07-28: tool definitions and results.
"""

import base64
import binascii
import contextlib
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.core.types import Effect, Json
from treadle.tools.protocol import Attachment, ToolOutput
from treadle.tools.schema.validation import OutputChecker


def effect_of(annotations: Any) -> Effect:
    """Return the effect that a server declares for a tool, or `once` if it declares none."""
    if annotations is None:
        return Effect.ONCE
    if annotations.read_only_hint:
        return Effect.PURE
    return Effect.IDEMPOTENT if annotations.idempotent_hint else Effect.ONCE


def make_output_check(schema: Json) -> Callable[[Json], bool]:
    """Return a function that tells whether structured content fits `schema`.

    Without a schema, and with one that is not valid, it is always true.
    """
    if schema is None:
        return _is_anything
    checker = OutputChecker(schema)
    try:
        checker.find_fault(None)
    except ConfigError:
        return _is_anything
    return lambda value: checker.find_fault(value) is None


def to_output(result: Any, is_output_valid: Callable[[Json], bool]) -> ToolOutput:
    """Return a `CallToolResult` as text, structured content and attachments."""
    lines: list[str] = []
    attachments: list[Attachment] = []
    for block in result.content:
        text, attachment = _read_block(block)
        lines.append(text)
        if attachment is not None:
            attachments.append(attachment)
    structured = result.structured_content
    if structured is not None and not any(block.type == "text" for block in result.content):
        lines.insert(0, msgspec.json.encode(structured).decode())
    if structured is not None and not result.is_error and not is_output_valid(structured):
        # The model still has the text. Programs rely on the schema, so they get nothing that breaks it.
        structured = None
    return ToolOutput(
        "\n".join(lines),
        is_error=bool(result.is_error),
        structured=structured,
        attachments=tuple(attachments),
    )


def _read_block(block: Any) -> tuple[str, Attachment | None]:
    kind = block.type
    if kind == "text":
        return block.text, None
    if kind in ("image", "audio"):
        return _read_data(kind, block.data, block.mime_type)
    if kind == "resource_link":
        name = block.title or block.name
        note = f"[link {name}: {block.uri}]"
        return note, Attachment("link", mime_type=block.mime_type, uri=str(block.uri), name=name)
    if kind == "resource":
        resource = block.resource
        uri, mime_type = str(resource.uri), resource.mime_type
        if getattr(resource, "text", None) is not None:
            return f"[resource {uri}]\n{resource.text}", None
        return _read_data("resource", resource.blob, mime_type, uri)
    return f"[{kind}: unknown kind of content]", None


def _read_data(
    kind: str, text: str, mime_type: str | None, uri: str | None = None
) -> tuple[str, Attachment | None]:
    what = " ".join(part for part in (kind, mime_type, uri) if part)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what}: its data is not base64]", None
    return f"[{what}, {len(data):,} bytes]", Attachment(kind, data, mime_type, uri)


_NUMBER = re.compile(r'\s*\{.{0,200}?"id"\s*:\s*(\d{1,15}|"[^"\\]{1,100}")', re.DOTALL)


class UnreadableAnswer(Struct, frozen=True):
    """An answer of a server that is not valid."""

    number: int | str | None
    """The number of the request that it answers; `None` if it is not known."""


def find_answer(error: ValueError) -> UnreadableAnswer | None:
    """Return the answer that pydantic's `error` is about; `None` if it is about something else."""
    for item in error.errors() if hasattr(error, "errors") else ():
        message = item["input"]
        if isinstance(message, dict) and "method" not in message:
            number = message.get("id")
            if isinstance(number, int | str) and not isinstance(number, bool):
                return UnreadableAnswer(number)
            return UnreadableAnswer(None) if message.keys() & {"result", "error"} else None
        if isinstance(message, str) and (found := _NUMBER.match(message)):
            return UnreadableAnswer(int(found[1]) if found[1].isdecimal() else found[1].strip('"'))
    return None


_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escape sequence of JSON. The group is half of a surrogate pair, left by servers that cut texts anywhere."""


def mend_text(error: ValueError) -> Any:
    """Return the message that pydantic's `error` is about, with another character for each half of a surrogate
    pair; `None` if it cannot be read like this either."""
    for item in error.errors() if hasattr(error, "errors") else ():
        text = item["input"]
        if not isinstance(text, str) or not any([found[1] for found in _ESCAPE.finditer(text)]):
            continue
        mended = _ESCAPE.sub(lambda found: "\\ufffd" if found[1] else found[0], text)
        with contextlib.suppress(ValueError):
            types, shared = require("mcp_types", "mcp"), require("mcp.shared.message", "mcp")
            return shared.SessionMessage(types.jsonrpc_message_adapter.validate_json(mended, by_name=False))
    return None


def mend_listing(result: dict[str, Json]) -> None:
    """Correct or drop invalid tools on a page, since the SDK refuses the whole page because of a single one."""
    result["tools"] = [item for item in result["tools"] if isinstance(item, dict) and item.get("name")]
    for item in result["tools"]:
        schema = item.get("inputSchema")
        if not isinstance(schema, dict):
            item["inputSchema"] = {"type": "object"}
        elif schema.get("type") != "object":
            # By the protocol, arguments are always an object.
            item["inputSchema"] = {**schema, "type": "object"}
        if not isinstance(item.get("outputSchema", {}), dict):
            del item["outputSchema"]
        notes = item.get("annotations")
        if isinstance(notes, dict):
            item["annotations"] = {
                key: value for key, value in notes.items() if isinstance(value, bool) or key == "title"
            }
        elif notes is not None:
            del item["annotations"]


def _is_anything(value: Json) -> bool:
    return True
