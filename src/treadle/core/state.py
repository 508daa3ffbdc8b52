"""The state of a run, and `apply`, which computes the state after an event.

Invariant: the state is a function of the events alone. `apply` reads no clock, and folding some events and then the
rest equals folding all at once.

`apply` returns a new state and leaves the old one unchanged. `advance` does the same in place, without copying,
in a time that does not depend on the length of the run. Only the owner of a state (the driver, or a fold) may
call it.
"""

from collections.abc import Callable, Iterable
from copy import copy
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.estimates import count_chars, guess_of_chars
from treadle.core.log import Log
from treadle.core.packed import ID_BYTES, as_packed
from treadle.core.parts import leave_out_refused, parts_among
from treadle.core.policy import Policy
from treadle.core.prompting import (
    Context,
    compact,
    copy_context,
    note_compaction,
    note_inference,
    note_tools,
)
from treadle.core.spec import AgentSpec
from treadle.core.turns import reopens
from treadle.core.types import (
    Delivery,
    Effect,
    Fault,
    FinishReason,
    Message,
    OutputMode,
    OutputSpec,
    Prior,
    Role,
    Route,
    StopReason,
    TokenRecord,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
    Usage,
    Window,
)

_REJECTIONS = (ToolErrorKind.INVALID_JSON, ToolErrorKind.INVALID_ARGUMENTS, ToolErrorKind.TRUNCATED)
"""Errors of a call of the answer tool that count as an answer that does not fit the schema."""
_REFUSALS = ("RequestError", "UnsupportedPartError")
"""The types of errors of requests that a server, or the model's dialect, refused because of what they contain."""


ESCALATED = "Escalated"
"""The `error_type` of an inference whose answer was complete and thrown away, so that a better model is asked."""


class Status(StrEnum):
    """The status of a run."""

    NEW = "new"
    """No event was applied yet."""
    RUNNING = "running"
    """The run can go on; its process may have died."""
    PAUSED = "paused"
    """The run waits until somebody resumes it."""
    FINISHED = "finished"
    """The run is over. If it ended with an error, it can be resumed."""


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


class Spent(Struct, gc=False):
    """The part of its budgets that the current turn has used."""

    steps: int = 0
    """Inferences that were completed, or may have been paid for although their answer was lost."""
    tool_calls: int = 0
    """Tool calls with a result, except calls that were not run because of a limit or a refusal."""
    refused_calls: int = 0
    """Calls that were not run because `max_tool_calls` was reached or the turn ended."""
    calls_by_tool: dict[str, int] = {}
    """Calls of each tool that has a limit of calls in a turn."""
    retries_by_tool: dict[str, int] = {}
    """How often in a row each tool asked for another call; without the tools whose last call succeeded."""
    rejected_answers: int = 0
    """Answers that did not fit the schema."""
    tokens: int = 0
    """Input and output tokens; for an inference whose answer was lost, what was reserved."""
    cost_usd: float = 0.0
    """The cost of the inferences whose cost is known; for one whose answer was lost, what was reserved."""
    is_cost_known: bool = True
    """True if the cost of every inference is known."""
    questions: int = 0
    """Questions to the user, except those about calls whose outcome was lost."""
    overflows: int = 0
    """How often the context was compacted because the server refused the prompt as too long."""
    nudges: int = 0
    """How often the model was asked to act, after an answer without content or one that refused a tool."""


