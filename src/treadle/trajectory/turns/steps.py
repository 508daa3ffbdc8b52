"""The reading of one run's events and deltas as turns and steps.

Invariants, for any sequence of events: each step that starts is completed or fails before the next one starts; the
ids of a turn's steps count up without gaps; a turn ends with `TurnCompleted` or `TurnFailed`. Without the deltas,
the stream is the same while a run is driven and afterwards.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.tally import UNKNOWN, Charge, Tally, charge_of
from treadle.core.turns import STEP_CHANGES, StepFold, find_handlers
from treadle.core.types import Fault, FinishReason, Json, ServerCall, StopReason, ToolResult
from treadle.trajectory.turns import shapes as s

_FAILED = frozenset((StopReason.ERROR, StopReason.CANCELLED, StopReason.REFUSED, StopReason.CONTEXT_OVERFLOW))
"""The stop reasons of turns that have no answer."""
_CUT = {FinishReason.LENGTH: "length", FinishReason.CONTENT_FILTER: "content_filter"}
_INTERRUPTED = "interrupted"


class _Step(Struct, gc=False):
    step_id: str
    step_type: s.StepType
    tally: Tally
    is_served: bool = False
    """True if the model's server runs the calls, and the answer goes on."""
    names: dict[int, str] = {}
    """The names of the calls that are being streamed, by position."""
    ids: dict[int, str] = {}
    calls: dict[str, s.StepToolCall] = {}
    results: dict[str, dict[str, Json]] = {}


class _Streamed(Struct, gc=False):
    """What was streamed of the open inference, in this step and those before it."""

    text: str = ""
    told: int = 0
    """How many characters of the text belong to steps before the open one."""
    has_reasoning: bool = False
    served: list[str] = []
    """The ids of the server's calls."""


