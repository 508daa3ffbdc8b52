"""The measured latency of models, and how often they failed: from this process, or read from a journal."""

from collections.abc import Iterable
from weakref import WeakSet

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.state import ESCALATED
from treadle.core.types import Fault
from treadle.http.locks import new_lock
from treadle.journal.protocol import Journal

_FIRST = 5
"""How many samples count equally, from the first one on."""
_WEIGHT = 0.2
"""The weight of each later sample."""
_FAILURE_WEIGHT = 0.3


class Latency(Struct, frozen=True):
    """The measurements of one model."""

    samples: int = 0
    total_seconds: float | None = None
    """The time until an answer is complete; `None` if no answer was measured."""
    first_token_seconds: float | None = None
    """The time until an answer begins; `None` if no streamed answer was measured."""
    first_samples: int = 0
    failure_rate: float = 0.0
    """The share of the newest inferences that failed for good."""


class Latencies:
    """The measurements of each model, by name. Any thread may add to it and read from it."""

    def __init__(self) -> None:
        self._known: dict[str, Latency] = {}
        self._lock = new_lock()
        self._journals: WeakSet[Journal] = WeakSet()

    def get(self, model: str) -> Latency:
        """Return the measurements of a model."""
        return self._known.get(model, Latency())

    def add(self, model: str, total_seconds: float, first_token_seconds: float | None = None) -> None:
        """Count an answer."""
        with self._lock:
            known = self.get(model)
            self._known[model] = replace(
                known,
                samples=known.samples + 1,
                total_seconds=_blend(known.total_seconds, total_seconds, known.samples),
                first_token_seconds=known.first_token_seconds
                if first_token_seconds is None
                else _blend(known.first_token_seconds, first_token_seconds, known.first_samples),
                first_samples=known.first_samples + (first_token_seconds is not None),
                failure_rate=known.failure_rate * (1 - _FAILURE_WEIGHT),
            )

    def add_failure(self, model: str) -> None:
        """Count an inference that failed for good."""
        with self._lock:
            known = self.get(model)
            rate = known.failure_rate * (1 - _FAILURE_WEIGHT) + _FAILURE_WEIGHT
            self._known[model] = replace(known, failure_rate=rate)

    def add_event(self, body: e.DurableBody, asked: e.InferenceStarted | None) -> None:
        """Count the outcome of an inference. `asked` is the event of its start."""
        if isinstance(body, e.InferenceCompleted):
            name = body.answered_by or (asked.model if asked is not None else None)
            if name is not None and not body.completion.is_cached:
                self.add(name, body.duration_seconds, body.first_token_seconds)
        elif isinstance(body, e.InferenceFailed) and body.error_type != ESCALATED:
            # An attempt that names its model is followed by one of another model.
            is_final = body.retry_in_seconds is None or body.model is not None
            name = body.model or (asked.model if asked is not None else None)
            if is_final and body.fault is Fault.INFRASTRUCTURE and name is not None:
                self.add_failure(name)

    def add_events(self, events: Iterable[e.Event]) -> None:
        """Count all inferences of a run."""
        asked: e.InferenceStarted | None = None
        for event in events:
            if isinstance(event.body, e.InferenceStarted):
                asked = event.body
            elif asked is not None:
                self.add_event(event.body, asked)

    def warm(self, journal: Journal, *, max_runs: int = 20, max_events: int = 200) -> None:
        """Read the newest events of the newest runs, once for each journal. Blocks.

        A journal that cannot be read is skipped, because its errors are raised where its runs are needed.
        """
        with self._lock:
            if journal in self._journals:
                return
            self._journals.add(journal)
        try:
            for info in reversed(journal.runs(limit=max_runs, newest_first=True)):
                self.add_events(journal.read(info.run_id, max(0, info.events - max_events)))
        except JournalError:
            return


LATENCIES = Latencies()
"""The measurements of this process."""


def _blend(known: float | None, value: float, samples: int) -> float:
    if known is None:
        return value
    return known + (value - known) * (1 / (samples + 1) if samples < _FIRST else _WEIGHT)
