"""The events of the turn and step stream.

The names, fields, order of fields and tags are those of the turn and step events of the Llama Stack client; fields
that it does not have follow at the end. Classes whose name in that client is also the name of an event of the
journal have a longer one here; `treadle.trajectory.turns` exports them under the client's names.
Source: llama-stack-client 0.7, `lib/agents/turn_events.py`.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from treadle.core.types import Json, Option, StopReason, Usage

StepType: TypeAlias = Literal["inference", "tool_execution"]
"""The kinds of steps."""


class StepToolCall(Struct, frozen=True):
    """A call of a tool."""

    call_id: str
    tool_name: str
    arguments: str
    """The arguments as JSON, as the model wrote them."""


class StepTextDelta(Struct, frozen=True):
    """A piece of the model's text. A journal that is read afterwards gives the text in one piece."""

    text: str
    delta_type: Literal["text"] = "text"


class StepReasoningDelta(Struct, frozen=True):
    """A piece of the model's thinking. A journal that is read afterwards gives it in one piece."""

    text: str
    delta_type: Literal["reasoning"] = "reasoning"


class ToolCallIssuedDelta(Struct, frozen=True):
    """A call with its complete arguments."""

    call_id: str
    tool_type: str
    """`function` for a call that Treadle runs; for a call that the model's server ran, the kind of tool."""
    tool_name: str
    arguments: str
    delta_type: Literal["tool_call_issued"] = "tool_call_issued"
    parent_call_id: str | None = None
    """The id of the running call that made this one; `None` for a call of the model."""


class StepToolCallDelta(Struct, frozen=True):
    """A piece of the arguments of a call that the model is writing."""

    call_id: str
    """The id of the call as the server streams it; empty if the call has no id yet."""
    arguments_delta: str
    delta_type: Literal["tool_call"] = "tool_call"
    index: int = 0
    """The position of the call in the answer, from 0."""
    tool_name: str | None = None
    """The name of the tool; `None` if no piece so far had it."""


class ToolCallCompletedDelta(Struct, frozen=True):
    """The result of a call."""

    call_id: str
    tool_type: str
    tool_name: str
    result: Json
    """The text that the model reads, or what the model's server shows of its own call."""
    delta_type: Literal["tool_call_completed"] = "tool_call_completed"
    is_error: bool = False
    parent_call_id: str | None = None
    """The id of the running call that made this one; `None` for a call of the model."""


class ToolProgressDelta(Struct, frozen=True):
    """A progress report of a running tool."""

    call_id: str
    text: str
    delta_type: Literal["tool_progress"] = "tool_progress"


class RetryDelta(Struct, frozen=True):
    """A failed attempt at an inference, which is made again.

    Everything that the step has streamed so far no longer counts.
    """

    error_message: str
    code: str
    """The name of the error's class."""
    attempt: int
    """The number of the attempt that failed, from 1."""
    retry_in_seconds: float
    delta_type: Literal["retry"] = "retry"


Delta: TypeAlias = (
    StepTextDelta
    | StepReasoningDelta
    | ToolCallIssuedDelta
    | StepToolCallDelta
    | ToolCallCompletedDelta
    | ToolProgressDelta
    | RetryDelta
)
"""A report of a running step."""


class InferenceStepResult(Struct, frozen=True):
    """The result of an inference step."""

    step_id: str
    response_id: str | None
    """The server's id of the response; `None` if it has none."""
    text_content: str
    """The text that the model wrote in this step."""
    function_calls: list[StepToolCall]
    """The calls that Treadle runs in the next step."""
    server_tool_executions: list[dict[str, Json]]
    """The calls that the model's server ran after this step, with `call_id`, `tool_type`, `tool_name`, `arguments`,
    `result` and `is_error`."""
    stop_reason: str
    """`end_of_turn`, `tool_calls`, `server_tool_call`, `length` or `content_filter`."""


class ToolExecutionStepResult(Struct, frozen=True):
    """The result of a step that runs calls."""

    step_id: str
    tool_calls: list[StepToolCall]
    tool_responses: list[dict[str, Json]]
    """The result of each call, in the order of the calls: `call_id`, `tool_name`, `content` and `metadata`, which
    has `is_error`, and for calls that Treadle ran `duration_seconds` and, if they are set, `error_kind`,
    `structured` and `child_run_id`."""


class _OfTurn(Struct, frozen=True):
    turn_id: str
    session_id: str
    """The id of the run."""