class State(Struct, gc=False):
    """Everything that the next decision depends on. Treat it as read-only: only `advance` changes it."""

    status: Status = Status.NEW
    seq: int = 0
    """The number of the newest event; 0 if there is none."""
    at: float = 0.0
    """The time of the newest event, in seconds since the epoch."""
    started: e.RunStarted | None = None
    """The run's first event."""
    agent: AgentSpec | None = None
    """The agent that drives the run, as the newest start or resume recorded it."""
    policy: Policy = Policy()
    """The policy of that agent."""
    messages: Log[Message] = field(default_factory=Log)
    """The transcript as the model sees it, system message included."""
    whole: Log[Message] | None = None
    """The transcript without compactions; `None` if it is the same as `messages`."""
    has_parts: bool = False
    """True if a message has parts, so that a request may need their contents."""
    output_spec: OutputSpec | None = None
    """How the model is asked for answers that fit a schema. `None`: answers are text."""
    is_schema_untold: bool = False
    """True if the model must be told the schema in the transcript, because the instructions do not hold it."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are offered to the model, as the newest start or resume recorded them."""
    turn: int = 0
    """The number of the newest turn; 0 before the first."""
    opened: e.TurnStarted | None = None
    """The event that began the newest turn; `None` before the first."""
    is_turn_open: bool = False
    """True if the newest turn has not ended."""
    window: Window | None = None
    """The context window of the model, as the newest start or resume recorded it; `None` if it is not known."""
    compactions: int = 0
    """How often the context was compacted in the run."""
    said: str = ""
    """The text of the user's message that began the newest turn, without what was recalled for it."""
    can_compact: bool = False
    """True if contexts are compacted: false for what earlier versions of Treadle recorded."""
    context: Context = field(default_factory=Context)
    """What is known about the size of the prompt."""
    tells_schema: bool = False
    """True if a message in the transcript tells the schema of answers."""
    told: dict[str, int] = {}
    """The versions of the memories that were recalled since the newest compaction, by id."""
    route: Route | None = None
    """The choice of the model for the open turn; `None` if none was made."""
    tried: dict[str, str] = {}
    """The tiers that are not asked again in the open turn, each with the reason: their model failed, or its answer
    was thrown away."""
    untold: str | None = None
    """Why the newest answer was thrown away, until the model that is asked next has been told; `None` if there is
    nothing to tell."""
    unknown_names: frozenset[str] = frozenset()
    """The names without a tool that the model has called in the open turn since its last call that succeeded."""
    misnamed: tuple[str, ...] = ()
    """Those of the newest step that the model had been told of before, until it is told again."""
    queued: tuple[tuple[int, Message], ...] = ()
    """The messages of the user that wait for the next turns, each with the number of its event."""
    urgent: int = 0
    """How many messages at the beginning of `queued` have interrupted a turn; they keep the order of arrival."""
    steering: tuple[tuple[int, Message], ...] = ()
    """The messages of the user that the next inference adds to the transcript, each with the number of its event.
    Those that no inference has taken when the turn ends wait for the next turns."""
    step: int = 0
    """How many inferences were completed in the run."""
    calls: dict[str, CallState] = {}
    """The calls of the current step by id, in call order; empty once all have results."""
    open_calls: int = 0
    """How many of `calls` have no result yet."""
    answer: Message | None = None
    """The newest message of the model if it has no calls; it can end the turn."""
    refused_tool: str | None = None
    """The tool that this message says cannot be used, although the model has it; `None` if there is none."""
    finish_reason: FinishReason | None = None
    """The finish reason of the newest inference."""
    final: str | None = None
    """The answer that the model gave through the answer tool; it ends the turn when its step is done."""
    failure: e.InferenceFailed | None = None
    """The failure of the newest inference, if its last attempt failed."""
    hold: tuple[float, float, str | None] | None = None
    """The wait that a server asked for in its newest answer, which was an error: the end of the wait, its length
    in seconds, and the name of the model; `None` if there is none."""
    can_nudge: bool = True
    """True if a model that gave an answer without content is asked to act. It was not in older versions."""
    counts_lost: bool = True
    """True if inferences whose answers were lost count for the budgets, because they may have been paid for."""
    asked: e.InferenceStarted | None = None
    """The newest inference if its outcome is not recorded; `None` if it is."""
    limit: StopReason | None = None
    """The limit that the model was told about; the rest of the turn is the wrap-up. `None` before that."""
    is_wrapped_up: bool = False
    """True if the inference of the wrap-up is completed."""
    is_wrap_up_lost: bool = False
    """True if an inference of the wrap-up may have been paid for, although its answer was lost."""
    questions: dict[str, str | None] = {}
    """The answer to each question, by question id: `None` while the question is open, and empty if the user
    declined to answer."""
    asked_questions: dict[str, e.QuestionAsked] = {}
    """The questions that were asked in the open turn, by id."""
    spent: Spent = field(default_factory=Spent)
    """The part of its budgets that the current turn has used."""
    call_limits: dict[str, int] = {}
    """How often each tool may be called in a turn. Tools without a limit are left out."""
    effects: dict[str, Effect] = {}
    """The effect of each tool that is offered."""
    work_began_at: float = 0.0
    """The time at which the turn began, moved forward by the time during which no process drove the run. It
    counts only where events have no `worked_seconds`."""
    worked_seconds: float | None = None
    """`worked_seconds` of the newest event."""
    usage: Usage = Usage()
    """Tokens of the whole run."""
    cost_usd: float | None = 0.0
    """Cost of the whole run; `None` if the cost of an inference is unknown."""
    last_usage: Usage = Usage()
    """Tokens of the newest inference."""
    prior: Prior | None = None
    """The ids of the newest inference that has ids; `None` if there is none."""
    unsent_chars: int = 0
    """Characters added to the transcript since the newest inference, used to estimate the next prompt's tokens."""
    stop_reason: StopReason | None = None
    """The reason why the newest finished turn ended; `None` if no turn has ended."""
    output: str = ""
    """The answer of that turn."""
    error: str | None = None
    """What went wrong in that turn; `None` if nothing did."""
    fault: Fault | None = None
    """The party responsible for `error`; `None` if nobody is."""
    files: dict[str, str] = {}
    """The sandbox's files as of the newest snapshot: path to content hash."""
    snapshot_id: str | None = None
    """The id of the newest snapshot; `None` if there is none."""
    tool_states: dict[str, str] = {}
    """The states that tools keep in addition to the files, as of the newest snapshot: name to content hash."""
    rewards: dict[str, float] = {}
    """The rewards given since the newest turn began, by name."""
    taken: int = 0
    """The number of the newest message of the inbox that was taken in; 0 if none was."""

    @property
    def transcript(self) -> Log[Message]:
        """The whole transcript, system message included, whatever the model still sees of it."""
        return self.messages if self.whole is None else self.whole

    @property
    def has_failed_turn(self) -> bool:
        """True if the newest turn ended with an error, so that a resume opens it again."""
        return reopens(has_failed=self.stop_reason is StopReason.ERROR, is_turn_open=self.is_turn_open)

    @property
    def waiting_calls(self) -> tuple[CallState, ...]:
        """The calls that wait for somebody's approval."""
        return tuple(
            [
                item
                for item in self.calls.values()
                if item.result is None and isinstance(item.approval, e.ApprovalRequested)
            ]
        )

    @property
    def output_tool(self) -> str | None:
        """The name of the tool that takes a turn's answer; `None` if there is none."""
        output = self.output_spec
        return None if output is None else output.tool

    @property
    def work_seconds(self) -> float:
        """How long the current turn was worked on, up to the newest event."""
        if self.worked_seconds is not None:
            return self.worked_seconds
        return max(0.0, self.at - self.work_began_at)

    @property
    def is_inferring(self) -> bool:
        """True if a request was sent and its outcome is not recorded."""
        return self.asked is not None


