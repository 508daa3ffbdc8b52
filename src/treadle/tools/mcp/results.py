"""From what a server answers to what the loop keeps.

Source: Model Context Protocol, revisions 2025-11-25 and 2026-07-28: tool definitions and results.
"""

import base64
import binascii
from typing import Any

import msgspec

from treadle.core.types import Effect, Json
from treadle.tools.protocol import Attachment, ToolOutput


def effect_of(annotations: Any) -> Effect:
    """What the server says that a second call would do; a tool of which it says nothing is `once`."""
    if annotations is None:
        return Effect.ONCE
    if annotations.read_only_hint:
        return Effect.PURE
    return Effect.IDEMPOTENT if annotations.idempotent_hint else Effect.ONCE


def to_output(result: Any) -> ToolOutput:
    """A `CallToolResult` as text, structured content and attachments."""
    lines: list[str] = []
    attachments: list[Attachment] = []
    for block in result.content:
        text, attachment = _read_block(block)
        lines.append(text)
        if attachment is not None:
            attachments.append(attachment)
    structured = result.structured_content
    if not lines and structured is not None:
        lines.append(msgspec.json.encode(structured).decode())
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
    return f"[{kind}: a content that this version does not know]", None


def _read_data(
    kind: str, text: str, mime_type: str | None, uri: str | None = None
) -> tuple[str, Attachment | None]:
    what = " ".join(part for part in (kind, mime_type, uri) if part)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what}: its data is not base64]", None
    return f"[{what}, {len(data):,} bytes]", Attachment(kind, data, mime_type, uri)


def to_json(value: Any) -> Json:
    """A pydantic model or plain value as JSON has it."""
    return (
        value.model_dump(mode="json", by_alias=True, exclude_none=True)
        if hasattr(value, "model_dump")
        else value
    )
