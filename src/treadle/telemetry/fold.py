"""The fold of a run's events into the records of its turns.

Invariant: the record of a turn is a function of the run's events up to its end, so it is the same whether it is
made while the run is driven, after a crash, or later from a journal.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from treadle.core import events as e
from treadle.core.tally import UNKNOWN, charge_of
from treadle.core.types import Json, Route, StopReason, ToolSpec
from treadle.routing.judging import find_refusal
from treadle.telemetry.conventions import agent_name
from treadle.telemetry.record import Compaction, Fallback, TurnRecord

_CANCELLED = StopReason.CANCELLED.value
_SKILL_TOOL = "use_skill"
"""The name of the tool that loads a skill."""
_SHORT = 12
"""Answers up to this length in characters say nothing about a tool."""
_REFUSAL_CHARS = 1000
"""How many characters of an answer are searched for a refusal."""
_SKILL_KEYS = ("name", "skill", "skill_name")


def read_turn_records(events: Iterable[e.Event]) -> Iterator[TurnRecord]:
    """Yield the record of each turn of the runs that `events` belong to, when it ends.

    `events` are those of a journal from their beginning; those of several runs may be mixed.
    """
    folds: dict[str, TurnFold] = {}
    for event in events:
        fold = folds.get(event.run_id)
        if fold is None:
            fold = folds[event.run_id] = TurnFold(event.run_id)
        yield from fold.add(event.seq, (event.body,))
        if isinstance(event.body, e.RunFinished) and event.body.stop_reason is not StopReason.ERROR:
            del folds[event.run_id]


class TurnFold:
    """The fold of one run's events into the records of its turns."""

    __slots__ = (
        "_asked",
        "_at",
        "_copied_until",
        "_has_failed",
        "_model",
        "_part",
        "_part_number",
        "_reasoning",
        "_route",
        "_run_id",
        "_started",
        "_tools",
        "_turn",
    )

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._started: e.RunStarted | None = None
        self._copied_until = 0
        """The number of the last event that was copied from another run."""
        self._turn = 0
        self._part_number = 1
        self._part: TurnRecord | None = None
        self._has_failed = False
        """True if the last turn ended with an error, so that a resume opens it again."""
        self._asked = False
        """True if an inference was started whose outcome is not known."""
        self._reasoning: hashlib._Hash | None = None
        """The hash of the model's thinking so far; `None` if there is none."""
        self._at = 0.0
        """The time of the newest event."""
        self._model: str | None = None
        self._route: Route | None = None
        self._tools: tuple[ToolSpec, ...] = ()

    def add(self, first_seq: int, bodies: Iterable[e.DurableBody]) -> list[TurnRecord]:
        """Add the run's next events, and return the records of the turns, or parts of turns, that they end."""
        found: list[TurnRecord] = []
        for seq, body in enumerate(bodies, first_seq):
            take = _TAKE.get(type(body))
            if take is None:
                continue
            record = take(self, body)
            self._at = body.at
            if seq <= self._copied_until:
                # What a fork copied was used by the run that it was copied from.
                self._asked = False
                if self._part is not None:
                    self._part = self._begin(body.at)
            elif record is not None:
                found.append(record)
        return found

    def _on_run_started(self, body: e.RunStarted) -> None:
        self._started = body
        if body.parent is not None:
            self._copied_until = body.parent.seq
        self._tools = body.tools

    def _on_run_resumed(self, body: e.RunResumed) -> None:
        if body.agent is not None:
            self._tools = body.tools
        if self._part is None and self._has_failed:
            self._has_failed = False
            self._part_number += 1
            self._part = self._begin(body.at)
        elif self._part is not None:
            self._part.paused_seconds += max(0.0, body.at - self._at)
        self._lose(body)

    def _begin(self, at: float) -> TurnRecord:
        """Return the record of a turn, or part of a turn, that begins."""
        self._reasoning = None
        started = self._started
        if started is None:
            return TurnRecord(run_id=self._run_id, started_at=at)
        return TurnRecord(
            run_id=self._run_id,
            started_at=at,
            is_session=started.is_session,
            labels=_labels_of(started),
            persona=agent_name(started),
            parent=started.parent,
            caller=started.caller,
        )

    def _lose(self, body: e.DurableBody) -> None:
        """Count the inference whose outcome was lost, if there is one."""
        if self._asked:
            self._asked = False
            part = self._open(body)
            part.failed_attempts += 1
            part.charge(*UNKNOWN)

    def _on_turn_started(self, body: e.TurnStarted) -> None:
        self._turn, self._part_number, self._has_failed = body.turn, 1, False
        part = self._open(body)
        part.started_at = body.at
        self._route = None
        if body.recalled is not None:
            part.recalled, part.recalled_left_out = body.recalled.items, body.recalled.left_out
        part.judgement, part.is_hinted = body.judgement, body.hint is not None
        if (charge := charge_of(body)) is not None:
            part.charge(*charge)

    def _open(self, body: e.DurableBody) -> TurnRecord:
        """Return the open part. What happens between two turns is a part of the next one."""
        if self._part is None:
            self._part = self._begin(body.at)
        return self._part

    def _on_run_paused(self, body: e.RunPaused) -> TurnRecord | None:
        if self._part is None or body.reason != _CANCELLED:
            return None
        record = self._end(body.at, _CANCELLED)
        # The turn goes on if the run is resumed, as another part.
        self._has_failed = True
        return record

    def _on_turn_completed(self, body: e.TurnCompleted) -> TurnRecord | None:
        self._turn = body.turn
        if body.stop_reason is StopReason.REFUSED:
            self._open(body).refusals.append("content")
        if self._tools and len(body.output) > _SHORT:
            refusal = find_refusal(body.output[:_REFUSAL_CHARS], tools=self._tools)
            if refusal is not None and refusal.tool not in self._open(body).refusals:
                self._open(body).refusals.append(refusal.tool)
        self._has_failed = body.stop_reason is StopReason.ERROR
        fault = None if body.fault is None else body.fault.value
        return self._end(body.at, body.stop_reason.value, body.error, fault)

    def _on_inference_started(self, body: e.InferenceStarted) -> None:
        if self._asked:
            self._lose(body)
        self._asked = True
        if body.model is not None:
            self._model = body.model
        if body.route is not None:
            self._route = body.route

    def _on_inference_completed(self, body: e.InferenceCompleted) -> None:
        part, completion = self._part or self._open(body), body.completion
        message = completion.message
        self._asked = False
        part.steps += 1
        part.inference_seconds += body.duration_seconds
        if part.first_token_seconds is None:
            part.first_token_seconds = body.first_token_seconds
        if body.verdict is None:
            part.charge(completion.usage, completion.cost_usd)
        else:
            part.charge(*(charge_of(body) or UNKNOWN))
        name = completion.model or body.answered_by or self._model
        if name is not None and name not in part.models:
            part.models.append(name)
        if message.reasoning:
            self._reasoning = self._reasoning or hashlib.sha256()
            self._reasoning.update(message.reasoning.encode())
        for made in message.server_calls:
            part.server_tools[made.name] = part.server_tools.get(made.name, 0) + 1
        for call in message.tool_calls:
            if call.name == _SKILL_TOOL and (skill := _read_skill(call.arguments)):
                part.skills.append(skill)
        if body.refused_tool is not None and body.refused_tool not in part.refusals:
            part.refusals.append(body.refused_tool)
        part.error_type = None

    def _on_inference_failed(self, body: e.InferenceFailed) -> None:
        part = self._open(body)
        part.failed_attempts += 1
        charge = charge_of(body)
        if charge is not None:
            part.charge(*charge)
        if body.retry_in_seconds is None:
            self._asked = False
            part.error_type = body.error_type
        elif body.model is not None:
            part.fallbacks.append(Fallback(body.model, body.error_type))

    def _on_tool_completed(self, body: e.ToolCompleted) -> None:
        part, result = self._part or self._open(body), body.result
        part.tools[result.name] = part.tools.get(result.name, 0) + 1
        if body.parent_call_id is None:
            part.tool_seconds += body.duration_seconds
        part.tool_calls += 1
        if result.is_error:
            part.tool_errors += 1
        if body.child is not None:
            part.children.append(body.child)

    def _on_context_compacted(self, body: e.ContextCompacted) -> None:
        part = self._open(body)
        charge = charge_of(body)
        if charge is not None:
            part.charge(*charge)
        part.compactions.append(Compaction(body.reason, body.tokens_before, body.tokens_after, body.error))

    def _on_message_injected(self, body: e.MessageInjected) -> None:
        if self._part is not None:
            self._part.injected_messages += 1

    def _on_question_asked(self, body: e.QuestionAsked) -> None:
        self._open(body).questions += 1

    def _on_question_answered(self, body: e.QuestionAnswered) -> None:
        if body.is_withdrawn:
            self._open(body).questions -= 1
        else:
            self._open(body).answered_questions += 1

    def _on_approval_decided(self, body: e.ApprovalDecided) -> None:
        part = self._open(body)
        part.approvals += 1
        part.refused_approvals += not body.is_approved

    def _end(
        self,
        at: float,
        stop_reason: str,
        error: str | None = None,
        fault: str | None = None,
    ) -> TurnRecord | None:
        part, self._part = self._part, None
        if part is None:
            return None
        suffix = f".{self._part_number}" if self._part_number > 1 else ""
        part.key = f"{self._run_id}/{self._turn}{suffix}"
        part.turn, part.part = self._turn, self._part_number
        part.ended_at, part.duration_seconds = at, max(0.0, at - part.started_at)
        part.stop_reason, part.error, part.fault = stop_reason, error, fault
        part.model, part.route = self._model, self._route
        part.is_compacted = bool(part.compactions)
        if part.input_tokens:
            part.cached_share = part.cached_input_tokens / part.input_tokens
        if part.cost_basis == "known":
            part.cost_usd = part.known_cost_usd
        if self._reasoning is not None:
            part.reasoning_sha256 = self._reasoning.hexdigest()
        return part