def apply(state: State, body: e.DurableBody) -> State:
    """Return the state after `body`, which is the event numbered `state.seq + 1`."""
    return advance(clone(state), body)


def advance(state: State, body: e.DurableBody) -> State:
    """Change `state` in place to the state after `body`, and return it."""
    state.seq += 1
    state.at, before = body.at, state.at
    state.worked_seconds = body.worked_seconds
    if body.inbox is not None:
        state.taken = body.inbox
    _ADVANCE[type(body)](state, body, before)
    return state


def clone(state: State) -> State:
    """Return a copy of `state` that `advance` can change without changing the original."""
    new = copy(state)
    new.calls = {call_id: _clone_call(item) for call_id, item in state.calls.items()}
    new.spent = copy(state.spent)
    new.spent.calls_by_tool = dict(state.spent.calls_by_tool)
    new.spent.retries_by_tool = dict(state.spent.retries_by_tool)
    new.questions = dict(state.questions)
    new.told = dict(state.told)
    new.asked_questions = dict(state.asked_questions)
    new.files = dict(state.files)
    new.tool_states = dict(state.tool_states)
    new.rewards = dict(state.rewards)
    new.context = copy_context(state.context)
    return new


def fold(bodies: Iterable[e.DurableBody], state: State | None = None) -> State:
    """Return the state after all of `bodies`, starting from `state`, which is unchanged; `None`: a new state."""
    state = State() if state is None else clone(state)
    for body in bodies:
        advance(state, body)
    return state


def _clone_call(item: CallState) -> CallState:
    new = copy(item)
    new.inner = {call_id: copy(inner) for call_id, inner in item.inner.items()}
    return new


