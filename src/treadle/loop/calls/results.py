"""Calls as they are read and answered: the name and the arguments of a call, and its result.

The value that a tool returned becomes the result that the model reads, with its contents. The whole of a result
that was cut is found again here.
"""

import hashlib
import os
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import SandboxError, ToolError
from treadle.core.prompts.prompting import forget
from treadle.core.registry import find_near
from treadle.core.state import fold
from treadle.core.texts.json_text import is_deep
from treadle.core.texts.masking import Mask, mask_of
from treadle.core.types import (
    UNREADABLE_CALL,
    Artifact,
    Effect,
    Json,
    Role,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
)
from treadle.journal.protocol import Journal
from treadle.tools.protocol import Attachment, Decision, Tool, ToolOutput
from treadle.tools.read_again import cut_out

MAX_ARTIFACT_BYTES = 64 * 1024 * 1024
"""The largest attachment of a result; a larger one is left out."""
MAX_STRUCTURED_BYTES = 100_000
"""The largest structured result that an event holds; a larger or deeper one is kept as an artifact."""
LARGE_BYTES = 1 << 20
"""Texts of more characters, and contents of more bytes, are worked on in a thread, in pieces of this length."""

_MANY_ITEMS = 1000
"""A structured result of more items counts as large."""

Blobs: TypeAlias = dict[str, bytes]
"""Contents for the store, by their SHA-256 in hex."""


def failed(call: ToolCall, kind: ToolErrorKind, text: str) -> ToolResult:
    """Return a result that is an error."""
    return ToolResult(call.call_id, call.name, _to_unicode(text), is_error=True, error_kind=kind)


