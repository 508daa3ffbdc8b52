"""The function `decide`, which derives the next action of a run from its state alone.

The driver calls it only while nothing is running. A call that was started and has no result is therefore in doubt:
the process that ran it has ended.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.context import (
    count_prompt,
    explain_overflow,
    find_room,
    find_trigger,
    is_surely_below,
)
from treadle.core.markers import answer_marked_question, final_text, marked_question
from treadle.core.policy import Approval, InDoubt
from treadle.core.questions import AskUser, open_questions, withdraw
from treadle.core.state import CallState, State, Status, doubt_id, guess_next_tokens
from treadle.core.types import (
    Effect,
    Fault,
    FinishReason,
    Message,
    OutputSpec,
    Role,
    StopReason,
    ToolCall,
    ToolErrorKind,
    ToolResult,
)


class Infer(Struct, frozen=True, gc=False):
    """The action to ask the model for its next message."""

    step: int
    """The number of the step that begins."""
    has_tools: bool
    """False at a wrap-up, where the model may call no tools."""


class Compact(Struct, frozen=True, gc=False):
    """The action to compact the context before the next inference."""

    reason: str
    """Why: `budget`, `overflow` (the server refused the prompt) or `asked`."""


class RunCalls(Struct, frozen=True, gc=False):
    """The action to run calls of the current step, at the same time where their tools allow it."""

    calls: tuple[CallState, ...]


class RequestApprovals(Struct, frozen=True, gc=False):
    """The action to record that calls wait for approval, or what is wrong with calls that could not run anyway."""

    calls: tuple[CallState, ...]


class Ask(Struct, frozen=True, gc=False):
    """The action to ask somebody about one call after another. A refused call gets its result at once; the run
    pauses at the first call that nobody decides about."""

    calls: tuple[CallState, ...]


class CheckAnswer(Struct, frozen=True, gc=False):
    """The action to check an answer against the run's schema; `judge_answer` decides what follows."""

    text: str


class Append(Struct, frozen=True, gc=False):
    """The action to append events, with nothing else to do."""

    bodies: tuple[e.DurableBody, ...]
    """The events' bodies; the driver sets their times."""


Action: TypeAlias = Infer | Compact | RunCalls | RequestApprovals | Ask | AskUser | CheckAnswer | Append


def decide(state: State) -> Action | None:
    """Return the next action; `None` if the run waits for somebody or is over."""
    if state.status is not Status.RUNNING:
        return None
    if not state.is_turn_open:
        return _after_turn(state)
    if state.calls:
        return _on_calls(state)
    if state.failure is not None:
        failure = state.failure
        if _can_recover(state, failure):
            return Compact("overflow")
        return _end_turn(state, failure.stop_reason, error=failure.error, fault=failure.fault)
    if state.untold is not None:
        told = Message(Role.USER, ESCALATED_MESSAGE.format(why=state.untold))
        return Append((e.MessageInjected(message=told),))
    if state.final is not None:
        return _end_turn(state, state.limit or StopReason.COMPLETED, output=state.final)
    if state.answer is not None and not _is_steered(state):
        return _on_answer(state, state.answer)
    if state.spent.rejected_answers >= state.policy.max_output_attempts:
        return _reject(state, "the arguments of its last call broke the schema")
    if state.is_wrapped_up and state.limit is not None:
        return _end_turn(state, state.limit)
    if state.limit is None:
        stop = _on_limits(state)
        if stop is not None:
            return stop
        if state.misnamed and state.can_nudge:
            return Append((e.MessageInjected(message=Message(Role.USER, _name_tools(state))),))
    elif state.is_wrap_up_lost and not can_ask_again(state):
        return _end_turn(state, state.limit)
    if state.is_schema_untold and state.output_spec is not None:
        told = Message(Role.USER, ask_for_schema(state.output_spec))
        return Append((e.MessageInjected(message=told, tells_schema=True),))
    if state.window is None and state.context.refused_tokens is None:
        return Infer(state.step + 1, has_tools=state.limit is None)
    return _on_context(state) or Infer(state.step + 1, has_tools=state.limit is None)


def _can_recover(state: State, failure: e.InferenceFailed) -> bool:
    """Return whether the context is compacted after a failure: once in a turn, if the server refused its length."""
    return (
        failure.stop_reason is StopReason.CONTEXT_OVERFLOW
        and state.policy.compact_at is not None
        and state.can_compact
        and not state.spent.overflows
        and len(state.messages) > 2
        and not _is_past_deadline(state)
    )


