"""The one clock of an agent's runs."""

from treadle import Agent, ScriptedModel, tool
from treadle.core import events as e
from treadle.journal.memory import MemoryJournal
from treadle.models import call


class Steps:
    """A clock that stands still at the epoch of a test, while its monotonic time moves on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._monotonic = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        self._monotonic += 0.5
        return self._monotonic


@tool(effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


async def test_events_have_the_times_of_the_clock_and_durations_are_monotonic() -> None:
    clock = Steps()
    agent = Agent(
        ScriptedModel([[call("look")], "done", "again"]), tools=[look], journal=MemoryJournal(), clock=clock
    )
    run = await agent.run("go")
    assert {event.at for event in run.events} == {1000.0}
    durations = [
        event.body.duration_seconds
        for event in run.events
        if isinstance(event.body, e.InferenceCompleted | e.ToolCompleted)
    ]
    assert durations == [0.5, 0.5, 0.5]
    clock.now = 2000.0
    fork = await agent.fork(run.run_id, text="more")
    copied, own = fork.events[1 : len(run.events)], fork.events[len(run.events) :]
    assert {event.at for event in copied} == {1000.0}
    assert {event.at for event in (fork.events[0], *own)} == {2000.0}
