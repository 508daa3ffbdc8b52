"""The facts about a run that listings show, kept up to date event by event.

A store that keeps `Facts` with a run's events can list runs without reading events. The facts agree with
`core.state.fold` of the same events, but are much cheaper to update, because they contain no transcript.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from treadle.core import events as e
from treadle.core.inbox import RESERVED
from treadle.core.prompts.estimates import CHARS_PER_TOKEN, count_chars, guess_of_chars
from treadle.core.state import Status, fold
from treadle.core.tally import Charge, charge_of
from treadle.core.turns import TurnFold, find_handlers
from treadle.core.types import Delivery, Message, Usage
from treadle.journal.run_info import CALLER, RunInfo

_RUNNING, _PAUSED, _FINISHED = str(Status.RUNNING), str(Status.PAUSED), str(Status.FINISHED)
_SHOWN_CHARS = 200
"""How many characters of an input or an error are kept."""


class Facts(TurnFold, kw_only=True, gc=False):
    """The facts about one run, changed in place. `RunInfo` describes the fields that have the same names."""

    status: str = _RUNNING
    stop_reason: str | None = None
    fault: str | None = None
    error: str | None = None
    created_at: float = 0.0
    model: str | None = None
    task_set: str | None = None
    task_id: str | None = None
    parent_run_id: str | None = None
    labels: dict[str, str] = {}  # noqa: RUF012
    input: str | None = None
    is_session: bool = False
    reward: float | None = None
    ended_at: float | None = None

    events: int = 0
    updated_at: float = 0.0
    steps: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    context_chars: int | None = 0
    """The estimated length of the next prompt, for servers that count no tokens: that of the newest inference by
    its tokens, plus the text added since. `None`: unknown, because the context was compacted."""
    steering_chars: int = 0
    """The length of the user's messages that the next inference adds to the transcript."""
    is_exact: bool = True
    """False if tokens had to be estimated while `context_chars` was unknown; `facts_of` then gives exact facts."""

    def add(self, bodies: Sequence[e.DurableBody]) -> bool:
        """Add the run's next events. Return True if they changed more than the counters.

        The counters are `events`, `updated_at`, `steps`, the tokens, `cost_usd` and `context_chars`. This is part
        of the hot path: the bodies that every step has are handled without another function call, and fields are
        set once, because that takes longer than to read them.
        """
        if not bodies:
            return False
        if not self.events:
            self.created_at = bodies[0].at
        self.events += len(bodies)
        self.updated_at = bodies[-1].at
        is_changed, chars = False, self.context_chars
        for body in bodies:
            if type(body) is e.ToolCompleted:
                if chars is not None and body.parent_call_id is None:
                    chars += len(body.result.content)
                if self.waiting:
                    is_changed |= self.end_wait(f"call:{body.result.call_id}")
                if body.child is not None:
                    self._charge(Charge(body.child.usage, body.child.cost_usd))
            elif type(body) is e.InferenceCompleted:
                completion = body.completion
                usage, cost_usd = completion.usage, completion.cost_usd
                if not usage.is_reported:
                    self.context_chars = chars
                    usage = self._guess_usage(completion.message)
                self.steps = body.step
                self.input_tokens += usage.input_tokens
                self.output_tokens += usage.output_tokens
                if usage.cached_input_tokens:
                    self.cached_input_tokens += usage.cached_input_tokens
                if self.is_exact:
                    chars = CHARS_PER_TOKEN * (usage.input_tokens + usage.output_tokens)
                if self.cost_usd is not None:
                    self.cost_usd = None if cost_usd is None else self.cost_usd + cost_usd
                if body.verdict is not None:
                    self._charge(Charge(body.verdict.usage, body.verdict.cost_usd))
            elif type(body) is e.InferenceStarted:
                if self.steering_chars and body.has_tools:
                    chars = None if chars is None else chars + self.steering_chars
                    self.steering_chars = 0
            elif type(body) is not e.ToolStarted and (update := _UPDATES.get(type(body))) is not None:
                self.context_chars = chars
                is_changed |= update(self, body)
                chars = self.context_chars
        self.context_chars = chars
        return is_changed

    def info(self, run_id: str, *, is_driven: bool) -> RunInfo:
        """Return the facts as a `RunInfo` for listings."""
        same = {name: getattr(self, name) for name in _SAME_FIELDS}
        return RunInfo(run_id=run_id, is_waiting=bool(self.waiting), is_driven=is_driven, **same)

    def on_run_started(self, body: e.RunStarted) -> bool:
        self.status, self.stop_reason = _RUNNING, None
        self.model, self.is_session = body.spec.model.name or None, body.is_session
        if body.task is not None:
            self.task_set, self.task_id = body.task.task_set, body.task.task_id
        if body.parent is not None:
            self.parent_run_id = body.parent.run_id
        if body.metadata:
            self.labels = {name: value for name, value in body.metadata.items() if isinstance(value, str)}
        if body.caller is not None:
            self.labels = {**self.labels, CALLER: body.caller.run_id}
        self.context_chars = len(body.system_message or "")
        return True

    def on_turn_started(self, body: e.TurnStarted) -> bool:
        self.status, self.stop_reason = _RUNNING, None
        count = self.turns + (not body.message.is_own)
        super().on_turn_started(body)
        self.turns = count
        self.reward = self.ended_at = None
        if self.input is None:
            self.input = body.message.content[:_SHOWN_CHARS]
        if body.recalled is not None:
            self._say(f"{body.recalled.text}\n\n")
        if body.hint is not None:
            self._say(f"\n\n{body.hint}")
        if body.judgement is not None:
            self._charge(charge_of(body))
        self._say(body.message.content)
        return True

    def _guess_usage(self, message: Message) -> Usage:
        """Return what `core.state.guess_usage` returns for the fold of the same events."""
        if self.context_chars is None:
            self.is_exact = False
        return Usage(guess_of_chars(self.context_chars or 0), guess_of_chars(count_chars(message)))

    def _say(self, text: str) -> None:
        """Count text that was added since the newest inference."""
        if self.context_chars is not None:
            self.context_chars += len(text)

    def _charge(self, charge: Charge | None) -> None:
        """Count tokens and cost that are not those of an answer in the transcript."""
        if charge is None:
            return
        usage, cost_usd = charge
        self.input_tokens += usage.input_tokens
        self.cached_input_tokens += usage.cached_input_tokens
        self.output_tokens += usage.output_tokens
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def on_inference_failed(self, body: e.InferenceFailed) -> bool:
        if body.usage is not None:
            self._charge(charge_of(body))
        return False

    def on_context_compacted(self, body: e.ContextCompacted) -> bool:
        self._charge(charge_of(body))
        self.context_chars = None
        return False

    def on_message_injected(self, body: e.MessageInjected) -> bool:
        if self.input is None and body.message.role == "user":
            self.input = body.message.content[:_SHOWN_CHARS]
        if body.delivery is None:
            self._say(body.message.content)
        elif body.delivery is Delivery.INTERRUPT:
            self.steering_chars = 0
        elif body.delivery is Delivery.STEER and self.is_turn_open:
            self.steering_chars += len(body.message.content)
        return False

    def on_turn_completed(self, body: e.TurnCompleted) -> bool:
        self.steering_chars = 0
        self._end(body)
        return super().on_turn_completed(body)

    def on_run_finished(self, body: e.RunFinished) -> bool:
        self.status, self.stop_reason = _FINISHED, str(body.stop_reason)
        self._end(body)
        return super().on_run_finished(body)

    def _end(self, body: e.TurnCompleted | e.RunFinished) -> None:
        self.ended_at = body.at
        self.error = None if body.error is None else body.error[:_SHOWN_CHARS]
        self.fault = None if body.fault is None else str(body.fault)

    def on_run_paused(self, body: e.RunPaused) -> bool:
        self.status, self.stop_reason, self.ended_at = _PAUSED, body.cause, body.at
        return super().on_run_paused(body)

    def on_run_resumed(self, body: e.RunResumed) -> bool:
        if body.agent is not None:
            self.model = body.agent.model.name or None
        self.status, self.stop_reason, self.ended_at = _RUNNING, None, None
        return super().on_run_resumed(body)

    def on_noted(self, body: e.Noted) -> bool:
        """Set and remove labels, except those that only Treadle sets."""
        found = {name: value for name, value in body.labels.items() if not name.startswith(RESERVED)}
        if found:
            kept = {**self.labels, **found}
            self.labels = {name: value for name, value in kept.items() if value is not None}
        return bool(found)

    def on_rewarded(self, body: e.Rewarded) -> bool:
        if body.name != "check":
            return False
        self.reward = body.reward
        return True


_UPDATES: dict[type, Callable[[Facts, Any], bool]] = find_handlers(Facts)
_SAME_FIELDS = tuple([name for name in RunInfo.__struct_fields__ if name in Facts.__struct_fields__])


def facts_of(bodies: Iterable[e.DurableBody]) -> Facts:
    """Return the facts about a run with these events."""
    bodies = list(bodies)
    facts = Facts()
    facts.add(bodies)
    if not facts.is_exact:
        state = fold(bodies)
        facts.input_tokens = state.usage.input_tokens
        facts.output_tokens = state.usage.output_tokens
        facts.context_chars = CHARS_PER_TOKEN * state.size.last_usage.total_tokens + state.size.unsent_chars
        facts.is_exact = True
    return facts
