"""The function `decide_inner`, which decides about an inner call: a call of another tool by a running tool.

Inner calls are numbered in the order in which they are made. When the outer call runs again after a crash, the
files are restored to their state before it, so its inner calls run again too, except those with the effect
`once`: they are answered from the journal. If the outer call makes different inner calls than before, the
journal has no answers for them. If the earlier attempt made a `once` call at the first difference or after it, the
outcome of the outer call is unknown: it is in doubt.
"""

from typing import TypeAlias

from msgspec import Struct

from treadle.core.decide import refuse_over_limit, refuse_over_retries, refuse_unapproved, unknown_outcome
from treadle.core.policy import Approval
from treadle.core.state import CallState, InnerCall, State
from treadle.core.types import Effect, ToolCall, ToolErrorKind, ToolResult


class Run(Struct, frozen=True, gc=False):
    """The decision to run the call."""

    call: ToolCall
    attempt: int
    """The number of the attempt, from 1."""
    needs_approval: bool = False
    """True if somebody must approve the call first."""


class Settle(Struct, frozen=True, gc=False):
    """The decision not to run the call, with a result that must still be recorded."""

    result: ToolResult


class Recall(Struct, frozen=True, gc=False):
    """The decision not to run the call, with the result that the journal already holds."""

    result: ToolResult


class Doubt(Struct, frozen=True, gc=False):
    """The decision that the outer call is in doubt. This call does not run, and the tool gets `result`."""

    result: ToolResult


InnerDecision: TypeAlias = Run | Settle | Recall | Doubt


def decide_inner(state: State, parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
    """Decide about an inner call of the running call `parent_id`; `number` counts its inner calls from 1."""
    parent = state.calls.get(parent_id)
    call = ToolCall(f"{parent_id}/{number}", name, arguments)
    known: InnerCall | None = None
    if parent is not None and parent.inner:
        made = _made_at(parent, call.call_id)
        known = next((item for item in made if _is_call(item, name, arguments)), None)
        others = [item for item in made if item is not known]
        if any([item.effect is Effect.ONCE for item in others]) or (
            known is None and made and last_once(parent) > number
        ):
            return Doubt(_refuse_other(call))
        if known is not None:
            call = known.call
        elif made:
            # The id is the idempotency key, which must stand for one payload, so a different call gets another id.
            call = ToolCall(f"{call.call_id}~{parent.attempt}", name, arguments)
    if known is not None and known.effect is Effect.ONCE:
        return Settle(unknown_outcome(call)) if known.result is None else Recall(known.result)
    refused = _refuse(state, call)
    if refused is not None:
        return Settle(refused)
    attempt = 1 if known is None else known.attempt + 1
    return Run(call, attempt, needs_approval=_approval_of(state, call) is Approval.ASK)


def last_once(parent: CallState) -> int:
    """Return the number of the last `once` call that an interrupted attempt at `parent` started; 0 if none did."""
    return max([_number_of(item) for item in parent.inner.values() if _is_once(item)], default=0)


def _made_at(parent: CallState, call_id: str) -> list[InnerCall]:
    """Return the calls that were started at a number: `call_id` is the id of the first one."""
    ids = [call_id, *[f"{call_id}~{attempt}" for attempt in range(2, parent.attempt + 1)]]
    found = [parent.inner[item] for item in ids if item in parent.inner]
    return [item for item in found if item.attempt]


def _is_call(item: InnerCall, name: str, arguments: str) -> bool:
    return (item.call.name, item.call.arguments) == (name, arguments)


def _is_once(item: InnerCall) -> bool:
    return item.effect is Effect.ONCE and item.attempt > 0


def _number_of(item: InnerCall) -> int:
    number = item.call.call_id.rpartition("/")[2].partition("~")[0]
    return int(number) if number.isdecimal() else 0


def refuse_after_doubt(call: ToolCall) -> ToolResult:
    """Return the result of an inner call that is made after the outer call was found to be in doubt."""
    text = f"{call.name} was not called: what this code did before it was interrupted is unknown."
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.IN_DOUBT)


def _refuse_other(call: ToolCall) -> ToolResult:
    text = (
        f"{call.name} was not called: before it was interrupted, this code made another call here, and one that "
        "cannot be undone. What it did is unknown."
    )
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.IN_DOUBT)


def _refuse(state: State, call: ToolCall) -> ToolResult | None:
    """Return the result for a call that a limit or the policy forbids; `None` if it may run."""
    most = state.policy.max_tool_calls
    # The model's open calls, including the outer call, count too.
    if most is not None and state.spent.tool_calls + state.open_calls >= most:
        text = f"Not run: the turn has made its {most} tool calls."
        return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.NOT_RUN)
    limit = state.call_limits.get(call.name)
    if limit is not None and state.spent.calls_by_tool.get(call.name, 0) >= limit:
        return refuse_over_limit(call, limit)
    if state.spent.retries_by_tool and (refused := refuse_over_retries(state, call)) is not None:
        return refused
    if _approval_of(state, call) is Approval.NEVER:
        return refuse_unapproved(call, None)
    return None


def _approval_of(state: State, call: ToolCall) -> Approval:
    return state.policy.approval_of(call.name, state.effects.get(call.name))