class _OfStep(Struct, frozen=True):
    step_id: str
    step_type: StepType
    turn_id: str


class TurnStartedEvent(_OfTurn, frozen=True):
    """The start of a turn."""

    event_type: Literal["turn_started"] = "turn_started"
    turn: int = 1
    """The number of the turn in its run, from 1."""
    is_resumed: bool = False
    """True if the turn began before: it failed and is tried again, or its beginning is not in the stream."""


class TurnCompletedEvent(_OfTurn, frozen=True):
    """The end of a turn with an answer, which may be one that a limit cut short."""

    final_text: str
    response_ids: list[str]
    """The ids that the server gave to the responses; empty if the server gives none."""
    num_steps: int
    event_type: Literal["turn_completed"] = "turn_completed"
    stop_reason: StopReason = StopReason.COMPLETED
    usage: Usage = Usage()
    """The tokens of all inferences of the turn, those of thrown-away answers and of sub-agents included."""
    cost_usd: float | None = 0.0
    """The cost of all that; `None` if a part of it is not known."""


class TurnFailed(_OfTurn, frozen=True):
    """The end of a turn without an answer, or the end of the stream within a turn."""

    error_message: str
    event_type: Literal["turn_failed"] = "turn_failed"
    code: str = "error"
    """The name of the error's class, the stop reason, the reason of a pause, or `interrupted`."""
    is_retryable: bool = False
    """True if the same turn may succeed if it is resumed or tried again."""
    usage: Usage = Usage()
    """As for `TurnCompletedEvent`."""
    cost_usd: float | None = 0.0
    """As for `TurnCompletedEvent`."""


class TurnPaused(_OfTurn, frozen=True):
    """The pause of a turn."""

    reason: str
    """`question`, `approval`, `cancelled` or `closed`."""
    event_type: Literal["turn_paused"] = "turn_paused"


class TurnResumed(_OfTurn, frozen=True):
    """The continuation of a turn after a pause or a crash. Its open tool step, if any, goes on."""

    event_type: Literal["turn_resumed"] = "turn_resumed"


class InputRequested(_OfTurn, frozen=True):
    """A question to the user, or the request to approve a call."""

    kind: Literal["question", "approval"]
    request_id: str
    """The id of the question, or of the call."""
    text: str
    """The question, or the arguments of the call."""
    event_type: Literal["input_requested"] = "input_requested"
    tool_name: str | None = None
    """The tool that waits for approval; `None` for a question."""
    options: tuple[Option, ...] = ()
    """The answers that the question offers."""
    allows_text: bool = True
    """True if the answer may be a text other than the options."""


class InputReceived(_OfTurn, frozen=True):
    """The answer to a question, or the decision about a call."""

    kind: Literal["question", "approval"]
    request_id: str
    text: str
    """The answer; `approved` or `refused`, with the reason if there is one, for a decision."""
    event_type: Literal["input_received"] = "input_received"


class StepStarted(_OfStep, frozen=True):
    """The start of a step."""

    event_type: Literal["step_started"] = "step_started"
    metadata: dict[str, Json] | None = None
    """`None` for an inference. For tools `server_side`, which is true if the model's server ran them, and then also
    `tool_type` and `tool_name`; of several, they are joined with commas."""


class StepProgress(_OfStep, frozen=True):
    """A report of a running step."""

    delta: Delta
    event_type: Literal["step_progress"] = "step_progress"


class StepCompleted(_OfStep, frozen=True):
    """The end of a step."""

    result: InferenceStepResult | ToolExecutionStepResult
    event_type: Literal["step_completed"] = "step_completed"
    usage: Usage | None = None
    """The tokens of the step's inferences, or of the runs that its calls drove; `None` if they are not known, or
    nothing was used."""
    cost_usd: float | None = None
    """The cost of these tokens; `None` if it is not known, or nothing was used."""


class StepFailed(_OfStep, frozen=True):
    """The end of a step that has no result."""

    error_message: str
    event_type: Literal["step_failed"] = "step_failed"
    code: str = "error"
    """As for `TurnFailed`."""
    is_retryable: bool = False
    """As for `TurnFailed`."""


TurnEvent: TypeAlias = (
    TurnStartedEvent
    | StepStarted
    | StepProgress
    | StepCompleted
    | StepFailed
    | InputRequested
    | InputReceived
    | TurnPaused
    | TurnResumed
    | TurnCompletedEvent
    | TurnFailed
)
"""An event of the stream."""