def _on_run_started(state: State, body: e.RunStarted, before: float) -> None:
    instructions = body.system_message
    state.status = Status.RUNNING
    state.started = body
    state.counts_lost = e.is_since(body.version, 2, 1)
    state.can_compact = e.is_since(body.version, 2, 2)
    state.can_nudge = e.is_since(body.version, 2, 2)
    state.agent = body.spec
    state.policy = state.agent.policy
    state.output_spec = body.output
    state.messages = Log() if instructions is None else Log((Message(Role.SYSTEM, instructions),))
    state.unsent_chars = len(instructions or "")
    state.window = body.window
    _offer(state, body.tools)


def _offer(state: State, tools: tuple[ToolSpec, ...]) -> None:
    state.tools = tools
    state.call_limits = {tool.name: tool.max_calls for tool in tools if tool.max_calls is not None}
    state.effects = {tool.name: tool.effect for tool in tools}
    note_tools(state)


def _on_turn_started(state: State, body: e.TurnStarted, before: float) -> None:
    state.status = Status.RUNNING
    state.turn = body.turn
    state.opened = body
    state.is_turn_open = True
    if state.has_parts and state.can_compact and state.failure and state.failure.error_type in _REFUSALS:
        state.whole = state.transcript
        state.messages = Log(leave_out_refused(list(state.messages)))
        state.has_parts = any([message.parts for message in state.messages])
    message, at = body.message, len(state.messages)
    state.said = message.content
    state.context.turn_at = at
    if body.recalled is not None:
        message = replace(message, content=f"{body.recalled.text}\n\n{message.content}")
        state.context.recalled[at] = len(body.recalled.text)
        state.told |= {item.item_id: item.version for item in body.recalled.items}
    if body.hint is not None:
        message = replace(message, content=f"{message.content}\n\n{body.hint}")
    _say(state, message)
    if body.queued_seq is not None:
        state.urgent -= body.queued_seq in [seq for seq, _ in state.queued[: state.urgent]]
        state.queued = tuple([item for item in state.queued if item[0] != body.queued_seq])
    state.route = state.untold = None
    state.unknown_names, state.misnamed = frozenset(), ()
    state.tried = {}
    state.answer = state.final = state.failure = state.limit = None
    state.is_wrapped_up = state.is_wrap_up_lost = False
    state.spent = Spent()
    if (judged := body.judgement) is not None and judged.model is not None:
        _charge(state, judged.usage or Usage(), judged.cost_usd)
    state.asked_questions = {}
    state.work_began_at = body.at
    state.rewards = {}


def _say(state: State, message: Message) -> None:
    state.messages = state.messages.append(message)
    if state.whole is not None:
        state.whole = state.whole.append(message)
    state.unsent_chars += len(message.content)
    state.has_parts = state.has_parts or bool(message.parts)


def _on_inference_started(state: State, body: e.InferenceStarted, before: float) -> None:
    state.asked = body
    if body.route is not None:
        state.route = body.route
    if state.steering and body.has_tools:
        # At a wrap-up, the messages keep waiting: nothing could be done about them.
        for _, message in state.steering:
            _say(state, message)
        state.steering, state.answer = (), None


def _on_inference_completed(state: State, body: e.InferenceCompleted, before: float) -> None:
    completion = body.completion
    message, cost = completion.message, completion.cost_usd
    usage = completion.usage or guess_usage(state, message)
    state.step = body.step
    state.asked = state.hold = None
    note_inference(state, body)
    state.messages = state.messages.append(message)
    if state.whole is not None:
        state.whole = state.whole.append(message)
    state.has_parts = state.has_parts or bool(message.parts)
    state.calls = {call.call_id: CallState(call) for call in message.tool_calls}
    state.open_calls = len(state.calls)
    state.answer = None if message.tool_calls else message
    state.refused_tool = body.refused_tool
    state.finish_reason = completion.finish_reason
    state.is_wrapped_up = state.limit is not None
    state.spent.steps += 1
    _charge(state, usage, cost)
    if body.verdict is not None:
        _charge(state, body.verdict.usage, body.verdict.cost_usd)
    state.last_usage = usage
    state.unsent_chars = 0
    if completion.tokens is not None:
        state.prior = _find_prior(state, completion.tokens)


def _find_prior(state: State, tokens: TokenRecord) -> Prior | None:
    """Return the ids of the inference that was completed last; the earlier ones if it has none."""
    if tokens.prompt_token_ids is None or tokens.token_ids is None:
        return state.prior
    earlier = b"" if state.prior is None else state.prior.token_ids
    shared = earlier[: tokens.prompt_shared_tokens * ID_BYTES]
    return Prior(
        b"".join([shared, as_packed(tokens.prompt_token_ids), as_packed(tokens.token_ids)]),
        len(state.messages),
        tokens.tokenizer,
        state.finish_reason is FinishReason.LENGTH,
    )