def _on_context(state: State) -> Action | None:
    """Return what to do instead of an inference whose prompt is too long; `None` if it is not.

    A prompt is sent up to the whole room if it was just compacted, since another compaction would not help.
    """
    room = find_room(state)
    if room is None or state.policy.compact_at is None or not state.can_compact:
        return None
    trigger = find_trigger(state, room)
    if is_surely_below(state, trigger) or (tokens := count_prompt(state)) <= trigger:
        return None
    if not state.context.is_fresh:
        return Compact("budget")
    if tokens <= room:
        return None
    error = explain_overflow(state, room)
    return _end_turn(state, StopReason.CONTEXT_OVERFLOW, error=error, fault=Fault.MODEL)


ESCALATED_MESSAGE = (
    "Another model tried to answer before you, and its answer was not used: {why}\n"
    "The user has not seen that answer. Answer the user's message yourself."
)
"""The message that tells a model what was tried before it was asked."""


def _name_tools(state: State) -> str:
    """Return the message to a model that keeps calling tools which do not exist."""
    wrong = ", ".join(map(repr, state.misnamed))
    known = ", ".join([tool.name for tool in state.tools])
    offered = f"Call only these tools: {known}." if known else "There are no tools at all."
    return f"You called {wrong} again, which does not exist. {offered} If none fits, answer without a tool."


def _is_steered(state: State) -> bool:
    """Return whether the model is asked again instead of ending the turn with its answer, because the user has
    sent a message for this turn meanwhile."""
    return bool(state.steering) and state.limit is None and _on_limits(state) is None


def ask_for_schema(output: OutputSpec) -> str:
    """Return the text that asks a model for answers that fit the schema."""
    schema = msgspec.json.encode(output.schema).decode()
    return f"Give your final answer as JSON and nothing else, in this JSON Schema:\n{schema}"


def abandon_turn(state: State) -> tuple[e.DurableBody, ...]:
    """Return the events that end a cancelled turn: a result for each open call, and the end of the turn."""
    asking = {body.call_id for body in open_questions(state)}
    results = [
        _error(item, ToolErrorKind.NOT_RUN, "Not answered: the turn was ended.")
        if item.call.call_id in asking and item.effect is not Effect.ONCE
        else _unrun(item, None)
        for item in state.calls.values()
        if item.result is None
    ]
    settled = _settle(state, results)
    return (*settled.bodies, *_end_turn(state, StopReason.CANCELLED).bodies)


def stop_calls(state: State) -> tuple[e.DurableBody, ...]:
    """Return the results of the calls that the deadline stopped or prevented from running."""
    results = []
    for item in state.calls.values():
        if item.result is None and item.attempt:
            text = "Stopped by the deadline of the run; what it did until then is unknown."
            results.append(_error(item, ToolErrorKind.TIMEOUT, text))
        elif item.result is None:
            results.append(_unrun(item, StopReason.DEADLINE))
    return _settle(state, results).bodies


def _after_turn(state: State) -> Action | None:
    if state.turn == 0 or state.started is None or state.started.is_session or state.stop_reason is None:
        return None
    finished = e.RunFinished(stop_reason=state.stop_reason, error=state.error, fault=state.fault)
    return Append((finished,))


def _end_turn(
    state: State,
    stop_reason: StopReason,
    *,
    error: str | None = None,
    fault: Fault | None = None,
    output: str | None = None,
) -> Append:
    if output is None:
        output = state.answer.content if state.answer is not None else _last_text(state)
        output = final_text(state, output)
    done = e.TurnCompleted(turn=state.turn, stop_reason=stop_reason, output=output, error=error, fault=fault)
    if state.started is None or state.started.is_session:
        return Append((done,))
    return Append((done, e.RunFinished(stop_reason=stop_reason, error=error, fault=fault)))


def _last_text(state: State) -> str:
    """Return the model's last text in this turn, for a turn that ended without an answer."""
    injected = 0 if state.limit is None else 1
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if message.role is Role.ASSISTANT:
            return message.content
        if message.role is Role.USER:
            if not injected:
                break
            injected -= 1
    return ""


