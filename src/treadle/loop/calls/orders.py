"""Orders: the calls that a workbench makes, and the reading of their names and arguments."""

import difflib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.types import UNREADABLE_CALL, Json, ToolCall, ToolErrorKind, ToolResult, ToolSpec
from treadle.loop.calls.results import describe_exception, failed
from treadle.tools.protocol import Decision, Tool

_decode = msgspec.json.Decoder().decode


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
        arguments=decision.arguments,
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
        text = call.arguments
        arguments = _decode(text) if text.startswith("{") else call.parsed
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


def _unknown_tool(name: str, tools: Mapping[str, Tool]) -> str:
    near = difflib.get_close_matches(name, tools, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(item) for item in near)}?" if near else ""
    known = ", ".join(tools) if tools else "none"
    return f"There is no tool {name!r}.{hint} The tools are: {known}."