def _on_inference_failed(state: State, body: e.InferenceFailed, before: float) -> None:
    if body.usage is not None:
        _charge(state, body.usage, body.cost_usd)
    elif body.may_be_billed:
        _charge_reserved(state)
    if body.retry_after_seconds is not None:
        model = body.model or (state.asked.model if state.asked is not None else None)
        state.hold = (body.at + body.retry_after_seconds, body.retry_after_seconds, model)
    state.failure = None
    if body.retry_in_seconds is None:
        state.failure, state.asked = body, None
    if body.next_tier is not None and state.route is not None:
        state.failure = None
        state.tried = {**state.tried, state.route.tier: body.error.partition("\n")[0]}
        state.untold = body.error if body.error_type == ESCALATED else None


def _charge(state: State, usage: Usage, cost_usd: float | None) -> None:
    """Count tokens and cost for the turn and the run."""
    spent = state.spent
    spent.tokens += usage.input_tokens + usage.output_tokens
    state.usage += usage
    if cost_usd is None:
        spent.is_cost_known, state.cost_usd = False, None
        return
    spent.cost_usd += cost_usd
    if state.cost_usd is not None:
        state.cost_usd += cost_usd


def _charge_reserved(state: State) -> None:
    """Count the newest inference, whose answer was lost, as reserved."""
    asked, spent = state.asked, state.spent
    if asked is not None and state.counts_lost:
        spent.steps += 1
        spent.tokens += guess_next_tokens(state)
        spent.cost_usd += asked.reserved_cost_usd or 0.0
        state.is_wrap_up_lost = state.limit is not None


def _on_tool_started(state: State, body: e.ToolStarted, before: float) -> None:
    item = state.calls.get(body.parent_call_id or body.call_id)
    if item is None:
        return
    if body.parent_call_id is None:
        item.attempt, item.effect = body.attempt, body.effect
        return
    call = ToolCall(body.call_id, body.name, body.arguments or "")
    made = item.inner.pop(body.call_id, None)  # a call that is made again moves to the end
    is_counted = made is not None and made.is_counted
    item.inner[body.call_id] = InnerCall(call, body.effect, body.attempt, is_counted=is_counted)


def _on_tool_completed(state: State, body: e.ToolCompleted, before: float) -> None:
    if body.parent_call_id is not None:
        _on_inner_completed(state, body.result, body.parent_call_id)
        return
    result = body.result
    _count_call(state, result)
    if body.child is not None:
        _charge(state, body.child.usage, body.child.cost_usd)
    state.unsent_chars += len(result.content)
    item = state.calls.get(result.call_id)
    if item is not None:
        if item.result is None:
            state.open_calls -= 1
        item.result = result
        if result.name == state.output_tool and not result.is_error:
            state.final = item.call.arguments
    if result.name == state.output_tool and result.error_kind in _REJECTIONS:
        state.spent.rejected_answers += 1
    if not state.open_calls:
        if state.unknown_names or result.error_kind is ToolErrorKind.UNKNOWN_TOOL or len(state.calls) > 1:
            _note_unknown(state)
        results = [to_message(item.result) for item in state.calls.values() if item.result is not None]
        state.messages = state.messages.extend(results)
        if state.whole is not None:
            state.whole = state.whole.extend(results)
        state.has_parts = state.has_parts or any([item.parts for item in results])
        state.calls = {}


def _note_unknown(state: State) -> None:
    """Note the names without a tool that the step has called, and those of them that it has called again."""
    kinds = [(item.call.name, item.result) for item in state.calls.values() if item.result is not None]
    names = dict.fromkeys([name for name, result in kinds if result.error_kind is ToolErrorKind.UNKNOWN_TOOL])
    if not names and not state.unknown_names:
        return
    state.misnamed = tuple([name for name in names if name in state.unknown_names])
    known = frozenset() if any([not result.is_error for _, result in kinds]) else state.unknown_names
    state.unknown_names = known | names.keys()


def _on_inner_completed(state: State, result: ToolResult, parent_call_id: str) -> None:
    parent = state.calls.get(parent_call_id)
    if parent is None:
        return
    known = parent.inner.get(result.call_id)
    if known is None:
        # The call was refused before it was started.
        known = parent.inner[result.call_id] = InnerCall(
            ToolCall(result.call_id, result.name, ""), Effect.PURE, 0
        )
    known.result = result
    if not known.is_counted:
        _count_call(state, result)
        known.is_counted = True