def _on_answer(state: State, answer: Message) -> Append | AskUser | CheckAnswer:
    is_whole = state.finish_reason not in (FinishReason.CONTENT_FILTER, FinishReason.LENGTH)
    if is_whole and state.limit is None and (question := marked_question(state, answer.content)) is not None:
        found = answer_marked_question(state, question)
        return found if isinstance(found, AskUser) else Append((found,))
    if is_whole and state.output_spec is not None:
        return CheckAnswer(final_text(state, answer.content))
    if state.limit is not None:
        return _end_turn(state, state.limit)
    if state.finish_reason is FinishReason.CONTENT_FILTER:
        return _end_turn(state, StopReason.REFUSED, error="the model refused", fault=Fault.MODEL)
    if state.finish_reason is FinishReason.LENGTH:
        return _end_turn(
            state,
            StopReason.MAX_TOKENS,
            error="the answer was cut off by the model's output limit",
            fault=Fault.MODEL,
        )
    if not answer.content.strip() and not answer.parts and state.can_nudge and not state.spent.nudges:
        return Append((e.MessageInjected(message=Message(Role.USER, _NUDGE), is_nudge=True),))
    if state.refused_tool is not None and not state.spent.nudges:
        told = Message(Role.USER, REFUSED_MESSAGE.format(tool=state.refused_tool))
        return Append((e.MessageInjected(message=told, is_nudge=True),))
    return _end_turn(state, StopReason.COMPLETED)


_NUDGE = (
    "Your last message had no text and called no tool, so the user has seen nothing of it. Go on: call a tool, or "
    "write your answer."
)
REFUSED_MESSAGE = (
    "Your last message says that you cannot do something for which you have the tool {tool}. The user has not been "
    "given that message as an answer. If the tool serves the user's request, call it now. Otherwise write your "
    "whole answer again, and say why you do not use it."
)
"""The message that tells a model about a tool which it says it cannot use."""


def judge_answer(state: State, output: str, fault: str | None) -> Append:
    """Return what follows from an answer that was checked against the schema.

    `output` is the answer without white space and code fences around it. `fault` says what in it does not fit the
    schema; `None` if it fits.
    """
    if fault is None:
        return _end_turn(state, state.limit or StopReason.COMPLETED, output=output)
    if state.limit is not None or state.spent.rejected_answers + 1 >= state.policy.max_output_attempts:
        return _reject(state, fault)
    tool = state.output_tool
    advice = "Answer again, with nothing but" if tool is None else f"Call {tool} with"
    text = f"This is no valid answer: {fault}\n{advice} JSON that fits the schema."
    return Append((e.MessageInjected(message=Message(Role.USER, text), output_fault=fault),))


def recorded_fault(state: State, body: e.DurableBody | None) -> str | None:
    """Return the fault of an answer, read from `body`, the event after the answer; `None` if there was none."""
    if isinstance(body, e.MessageInjected):
        return body.output_fault
    if isinstance(body, e.TurnCompleted) and body.error is not None:
        head = _rejection(state)
        return body.error.removeprefix(head) if body.error.startswith(head) else None
    return None


def _rejection(state: State) -> str:
    attempts = state.policy.max_output_attempts
    times = "a wrap-up" if state.limit is not None else f"{attempts} attempt{'s' * (attempts > 1)}"
    return f"no answer that fits the schema after {times}: "


def _reject(state: State, fault: str) -> Append:
    error = _rejection(state) + fault
    return _end_turn(state, state.limit or StopReason.ERROR, error=error, fault=Fault.MODEL)


def _on_calls(state: State) -> Action:
    open_calls = [item for item in state.calls.values() if item.result is None]
    if _is_past_deadline(state) or state.limit is not None:
        unrun = [
            item for item in open_calls if item.call.name != state.output_tool or _is_past_deadline(state)
        ]
        if unrun:
            return _settle(state, [_unrun(item, state.limit) for item in unrun])
        return RunCalls(tuple(open_calls))
    doubtful = [item for item in open_calls if item.attempt and item.effect is Effect.ONCE]
    if doubtful:
        return _on_doubt(state, doubtful)
    if state.policy.max_tool_calls is not None:
        room = max(0, state.policy.max_tool_calls - state.spent.tool_calls)
        if len(open_calls) > room:
            refused = [_unrun(item, StopReason.MAX_TOOL_CALLS) for item in open_calls[room:]]
            return _settle(state, refused)
    if state.call_limits and (over := _find_over_limit(state, open_calls)):
        return _settle(state, over)
    if state.spent.retries_by_tool and (over := _find_over_retries(state, open_calls)):
        return _settle(state, over)
    if state.policy.approve and (action := _on_approvals(state, open_calls)) is not None:
        return action
    if state.asked_questions:
        return _run_or_ask(state, open_calls)
    return RunCalls(tuple(open_calls))


