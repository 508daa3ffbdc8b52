"""The calls of a step: the events about them, limits, approvals and doubt, and the calls that tools make.

A call that was started and has no result when `decide` is asked is *in doubt*: the process that ran it has ended.

Calls of other tools by a running tool are *inner calls*. They are numbered in the order in which they are made.
When the outer call runs again after a crash, the files are restored to their state before it, so its inner calls
run again too, except those with the effect `once`: they are answered from the journal. If the outer call makes
other inner calls than before, the journal has no answers for them. If the earlier attempt made a `once` call at the
first difference or after it, the outer call is in doubt.
"""

from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.actions import Action, Append, AskApprover, AskUser, RequestApprovals, RunCalls
from treadle.core.answering import end_turn
from treadle.core.asking import leave_out_wait, open_questions, withdraw
from treadle.core.limits import (
    charge,
    count_call,
    is_counted,
    is_past_deadline,
    refuse_over_limit,
    refuse_over_retries,
)
from treadle.core.parts import parts_among
from treadle.core.policy import Approval, InDoubt
from treadle.core.prompts.prompting import add_message
from treadle.core.types import Effect, Message, Role, StopReason, ToolCall, ToolErrorKind, ToolResult

if TYPE_CHECKING:
    from treadle.core.state import State

# An attribute of an enum takes longer to look up than a global name.
_TOOL = Role.TOOL
_UNKNOWN_TOOL = ToolErrorKind.UNKNOWN_TOOL
_REJECTIONS = (ToolErrorKind.INVALID_JSON, ToolErrorKind.INVALID_ARGUMENTS, ToolErrorKind.TRUNCATED)
"""Errors of a call of the answer tool that count as an answer that does not fit the schema."""


class InnerCall(Struct, gc=False):
    """A call of another tool that a running tool made."""

    call: ToolCall
    effect: Effect
    attempt: int
    """How often the call was started; 0 if it never was."""
    result: ToolResult | None = None
    """The result; `None` if it is not recorded."""
    is_counted: bool = False
    """True once the call counts for the limits of the turn. A call that is made again counts once."""


class CallState(Struct, gc=False):
    """The state of one tool call of the current step."""

    call: ToolCall
    attempt: int = 0
    """How often the call was started."""
    effect: Effect | None = None
    """The tool's effect when the call was started; `None` if it was not started."""
    result: ToolResult | None = None
    """The result; `None` if it is not recorded."""
    question_id: str | None = None
    """The id of the question to the user about the call's lost outcome; `None` if none was asked."""
    approval: e.ApprovalRequested | e.ApprovalDecided | None = None
    """The newest event about whether the call may run; `None` if there is none."""
    inner: dict[str, InnerCall] = {}
    """The calls of other tools that this call made while it ran, by id, in order."""

    @property
    def doubt_id(self) -> str:
        """The id of the question about the lost outcome of the newest attempt."""
        return f"{self.call.call_id}/{self.attempt}"

    def clone(self) -> "CallState":
        """Return a copy that can be changed without changing the original."""
        new = copy(self)
        new.inner = {call_id: copy(inner) for call_id, inner in self.inner.items()}
        return new


# What events change.


def fold_started(state: "State", body: e.ToolStarted) -> None:
    """Note that a call of the model, or an inner call, was started."""
    item = state.turn.calls.get(body.parent_call_id or body.call_id)
    if item is None:
        return
    if body.parent_call_id is None:
        item.attempt, item.effect = body.attempt, body.effect
        return
    call = ToolCall(body.call_id, body.name, body.arguments or "")
    made = item.inner.pop(body.call_id, None)  # a call that is made again moves to the end
    is_counted = made is not None and made.is_counted
    item.inner[body.call_id] = InnerCall(call, body.effect, body.attempt, is_counted=is_counted)


