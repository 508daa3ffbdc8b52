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
from treadle.core.answering import fold_message
from treadle.core.asking import AskedQuestion, fold_answer, fold_question, leave_out_wait
from treadle.core.calls import CallState, fold_approval, fold_completed, fold_started, waiting_calls
from treadle.core.limits import Spent, charge, charge_reserved
from treadle.core.log import Log
from treadle.core.parts import leave_out_refused
from treadle.core.policy import Policy
from treadle.core.prompts.prompting import (
    PromptSize,
    Shown,
    add_message,
    fold_compaction,
    forget_ids,
    note_ids,
    note_inference,
    note_tools,
    replace_instructions,
    say,
)
from treadle.core.spec import AgentSpec
from treadle.core.steering import leave_queue, queue_steering, receive, take_steering
from treadle.core.turns import is_retriable, reopens
from treadle.core.types import (
    UNREPORTED,
    Fault,
    FinishReason,
    Message,
    OutputMode,
    OutputSpec,
    Role,
    Route,
    StopReason,
    ToolSpec,
    Usage,
    Window,
)

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


class Turn(Struct, gc=False):
    """The newest turn of a run. It is made anew when a turn starts."""

    opened: e.TurnStarted | None = None
    """The event that began the turn; `None` before the first turn."""
    is_open: bool = False
    """True if the turn has not ended."""
    began_at: float = 0.0
    """When the turn began, moved by the time without a driver. It counts for events without `worked_seconds`."""
    position: int = 0
    """The position in the transcript of the message that began the turn."""
    steering: tuple[tuple[int, Message], ...] = ()
    """The messages of the user that the next inference adds to the transcript, each with the number of its event.
    Those that no inference has taken when the turn ends wait for the next turns."""
    spent: Spent = field(default_factory=Spent)
    """The part of its budgets that the turn has used."""
    rewards: dict[str, float] = {}
    """The rewards given since the turn began, by name."""
    step_rewards: tuple[float, ...] | None = None
    """The rewards of the run's completed inferences; `None` if none were given."""

    asked: e.InferenceStarted | None = None
    """The newest inference if its outcome is not recorded; `None` if it is."""
    failure: e.InferenceFailed | None = None
    """The failure of the newest inference, if its last attempt failed."""
    finish_reason: FinishReason | None = None
    """The finish reason of the newest inference."""
    answer: Message | None = None
    """The newest message of the model if it has no calls; it can end the turn."""
    refused_tool: str | None = None
    """The tool that this message says cannot be used, although the model has it; `None` if there is none."""
    final: str | None = None
    """The answer that the model gave through the answer tool; it ends the turn when its step is done."""
    limit: StopReason | None = None
    """The limit that the model was told about; the rest of the turn is the wrap-up. `None` before that."""
    is_wrapped_up: bool = False
    """True if the inference of the wrap-up is completed."""
    is_wrap_up_lost: bool = False
    """True if an inference of the wrap-up may have been paid for, although its answer was lost."""

    route: Route | None = None
    """The choice of the model; `None` if none was made."""
    tried: dict[str, str] = {}
    """The tiers that are not asked again, with the reason: the model failed, or its answer was thrown away."""
    untold: str | None = None
    """Why the newest answer was thrown away, until the next model has been told; `None`: nothing to tell."""

    calls: dict[str, CallState] = {}
    """The calls of the current step by id, in call order; empty once all have results."""
    open_calls: int = 0
    """How many of `calls` have no result yet."""
    unknown_names: frozenset[str] = frozenset()
    """The names without a tool that the model has called since its last call that succeeded."""
    misnamed: tuple[str, ...] = ()
    """The unknown names in the newest step's calls that the model had been told about, until it is told again."""
    questions: dict[str, AskedQuestion] = {}
    """The questions that were asked, by id."""

    @property
    def number(self) -> int:
        """The number of the turn; 0 before the first."""
        return 0 if self.opened is None else self.opened.turn

    @property
    def said(self) -> str:
        """The text of the user's message that began the turn, without what was recalled for it."""
        return "" if self.opened is None else self.opened.message.content

    def clone(self) -> "Turn":
        """Return a copy that can be changed without changing the original."""
        new = copy(self)
        new.calls = {call_id: item.clone() for call_id, item in self.calls.items()}
        new.questions = {question_id: copy(item) for question_id, item in self.questions.items()}
        spent = new.spent = copy(self.spent)
        spent.calls_by_tool, spent.retries_by_tool = dict(spent.calls_by_tool), dict(spent.retries_by_tool)
        new.rewards = dict(self.rewards)
        return new