def _run_or_ask(state: State, open_calls: list[CallState]) -> RunCalls | AskUser:
    """Return the action to run the calls that do not wait for an answer, or to ask if all of them do."""
    questions = open_questions(state)
    waiting = {body.call_id for body in questions}
    ready = [item for item in open_calls if item.call.call_id not in waiting]
    return RunCalls(tuple(ready)) if ready else AskUser(questions)


def _find_over_limit(state: State, open_calls: list[CallState]) -> list[ToolResult]:
    """Return a result for each open call of a tool that has already been called as often as it may be."""
    counts = dict(state.spent.calls_by_tool)
    over = []
    for item in open_calls:
        name = item.call.name
        limit = state.call_limits.get(name)
        counts[name] = counts.get(name, 0) + 1
        if limit is not None and counts[name] > limit:
            over.append(refuse_over_limit(item.call, limit))
    return over


def _find_over_retries(state: State, open_calls: list[CallState]) -> list[ToolResult]:
    """Return a result for each open call of a tool that has asked for another call too often."""
    refused = [refuse_over_retries(state, item.call) for item in open_calls if not item.attempt]
    return [result for result in refused if result is not None]


def refuse_over_retries(state: State, call: ToolCall) -> ToolResult | None:
    """Return the result for a call of a tool that has asked for another call too often, or `None`."""
    retries = state.spent.retries_by_tool.get(call.name, 0)
    if retries <= next((tool.max_retries for tool in state.tools if tool.name == call.name), 0):
        return None
    text = f"Not run: {call.name} has failed {retries} times in a row in this turn. Go on without it."
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.OVER_LIMIT)


def refuse_over_limit(call: ToolCall, limit: int) -> ToolResult:
    """Return the result for a call of a tool that has already been called as often as it may be."""
    times = "once" if limit == 1 else f"{limit} times"
    text = f"Not run: {call.name} may be called {times} in one turn, and has been. Go on without it."
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.OVER_LIMIT)


def refuse_unapproved(call: ToolCall, decided: e.ApprovalDecided | None) -> ToolResult:
    """Return the result for a call that was refused: by the user, or by the policy if `decided` is `None`."""
    who = "the policy of this run does not allow it" if decided is None else "the user refused it"
    reason = f" They said: {decided.reason}" if decided is not None and decided.reason else ""
    text = f"Not run: {who}.{reason}"
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.REFUSED)


def _on_approvals(state: State, open_calls: list[CallState]) -> Action | None:
    """Return what must happen before the open calls may run; `None` if they may run now.

    No call runs while one of them waits for approval.
    """
    refused: list[ToolResult] = []
    unasked: list[CallState] = []
    waiting: list[CallState] = []
    for item in open_calls:
        name, said = item.call.name, item.approval
        approval = state.policy.approval_of(name, state.effects.get(name))
        if isinstance(said, e.ApprovalDecided):
            if not said.is_approved:
                refused.append(refuse_unapproved(item.call, said))
        elif item.attempt:
            pass
        elif approval is Approval.NEVER and name in state.effects:
            refused.append(refuse_unapproved(item.call, None))
        elif said is not None:
            waiting.append(item)
        elif approval is Approval.ASK:
            unasked.append(item)
    if refused:
        return _settle(state, refused)
    if unasked:
        return RequestApprovals(tuple(unasked))
    return Ask(tuple(waiting)) if waiting else None


def _settle(state: State, results: list[ToolResult]) -> Append:
    step = state.step
    withdrawn = withdraw(state, [result.call_id for result in results])
    return Append((*withdrawn, *[e.ToolCompleted(step=step, result=result) for result in results]))


def _unrun(item: CallState, limit: StopReason | None) -> ToolResult:
    if item.attempt:
        return unknown_outcome(item.call)
    why = f"the limit {limit.value} of this run was reached" if limit else "the turn was ended"
    return _error(item, ToolErrorKind.NOT_RUN, f"Not run: {why}.")


def unknown_outcome(call: ToolCall) -> ToolResult:
    """Return the result for a call that was started and interrupted."""
    text = (
        "The outcome of this call is unknown: it was started, and the process was interrupted before it "
        "was recorded. It may or may not have taken effect. Check before you call it again."
    )
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.IN_DOUBT)


def _error(item: CallState, kind: ToolErrorKind, text: str) -> ToolResult:
    return ToolResult(item.call.call_id, item.call.name, text, is_error=True, error_kind=kind)