def fold_completed(state: "State", body: e.ToolCompleted) -> None:
    """Note the result of a call. The results of a step join the transcript together, in the order of the calls."""
    result, turn = body.result, state.turn
    if body.parent_call_id is not None:
        _fold_inner(state, result, body.parent_call_id)
        return
    count_call(state, result)
    if body.child is not None:
        charge(state, body.child.usage, body.child.cost_usd)
    state.size.unsent_chars += len(result.content)
    item = turn.calls.get(result.call_id)
    if item is not None:
        if item.result is None:
            turn.open_calls -= 1
        if isinstance(item.approval, e.ApprovalRequested) and state.is_since(2, 7):
            # The turn ends before somebody decides.
            leave_out_wait(state, body.at)
        item.result = result
    if state.output_spec is not None and result.name == state.output_spec.tool:
        if item is not None and not result.is_error:
            turn.final = item.call.arguments
        if result.error_kind in _REJECTIONS:
            turn.spent.rejected_answers += 1
    if not turn.open_calls:
        if turn.unknown_names or result.error_kind is _UNKNOWN_TOOL or len(turn.calls) > 1:
            _note_unknown(state)
        for item in turn.calls.values():
            if item.result is not None:
                said = to_message(item.result)
                is_own = said.name in state.shown.fencing
                add_message(state, replace(said, own_chars=len(said.content)) if is_own else said)
        turn.calls = {}


def to_message(result: ToolResult) -> Message:
    """Return the tool message that tells `result` to the model."""
    return Message(
        _TOOL,
        result.content,
        call_id=result.call_id,
        name=result.name,
        is_error=result.is_error,
        parts=parts_among(result.artifacts) if result.artifacts else (),
    )


def _note_unknown(state: "State") -> None:
    """Note the names without a tool that the step has called, and those of them that it has called again."""
    turn = state.turn
    kinds = [(item.call.name, item.result) for item in turn.calls.values() if item.result is not None]
    names = dict.fromkeys([name for name, result in kinds if result.error_kind is ToolErrorKind.UNKNOWN_TOOL])
    if not names and not turn.unknown_names:
        return
    turn.misnamed = tuple([name for name in names if name in turn.unknown_names])
    known = frozenset() if any([not result.is_error for _, result in kinds]) else turn.unknown_names
    turn.unknown_names = known | names.keys()


def _fold_inner(state: "State", result: ToolResult, parent_call_id: str) -> None:
    parent = state.turn.calls.get(parent_call_id)
    if parent is None:
        return
    known = parent.inner.get(result.call_id)
    if known is None:
        # The call was refused before it was started.
        call = ToolCall(result.call_id, result.name, "")
        known = parent.inner[result.call_id] = InnerCall(call, Effect.PURE, 0)
    known.result = result
    if not known.is_counted:
        count_call(state, result)
        known.is_counted = True


def fold_approval(state: "State", body: e.ApprovalRequested | e.ApprovalDecided) -> None:
    """Note that a call waits for approval, or what was decided about it."""
    item = state.turn.calls.get(body.call_id)
    if item is not None:
        item.approval = body
    if isinstance(body, e.ApprovalDecided):
        leave_out_wait(state, body.at)


def waiting_calls(state: "State") -> tuple[CallState, ...]:
    """Return the calls that wait for somebody's approval."""
    calls = state.turn.calls.values()
    return tuple(
        [item for item in calls if item.result is None and isinstance(item.approval, e.ApprovalRequested)]
    )


def external_calls(state: "State") -> tuple[CallState, ...]:
    """Return the calls that were started and that the program which uses the run makes."""
    if state.is_relayed:
        return tuple([item for item in state.turn.calls.values() if item.result is None])
    if not state.shown.external:
        return ()
    return tuple(
        [
            item
            for item in state.turn.calls.values()
            if item.result is None and item.attempt and item.call.name in state.shown.external
        ]
    )


def wait_for_results(state: "State") -> Append:
    """Return the pause until the program that uses the run has sent the results of its calls."""
    ids = tuple([item.call.call_id for item in external_calls(state)])
    return Append((e.RunPaused(reason="result", call_ids=ids),))


# What follows for the open calls of the model.


