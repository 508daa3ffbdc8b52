"""The turns of a run, folded from its events: which turn is open, what it waits for, and what was lost in it.

This is the one place outside `core.state` that knows when a turn is open. Listings keep a `TurnFold` for each
run; code that reads a run as turns, records or spans keeps a `StepFold`, which also follows the inferences.
Both are changed in place, in a time that does not depend on the length of the run, and a fold of some events
and then of the rest equals the fold of all.
"""

from collections.abc import Callable
from typing import Any, get_args

from msgspec import Struct

from treadle.core import events as e
from treadle.core.types import Fault, StopReason

RESUME = "resume"
"""The name of a wait until somebody resumes the run."""


def is_retriable(stop_reason: StopReason | None, fault: Fault | None) -> bool:
    """Return whether the end of a turn was an error that its user or the infrastructure can remove."""
    return stop_reason is StopReason.ERROR or (
        stop_reason is StopReason.CONTEXT_OVERFLOW and fault is Fault.USER
    )


def reopens(*, has_failed: bool, is_turn_open: bool) -> bool:
    """Return whether `run_resumed` opens the newest turn again: it has ended, and its end was an error."""
    return has_failed and not is_turn_open


class TurnFold(Struct, kw_only=True, gc=False):
    """The turns of one run, and what the open one waits for."""

    is_turn_open: bool = False
    """True if the newest turn has not ended."""
    waiting: dict[str, None] = {}
    """What the open turn waits for: the questions without an answer (`question:ID`), the calls without an
    approval or an external result (`call:ID`), and `resume` for a run that was cancelled or set aside, and waits
    until somebody resumes it."""
    turns: int = 0
    """How many turns have begun, which is also the number of the newest one."""
    has_failed: bool = False
    """True if the last end of a turn, or of the run, was an error; resuming the run opens the turn again."""

    def begin_wait(self, name: str) -> bool:
        """Put a question or a call into `waiting`."""
        self.waiting[name] = None
        return True

    def end_wait(self, name: str) -> bool:
        """Take a question or a call from `waiting`, and return whether it was there."""
        if name not in self.waiting:
            return False
        del self.waiting[name]
        return True

    # The functions that take an event return whether it changed the turns, or what the open turn waits for.

    def on_turn_started(self, body: e.TurnStarted) -> bool:
        self.turns, self.is_turn_open = body.turn, True
        return True

    def on_turn_completed(self, body: e.TurnCompleted) -> bool:
        self.is_turn_open = False
        self.waiting.clear()
        self.has_failed = is_retriable(body.stop_reason, body.fault)
        return True

    def on_run_finished(self, body: e.RunFinished) -> bool:
        self.has_failed = is_retriable(body.stop_reason, body.fault)
        return True

    def on_run_paused(self, body: e.RunPaused) -> bool:
        if body.inbox is not None or body.reason == e.SET_ASIDE:
            self.waiting[RESUME] = None
        self.waiting |= dict.fromkeys([f"call:{call_id}" for call_id in body.call_ids])
        return True

    def on_run_resumed(self, body: e.RunResumed) -> bool:
        self.is_turn_open |= reopens(has_failed=self.has_failed, is_turn_open=self.is_turn_open)
        self.waiting.pop(RESUME, None)
        return True

    def on_tool_completed(self, body: e.ToolCompleted) -> bool:
        return self.end_wait(f"call:{body.result.call_id}") if self.waiting else False

    def on_question_asked(self, body: e.QuestionAsked) -> bool:
        return self.begin_wait(f"question:{body.question_id}")

    def on_question_answered(self, body: e.QuestionAnswered) -> bool:
        return self.end_wait(f"question:{body.question_id}")

    def on_approval_requested(self, body: e.ApprovalRequested) -> bool:
        return self.begin_wait(f"call:{body.call_id}")

    def on_approval_decided(self, body: e.ApprovalDecided) -> bool:
        return self.end_wait(f"call:{body.call_id}")


class StepFold(TurnFold, kw_only=True, gc=False):
    """The turns of one run, and the inferences in them."""

    started: e.RunStarted | None = None
    """The run's first event; `None` if it was not read."""
    at: float = 0.0
    """The time of the newest event, in seconds since the epoch."""
    asked_model: str | None = None
    """The model that the newest inference asked; `None` if no event has named one."""
    model: str = ""
    """The model that was asked last, or is asked next after a start or resume; empty if it is not known."""
    is_asking: bool = False
    """True if an inference was started whose outcome is not recorded."""
    has_lost: bool = False
    """Whether the newest `inference_started` or `run_resumed` tells that the outcome of an inference before it was
    lost. It may have been paid for."""
    idle_seconds: float = 0.0
    """How long nobody drove the run before it was resumed last; 0 if it never was."""
    copied_until: int = 0
    """The number of the last event that was copied from another run; 0 if the run is not a fork."""

    def take(self, body: e.DurableBody) -> bool:
        """Take the next event, and return whether it changed the turns, or what the open turn waits for."""
        change = STEP_CHANGES.get(type(body))
        is_changed = change is not None and change(self, body)
        self.at = body.at
        return is_changed

    def on_run_started(self, body: e.RunStarted) -> bool:
        self.started, self.model = body, body.spec.model.name
        self.copied_until = 0 if body.parent is None else body.parent.seq
        return False

    def on_inference_started(self, body: e.InferenceStarted) -> bool:
        self.has_lost, self.is_asking = self.is_asking, True
        if body.model is not None:
            self.model = self.asked_model = body.model
        return False

    def on_inference_completed(self, body: e.InferenceCompleted) -> bool:
        self.is_asking = False
        return False

    def on_inference_failed(self, body: e.InferenceFailed) -> bool:
        self.is_asking = body.retry_in_seconds is not None
        return False

    def on_run_resumed(self, body: e.RunResumed) -> bool:
        self.has_lost, self.is_asking = self.is_asking and not body.begins_fork, False
        self.idle_seconds = max(0.0, body.at - self.at)
        if body.agent is not None:
            self.model = body.agent.model.name
        return super().on_run_resumed(body)


def find_handlers(kind: type) -> dict[type, Callable[..., Any]]:
    """Return the methods of a class that take events or deltas, each called `on_` and the tag of its body, by the
    class of the body."""
    bodies = (*get_args(e.DurableBody), *get_args(e.Delta))
    found = {body: getattr(kind, f"on_{body.__struct_config__.tag}", None) for body in bodies}
    return {body: method for body, method in found.items() if method is not None}


STEP_CHANGES: dict[type, Callable[[Any, Any], bool]] = find_handlers(StepFold)
"""The functions that take the events which change a `StepFold`; `StepFold.take` calls them, and sets `at`."""