def _on_doubt(state: State, doubtful: list[CallState]) -> Append | AskUser:
    if state.policy.in_doubt is InDoubt.TELL:
        return _settle(state, [unknown_outcome(item.call) for item in doubtful])
    own = [item.question_id for item in doubtful]
    bodies = withdraw(state, [item.call.call_id for item in doubtful], but=own)
    for item in doubtful:
        if item.question_id is None:
            text = (
                f"{item.call.name}({item.call.arguments}) was started and interrupted before its outcome was "
                "recorded. What came of it? Your answer becomes its result."
            )
            call_id = item.call.call_id
            bodies.append(e.QuestionAsked(question_id=doubt_id(item), text=text, call_id=call_id))
        elif (answer := state.questions[item.question_id]) is not None:
            told = ToolResult(item.call.call_id, item.call.name, answer)
            result = told if answer else unknown_outcome(item.call)
            bodies.append(e.ToolCompleted(step=state.step, result=result))
    return Append(tuple(bodies)) if bodies else AskUser(open_questions(state))


def _is_past_deadline(state: State) -> bool:
    deadline = state.policy.deadline_seconds
    return deadline is not None and state.work_seconds >= deadline


def _on_limits(state: State) -> Append | None:
    """Return what to do instead of the next inference if a limit forbids it; `None` if no limit does."""
    policy, spent = state.policy, state.spent
    if policy.deadline_seconds is not None and _is_past_deadline(state):
        return _end_turn(state, StopReason.DEADLINE, error=f"{float(policy.deadline_seconds)} s passed")
    limit: StopReason | None = None
    is_affordable = True
    if policy.max_cost_usd is not None:
        if not spent.is_cost_known:
            return _end_turn(state, StopReason.ERROR, error=_UNKNOWN_COST, fault=Fault.USER)
        next_cost = guess_cost_usd(state, guess_next_tokens(state))
        left = policy.max_cost_usd - spent.cost_usd
        limit, is_affordable = _reserve(left, next_cost, spent.steps, StopReason.MAX_COST)
    if limit is None and policy.max_tokens is not None:
        left = policy.max_tokens - spent.tokens
        limit, is_affordable = _reserve(left, guess_next_tokens(state), spent.steps, StopReason.MAX_TOKENS)
    if limit is None and policy.max_tool_calls is not None and spent.refused_calls:
        # A cancelled turn refuses calls too, and a fork may begin in the middle of it.
        limit = StopReason.MAX_TOOL_CALLS if spent.tool_calls >= policy.max_tool_calls else None
    if limit is None and policy.max_steps is not None and spent.steps >= policy.max_steps:
        limit = StopReason.MAX_STEPS
    if limit is None:
        return None
    if not is_affordable:
        return _end_turn(state, limit)
    text = policy.last_step_message.format(limit=limit.value)
    return Append((e.MessageInjected(message=Message(Role.USER, text), limit=limit),))


def can_ask_again(state: State, lost: int = 0) -> bool:
    """Return whether the budgets allow the same inference again, after `lost` answers that are not counted yet.

    As in every turn, there may be one step more than `max_steps`.
    """
    policy, spent, tokens = state.policy, state.spent, guess_next_tokens(state)
    cost_usd = guess_cost_usd(state, tokens)
    if state.asked is not None and state.asked.reserved_cost_usd is not None:
        cost_usd = state.asked.reserved_cost_usd
    return (
        (policy.max_steps is None or spent.steps + lost <= policy.max_steps)
        and (policy.max_tokens is None or spent.tokens + (1 + lost) * tokens <= policy.max_tokens)
        and (policy.max_cost_usd is None or spent.cost_usd + (1 + lost) * cost_usd <= policy.max_cost_usd)
    )


def guess_cost_usd(state: State, tokens: int) -> float:
    """Estimate what `tokens` cost, at the average price of the turn so far; 0 if that is not known."""
    return state.spent.cost_usd / state.spent.tokens * tokens if state.spent.tokens else 0.0


_UNKNOWN_COST = (
    "max_cost_usd is set and the cost of an inference is unknown: give the model a price, "
    "as model(..., price=Price(...)), or use no max_cost_usd"
)


def _reserve(left: float, next_cost: float, steps: int, limit: StopReason) -> tuple[StopReason | None, bool]:
    """Check whether the next inference and a wrap-up after it fit in the rest of a budget.

    Return `limit` if they do not fit (`None` if they do), and whether the wrap-up alone fits. The first inference
    of a turn needs no room for a wrap-up after it, since there is nothing to wrap up yet.
    """
    if left <= 0 or next_cost > left:
        return limit, False
    if steps and 2 * next_cost > left:
        return limit, True
    return None, True