def decide_calls(state: "State") -> Action:
    """Return the next action about the calls of the current step, at least one of which has no result."""
    turn, policy = state.turn, state.policy
    open_calls = list(turn.calls.values())
    if len(open_calls) > turn.open_calls:
        open_calls = [item for item in open_calls if item.result is None]
    if state.shown.external and (external := external_calls(state)):
        open_calls = [item for item in open_calls if item not in external]
        if not open_calls:
            return wait_for_results(state)
    is_late = policy.deadline_seconds is not None and is_past_deadline(state)
    if turn.limit is not None or is_late:
        # At a wrap-up only the answer tool may be called.
        unrun = [item for item in open_calls if is_late or item.call.name != state.output_tool]
        if unrun:
            return _settle(state, [_unrun(state, item, turn.limit) for item in unrun])
        return RunCalls(tuple(open_calls))
    doubtful = []
    for item in open_calls:
        if item.attempt and item.effect is Effect.ONCE:
            doubtful.append(item)
    if doubtful:
        return _decide_doubt(state, doubtful)
    if policy.max_tool_calls is not None:
        room = max(0, policy.max_tool_calls - turn.spent.tool_calls)
        if over := [item for item in open_calls if is_counted(state, item.call.name)][room:]:
            return _settle(state, [_unrun(state, item, StopReason.MAX_TOOL_CALLS) for item in over])
    if state.call_limits and (refused := _find_over_limit(state, open_calls)):
        return _settle(state, refused)
    if turn.spent.retries_by_tool:
        found = [refuse_over_retries(state, item.call) for item in open_calls if not item.attempt]
        if refused := [result for result in found if result is not None]:
            return _settle(state, refused)
    if policy.approve and (action := _decide_approvals(state, open_calls)) is not None:
        return action
    if turn.questions:
        # Calls that do not wait for an answer run first.
        questions = open_questions(state)
        waiting = {body.call_id for body in questions}
        ready = [item for item in open_calls if item.call.call_id not in waiting]
        return RunCalls(tuple(ready)) if ready else AskUser(questions)
    return RunCalls(tuple(open_calls))


def _find_over_limit(state: "State", open_calls: list[CallState]) -> list[ToolResult]:
    """Return a result for each open call of a tool that has already been called as often as it may be."""
    earlier: dict[str, int] = {}
    over = []
    for item in open_calls:
        name = item.call.name
        refused = refuse_over_limit(state, item.call, earlier.get(name, 0))
        earlier[name] = earlier.get(name, 0) + 1
        if refused is not None:
            over.append(refused)
    return over


def _decide_approvals(state: "State", open_calls: list[CallState]) -> Action | None:
    """Return what must happen before the open calls may run; `None`: nothing. An approval holds all of them."""
    effects = {tool.name: tool.effect for tool in state.tools}
    refused: list[ToolResult] = []
    unasked: list[CallState] = []
    waiting: list[CallState] = []
    for item in open_calls:
        name, said = item.call.name, item.approval
        approval = state.policy.approval_of(name, effects.get(name))
        if isinstance(said, e.ApprovalDecided):
            if not said.is_approved:
                refused.append(refuse_unapproved(item.call, said))
        elif item.attempt:
            pass
        elif approval is Approval.NEVER and name in effects:
            refused.append(refuse_unapproved(item.call, None))
        elif said is not None:
            waiting.append(item)
        elif approval is Approval.ASK:
            unasked.append(item)
    if refused:
        return _settle(state, refused)
    if unasked:
        return RequestApprovals(tuple(unasked))
    return AskApprover(tuple(waiting)) if waiting else None


def _decide_doubt(state: "State", doubtful: list[CallState]) -> Append | AskUser:
    if state.policy.in_doubt is InDoubt.TELL:
        return _settle(state, [unknown_outcome(item.call) for item in doubtful])
    own = [item.question_id for item in doubtful]
    bodies = withdraw(state, [item.call.call_id for item in doubtful], but=own)
    for item in doubtful:
        call = item.call
        if item.question_id is None:
            text = (
                f"{call.name}({call.arguments}) was started and interrupted before its outcome was "
                "recorded. What came of it? Your answer becomes its result."
            )
            bodies.append(e.QuestionAsked(question_id=item.doubt_id, text=text, call_id=call.call_id))
        elif (answer := state.turn.questions[item.question_id].answer) is not None:
            result = ToolResult(call.call_id, call.name, answer) if answer else unknown_outcome(call)
            bodies.append(e.ToolCompleted(step=state.step, result=result))
    return Append(tuple(bodies)) if bodies else AskUser(open_questions(state))


