"""From a call to a tool and its arguments, and from what the tool gave to a result. Every failure is a result."""

import difflib
import hashlib
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from treadle.core.errors import SandboxError, ToolError
from treadle.core.types import Artifact, Json, ToolCall, ToolErrorKind, ToolResult
from treadle.tools.protocol import Attachment, Tool, ToolOutput

MAX_ARTIFACT_BYTES = 64 * 1024 * 1024
"""A larger attachment is left out of the result."""
MAX_STRUCTURED_BYTES = 100_000
"""A larger structured result is kept as an artifact and not in the event."""

Blobs: TypeAlias = dict[str, bytes]
"""Contents by SHA-256, hex."""


def read_call(
    call: ToolCall, tools: Mapping[str, Tool], *, is_cut_off: bool = False
) -> tuple[Tool, dict[str, Json]] | ToolResult:
    """Return the tool and its arguments, or the result that tells the model what is wrong with the call.

    `is_cut_off` tells that the model's output limit ended the answer that holds the call.
    """
    tool = tools.get(call.name)
    if tool is None:
        return failed(call, ToolErrorKind.UNKNOWN_TOOL, _unknown_tool(call.name, tools))
    try:
        arguments = call.parsed
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if is_cut_off:
            text = (
                "The arguments were cut off by the output limit, so the call was not run. Call again with "
                "shorter arguments, in several calls if need be."
            )
            return failed(call, ToolErrorKind.TRUNCATED, text)
        text = f"The arguments are not valid JSON ({error}), so the call was not run. Send one JSON object."
        return failed(call, ToolErrorKind.INVALID_JSON, text)
    try:
        fault = tool.find_fault(arguments)
    except Exception as error:
        return failed(call, ToolErrorKind.FAILED, f"The call was not run: {describe_exception(error)}")
    if fault is not None:
        return failed(call, ToolErrorKind.INVALID_ARGUMENTS, f"The call was not run: {fault}")
    return tool, arguments


def failed(call: ToolCall, kind: ToolErrorKind, text: str) -> ToolResult:
    """Return a result that is an error."""
    return ToolResult(call.call_id, call.name, to_unicode(text), is_error=True, error_kind=kind)


def to_result(call: ToolCall, outcome: object, max_chars: int) -> tuple[ToolResult, Blobs | None]:
    """Return the result for what a tool returned, and the contents of its artifacts.

    A text longer than `max_chars` is cut in the middle, and the whole is kept as the first artifact.
    """
    if type(outcome) is str and len(outcome) <= max_chars:
        return ToolResult(call.call_id, call.name, to_unicode(outcome)), None
    if not isinstance(outcome, str | ToolOutput):
        text = f"{call.name} returned {type(outcome).__name__}, and not a text."
        return failed(call, ToolErrorKind.FAILED, text), None
    output = ToolOutput(outcome) if isinstance(outcome, str) else outcome
    blobs: Blobs = {}
    artifacts = []
    text = to_unicode(output.content)
    kind = ToolErrorKind.FAILED if output.is_error else None
    if len(text) > max_chars:
        whole = Attachment("text", text.encode(), "text/plain")
        is_kept = len(whole.content or b"") <= MAX_ARTIFACT_BYTES
        text = _cut_middle(text, max_chars)
        if is_kept:
            artifacts.append(_to_artifact(whole, blobs))
        else:
            kind = ToolErrorKind.TOO_LONG
    structured, attachments = output.structured, output.attachments
    if structured is not None and len(data := msgspec.json.encode(structured)) > MAX_STRUCTURED_BYTES:
        structured = None
        attachments = (*attachments, Attachment("structured", data, "application/json"))
    for item in attachments:
        if item.content is not None and len(item.content) > MAX_ARTIFACT_BYTES:
            text += f"\n[{item.kind} of {len(item.content):,} bytes left out: it is too large]"
        else:
            artifacts.append(_to_artifact(item, blobs))
    result = ToolResult(
        call.call_id,
        call.name,
        text,
        is_error=kind is not None,
        error_kind=kind,
        is_simulated=output.is_simulated,
        structured=structured,
        artifacts=tuple(artifacts),
    )
    return result, blobs


def describe_exception(error: BaseException) -> str:
    """Return what the model is told about an exception that a tool raised."""
    text = str(error)
    if isinstance(error, ToolError | SandboxError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def to_unicode(text: str) -> str:
    """Return `text` with lone surrogates (from file names that are not UTF-8) written out as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _to_artifact(item: Attachment, blobs: Blobs) -> Artifact:
    if item.content is None:
        return Artifact(item.kind, mime_type=item.mime_type, uri=item.uri, name=item.name)
    digest = hashlib.sha256(item.content).hexdigest()
    blobs[digest] = item.content
    return Artifact(item.kind, digest, len(item.content), item.mime_type, item.uri, item.name)


def _unknown_tool(name: str, tools: Mapping[str, Tool]) -> str:
    near = difflib.get_close_matches(name, tools, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(item) for item in near)}?" if near else ""
    known = ", ".join(tools) if tools else "none"
    return f"There is no tool {name!r}.{hint} The tools are: {known}."


def _cut_middle(content: str, limit: int) -> str:
    head, tail = limit * 2 // 3, limit // 3
    left_out = len(content) - head - tail
    note = f"[… {left_out:,} of {len(content):,} characters left out; ask for less at a time …]"
    return f"{content[:head]}\n{note}\n{content[len(content) - tail :]}"
