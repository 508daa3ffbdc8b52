"""Statistics over the events of many runs: cost, tokens, cache hits, latency and errors by model, tool and day.

The memory that they need does not depend on the number of events. What a fork copied is not counted, and a run that
a tool call drove counts as a run of its own.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct, field

from treadle.core import events as e
from treadle.core.tally import UNKNOWN, Charge, Tally, charge_of
from treadle.core.turns import STEP_CHANGES, StepFold
from treadle.core.types import Json, StopReason

_GROWTH = math.log(1.02)
"""The logarithm of the ratio between two neighbouring buckets: a quantile is right to 1 %."""
_TELLS_LOSS = frozenset((e.InferenceStarted, e.RunResumed))
_FAILED = frozenset((StopReason.ERROR, StopReason.REFUSED, StopReason.CONTEXT_OVERFLOW))


class Durations(Struct, gc=False):
    """A distribution of durations in buckets."""

    count: int = 0
    buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        self.count += 1
        bucket = round(math.log(max(seconds, 1e-6)) / _GROWTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def quantile(self, share: float) -> float | None:
        """Return the duration that `share` of all do not exceed, right to 1 %; `None` if there is none."""
        left = math.ceil(share * self.count)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return math.exp(bucket * _GROWTH)
        return None


class Use(Struct, gc=False):
    """The figures about the inferences of one model, of one day, or of all models."""

    inferences: int = 0
    tally: Tally = field(default_factory=Tally)
    durations: Durations = field(default_factory=Durations)
    errors: dict[str, int] = {}
    """The attempts that failed, by the names of the errors' classes."""

    def describe(self) -> dict[str, Json]:
        usage = self.tally.usage
        return {
            "inferences": self.inferences,
            "input_tokens": usage.input_tokens,
            "cached_input_tokens": usage.cached_input_tokens,
            "cached_share": usage.cached_input_tokens / usage.input_tokens if usage.input_tokens else None,
            "output_tokens": usage.output_tokens,
            "uncounted_inferences": self.tally.unknown_usages,
            "cost_usd": self.tally.cost_usd,
            "known_cost_usd": self.tally.known_cost_usd,
            "unknown_costs": self.tally.unknown_costs,
            "median_seconds": self.durations.quantile(0.5),
            "p95_seconds": self.durations.quantile(0.95),
            "errors": self.errors,
        }


class ToolUse(Struct, gc=False):
    calls: int = 0
    durations: Durations = field(default_factory=Durations)
    errors: dict[str, int] = {}
    """The calls that failed or were not run, by the kind of error."""

    def describe(self) -> dict[str, Json]:
        return {
            "calls": self.calls,
            "median_seconds": self.durations.quantile(0.5),
            "p95_seconds": self.durations.quantile(0.95),
            "errors": self.errors,
        }


class UsageStats:
    """The statistics of the runs that were added."""

    def __init__(self) -> None:
        self.runs = 0
        self.turns: dict[str, int] = {}
        """The turns that ended, by stop reason."""
        self.all = Use()
        self.models: defaultdict[str, Use] = defaultdict(Use)
        self.days: defaultdict[str, Use] = defaultdict(Use)
        """The inferences of each day, by date in local time."""
        self.tools: defaultdict[str, ToolUse] = defaultdict(ToolUse)

    @property
    def failed_turns(self) -> int:
        """How many turns ended without an answer, except those that were cancelled."""
        return sum([self.turns.get(reason.value, 0) for reason in _FAILED])

    def add_run(self, events: Iterable[e.Event]) -> None:
        self.runs += 1
        fold = StepFold()
        for event in events:
            body, asked = event.body, fold.model
            if (change := STEP_CHANGES.get(type(body))) is not None:
                change(fold, body)
            if event.seq > fold.copied_until:
                if fold.has_lost and type(body) in _TELLS_LOSS:
                    self._fail(body, asked, "Lost", UNKNOWN)
                self._add(body, fold.model)

    def _add(self, body: e.DurableBody, model: str) -> None:
        if isinstance(body, e.InferenceCompleted):
            for use in self._uses(body, body.answered_by or model):
                use.inferences += 1
                use.tally.add(charge_of(body) or UNKNOWN)
                use.durations.add(body.duration_seconds)
        elif isinstance(body, e.InferenceFailed):
            self._fail(body, body.model or model, body.error_type, charge_of(body))
        elif isinstance(body, e.ToolCompleted):
            self._add_call(body)
        elif (charge := charge_of(body)) is not None:
            # A compaction, or the judgement of a message.
            asker = body.judgement if isinstance(body, e.TurnStarted) else body
            for use in self._uses(body, getattr(asker, "model", None) or model):
                use.tally.add(charge)
        elif isinstance(body, e.TurnCompleted):
            reason = body.stop_reason.value
            self.turns[reason] = self.turns.get(reason, 0) + 1

    def _fail(self, body: e.DurableBody, model: str, error: str, charge: Charge | None) -> None:
        for use in self._uses(body, model):
            use.errors[error] = use.errors.get(error, 0) + 1
            if charge is not None:
                use.tally.add(charge)

    def _add_call(self, body: e.ToolCompleted) -> None:
        result = body.result
        use = self.tools[result.name]
        use.calls += 1
        use.durations.add(body.duration_seconds)
        if result.is_error:
            kind = "failed" if result.error_kind is None else result.error_kind.value
            use.errors[kind] = use.errors.get(kind, 0) + 1

    def _uses(self, body: e.DurableBody, model: str) -> tuple[Use, Use, Use]:
        day = time.strftime("%Y-%m-%d", time.localtime(body.at))
        return self.all, self.models[model], self.days[day]

    def describe(self) -> dict[str, Json]:
        return {
            "runs": self.runs,
            "turns": sum(self.turns.values()),
            "stop_reasons": self.turns,
            **self.all.describe(),
            "models": {name: use.describe() for name, use in sorted(self.models.items())},
            "tools": {name: use.describe() for name, use in sorted(self.tools.items())},
            "days": {day: use.describe() for day, use in sorted(self.days.items())},
        }