class Ending(Struct, frozen=True, gc=False):
    """The ending of the newest turn that is over."""

    stop_reason: StopReason | None = None
    """The reason; `None` if no turn has ended."""
    output: str = ""
    """The final answer of the turn, or the model's last text."""
    error: str | None = None
    """What went wrong; `None` if nothing did."""
    fault: Fault | None = None
    """The party responsible for `error`; `None` if nobody is."""
    failure: e.InferenceFailed | None = None
    """The failure of the inference that ended the turn; `None` if something else did."""


class SandboxState(Struct, gc=False):
    """The sandbox as of the newest snapshot."""

    files: dict[str, str] = {}
    """The files: path to content hash."""
    tool_states: dict[str, str] = {}
    """The states that tools keep in addition to the files: name to content hash."""
    snapshot_id: str | None = None
    """The id of the newest snapshot; `None` if there is none."""


class State(Struct, gc=False):
    """Everything that the next decision depends on. Treat it as read-only: only `advance` changes it."""

    status: Status = Status.NEW
    seq: int = 0
    """The number of the newest event; 0 if there is none."""
    at: float = 0.0
    """The time of the newest event, in seconds since the epoch."""
    worked_seconds: float | None = None
    """`worked_seconds` of the newest event."""
    started: e.RunStarted | None = None
    """The run's first event."""
    agent: AgentSpec | None = None
    """The agent that drives the run, as the newest start or resume recorded it."""
    policy: Policy = Policy()
    """The policy of that agent."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are offered to the model, as the newest start or resume recorded them."""
    call_limits: dict[str, int] = {}
    """How often each tool may be called in a turn. Tools without a limit are left out."""
    output_spec: OutputSpec | None = None
    """How the model is asked for answers that fit a schema. `None`: answers are text."""
    window: Window | None = None
    """The context window of the model, as the newest start or resume recorded it; `None` if it is not known."""
    messages: Log[Message] = field(default_factory=Log)
    """The transcript as the model sees it, system message included."""
    shown: Shown = field(default_factory=Shown)
    """The part of the transcript that the model is shown."""
    size: PromptSize = field(default_factory=PromptSize)
    """How large the next prompt is."""
    turn: Turn = field(default_factory=Turn)
    """The newest turn."""
    step: int = 0
    """How many inferences were completed in the run."""
    queued: tuple[tuple[int, Message], ...] = ()
    """The messages of the user that wait for the next turns, each with the number of its event."""
    urgent: int = 0
    """How many messages at the beginning of `queued` interrupted or steered a turn, in the order of arrival."""
    hold: tuple[float, float, str | None] | None = None
    """The wait that a server asked for in its newest answer, which was an error: the end of the wait, its length
    in seconds, and the name of the model; `None` if there is none."""
    usage: Usage = Usage()
    """Tokens of the whole run."""
    cost_usd: float | None = 0.0
    """Cost of the whole run; `None` if the cost of an inference is unknown."""
    ending: Ending = Ending()
    """How the newest turn that is over ended."""
    sandbox: SandboxState = field(default_factory=SandboxState)
    """The sandbox as of the newest snapshot."""
    taken: int = 0
    """The number of the newest message of the inbox that was taken in; 0 if none was."""

    @property
    def transcript(self) -> Log[Message]:
        """The whole transcript, including the system message and the messages that the model no longer sees."""
        return self.messages if self.shown.whole is None else self.shown.whole

    @property
    def has_failed_turn(self) -> bool:
        """True if the newest turn ended with an error, so that a resume opens it again."""
        ending = self.ending
        return reopens(
            has_failed=is_retriable(ending.stop_reason, ending.fault), is_turn_open=self.turn.is_open
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
        return max(0.0, self.at - self.turn.began_at)

    @property
    def is_session(self) -> bool:
        """True if the run stays open after a turn for the next one."""
        return self.started is not None and self.started.is_session

    @property
    def stays_open(self) -> bool:
        """True if the end of a turn does not end the run, because another turn may follow."""
        return self.started is not None and (self.started.is_session or self.started.has_user)

    @property
    def is_relayed(self) -> bool:
        """True if another program decides what follows each answer."""
        return self.started is not None and self.started.is_relayed

    def is_since(self, major: int, minor: int) -> bool:
        """Return whether the events of the run are of version `major.minor` or later."""
        return self.started is None or e.is_since(self.started.version, major, minor)


def apply(state: State, body: e.DurableBody) -> State:
    """Return the state after `body`, which is the event numbered `state.seq + 1`."""
    return advance(clone(state), body)


def advance(state: State, body: e.DurableBody) -> State:
    """Change `state` in place to the state after `body`, and return it.

    While the handlers run, `state.at` is the time of the previous event. What rarely changes is compared before it
    is set, because to set a field of a struct takes longer than to read it.
    """
    state.seq += 1
    if body.inbox is not None:
        state.taken = body.inbox
    _HANDLERS[type(body)](state, body)
    state.at = body.at
    if state.worked_seconds is not body.worked_seconds:
        state.worked_seconds = body.worked_seconds
    return state


def clone(state: State) -> State:
    """Return a copy of `state` that `advance` can change without changing the original."""
    new = copy(state)
    new.turn, new.size = state.turn.clone(), copy(state.size)
    shown = new.shown = copy(state.shown)
    shown.recalled, shown.told = dict(shown.recalled), dict(shown.told)
    sandbox = new.sandbox = copy(state.sandbox)
    sandbox.files, sandbox.tool_states = dict(sandbox.files), dict(sandbox.tool_states)
    return new


def fold(bodies: Iterable[e.DurableBody], state: State | None = None) -> State:
    """Return the state after all of `bodies`, starting from `state`, which is unchanged; `None`: a new state."""
    state = State() if state is None else clone(state)
    for body in bodies:
        advance(state, body)
    return state


def _on_run_started(state: State, body: e.RunStarted) -> None:
    instructions = body.system_message
    state.status = Status.RUNNING
    state.started = body
    state.shown.can_compact = state.is_since(2, 2)
    state.agent = body.spec
    state.policy = state.agent.policy
    state.output_spec = body.output
    state.messages = Log() if instructions is None else Log((Message(Role.SYSTEM, instructions),))
    state.size.unsent_chars = len(instructions or "")
    state.window = body.window
    for message in body.history:
        say(state, message)
    _offer(state, body.tools)


def _offer(state: State, tools: tuple[ToolSpec, ...]) -> None:
    state.tools = tools
    state.call_limits = {tool.name: tool.max_calls for tool in tools if tool.max_calls is not None}
    state.shown.fencing = frozenset([tool.name for tool in tools if tool.has_fences])
    state.shown.external = frozenset([tool.name for tool in tools if tool.is_external])
    note_tools(state)


def _on_turn_started(state: State, body: e.TurnStarted) -> None:
    shown, failure = state.shown, state.turn.failure
    state.status = Status.RUNNING
    if shown.has_parts and shown.can_compact and failure is not None and failure.error_type in _REFUSALS:
        shown.whole = state.transcript
        state.messages = Log(leave_out_refused(list(state.messages)))
        shown.has_parts = any([message.parts for message in state.messages])
    message, at = body.message, len(state.messages)
    state.turn = Turn(opened=body, is_open=True, began_at=body.at, position=at)
    if body.recalled is not None:
        own = len(body.recalled.text)
        message = replace(message, content=f"{body.recalled.text}\n\n{message.content}", own_chars=own)
        shown.recalled[at] = own
        shown.told |= {item.item_id: item.version for item in body.recalled.items}
    if body.hint is not None:
        message = replace(message, content=f"{message.content}\n\n{body.hint}")
    say(state, message)
    if body.queued_seq is not None:
        leave_queue(state, body.queued_seq)
    if (judged := body.judgement) is not None and judged.model is not None:
        charge(state, judged.usage or UNREPORTED, judged.cost_usd)


def _on_inference_started(state: State, body: e.InferenceStarted) -> None:
    turn = state.turn
    turn.asked = body
    if body.route is not None:
        turn.route = body.route
    if turn.steering and body.has_tools:
        take_steering(state)


def _on_inference_completed(state: State, body: e.InferenceCompleted) -> None:
    completion, turn = body.completion, state.turn
    message, calls = completion.message, completion.message.tool_calls
    state.step = body.step
    turn.asked = None
    if state.hold is not None:
        state.hold = None
    usage = note_inference(state, completion)
    add_message(state, message)
    opened: dict[str, CallState] = {}
    for call in calls:
        opened[call.call_id] = CallState(call)
    turn.calls, turn.open_calls = opened, len(opened)
    if not calls:
        turn.answer = message
    elif turn.answer is not None:
        turn.answer = None
    if turn.refused_tool is not body.refused_tool:
        turn.refused_tool = body.refused_tool
    if turn.finish_reason is not completion.finish_reason:
        turn.finish_reason = completion.finish_reason
    if turn.limit is not None or turn.is_wrapped_up:
        turn.is_wrapped_up = turn.limit is not None
    turn.spent.steps += 1
    charge(state, usage, completion.cost_usd)
    if body.verdict is not None:
        charge(state, body.verdict.usage, body.verdict.cost_usd)
    if completion.tokens is not None:
        note_ids(state, completion)


def _on_inference_failed(state: State, body: e.InferenceFailed) -> None:
    turn = state.turn
    if body.usage is not None:
        charge(state, body.usage, body.cost_usd)
    elif body.may_be_billed:
        charge_reserved(state)
    if body.retry_after_seconds is not None:
        model = body.model or (turn.asked.model if turn.asked is not None else None)
        state.hold = (body.at + body.retry_after_seconds, body.retry_after_seconds, model)
    turn.failure = None
    if body.retry_in_seconds is None:
        turn.failure, turn.asked = body, None
    if body.next_tier is not None and turn.route is not None:
        turn.failure = None
        turn.tried = {**turn.tried, turn.route.tier: body.error.partition("\n")[0]}
        turn.untold = body.error if body.error_type == ESCALATED else None


def _on_context_compacted(state: State, body: e.ContextCompacted) -> None:
    fold_compaction(state, body)
    if body.tools:
        known = state.size.known_tokens
        _offer(state, (*state.tools, *body.tools))
        state.size.known_tokens = known  # the event counts them
    if body.usage is not None or body.model is not None:
        charge(state, body.usage or UNREPORTED, body.cost_usd)


def _on_message_injected(state: State, body: e.MessageInjected) -> None:
    if body.delivery is not None:
        receive(state, body)
    else:
        say(state, body.message)
        fold_message(state, body)


def _on_snapshot_taken(state: State, body: e.SnapshotTaken) -> None:
    sandbox, delta = state.sandbox, body.delta
    for path in delta.deleted:
        sandbox.files.pop(path, None)
    sandbox.files.update(delta.changed)
    sandbox.tool_states.update(delta.states)
    sandbox.snapshot_id = body.snapshot_id


def _on_turn_completed(state: State, body: e.TurnCompleted) -> None:
    turn = state.turn
    turn.is_open = False
    if turn.failure is not None and turn.failure.said:
        say(state, Message(Role.ASSISTANT, turn.failure.said, is_partial=True))
    queue_steering(state)
    failure = None if body.error is None else turn.failure
    state.ending = Ending(body.stop_reason, body.output, body.error, body.fault, failure)
    turn.answer = None
    if turn.questions:
        # Nobody waits for the other answers any more.
        turn.questions = {key: item for key, item in turn.questions.items() if item.answer is not None}


def _on_run_paused(state: State, body: e.RunPaused) -> None:
    state.status = Status.PAUSED
    if body.reason in ("approval", "question") and state.is_since(2, 7):
        leave_out_wait(state, body.at)


def _on_run_resumed(state: State, body: e.RunResumed) -> None:
    turn, shown = state.turn, state.shown
    state.status = Status.RUNNING
    turn.failure = None
    if not body.begins_fork:
        charge_reserved(state)
    turn.asked = None
    leave_out_wait(state, body.at)
    if state.has_failed_turn:
        turn.is_open = turn.spent.is_cost_known = True
        turn.spent.rejected_answers, turn.spent.forgiven = 0, turn.spent.lost
        turn.spent.overflows = 0
        if state.output_spec is not None:
            # An answer that broke the schema is judged again, so that the model is told before it is asked again.
            last = state.messages[-1]
            if last.role is Role.ASSISTANT and not last.tool_calls:
                turn.answer = last
                turn.spent.rejected_answers = -1  # it counted in the attempts before
    if body.instructions is not None:
        replace_instructions(state, body.instructions)
    if body.agent is not None:
        if state.agent is not None and body.agent.model != state.agent.model:
            turn.route, turn.tried = None, {}
        state.agent = body.agent
        state.policy = body.agent.policy
        state.window = body.window
        shown.can_compact = shown.can_compact or body.window is not None
        known = state.output_spec
        state.output_spec = None if body.drops_output else body.output or known
        if state.output_spec is not None and state.output_spec != known:
            shown.is_schema_untold = state.output_spec.mode is OutputMode.TEXT
        if body.tools != state.tools:
            forget_ids(state)
        _offer(state, body.tools)


def _on_run_finished(state: State, body: e.RunFinished) -> None:
    state.status = Status.FINISHED
    ending = state.ending
    state.ending = Ending(body.stop_reason, ending.output, body.error, body.fault, ending.failure)


def _on_rewarded(state: State, body: e.Rewarded) -> None:
    state.turn.rewards[body.name] = body.reward
    if body.step_rewards is not None:
        state.turn.step_rewards = body.step_rewards


def _on_noted(state: State, body: e.Noted) -> None:
    """Let a message that was taken back wait no longer. Labels are for listings, and remarks for people."""
    if body.withdrawn_seq is not None:
        leave_queue(state, body.withdrawn_seq)
    if waiting_calls(state) and state.is_since(2, 7):
        leave_out_wait(state, body.at)


_HANDLERS: dict[type, Callable[[State, Any], None]] = {
    e.RunStarted: _on_run_started,
    e.TurnStarted: _on_turn_started,
    e.InferenceStarted: _on_inference_started,
    e.InferenceCompleted: _on_inference_completed,
    e.InferenceFailed: _on_inference_failed,
    e.ToolStarted: fold_started,
    e.ToolCompleted: fold_completed,
    e.ContextCompacted: _on_context_compacted,
    e.MessageInjected: _on_message_injected,
    e.QuestionAsked: fold_question,
    e.QuestionAnswered: fold_answer,
    e.ApprovalRequested: fold_approval,
    e.ApprovalDecided: fold_approval,
    e.SnapshotTaken: _on_snapshot_taken,
    e.TurnCompleted: _on_turn_completed,
    e.RunPaused: _on_run_paused,
    e.RunResumed: _on_run_resumed,
    e.RunFinished: _on_run_finished,
    e.Rewarded: _on_rewarded,
    e.Noted: _on_noted,
}
