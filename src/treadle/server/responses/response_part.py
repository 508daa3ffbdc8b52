"""Which events of a run belong to one response."""

from collections.abc import Iterable

from treadle.core import events as e
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_fold import Event, ResponseFold, is_wait
from treadle.server.responses.response_ids import ResponseId


class PartReader:
    """The reader of one response among the events of its run. It uses no deltas, so that the events of the response
    and their numbers are the same whenever and wherever they are read."""

    def __init__(self, response_id: ResponseId, echo: Echo, *, is_told: bool = True) -> None:
        """Make a reader; see `ResponseFold` for `is_told`."""
        self.fold = ResponseFold(response_id, echo, is_told=is_told)
        self.has_begun = False
        self._turn = self._step = self._waits = 0

    def take(self, event: e.Event) -> list[Event]:
        """Return the events of the response that follow from an event of the run."""
        body, fold, place = event.body, self.fold, self.fold.response_id
        is_new, told = not self.has_begun, []
        if self._waits > place.waits and self._turn == place.turn and self._step == place.step:
            self.has_begun = True  # what follows the answers of the client
        if isinstance(body, e.RunStarted):
            fold.take(body)
        elif isinstance(body, e.TurnStarted):
            self._turn = body.turn
            self.has_begun = self.has_begun or (self._turn == place.turn and self._step == place.step)
        elif isinstance(body, e.InferenceStarted) and self._turn == place.turn and self._step == place.step:
            self.has_begun = True
        elif isinstance(body, e.RunResumed) and not self.has_begun:
            fold.take(body)
        if isinstance(body, e.InferenceStarted) and not self.has_begun:
            fold.note_listed()
        if self.has_begun:
            told = [*(fold.begin() if is_new else ()), *fold.take(body)]
            fold.seq = event.seq
        if isinstance(body, e.InferenceCompleted):
            self._step, self._waits = body.step, 0
            if not self.has_begun:
                fold.note_calls(body.completion.message.tool_calls)
        elif is_wait(body):
            self._waits += 1
        return told


def part_of_run(events: Iterable[e.Event], response_id: ResponseId, echo: Echo) -> ResponseFold | None:
    """Return the fold of a response from the events of its run; `None` if the run has no such response."""
    reader = PartReader(response_id, echo, is_told=False)
    for event in events:
        reader.take(event)
        if reader.fold.is_over:
            break
    return reader.fold if reader.has_begun else None


def count_waits(events: Iterable[e.Event]) -> int:
    """Return how often a run has waited for its client since the newest answer of its model."""
    waits = 0
    for event in events:
        if isinstance(event.body, e.InferenceCompleted):
            waits = 0
        waits += is_wait(event.body)
    return waits