_TAKE: dict[type, Callable[[TurnFold, Any], TurnRecord | None]] = {
    e.RunStarted: TurnFold._on_run_started,
    e.RunResumed: TurnFold._on_run_resumed,
    e.RunPaused: TurnFold._on_run_paused,
    e.TurnStarted: TurnFold._on_turn_started,
    e.TurnCompleted: TurnFold._on_turn_completed,
    e.InferenceStarted: TurnFold._on_inference_started,
    e.InferenceCompleted: TurnFold._on_inference_completed,
    e.InferenceFailed: TurnFold._on_inference_failed,
    e.ToolCompleted: TurnFold._on_tool_completed,
    e.ContextCompacted: TurnFold._on_context_compacted,
    e.MessageInjected: TurnFold._on_message_injected,
    e.QuestionAsked: TurnFold._on_question_asked,
    e.QuestionAnswered: TurnFold._on_question_answered,
    e.ApprovalDecided: TurnFold._on_approval_decided,
}


def _labels_of(started: e.RunStarted) -> dict[str, str]:
    if not started.metadata:
        return {}
    return {name: value for name, value in started.metadata.items() if isinstance(value, str)}


def _read_skill(arguments: str) -> str | None:
    try:
        given: Json = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return None
    found = [given.get(key) for key in _SKILL_KEYS] if isinstance(given, dict) else []
    return next((name for name in found if isinstance(name, str)), None)