class TurnReader:
    """The reader of one run. Its methods add to `out` what follows from an item."""

    def __init__(self, run_id: str) -> None:
        self.out: list[s.TurnEvent] = []
        """What follows from the item that is being read."""
        self.paused: str | None = None
        """The reason of the pause; `None` if the run is not paused."""
        self._run_id = run_id
        self._fold = StepFold()
        self._turn = 0
        self._turn_id = ""
        self._is_open = False
        """True if the stream has a turn that began and did not end."""
        self._steps = 0
        self._step: _Step | None = None
        self._streamed = _Streamed()
        self._tally = Tally()
        self._response_ids: dict[str, None] = {}
        self._failure: e.InferenceFailed | None = None

    def read(self, body: e.DurableBody | e.Delta) -> list[s.TurnEvent]:
        """Return what follows from the next event or delta of the run."""
        self.out = []
        kind = type(body)
        if (change := STEP_CHANGES.get(kind)) is not None:
            change(self._fold, body)
        if (read := _READ.get(kind)) is not None:
            read(self, body)
        return self.out

    def abandon(self, code: str, message: str | None = None) -> None:
        """Fail the open turn, if there is one, because the stream ends."""
        if self._is_open:
            told = message or _ENDED.get(code, f"the run was paused: {code}")
            self._end_step(told, code, is_retryable=True)
            self._fail(told, code, is_retryable=True)

    # Turns

    def on_turn_started(self, body: e.TurnStarted) -> None:
        self.abandon(_INTERRUPTED)
        self._open_turn(body.turn)
        self._charge(charge_of(body))

    def on_turn_completed(self, body: e.TurnCompleted) -> None:
        self._ensure_turn(body.turn)
        failure, self._failure = self._failure, None
        code = body.stop_reason.value
        if failure is not None and body.stop_reason is StopReason.ERROR:
            code = failure.error_type
        is_retryable = body.fault is Fault.INFRASTRUCTURE or body.stop_reason is StopReason.CANCELLED
        message = body.error or _ENDED.get(code, code)
        self._end_step(message, code, is_retryable=is_retryable)
        if body.error is not None or body.stop_reason in _FAILED:
            self._fail(message, code, is_retryable=is_retryable)
            return
        self._is_open = False
        told = (body.output, list(self._response_ids), self._steps)
        self._tell(s.TurnCompletedEvent, *told, stop_reason=body.stop_reason, **self._use())

    def on_run_finished(self, body: e.RunFinished) -> None:
        self.abandon(_INTERRUPTED, body.error)

    def on_run_paused(self, body: e.RunPaused) -> None:
        self.paused = body.reason
        if self._is_open:
            self._tell(s.TurnPaused, body.reason)

    def on_run_resumed(self, body: e.RunResumed) -> None:
        self.paused = None
        self._lose()
        if self._is_open:
            self._tell(s.TurnResumed)
        elif self._fold.is_turn_open:
            self._open_turn(self._turn, is_resumed=True)
        if self._step is not None and self._step.step_type == "inference":
            self._end_step(_ENDED[_INTERRUPTED], _INTERRUPTED, is_retryable=True)

    def _open_turn(self, turn: int, *, is_resumed: bool = False) -> None:
        if turn != self._turn:
            digest = hashlib.sha256(f"{self._run_id}/{turn}".encode()).hexdigest()
            self._turn, self._turn_id = turn, f"turn_{digest[:12]}"
            self._steps, self._tally, self._response_ids = 0, Tally(), {}
        self._is_open, self._failure = True, None
        self._tell(s.TurnStartedEvent, turn=turn, is_resumed=is_resumed)

    def _tell(self, kind: Callable[..., s.TurnEvent], *told: Any, **more: Any) -> None:
        self.out.append(kind(self._turn_id, self._run_id, *told, **more))

    def _ensure_turn(self, turn: int | None = None) -> None:
        """Open a turn unless one is open. The stream then began within the turn."""
        if not self._is_open:
            self._open_turn(turn or self._turn + 1, is_resumed=True)

    def _fail(self, message: str, code: str, *, is_retryable: bool) -> None:
        self._is_open = False
        self._tell(s.TurnFailed, message, code=code, is_retryable=is_retryable, **self._use())

    def _use(self) -> dict[str, Any]:
        return {"usage": self._tally.usage, "cost_usd": self._tally.cost_usd}

    # Steps

    def _open_step(self, step_type: s.StepType, metadata: dict[str, Json] | None = None) -> _Step:
        self._ensure_turn()
        step = _Step(f"{self._turn_id}_step_{self._steps}", step_type, Tally())
        self._step, self._steps = step, self._steps + 1
        self.out.append(s.StepStarted(step.step_id, step_type, self._turn_id, metadata=metadata))
        return step

    def _need(self, step_type: s.StepType) -> _Step:
        """Return the open step if it has this type. Otherwise end the open step, and open one of this type."""
        step = self._step
        if step is not None and step.step_type == step_type:
            return step
        self._end_step(_ENDED[_INTERRUPTED], _INTERRUPTED, is_retryable=True)
        return self._open_step(step_type, {"server_side": False} if step_type == "tool_execution" else None)

    def _report(self, delta: s.Delta) -> None:
        if self._step is not None:
            step = self._step
            self.out.append(s.StepProgress(step.step_id, step.step_type, self._turn_id, delta))

    def _complete(self, result: s.InferenceStepResult | s.ToolExecutionStepResult) -> None:
        step, self._step = self._step, None
        assert step is not None
        tally = step.tally
        is_known = bool(tally.usage.total_tokens) and not tally.unknown_usages
        has_cost = is_known or tally.known_cost_usd > 0
        self.out.append(
            s.StepCompleted(
                step.step_id,
                step.step_type,
                self._turn_id,
                result,
                usage=tally.usage if is_known else None,
                cost_usd=tally.cost_usd if has_cost else None,
            )
        )

    def _complete_tools(self, step: _Step) -> None:
        calls = list(step.calls.values())
        found = [step.results[call.call_id] for call in calls if call.call_id in step.results]
        self._complete(s.ToolExecutionStepResult(step.step_id, calls, found))

    def _end_step(self, message: str, code: str, *, is_retryable: bool) -> None:
        """Fail the open step, if any. A tool step is completed instead if all of its calls have results."""
        step = self._step
        if step is None:
            return
        if step.step_type == "tool_execution" and len(step.results) == len(step.calls):
            self._complete_tools(step)
            return
        self._step = None
        self.out.append(
            s.StepFailed(
                step.step_id, step.step_type, self._turn_id, message, code=code, is_retryable=is_retryable
            )
        )

    def _charge(self, charge: Charge | None) -> None:
        if charge is not None:
            self._tally.add(charge)
            if self._step is not None:
                self._step.tally.add(charge)

    # Inferences

    def _lose(self) -> None:
        """Charge the inference before, if its outcome was lost."""
        if self._fold.has_lost:
            self._charge(UNKNOWN)

    def on_inference_started(self, body: e.InferenceStarted) -> None:
        self._lose()
        self._need("inference")
        self._streamed = _Streamed()

    def on_inference_failed(self, body: e.InferenceFailed) -> None:
        step = self._need("inference")
        self._charge(charge_of(body))
        if body.retry_in_seconds is not None:
            self._streamed = _Streamed()
            step.names, step.ids = {}, {}
            self._report(s.RetryDelta(body.error, body.error_type, body.attempt, body.retry_in_seconds))
            return
        self._failure = body
        is_retryable = body.fault is Fault.INFRASTRUCTURE or body.stop_reason is StopReason.CANCELLED
        self._end_step(body.error, body.error_type, is_retryable=is_retryable)

    def on_inference_completed(self, body: e.InferenceCompleted) -> None:
        completion, streamed = body.completion, self._streamed
        message, response_id = completion.message, completion.response_id
        made = [with_id(call, number) for number, call in enumerate(message.server_calls, 1)]
        if self._step is not None and self._step.is_served:
            self._end_served(self._step, made)
            step = None
        else:
            step = self._need("inference")
        self._streamed, self._failure = _Streamed(), None
        self._charge(charge_of(body))
        if response_id is not None:
            self._response_ids[response_id] = None
        is_told = bool(streamed.text)
        if message.reasoning and not streamed.has_reasoning:
            self._report(s.StepReasoningDelta(message.reasoning))
        text = message.content[streamed.told :]
        untold = [call for call in made if call.call_id not in streamed.served]
        if untold:
            text = self._read_server_calls(
                untold, message.content, streamed.told, response_id, is_told=is_told
            )
        if made and not text and not message.tool_calls and (untold or step is None):
            return
        step = step if step is not None and step is self._step else self._need("inference")
        if text and not is_told:
            self._report(s.StepTextDelta(text))
        calls = [s.StepToolCall(call.call_id, call.name, call.arguments) for call in message.tool_calls]
        for call in calls:
            arguments = call.arguments or "{}"
            self._report(s.ToolCallIssuedDelta(call.call_id, "function", call.tool_name, arguments))
        reason = _CUT.get(completion.finish_reason) or ("tool_calls" if calls else "end_of_turn")
        self._complete(s.InferenceStepResult(step.step_id, response_id, text, calls, [], reason))
        if calls:
            self._open_step("tool_execution", {"server_side": False}).calls = {
                call.call_id: call for call in calls
            }

    def _read_server_calls(
        self, made: Sequence[ServerCall], text: str, told: int, response_id: str | None, *, is_told: bool
    ) -> str:
        """Add the steps of the server's own calls, and return the text after the last of them. `told` is the
        number of characters that belong to earlier steps."""
        for offset, group in groupby(made, key=lambda call: call.offset or 0):
            calls = list(group)
            step = self._need("inference")
            before, told = text[told:offset], max(told, offset)
            if before and not is_told:
                self._report(s.StepTextDelta(before))
            shown = [show_server_call(call) for call in calls]
            self._complete(
                s.InferenceStepResult(step.step_id, response_id, before, [], shown, "server_tool_call")
            )
            step = self._open_step("tool_execution", describe_server_calls(shown))
            for item in shown:
                self._issue(step, item)
                self._answer(step, item)
            self._complete_tools(step)
        return text[told:]

    def _issue(self, step: _Step, shown: dict[str, Json]) -> None:
        call_id, name, arguments = shown["call_id"], shown["tool_name"], shown["arguments"]
        step.calls[call_id] = s.StepToolCall(call_id, name, arguments)
        self._report(s.ToolCallIssuedDelta(call_id, shown["tool_type"], name, arguments))

    def _answer(self, step: _Step, shown: dict[str, Json]) -> None:
        call_id, name, result = shown["call_id"], shown["tool_name"], shown["result"]
        step.calls[call_id] = s.StepToolCall(call_id, name, shown["arguments"])
        step.results[call_id] = {
            "call_id": call_id,
            "tool_name": name,
            "content": result,
            "metadata": {"is_error": shown["is_error"]},
        }
        told = (call_id, shown["tool_type"], name, result)
        self._report(s.ToolCallCompletedDelta(*told, is_error=shown["is_error"]))

    def _end_served(self, step: _Step, made: Sequence[ServerCall] = ()) -> None:
        """Complete a step in which the server ran calls. Results that were not streamed are those of `made`."""
        for call in made:
            if call.call_id in step.calls and call.call_id not in step.results:
                self._answer(step, show_server_call(call))
        self._complete_tools(step)

    # Deltas

    def on_text_delta(self, delta: e.TextDelta) -> None:
        if delta.text and self._is_inferring():
            self._streamed.text += delta.text
            self._report(s.StepTextDelta(delta.text))

    def on_reasoning_delta(self, delta: e.ReasoningDelta) -> None:
        if delta.text and self._is_inferring():
            self._streamed.has_reasoning = True
            self._report(s.StepReasoningDelta(delta.text))

    def on_tool_call_delta(self, delta: e.ToolCallDelta) -> None:
        if not self._is_inferring():
            return
        step = self._need("inference")
        if delta.call_id:
            step.ids[delta.index] = delta.call_id
        if delta.name:
            step.names[delta.index] = delta.name
        call_id, name = step.ids.get(delta.index, ""), step.names.get(delta.index)
        self._report(s.StepToolCallDelta(call_id, delta.arguments, index=delta.index, tool_name=name))

    def on_server_call_delta(self, delta: e.ServerCallDelta) -> None:
        call, streamed = delta.call, self._streamed
        shown = show_server_call(with_id(call, delta.index + 1))
        call_id, step = shown["call_id"], self._step
        if step is not None and step.step_type == "inference" and call_id not in streamed.served:
            before, streamed.told = streamed.text[streamed.told :], len(streamed.text)
            self._complete(s.InferenceStepResult(step.step_id, None, before, [], [shown], "server_tool_call"))
            step = self._open_step("tool_execution", describe_server_calls([shown]))
            step.is_served = True
        if step is None or not step.is_served:
            return
        if call_id not in streamed.served:
            streamed.served = [*streamed.served, call_id]
            self._issue(step, shown)
        if delta.is_done and call_id in step.calls:
            self._answer(step, shown)

    def on_tool_progress(self, delta: e.ToolProgress) -> None:
        if self._step is not None and self._step.step_type == "tool_execution":
            self._report(s.ToolProgressDelta(delta.call_id, delta.text))

    def _is_inferring(self) -> bool:
        """Return whether an inference is open. It goes on after the calls that its server made."""
        if self._step is not None and self._step.is_served:
            self._end_served(self._step)
            self._open_step("inference")
        return self._step is not None and self._step.step_type == "inference"

    # Calls and questions

    def on_tool_started(self, body: e.ToolStarted) -> None:
        step = self._need("tool_execution")
        if body.parent_call_id is not None:
            arguments = body.arguments or "{}"
            self._report(
                s.ToolCallIssuedDelta(
                    body.call_id, "function", body.name, arguments, parent_call_id=body.parent_call_id
                )
            )
        elif body.call_id not in step.calls:
            step.calls[body.call_id] = s.StepToolCall(body.call_id, body.name, "")

    def on_tool_completed(self, body: e.ToolCompleted) -> None:
        step, result = self._need("tool_execution"), body.result
        if body.child is not None:
            self._charge(Charge(body.child.usage, body.child.cost_usd))
        self._report(
            s.ToolCallCompletedDelta(
                result.call_id,
                "function",
                result.name,
                result.content,
                is_error=result.is_error,
                parent_call_id=body.parent_call_id,
            )
        )
        if body.parent_call_id is not None:
            return
        if result.call_id not in step.calls:
            step.calls[result.call_id] = s.StepToolCall(result.call_id, result.name, "")
        step.results[result.call_id] = show_result(result, body)
        if len(step.results) == len(step.calls):
            self._complete_tools(step)

    def on_context_compacted(self, body: e.ContextCompacted) -> None:
        self._charge(charge_of(body))

    def on_question_asked(self, body: e.QuestionAsked) -> None:
        if self._is_open:
            rules = {"options": body.options, "allows_text": body.allows_text}
            self._tell(s.InputRequested, "question", body.question_id, body.text, **rules)

    def on_question_answered(self, body: e.QuestionAnswered) -> None:
        self._receive("question", body.question_id, body.text)

    def on_approval_requested(self, body: e.ApprovalRequested) -> None:
        if self._is_open:
            call = None if self._step is None else self._step.calls.get(body.call_id)
            name, arguments = (None, "") if call is None else (call.tool_name, call.arguments)
            rules = {"tool_name": name, "allows_text": False}
            self._tell(s.InputRequested, "approval", body.call_id, arguments, **rules)

    def on_approval_decided(self, body: e.ApprovalDecided) -> None:
        said = "approved" if body.is_approved else "refused"
        self._receive("approval", body.call_id, said if body.reason is None else f"{said}: {body.reason}")

    def _receive(self, kind: Literal["question", "approval"], request_id: str, text: str) -> None:
        if self._is_open:
            self._tell(s.InputReceived, kind, request_id, text)