def _count_call(state: State, result: ToolResult) -> None:
    spent = state.spent
    if result.error_kind is ToolErrorKind.NOT_RUN:
        spent.refused_calls += 1
    elif result.error_kind not in (ToolErrorKind.REFUSED, ToolErrorKind.OVER_LIMIT):
        spent.tool_calls += 1
        if result.name in state.call_limits:
            spent.calls_by_tool[result.name] = spent.calls_by_tool.get(result.name, 0) + 1
        if result.error_kind is ToolErrorKind.RETRY:
            spent.retries_by_tool[result.name] = spent.retries_by_tool.get(result.name, 0) + 1
        elif spent.retries_by_tool and not result.is_error:
            spent.retries_by_tool.pop(result.name, None)


def _on_context_compacted(state: State, body: e.ContextCompacted, at: float) -> None:
    before = state.messages
    state.whole = state.transcript
    state.messages = Log(compact(before, body, state.context.recalled))
    note_compaction(state, body, before)
    # What the replaced messages told may be gone.
    state.is_schema_untold = state.is_schema_untold or (state.tells_schema and body.messages > 0)
    state.compactions += 1
    state.told = {}
    if body.reason == "overflow":
        state.spent.overflows += 1
        state.failure = None
    if body.usage is not None or body.model is not None:
        _charge(state, body.usage or Usage(), body.cost_usd)
    state.last_usage = Usage()
    _forget_prior(state)
    state.has_parts = any([message.parts for message in state.messages])
    state.unsent_chars = sum(len(message.content) for message in state.messages)


def _on_message_injected(state: State, body: e.MessageInjected, before: float) -> None:
    if body.delivery is not None:
        _receive(state, (state.seq, body.message), body.delivery)
        return
    _say(state, body.message)
    state.untold = state.answer = None
    state.misnamed = ()
    state.spent.nudges += body.is_nudge
    state.limit = body.limit or state.limit
    state.is_schema_untold = state.is_schema_untold and not body.tells_schema
    state.tells_schema = state.tells_schema or body.tells_schema
    if body.output_fault is not None:
        state.is_wrapped_up = False
        state.spent.rejected_answers += 1


def _receive(state: State, item: tuple[int, Message], delivery: Delivery) -> None:
    """Put a message of the user, with the number of its event, where it waits."""
    if delivery is Delivery.STEER and state.is_turn_open:
        state.steering = (*state.steering, item)
    elif delivery is Delivery.INTERRUPT:
        _queue_first(state, item, *state.steering)
        state.steering = ()
        state.urgent += 1
    else:
        state.queued = (*state.queued, item)


def _queue_first(state: State, *items: tuple[int, Message]) -> None:
    """Put messages before those that wait for turns, but after those that have interrupted one."""
    count = state.urgent
    state.queued = (*state.queued[:count], *items, *state.queued[count:])


def _on_question_asked(state: State, body: e.QuestionAsked, before: float) -> None:
    state.questions[body.question_id] = None
    state.asked_questions[body.question_id] = body
    item = state.calls.get(body.call_id) if body.call_id is not None else None
    if item is not None and body.question_id == doubt_id(item):
        item.question_id = body.question_id
    else:
        # A question about a call whose outcome was lost is Treadle's, and not the agent's.
        state.spent.questions += 1


def _on_question_answered(state: State, body: e.QuestionAnswered, before: float) -> None:
    if body.is_withdrawn:
        state.questions.pop(body.question_id, None)
        asked = state.asked_questions.pop(body.question_id, None)
        item = None if asked is None else state.calls.get(asked.call_id or "")
        if item is not None and item.question_id == body.question_id:
            item.question_id = None
        elif asked is not None:
            state.spent.questions -= 1
        return
    state.questions[body.question_id] = body.text
    # The time in which somebody answers is not working time.
    state.work_began_at += max(0.0, body.at - before)


def _on_snapshot_taken(state: State, body: e.SnapshotTaken, before: float) -> None:
    for path in body.delta.deleted:
        state.files.pop(path, None)
    state.files.update(body.delta.changed)
    state.tool_states.update(body.delta.states)
    state.snapshot_id = body.snapshot_id


