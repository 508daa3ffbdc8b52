"""State, and `apply`, which folds one event into it.

Invariant: the state is a function of the events alone. `apply` never looks at a clock, and folding a prefix
and then the rest equals folding the whole.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.log import Log
from treadle.core.parts import parts_among
from treadle.core.policy import Policy
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
    Usage,
)

_REJECTIONS = (ToolErrorKind.INVALID_JSON, ToolErrorKind.INVALID_ARGUMENTS, ToolErrorKind.TRUNCATED)
"""What makes a call of the tool for the answer one that breaks the schema."""


class Status(StrEnum):
    """Where a run stands."""

    NEW = "new"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class InnerCall(Struct, frozen=True, gc=False):
    """A call that a tool made of another, while it ran."""

    call: ToolCall
    effect: Effect
    attempt: int
    result: ToolResult | None = None


class CallState(Struct, frozen=True, gc=False):
    """One tool call of the present step."""

    call: ToolCall
    attempt: int = 0
    """How often it was started."""
    effect: Effect | None = None
    """As recorded when it was started."""
    result: ToolResult | None = None
    question_id: str | None = None
    """The question asked about it, when it was in doubt."""
    approval: e.ApprovalRequested | e.ApprovalDecided | None = None
    """The newest that was said about whether to run it."""
    inner: tuple[InnerCall, ...] = ()
    """What it called itself, in order."""


class Spent(Struct, frozen=True, gc=False):
    """What the present turn has used of its budgets."""

    steps: int = 0
    tool_calls: int = 0
    refused_calls: int = 0
    """Calls that were not run because `max_tool_calls` was reached."""
    calls_by_tool: dict[str, int] = {}
    """Of tools that may be called only so often."""
    rejected_answers: int = 0
    """Answers that broke their schema."""
    tokens: int = 0
    cost_usd: float = 0.0
    is_cost_known: bool = True


class State(Struct, frozen=True, gc=False):
    """All that the next decision depends on."""

    status: Status = Status.NEW
    seq: int = 0
    """Of the newest event."""
    at: float = 0.0
    """Of the newest event."""
    started: e.RunStarted | None = None
    policy: Policy = Policy()
    messages: Log[Message] = Log()
    """The transcript, the system message included."""
    turn: int = 0
    is_turn_open: bool = False
    step: int = 0
    """Inferences completed in the run."""
    calls: tuple[CallState, ...] = ()
    """The present step's calls, in call order; empty once all have results."""
    answer: Message | None = None
    """A message without calls, which ends the turn."""
    finish_reason: FinishReason | None = None
    """Of the newest inference."""
    final: str | None = None
    """An answer that was given to the tool for it, which ends the turn once its step is done."""
    failure: e.InferenceFailed | None = None
    """The inference failed for good."""
    is_inferring: bool = False
    """A request was sent and its end is not recorded."""
    limit: StopReason | None = None
    """The limit that the model has been told of; what remains of the turn is the wrap-up."""
    is_wrapped_up: bool = False
    questions: dict[str, str | None] = {}
    """Question to answer, `None` while it is open."""
    spent: Spent = Spent()
    call_limits: dict[str, int] = {}
    """Tool to how often it may be called in a turn; those without a limit are left out."""
    effects: dict[str, Effect] = {}
    """Tool to its effect, as the run began."""
    work_began_at: float = 0.0
    """When the turn began, later by as long as nobody drove it."""
    usage: Usage = Usage()
    """Of the whole run."""
    cost_usd: float | None = 0.0
    """Of the whole run; `None` once an inference's cost was unknown."""
    last_usage: Usage = Usage()
    """Of the newest inference."""
    unsent_chars: int = 0
    """Length of what was said since the newest inference, to guess the next prompt's length."""
    stop_reason: StopReason | None = None
    """Of the last turn that ended."""
    output: str = ""
    error: str | None = None
    fault: Fault | None = None
    files: dict[str, str] = {}
    """Path to content hash, as of the newest snapshot."""
    snapshot_id: str | None = None
    tool_states: dict[str, str] = {}
    """Name of what a tool keeps beside the files to content hash, as of the newest snapshot."""
    rewards: dict[str, float] = {}
    """Given since the newest turn began."""

    @property
    def waiting_calls(self) -> tuple[CallState, ...]:
        """The calls that wait for somebody's yes."""
        return tuple(
            [
                item
                for item in self.calls
                if item.result is None and isinstance(item.approval, e.ApprovalRequested)
            ]
        )

    @property
    def output_spec(self) -> OutputSpec | None:
        """What a turn's answer must be; `None`: text."""
        return None if self.started is None else self.started.output

    @property
    def output_tool(self) -> str | None:
        """The tool that takes a turn's answer, if one does."""
        output = self.output_spec
        return None if output is None else output.tool

    @property
    def work_seconds(self) -> float:
        """How long the present turn was worked on, up to the newest event."""
        return max(0.0, self.at - self.work_began_at)