def abandon_turn(state: "State") -> tuple[e.DurableBody, ...]:
    """Return the events that end a cancelled turn: a result for each open call, and the end of the turn."""
    asking = {body.call_id for body in open_questions(state)}
    external = external_calls(state)
    results = [
        _refused(item.call, ToolErrorKind.NOT_RUN, "Not answered: the turn was ended.")
        if item in external or (item.call.call_id in asking and item.effect is not Effect.ONCE)
        else _unrun(state, item, None)
        for item in state.turn.calls.values()
        if item.result is None
    ]
    return (*_settle(state, results).bodies, *end_turn(state, StopReason.CANCELLED).bodies)


def stop_calls(state: "State") -> tuple[e.DurableBody, ...]:
    """Return the results of the calls that the deadline stopped or prevented from running."""
    stopped = "Stopped by the deadline of the run"
    results = [
        _refused(
            item.call,
            ToolErrorKind.TIMEOUT,
            f"{stopped}." if _is_harmless(state, item) else f"{stopped}; what it did until then is unknown.",
        )
        if item.attempt
        else _unrun(state, item, StopReason.DEADLINE)
        for item in state.turn.calls.values()
        if item.result is None
    ]
    return _settle(state, results).bodies


def _settle(state: "State", results: Iterable[ToolResult]) -> Append:
    step, found = state.step, list(results)
    withdrawn = withdraw(state, [result.call_id for result in found])
    return Append((*withdrawn, *[e.ToolCompleted(step=step, result=result) for result in found]))


# The results of calls that are not run.


def refuse_unapproved(call: ToolCall, decided: e.ApprovalDecided | None) -> ToolResult:
    """Return the result for a call that was refused: by the user, or by the policy if `decided` is `None`."""
    who = "the policy of this run does not allow it" if decided is None else "the user refused it"
    reason = f" They said: {decided.reason}" if decided is not None and decided.reason else ""
    return _refused(call, ToolErrorKind.REFUSED, f"Not run: {who}.{reason}")


def unknown_outcome(call: ToolCall) -> ToolResult:
    """Return the result for a call that was started and interrupted."""
    text = (
        "The outcome of this call is unknown: it was started, and the process was interrupted before it "
        "was recorded. It may or may not have taken effect. Check before you call it again."
    )
    return _refused(call, ToolErrorKind.IN_DOUBT, text)


def _is_harmless(state: "State", item: CallState) -> bool:
    """Return whether neither a started call nor any call that it made has an effect."""
    effects = {item.effect, *[inner.effect for inner in item.inner.values()]}
    return effects == {Effect.PURE} and state.is_since(2, 6)


def _unrun(state: "State", item: CallState, limit: StopReason | None) -> ToolResult:
    if item.attempt and not _is_harmless(state, item):
        return unknown_outcome(item.call)
    why = f"the limit {limit.value} of this run was reached" if limit else "the turn was ended"
    what = "Not finished, and without effect" if item.attempt else "Not run"
    return _refused(item.call, ToolErrorKind.NOT_RUN, f"{what}: {why}.")


def _refused(call: ToolCall, kind: ToolErrorKind, text: str) -> ToolResult:
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=kind)


# Inner calls.


class RunInner(Struct, frozen=True, gc=False):
    """The decision to run an inner call."""

    call: ToolCall
    attempt: int
    """The number of the attempt, from 1."""
    needs_approval: bool = False
    """True if somebody must approve the call first."""