def _on_turn_completed(state: State, body: e.TurnCompleted, before: float) -> None:
    state.is_turn_open = False
    _queue_first(state, *state.steering)
    state.steering = ()
    state.stop_reason = body.stop_reason
    state.output, state.error, state.fault = body.output, body.error, body.fault
    state.answer = None
    if state.asked_questions:
        for question_id in [key for key in state.asked_questions if state.questions[key] is None]:
            # Nobody waits for the answer any more.
            del state.questions[question_id], state.asked_questions[question_id]


def _on_run_paused(state: State, body: e.RunPaused, before: float) -> None:
    state.status = Status.PAUSED


def _on_run_resumed(state: State, body: e.RunResumed, before: float) -> None:
    is_reopened = state.has_failed_turn
    state.status = Status.RUNNING
    state.failure = None
    _charge_reserved(state)
    state.asked = None
    state.is_turn_open = state.is_turn_open or is_reopened
    state.work_began_at += max(0.0, body.at - before)
    if is_reopened:
        state.spent.is_cost_known = True
        state.spent.rejected_answers = 0
        if state.output_spec is not None:
            # An answer that broke the schema is judged again, so that the model is told before it is asked again.
            last = state.messages[-1]
            if last.role is Role.ASSISTANT and not last.tool_calls:
                state.answer = last
                state.spent.rejected_answers = -1  # it counted in the attempts before
    if body.agent is not None:
        if state.agent is not None and body.agent.model != state.agent.model:
            state.route, state.tried = None, {}
        state.agent = body.agent
        state.policy = body.agent.policy
        state.window = body.window
        state.can_compact = state.can_compact or body.window is not None
        known, state.output_spec = state.output_spec, body.output or state.output_spec
        if state.output_spec is not None and state.output_spec != known:
            state.is_schema_untold = state.output_spec.mode is OutputMode.TEXT
        if body.tools != state.tools:
            _forget_prior(state)
        _offer(state, body.tools)


def _forget_prior(state: State) -> None:
    """Record that the newest ids no longer stand for the beginning of the transcript."""
    if state.prior is not None:
        state.prior = replace(state.prior, messages=0)


def _on_run_finished(state: State, body: e.RunFinished, before: float) -> None:
    state.status = Status.FINISHED
    state.stop_reason, state.error, state.fault = body.stop_reason, body.error, body.fault


def _on_rewarded(state: State, body: e.Rewarded, before: float) -> None:
    state.rewards[body.name] = body.reward


def _on_noted(state: State, body: e.Noted, before: float) -> None:
    """Change nothing: labels are facts for listings, and remarks are for people."""


def _on_approval_requested(state: State, body: e.ApprovalRequested, before: float) -> None:
    if body.call_id in state.calls:
        state.calls[body.call_id].approval = body


def _on_approval_decided(state: State, body: e.ApprovalDecided, before: float) -> None:
    if body.call_id in state.calls:
        state.calls[body.call_id].approval = body
    # The time in which somebody decides is not working time.
    state.work_began_at += max(0.0, body.at - before)


_ADVANCE: dict[type, Callable[[State, Any, float], None]] = {
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
    e.Noted: _on_noted,
}
"""The handler for each type of body. It is given the state, the body, and the time of the previous event."""


def doubt_id(item: CallState) -> str:
    """Return the id of the question about the lost outcome of the newest attempt at a call."""
    return f"{item.call.call_id}/{item.attempt}"


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


def count_messages(state: State, *, has_tools: bool) -> int:
    """Return how many messages the next inference is sent."""
    count = len(state.messages)
    return count + len(state.steering) if state.steering and has_tools else count


def guess_usage(state: State, message: Message) -> Usage:
    """Estimate the tokens of an inference whose server did not report them."""
    return Usage(guess_input_tokens(state), guess_of_chars(count_chars(message)))


def guess_input_tokens(state: State) -> int:
    """Estimate the tokens of the next prompt: those of the newest inference, plus the text added since."""
    return state.last_usage.total_tokens + guess_of_chars(state.unsent_chars)


def guess_next_tokens(state: State) -> int:
    """Estimate the tokens of the next inference, its answer included: they are reserved before it is sent.

    While an inference runs, that is the one, and messages that came since are not in it.
    """
    new = sum([len(message.content) for _, message in state.steering]) if state.asked is None else 0
    return guess_input_tokens(state) + guess_of_chars(new) + state.last_usage.output_tokens
