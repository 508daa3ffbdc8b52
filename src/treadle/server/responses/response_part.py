"""Which events of a run belong to one response."""

from collections.abc import Iterable

from treadle.core import events as e
from treadle.models.dialects.openai_responses.response_writer import ResponseEvent
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_fold import ResponseFold, is_wait
from treadle.server.responses.response_ids import ResponseId


class PartReader:
    """The reader of one response among the events of its run. It uses no deltas, so that the events of the response
    and their numbers are the same whenever and wherever they are read."""

    def __init__(self, response_id: ResponseId, echo: Echo, *, is_told: bool = True) -> None:
        """Make a reader; see `ResponseFold` for `is_told`."""
        self.fold = ResponseFold(response_id, echo, is_told=is_told)
        self.has_begun = False
        self._turn = self._step = self._waits = 0

    def take(self, event: e.Event) -> list[ResponseEvent]:
        """Return the events of the response that follow from an event of the run."""
        body, fold, begun = event.body, self.fold, list[ResponseEvent]()
        if not self.has_begun:
            if not self._begins_with(body):
                self._pass_by(body)
                return []
            self.has_begun, begun = True, fold.begin()
        fold.seq = event.seq
        return begun + fold.take(body)

    def _begins_with(self, body: e.DurableBody) -> bool:
        """Return whether an event is the first of the response."""
        place = self.fold.response_id
        if isinstance(body, e.TurnStarted):
            self._turn = body.turn
        elif isinstance(body, e.ContextCompacted) and place.is_compaction:
            pass
        elif not (isinstance(body, e.InferenceStarted) or self._waits > place.waits):
            return False  # neither does the turn ask the model, nor has the client answered
        return self._turn == place.turn and self._step == place.step

    def _pass_by(self, body: e.DurableBody) -> None:
        """Note what an event before the response says about it."""
        if isinstance(body, e.RunStarted | e.RunResumed):
            self.fold.take(body)
        elif isinstance(body, e.InferenceStarted):
            self.fold.note_listed()
        elif isinstance(body, e.InferenceCompleted):
            self._step, self._waits = body.step, 0
            self.fold.note_calls(body.completion.message.tool_calls)
        elif is_wait(body):
            self._waits += 1


def part_of_run(events: Iterable[e.Event], response_id: ResponseId, echo: Echo) -> ResponseFold | None:
    """Return the fold of a response from the events of its run; `None` if the run has no such response."""
    reader = PartReader(response_id, echo, is_told=False)
    fold = reader.fold
    for event in events:
        if not reader.has_begun:
            reader.take(event)
        else:
            fold.read(event.body)
            fold.seq = event.seq
        if fold.is_over:
            break
    return fold if reader.has_begun else None


def count_waits(events: Iterable[e.Event]) -> int:
    """Return how often a run has waited for its client since the newest answer of its model."""
    waits = 0
    for event in events:
        if isinstance(event.body, e.InferenceCompleted):
            waits = 0
        waits += is_wait(event.body)
    return waits