class SettleInner(Struct, frozen=True, gc=False):
    """The decision not to run an inner call."""

    result: ToolResult
    is_recorded: bool = False
    """True if the journal already holds the result."""
    is_doubtful: bool = False
    """True if the outer call is in doubt. The result is then given to the tool and not recorded."""


InnerDecision: TypeAlias = RunInner | SettleInner


def decide_inner(state: "State", parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
    """Decide about an inner call of the running call `parent_id`; `number` counts its inner calls from 1."""
    parent = state.turn.calls.get(parent_id)
    call = ToolCall(f"{parent_id}/{number}", name, arguments)
    known: InnerCall | None = None
    if parent is not None and parent.inner:
        made = _made_at(parent, call.call_id)
        known = next(
            (item for item in made if (item.call.name, item.call.arguments) == (name, arguments)), None
        )
        others = [item for item in made if item is not known]
        if any([item.effect is Effect.ONCE for item in others]) or (
            known is None and made and last_once(parent) > number
        ):
            text = (
                f"{call.name} was not called: before it was interrupted, this code made another call here, and one "
                "that cannot be undone. What it did is unknown."
            )
            return SettleInner(_refused(call, ToolErrorKind.IN_DOUBT, text), is_doubtful=True)
        if known is not None:
            call = known.call
        elif made:
            # The id is the idempotency key, which must stand for one payload, so a different call gets another id.
            call = ToolCall(f"{call.call_id}~{parent.attempt}", name, arguments)
    if known is not None and known.effect is Effect.ONCE:
        if known.result is None:
            return SettleInner(unknown_outcome(call))
        return SettleInner(known.result, is_recorded=True)
    approval = Approval.ALWAYS
    if state.policy.approve:
        effect = next((tool.effect for tool in state.tools if tool.name == name), None)
        approval = state.policy.approval_of(name, effect)
    refused = _refuse_inner(state, call, approval)
    if refused is not None:
        return SettleInner(refused)
    attempt = 1 if known is None else known.attempt + 1
    return RunInner(call, attempt, needs_approval=approval is Approval.ASK)


def last_once(parent: CallState) -> int:
    """Return the number of the last `once` call that an interrupted attempt at `parent` started; 0 if none did."""
    once = [item for item in parent.inner.values() if item.effect is Effect.ONCE and item.attempt]
    numbers = [item.call.call_id.rpartition("/")[2].partition("~")[0] for item in once]
    return max([int(number) for number in numbers if number.isdecimal()], default=0)


def _made_at(parent: CallState, call_id: str) -> list[InnerCall]:
    """Return the calls that were started at a number: `call_id` is the id of the first one."""
    ids = [call_id, *[f"{call_id}~{attempt}" for attempt in range(2, parent.attempt + 1)]]
    found = [parent.inner[item] for item in ids if item in parent.inner]
    return [item for item in found if item.attempt]


def refuse_after_doubt(call: ToolCall) -> ToolResult:
    """Return the result of an inner call that is made after the outer call was found to be in doubt."""
    text = f"{call.name} was not called: what this code did before it was interrupted is unknown."
    return _refused(call, ToolErrorKind.IN_DOUBT, text)


def _count_open(state: "State") -> int:
    """Return how many of the model's calls have no result yet and count for `max_tool_calls`."""
    found = state.turn.calls.values()
    return sum([item.result is None and is_counted(state, item.call.name) for item in found])


def _refuse_inner(state: "State", call: ToolCall, approval: Approval) -> ToolResult | None:
    """Return the result for an inner call that a limit or the policy forbids; `None` if it may run."""
    most, spent = state.policy.max_tool_calls, state.turn.spent
    # The model's open calls, including the outer call, count too.
    if most is not None and spent.tool_calls + _count_open(state) >= most:
        return _refused(call, ToolErrorKind.NOT_RUN, f"Not run: the turn has made its {most} tool calls.")
    if (refused := refuse_over_limit(state, call)) is not None:
        return refused
    if spent.retries_by_tool and (refused := refuse_over_retries(state, call)) is not None:
        return refused
    return refuse_unapproved(call, None) if approval is Approval.NEVER else None
