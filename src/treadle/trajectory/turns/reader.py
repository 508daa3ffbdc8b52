"""The reading of events and deltas as turns and steps."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import overload

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.events.narrowing import Event, Item
from treadle.core.types import StopReason
from treadle.trajectory.turns import shapes as s
from treadle.trajectory.turns.steps import READ, RunReader


@overload
def turns(events: AsyncIterable[Item], *, history: Iterable[Event] = ()) -> AsyncIterator[s.TurnEvent]: ...
@overload
def turns(events: Iterable[Item], *, history: Iterable[Event] = ()) -> Iterator[s.TurnEvent]: ...
def turns(
    events: Iterable[Item] | AsyncIterable[Item], *, history: Iterable[Event] = ()
) -> Iterator[s.TurnEvent] | AsyncIterator[s.TurnEvent]:
    """Return the turns and steps of runs as a stream of events for interfaces.

    `events` are events and deltas as a `RunStream` gives them, or the events of a journal. They may belong to
    several runs, each of which is then told by its `session_id`. `history` are the events before them, which
    are needed only if a stream begins within a run, as after `Agent.resume`. An exception of `events` fails the
    open turns, and is then raised.
    """
    if isinstance(events, str) or not isinstance(events, Iterable | AsyncIterable):
        raise ConfigError(
            f"turns was given {events!r:.200}; give it the events of a run: agent.stream(...), or "
            "agent.journal.read(run_id)"
        )
    reader = _Reader()
    for event in history:
        reader.read(event)
    if isinstance(events, AsyncIterable):
        return _read_async(reader, events)
    return _read(reader, events)


def _read(reader: "_Reader", events: Iterable[Item]) -> Iterator[s.TurnEvent]:
    try:
        for item in events:
            yield from reader.read(item)
    except Exception as error:
        yield from reader.end(error)
        raise
    yield from reader.end()


async def _read_async(reader: "_Reader", events: AsyncIterable[Item]) -> AsyncIterator[s.TurnEvent]:
    try:
        async for item in events:
            for found in reader.read(item):
                yield found
    except Exception as error:
        for found in reader.end(error):
            yield found
        raise
    finally:
        # A stream that is not read to its end cancels its run.
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    for found in reader.end():
        yield found


class _Reader:
    """The readers of all runs of a stream."""

    def __init__(self) -> None:
        self._runs: dict[str, RunReader] = {}

    def read(self, item: Item) -> Sequence[s.TurnEvent]:
        """Return what follows from the next item."""
        run = self._runs.get(item.run_id)
        if run is None:
            run = self._runs[item.run_id] = RunReader(item.run_id)
        run.out = []
        read = READ.get(type(item.body))
        if read is not None:
            read(run, item.body)
        if isinstance(item.body, e.RunFinished) and item.body.stop_reason is not StopReason.ERROR:
            del self._runs[item.run_id]
        return run.out

    def end(self, error: Exception | None = None) -> Iterator[s.TurnEvent]:
        """Return what ends the turns that are open."""
        for run in self._runs.values():
            run.out = []
            if error is None:
                run.abandon(run.paused or "interrupted")
            else:
                run.abandon(type(error).__name__, str(error))
            yield from run.out