def apply(state: State, body: e.DurableBody) -> State:
    """The state after `body`, which is the event numbered `state.seq + 1`."""
    return _APPLY[type(body)](state, body)


def fold(bodies: Iterable[e.DurableBody], state: State | None = None) -> State:
    """The state after all of `bodies`."""
    state = state or State()
    for body in bodies:
        state = apply(state, body)
    return state


def _on_run_started(state: State, body: e.RunStarted) -> State:
    messages: Log[Message] = Log()
    if body.instructions is not None:
        messages = messages.append(Message(Role.SYSTEM, body.instructions))
    return replace(
        state,
        status=Status.RUNNING,
        seq=state.seq + 1,
        at=body.at,
        started=body,
        policy=body.policy,
        messages=messages,
        call_limits={tool.name: tool.max_calls for tool in body.tools if tool.max_calls is not None},
        effects={tool.name: tool.effect for tool in body.tools},
        unsent_chars=len(body.instructions or ""),
    )


def _on_turn_started(state: State, body: e.TurnStarted) -> State:
    return replace(
        state,
        status=Status.RUNNING,
        seq=state.seq + 1,
        at=body.at,
        turn=body.turn,
        is_turn_open=True,
        messages=state.messages.append(body.message),
        unsent_chars=state.unsent_chars + len(body.message.content),
        answer=None,
        final=None,
        failure=None,
        limit=None,
        is_wrapped_up=False,
        spent=Spent(),
        work_began_at=body.at,
        rewards={},
    )


def _on_inference_started(state: State, body: e.InferenceStarted) -> State:
    return replace(state, seq=state.seq + 1, at=body.at, is_inferring=True)


def _on_inference_completed(state: State, body: e.InferenceCompleted) -> State:
    completion = body.completion
    message = completion.message
    usage = completion.usage or guess_usage(state, message)
    spent, cost = state.spent, completion.cost_usd
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        step=body.step,
        is_inferring=False,
        messages=state.messages.append(message),
        calls=tuple([CallState(call) for call in message.tool_calls]),
        answer=None if message.tool_calls else message,
        finish_reason=completion.finish_reason,
        is_wrapped_up=state.limit is not None,
        spent=Spent(
            spent.steps + 1,
            spent.tool_calls,
            spent.refused_calls,
            spent.calls_by_tool,
            spent.rejected_answers,
            spent.tokens + usage.total_tokens,
            spent.cost_usd + (cost or 0.0),
            spent.is_cost_known and cost is not None,
        ),
        usage=state.usage + usage,
        cost_usd=None if cost is None or state.cost_usd is None else state.cost_usd + cost,
        last_usage=usage,
        unsent_chars=0,
    )


def _on_inference_failed(state: State, body: e.InferenceFailed) -> State:
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        failure=body if body.retry_in_seconds is None else None,
        is_inferring=body.retry_in_seconds is not None,
    )


def _change_call(calls: tuple[CallState, ...], call_id: str | None, **changes: Any) -> tuple[CallState, ...]:
    for index, item in enumerate(calls):
        if item.call.call_id == call_id:
            return (*calls[:index], replace(item, **changes), *calls[index + 1 :])
    return calls


def _find_call(state: State, call_id: str | None) -> CallState | None:
    return next((item for item in state.calls if item.call.call_id == call_id), None)