_ENDED = {
    _INTERRUPTED: "the run was interrupted",
    StopReason.CANCELLED.value: "the turn was cancelled",
    StopReason.REFUSED.value: "the model refused",
    "question": "the turn waits for the answer to a question",
    "approval": "the turn waits for an approval",
    "closed": "the session was closed",
}
"""The messages of turns that end without an error's text, by code."""

_READ = find_handlers(TurnReader)


def show_result(result: ToolResult, body: e.ToolCompleted) -> dict[str, Json]:
    """Return the result of a call that Treadle ran."""
    metadata: dict[str, Json] = {"is_error": result.is_error, "duration_seconds": body.duration_seconds}
    if result.error_kind is not None:
        metadata["error_kind"] = result.error_kind.value
    if result.structured is not None:
        metadata["structured"] = result.structured
    if body.child is not None:
        metadata["child_run_id"] = body.child.run_id
    return {
        "call_id": result.call_id,
        "tool_name": result.name,
        "content": result.content,
        "metadata": metadata,
    }


def with_id(call: ServerCall, number: int) -> ServerCall:
    """Return a server's call with an id. A call without an id gets one from its number in the answer."""
    return call if call.call_id else replace(call, call_id=f"server_{number}")


def show_server_call(call: ServerCall) -> dict[str, Json]:
    """Return a call that the model's server ran, with its result."""
    return {
        "call_id": call.call_id,
        "tool_type": call.name,
        "tool_name": call.name,
        "arguments": call.arguments or "{}",
        "result": call.result,
        "is_error": call.is_error,
    }


def describe_server_calls(shown: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Return the metadata of the step in which the model's server ran these calls."""
    kinds, names = (
        ", ".join(dict.fromkeys([item[key] for item in shown])) for key in ("tool_type", "tool_name")
    )
    return {"server_side": True, "tool_type": kinds, "tool_name": names}
