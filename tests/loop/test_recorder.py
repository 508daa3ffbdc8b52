"""The recorder of a run: which of its events it keeps in memory."""

from treadle import Agent, ScriptedModel
from treadle.core import events as e
from treadle.core.state import State
from treadle.journal.memory import MemoryJournal
from treadle.loop.outbox import Recorder


class Still:
    """A clock that stands still."""

    def time(self) -> float:
        return 1.0

    def monotonic(self) -> float:
        return 1.0


async def test_kept_events_of_a_fork_have_the_numbers_of_the_journal() -> None:
    """What was kept before the copied events is not followed by the next ones."""
    journal = MemoryJournal()
    agent = Agent(ScriptedModel(["one"]), journal=journal)
    await agent.run("go", run_id="r")
    events = journal.read("r")
    recorder = Recorder(State(), journal.create("fork"), Still())
    recorder.keep_events()
    recorder.put(events[0].body)
    assert [event.seq for event in recorder.kept_events or ()] == [1]
    recorder.adopt(events[1:3])
    assert recorder.kept_events == []
    recorder.put(e.Noted(remark="here"))
    await recorder.kept()
    found = [(event.run_id, event.seq, event.type) for event in recorder.kept_events or ()]
    assert found == [(event.run_id, event.seq, event.type) for event in journal.read("fork")[3:]]
    assert [number for _, number, _ in found] == [4]