def _on_inner_started(state: State, body: e.ToolStarted) -> State:
    parent = _find_call(state, body.parent_call_id)
    calls = state.calls
    if parent is not None:
        call = ToolCall(body.call_id, body.name, body.arguments or "")
        kept = [item for item in parent.inner if item.call.call_id != body.call_id]
        inner = (*kept, InnerCall(call, body.effect, body.attempt))
        calls = _change_call(calls, body.parent_call_id, inner=inner)
    return replace(state, seq=state.seq + 1, at=body.at, calls=calls)


def _on_inner_completed(state: State, body: e.ToolCompleted) -> State:
    result = body.result
    parent = _find_call(state, body.parent_call_id)
    calls, spent = state.calls, state.spent
    if parent is not None:
        known = next((item for item in parent.inner if item.call.call_id == result.call_id), None)
        if known is None:
            # It was not started: there was something wrong with it.
            known = InnerCall(ToolCall(result.call_id, result.name, ""), Effect.PURE, 0)
            inner = (*parent.inner, replace(known, result=result))
            is_first = True
        else:
            inner = tuple([replace(known, result=result) if item is known else item for item in parent.inner])
            is_first = known.attempt == 1
        calls = _change_call(calls, body.parent_call_id, inner=inner)
        # A call that is made again is no second one.
        spent = _count_call(state, result) if is_first else spent
    return replace(state, seq=state.seq + 1, at=body.at, calls=calls, spent=spent)


def _count_call(state: State, result: ToolResult) -> Spent:
    spent = state.spent
    if result.error_kind is ToolErrorKind.NOT_RUN:
        return replace(spent, refused_calls=spent.refused_calls + 1)
    if result.error_kind in (ToolErrorKind.REFUSED, ToolErrorKind.OVER_LIMIT):
        return spent
    if result.name in state.call_limits:
        counts = {**spent.calls_by_tool, result.name: spent.calls_by_tool.get(result.name, 0) + 1}
        return replace(spent, tool_calls=spent.tool_calls + 1, calls_by_tool=counts)
    return replace(spent, tool_calls=spent.tool_calls + 1)


def _on_tool_started(state: State, body: e.ToolStarted) -> State:
    if body.parent_call_id is not None:
        return _on_inner_started(state, body)
    calls = _change_call(state.calls, body.call_id, attempt=body.attempt, effect=body.effect)
    return replace(state, seq=state.seq + 1, at=body.at, calls=calls)


def _on_tool_completed(state: State, body: e.ToolCompleted) -> State:
    if body.parent_call_id is not None:
        return _on_inner_completed(state, body)
    result = body.result
    calls = _change_call(state.calls, result.call_id, result=result)
    final, spent = state.final, _count_call(state, result)
    if state.output_tool is not None and result.name == state.output_tool:
        given = _find_call(state, result.call_id)
        if given is not None and not result.is_error:
            final = given.call.arguments
        elif result.error_kind in _REJECTIONS:
            spent = replace(spent, rejected_answers=spent.rejected_answers + 1)
    messages, chars = state.messages, state.unsent_chars + len(result.content)
    results = [item.result for item in calls if item.result is not None]
    if len(results) == len(calls):
        messages = messages.extend([to_message(item) for item in results])
        calls = ()
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        calls=calls,
        messages=messages,
        final=final,
        spent=spent,
        unsent_chars=chars,
    )


def _on_context_compacted(state: State, body: e.ContextCompacted) -> State:
    kept = list(state.messages)[body.messages :]
    messages = Log([*body.replacement, *kept])
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        messages=messages,
        usage=state.usage + (body.usage or Usage()),
        last_usage=Usage(),
        unsent_chars=sum(len(message.content) for message in messages),
    )


def _on_message_injected(state: State, body: e.MessageInjected) -> State:
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        messages=state.messages.append(body.message),
        unsent_chars=state.unsent_chars + len(body.message.content),
        limit=body.limit or state.limit,
        answer=None if body.output_fault is not None else state.answer,
        is_wrapped_up=state.is_wrapped_up and body.output_fault is None,
        spent=state.spent
        if body.output_fault is None
        else replace(state.spent, rejected_answers=state.spent.rejected_answers + 1),
    )


def _on_question_asked(state: State, body: e.QuestionAsked) -> State:
    calls = _change_call(state.calls, body.call_id, question_id=body.question_id)
    questions = {**state.questions, body.question_id: None}
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        calls=calls,
        questions=questions,
    )


