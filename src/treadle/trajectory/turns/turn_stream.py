"""The turns and steps of runs as a stream of events, and its printing for people."""

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import cast, overload

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.events.narrowing import Event, Item
from treadle.core.types import StopReason
from treadle.trajectory.turns import shapes as s
from treadle.trajectory.turns.steps import TurnReader


@overload
def turns(events: AsyncIterable[Item], *, history: Iterable[Event] = ()) -> AsyncIterator[s.TurnEvent]: ...
@overload
def turns(
    events: Iterable[Item] | Iterable[e.Event], *, history: Iterable[Event] | Iterable[e.Event] = ()
) -> Iterator[s.TurnEvent]: ...
def turns(
    events: Iterable[Item] | Iterable[e.Event] | AsyncIterable[Item],
    *,
    history: Iterable[Event] | Iterable[e.Event] = (),
) -> Iterator[s.TurnEvent] | AsyncIterator[s.TurnEvent]:
    """Return the turns and steps of runs as a stream of events for interfaces.

    `events` are events and deltas as a `RunStream` gives them, or the events of a journal. They may belong to
    several runs, which their `session_id` then tells apart. `history` are the events before them, which are
    needed only if a stream begins within a run, as after `Agent.resume`. An exception of `events` fails the
    open turns, and is then raised.
    """
    if isinstance(events, str) or not isinstance(events, Iterable | AsyncIterable):
        raise ConfigError(
            f"turns was given {events!r:.200}; give it the events of a run: agent.stream(...), or "
            "agent.journal.read(run_id)"
        )
    reader = _Reader()
    for event in cast("Iterable[Event]", history):
        reader.read(event)
    if isinstance(events, AsyncIterable):
        return _read_async(reader, events)
    return _read(reader, cast("Iterable[Item]", events))


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
        self._runs: dict[str, TurnReader] = {}

    def read(self, item: Item) -> Sequence[s.TurnEvent]:
        run = self._runs.get(item.run_id)
        if run is None:
            run = self._runs[item.run_id] = TurnReader(item.run_id)
        body = item.body
        found = run.read(body)
        if type(body) is e.RunFinished and body.stop_reason is not StopReason.ERROR:
            del self._runs[item.run_id]
        return found

    def end(self, error: Exception | None = None) -> Iterator[s.TurnEvent]:
        """Return what ends the turns that are open."""
        for run in self._runs.values():
            run.out = []
            if error is None:
                run.abandon(run.paused or "interrupted")
            else:
                run.abandon(type(error).__name__, str(error))
            yield from run.out


_MAX_CHARS = 100
"""The longest result that is printed in full."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class EventLogger:
    """A printer of the events of `turns`.

    Print each text that `log` yields without a newline. Control characters in texts of models and tools are left
    out.
    """

    def __init__(self, *, has_emoji: bool = True) -> None:
        """Make a printer, with or without emoji."""
        self._has_emoji = has_emoji

    @overload
    def log(self, events: AsyncIterable[s.TurnEvent]) -> AsyncIterator[str]: ...
    @overload
    def log(self, events: Iterable[s.TurnEvent]) -> Iterator[str]: ...
    def log(
        self, events: Iterable[s.TurnEvent] | AsyncIterable[s.TurnEvent]
    ) -> Iterator[str] | AsyncIterator[str]:
        """Yield the texts to print."""
        return self._log_async(events) if isinstance(events, AsyncIterable) else self._log(events)

    def _log(self, events: Iterable[s.TurnEvent]) -> Iterator[str]:
        for event in events:
            if text := self.write(event):
                yield text

    async def _log_async(self, events: AsyncIterable[s.TurnEvent]) -> AsyncIterator[str]:
        async for event in events:
            if text := self.write(event):
                yield text

    def write(self, event: s.TurnEvent) -> str:
        """Return the text for one event; it may be empty. Raises: `ConfigError` for an event of a journal."""
        if isinstance(event, e.Event | e.Ephemeral):
            raise ConfigError("EventLogger prints the events of `turns`; use log(turns(events))")
        if isinstance(event, s.StepStarted):
            return self._write_start(event)
        if isinstance(event, s.StepProgress):
            return self._write_delta(event.delta)
        if isinstance(event, s.StepCompleted):
            return self._write_result(event.result)
        if isinstance(event, s.InputRequested):
            what = "Question" if event.kind == "question" else f"Approval of {event.tool_name}"
            options = "".join([f"\n  - {_clean(option.label)}" for option in event.options])
            return self._line("❓", f"{what}: {_clean(event.text)}{options}")
        if isinstance(event, s.TurnFailed):
            return self._line("❌", f"Turn failed: {_clean(event.error_message)}")
        return ""

    def _write_start(self, event: s.StepStarted) -> str:
        if event.step_type == "inference":
            return "🤔 " if self._has_emoji else ""
        metadata = event.metadata or {}
        if metadata.get("server_side"):
            return self._line("🔧", f"Executing {_clean(metadata['tool_type'])} (server-side)...")
        return self._line("🔧", "Executing function tools (client-side)...")

    def _write_delta(self, delta: s.Delta) -> str:
        if isinstance(delta, s.StepTextDelta):
            return _clean(delta.text)
        if isinstance(delta, s.ToolCallIssuedDelta) and delta.tool_type == "function":
            call = f"{_clean(delta.tool_name)}({_clean(delta.arguments)})"
            # The line that says that it is made begins with the end of this one.
            return self._line("📞", f"Function call: {call}").removesuffix("\n")
        if isinstance(delta, s.RetryDelta):
            return self._line("🔁", f"Trying again: {_clean(delta.error_message)}")
        return ""

    def _write_result(self, result: s.InferenceStepResult | s.ToolExecutionStepResult) -> str:
        if isinstance(result, s.InferenceStepResult):
            return "" if result.function_calls else "\n"
        arrow = "→" if self._has_emoji else "->"
        lines = []
        for response in result.tool_responses:
            content = _clean(response["content"])
            content = content if len(content) <= _MAX_CHARS else content[:_MAX_CHARS] + "..."
            lines.append(f"  {arrow} {_clean(response['tool_name'])}: {content}\n")
        return "".join(lines)

    def _line(self, mark: str, text: str) -> str:
        return f"\n{f'{mark} {text}' if self._has_emoji else text}\n"


def _clean(text: str) -> str:
    return _CONTROL.sub("", text)