def describe_exception(error: BaseException, mask: Mask) -> str:
    """Return the text that tells the model about an exception of a tool, without the secrets of `mask`."""
    text = mask.hide(str(error))
    if isinstance(error, ToolError | SandboxError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_stop(spec: ToolSpec, *, is_running: bool) -> str:
    """Return the text about a call that ran out of time. The text says what is known about the call's outcome."""
    stopped = ". It could not be stopped and may still be running" if is_running else " and was stopped"
    text = f"{spec.name} did not finish within {spec.timeout_seconds} s{stopped}"
    if spec.effect is not Effect.ONCE:
        return f"{text}."
    so = ", so its" if is_running else ". Its"
    return (
        f"{text}{so} outcome is unknown: it may or may not have taken effect. Check before you call it again."
    )


def is_large(outcome: object) -> bool:
    """Return whether a tool's return value is so large that `to_result` should run in a thread."""
    return (len(outcome) if type(outcome) is str else _size_of(outcome)) > LARGE_BYTES


def _size_of(outcome: object) -> int:
    if isinstance(outcome, str):
        return len(outcome)
    if not isinstance(outcome, ToolOutput):
        return 0
    if isinstance(outcome.structured, list | dict) and len(outcome.structured) > _MANY_ITEMS:
        return LARGE_BYTES + 1
    return len(outcome.content) + sum([len(item.content or b"") for item in outcome.attachments])


def to_result(call: ToolCall, outcome: object, max_chars: int, mask: Mask) -> tuple[ToolResult, Blobs | None]:
    """Return the tool result for a tool's return value, and the contents of its artifacts, without the secrets of
    `mask`.

    A text longer than `max_chars` is cut in the middle, and its full text becomes the first artifact.
    """
    if mask and isinstance(outcome, str | ToolOutput):
        outcome = mask.hide(outcome) if isinstance(outcome, str) else outcome.without(mask)
    if type(outcome) is str and len(outcome) <= max_chars:
        text = outcome if outcome.isascii() else _to_unicode(outcome)
        return ToolResult(call.call_id, call.name, text), None
    if not isinstance(outcome, str | ToolOutput):
        text = f"{call.name} returned {type(outcome).__name__}, and not a text."
        return failed(call, ToolErrorKind.FAILED, text), None
    output = ToolOutput(outcome) if isinstance(outcome, str) else outcome
    blobs: Blobs = {}
    artifacts = []
    text = _to_unicode(output.content)
    kind = ToolErrorKind.FAILED if output.is_error else None
    if len(text) > max_chars:
        whole = Attachment("text", b"".join(map(str.encode, _pieces(text))), "text/plain")
        is_kept = len(whole.content or b"") <= MAX_ARTIFACT_BYTES
        text = cut_out(text, max_chars, "; ask for less at a time")
        if is_kept:
            artifacts.append(_to_artifact(whole, blobs))
        else:
            kind = ToolErrorKind.TOO_LONG
    structured, attachments = output.structured, output.attachments
    data = b"" if structured is None else msgspec.json.encode(structured)
    if len(data) > MAX_STRUCTURED_BYTES or is_deep(data):
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


def _to_unicode(text: str) -> str:
    """Return `text` with lone surrogates, as in file names that are not UTF-8, replaced by escape sequences."""
    if text.isascii():
        return text
    return "".join([piece.encode(errors="backslashreplace").decode() for piece in _pieces(text)])


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, so that a thread which encodes it lets other threads run in between."""
    if len(text) <= LARGE_BYTES:
        yield text
        return
    for start in range(0, len(text), LARGE_BYTES):
        yield text[start : start + LARGE_BYTES]


def _to_artifact(item: Attachment, blobs: Blobs) -> Artifact:
    if item.content is None:
        return Artifact(item.kind, mime_type=item.mime_type, uri=item.uri, name=item.name)
    digest = hashlib.sha256(item.content).hexdigest()
    blobs[digest] = item.content
    return Artifact(item.kind, digest, len(item.content), item.mime_type, item.uri, item.name)


def find_result(journal: Journal, run_id: str, call_id: str) -> ToolResult | None:
    """Return the result of a call of a run with its whole text; `None` if there is no such call. Blocks."""
    for event in journal.scan(run_id):
        body = event.body
        if isinstance(body, e.ToolCompleted) and body.result.call_id == call_id:
            first = next(iter(body.result.artifacts), None)
            if first is None or first.kind != "text":
                return body.result
            return replace(body.result, content=_read_text(journal, first))
    return None


def find_message(journal: Journal, run_id: str, number: int) -> str | None:
    """Return the text of a message of the user and of the text files among its parts, without what was recalled
    for it; `None` if there is no such message. `number` is its position in the run's transcript, from 1. Blocks."""
    transcript = fold([event.body for event in journal.scan(run_id)]).transcript
    message = transcript[number - 1] if 0 < number <= len(transcript) else None
    if message is None or message.role is not Role.USER:
        return None
    files = [_read_text(journal, part) for part in message.parts if part.kind == "text"]
    return "\n\n".join([forget(message, message.own_chars).content, *files])


def _read_text(journal: Journal, part: Artifact) -> str:
    data = b64decode(part.data) if part.data is not None else journal.read_blob(part.digest or "")
    return data.decode(errors="replace")


class Order(Struct, frozen=True, gc=False):
    """A call to make, with its context."""

    call: ToolCall
    step: int = 1
    """The number of the step."""
    attempt: int = 1
    """The number of the attempt, from 1."""
    parent_call_id: str | None = None
    """The id of the outer call, if this is an inner call; `None` for a call of the model."""
    is_cut_off: bool = False
    """True if the model's output limit cut off the answer that contains the call."""
    edited: str | None = None
    """Arguments from the approver that replace the model's; the result tells the model about them. `None`: no
    change."""
    last_once: int = 0
    """The number of the last `once` call that an interrupted attempt at this call started; 0 if none did."""


def to_started(order: Order, call: ToolCall, spec: ToolSpec) -> e.ToolStarted:
    """Return the event for a call that begins to run."""
    return e.ToolStarted(
        step=order.step,
        call_id=call.call_id,
        name=call.name,
        effect=spec.effect,
        attempt=order.attempt,
        parent_call_id=order.parent_call_id,
        arguments=None if order.parent_call_id is None else call.arguments,
    )


def to_decided(call_id: str, decision: Decision) -> e.ApprovalDecided:
    """Return the event for a decision about a call."""
    return e.ApprovalDecided(
        call_id=call_id,
        is_approved=decision.is_approved,
        reason=decision.reason,
        arguments=decision.new_arguments,
    )


def read_call(
    call: ToolCall, tools: Mapping[str, Tool], *, is_cut_off: bool = False
) -> tuple[Tool, dict[str, Json]] | ToolResult:
    """Return the tool and its arguments, or an error result that tells the model what is wrong with the call.

    `is_cut_off` is true if the model's output limit cut off the answer that contains the call.
    """
    tool = tools.get(call.name)
    if tool is None and call.name == UNREADABLE_CALL:
        said = (call.opaque or {}).get(UNREADABLE_CALL)
        why = f" ({said})" if said else ""
        text = f"The call could not be read{why}, so it was not run. Name a tool, and give one JSON object."
        return failed(call, ToolErrorKind.INVALID_JSON, text)
    if tool is None:
        return failed(call, ToolErrorKind.UNKNOWN_TOOL, _unknown_tool(call.name, tools))
    try:
        arguments = call.parsed
    except msgspec.DecodeError as error:
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
        said = describe_exception(error, mask_of(os.environ))
        return failed(call, ToolErrorKind.FAILED, f"The call was not run: {said}")
    if fault is not None:
        return failed(call, ToolErrorKind.INVALID_ARGUMENTS, f"The call was not run: {fault}")
    return tool, arguments


def _unknown_tool(name: str, tools: Mapping[str, Tool]) -> str:
    near = find_near(name, tools)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    known = ", ".join(tools) if tools else "none"
    return f"There is no tool {name!r}.{hint} The tools are: {known}."