def _on_question_answered(state: State, body: e.QuestionAnswered) -> State:
    questions = {**state.questions, body.question_id: body.text}
    return replace(state, seq=state.seq + 1, at=body.at, questions=questions)


def _on_snapshot_taken(state: State, body: e.SnapshotTaken) -> State:
    files = {path: digest for path, digest in state.files.items() if path not in body.delta.deleted}
    files.update(body.delta.changed)
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        files=files,
        snapshot_id=body.snapshot_id,
        tool_states={**state.tool_states, **body.delta.states} if body.delta.states else state.tool_states,
    )


def _on_turn_completed(state: State, body: e.TurnCompleted) -> State:
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        is_turn_open=False,
        stop_reason=body.stop_reason,
        output=body.output,
        error=body.error,
        fault=body.fault,
        answer=None,
    )


def _on_run_paused(state: State, body: e.RunPaused) -> State:
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        status=Status.PAUSED,
    )


def _on_run_resumed(state: State, body: e.RunResumed) -> State:
    reopened = state.stop_reason is StopReason.ERROR and not state.is_turn_open
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        status=Status.RUNNING,
        failure=None,
        is_inferring=False,
        is_turn_open=state.is_turn_open or reopened,
        work_began_at=state.work_began_at + max(0.0, body.at - state.at),
        spent=replace(state.spent, is_cost_known=True) if reopened else state.spent,
    )


def _on_run_finished(state: State, body: e.RunFinished) -> State:
    return replace(
        state,
        seq=state.seq + 1,
        at=body.at,
        status=Status.FINISHED,
        stop_reason=body.stop_reason,
        error=body.error,
        fault=body.fault,
    )


def _on_rewarded(state: State, body: e.Rewarded) -> State:
    rewards = {**state.rewards, body.name: body.reward}
    return replace(state, seq=state.seq + 1, at=body.at, rewards=rewards)


def _on_approval_requested(state: State, body: e.ApprovalRequested) -> State:
    calls = _change_call(state.calls, body.call_id, approval=body)
    return replace(state, seq=state.seq + 1, at=body.at, calls=calls)


def _on_approval_decided(state: State, body: e.ApprovalDecided) -> State:
    calls = _change_call(state.calls, body.call_id, approval=body)
    # Nothing is done while somebody makes up their mind.
    waited = max(0.0, body.at - state.at)
    return replace(
        state, seq=state.seq + 1, at=body.at, calls=calls, work_began_at=state.work_began_at + waited
    )


_APPLY: dict[type, Callable[[State, Any], State]] = {
    e.RunStarted: _on_run_started,
    e.TurnStarted: _on_turn_started,
    e.InferenceStarted: _on_inference_started,
    e.InferenceCompleted: _on_inference_completed,
    e.InferenceFailed: _on_inference_failed,
    e.ToolStarted: _on_tool_started,
    e.ToolCompleted: _on_tool_completed,
    e.ContextCompacted: _on_context_compacted,
    e.MessageInjected: _on_message_injected,
    e.QuestionAsked: _on_question_asked,
    e.QuestionAnswered: _on_question_answered,
    e.ApprovalRequested: _on_approval_requested,
    e.ApprovalDecided: _on_approval_decided,
    e.SnapshotTaken: _on_snapshot_taken,
    e.TurnCompleted: _on_turn_completed,
    e.RunPaused: _on_run_paused,
    e.RunResumed: _on_run_resumed,
    e.RunFinished: _on_run_finished,
    e.Rewarded: _on_rewarded,
}


def to_message(result: ToolResult) -> Message:
    """Return the tool message that tells `result` to the model."""
    return Message(
        Role.TOOL,
        result.content,
        call_id=result.call_id,
        name=result.name,
        is_error=result.is_error,
        parts=parts_among(result.artifacts) if result.artifacts else (),
    )


def guess_usage(state: State, message: Message) -> Usage:
    """Tokens of an inference whose server did not count them, from lengths at 4 characters a token."""
    written = len(message.content) + len(message.reasoning or "")
    written += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return Usage(guess_input_tokens(state), -(-written // 4))


def guess_input_tokens(state: State) -> int:
    """Tokens of the next prompt: the newest one and its answer, and what was said since."""
    return state.last_usage.total_tokens + -(-state.unsent_chars // 4)
