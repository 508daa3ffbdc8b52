"""Runs of tasks with a simulated user: each reply is a turn, and any process can go on after any event."""

import pytest
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, UserCodeError
from treadle.core.events import RunFinished, TurnStarted
from treadle.core.policy import Policy
from treadle.core.replay import replay
from treadle.core.state import Status
from treadle.core.types import Message, Role, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import ScriptedModel
from treadle.runs.drive import MAX_TURNS
from treadle.runs.task import Grade, SimpleTask
from treadle.tasks import load_task
from treadle.testbed import oracle_for
from treadle.trajectory.run_verification import verify_run

TASK = "shop:hygiene-medium-0000"


async def test_each_reply_begins_a_turn_and_the_run_ends_once():
    task = load_task(TASK)
    run = await Agent(oracle_for(task), journal=MemoryJournal()).run(task)
    turns = [event.body for event in run.events if isinstance(event.body, TurnStarted)]
    assert [body.turn for body in turns] == list(range(1, len(turns) + 1))
    assert len(turns) >= 3
    assert sum(isinstance(event.body, RunFinished) for event in run.events) == 1
    assert (run.status, run.reward, run.stop_reason) == (Status.FINISHED, 1.0, "completed")
    assert replay(run.events, lambda output, text: None).is_exact


async def test_a_run_goes_on_after_any_event():
    task, journal = load_task(TASK), MemoryJournal()
    agent = Agent(oracle_for(task), journal=journal)
    run = await agent.run(task)
    said = [message.content for message in run.messages]
    ended = next(event.seq for event in run.events if isinstance(event.body, RunFinished))
    for at in range(2, ended):
        if run.events[at - 1].body.__class__.__name__ == "SnapshotTaken" and at < 3:
            continue  # no turn has begun
        fork = await agent.fork(run.run_id, at)
        assert (fork.reward, [message.content for message in fork.messages]) == (1.0, said), at


async def test_a_turn_that_fails_ends_the_run():
    task = load_task(TASK)
    run = await Agent(oracle_for(task), journal=MemoryJournal(), policy=Policy(max_steps=1)).run(task)
    assert run.status is Status.FINISHED
    assert run.stop_reason == "max_steps"
    assert replay(run.events, lambda output, text: None).is_exact


async def test_a_mistake_in_the_user_is_the_users_code():
    class Talking:
        def __init__(self, task: SimpleTask) -> None:
            self._task = task

        def __getattr__(self, name):
            return getattr(self._task, name)

        def reply(self, messages):
            return messages[99].content

    task = Talking(SimpleTask(task_id="a", input="Hello", grader=lambda task, output, files: Grade(1.0, "")))
    agent = Agent(ScriptedModel(["Hi."]), journal=MemoryJournal())
    with pytest.raises(UserCodeError, match="the user of the task ':a' failed"):
        await agent.run(task)


async def test_a_user_that_never_ends_has_a_hundred_turns_and_one_that_says_no_text_none():
    class Talking(SimpleTask):
        async def reply(self, messages):
            return said

    class Short(Talking):
        max_turns = 3

    task = Talking(task_id="talk", input="hi", grader=lambda *_: True)
    for said in ("go on", 5):
        agent = Agent(ScriptedModel(["yes"] * 200), journal=MemoryJournal())
        if said == 5:
            with pytest.raises(ConfigError, match="said 5; let reply return a text, or None"):
                await agent.run(task, run_id="talk")
            assert agent.journal.runs()[0].turns == 1
            continue
        run = await agent.run(task)
        assert (run.status, run.steps, run.state.turn.number) == (Status.FINISHED, MAX_TURNS, MAX_TURNS)
        assert (await agent.run(Short(task_id="short", input="hi", grader=lambda *_: True))).steps == 3


class Teacher(SimpleTask, frozen=True):
    """A task whose user looks into the files, and puts a new one there before each turn."""

    async def reply(self, messages, sandbox):
        if not messages:
            sandbox.write("exercise.txt", b"1")
            return None
        if sandbox.read("exercise.txt") == b"3":
            sandbox.write_state("teacher", b"done")
            return None
        number = int(sandbox.read("exercise.txt")) + 1
        sandbox.write("exercise.txt", str(number).encode())
        return f"Read exercise.txt again, for the {number}th time."


TEACHERS = [Teacher(task_id="a", input="Read exercise.txt.", tools=["files"])]


async def test_a_user_may_change_files_between_turns():
    task = load_task(f"{__name__}:TEACHERS:a")
    read = Message(Role.ASSISTANT, tool_calls=(ToolCall("c", "read_file", '{"file_path": "exercise.txt"}'),))
    calls = [replace(read, tool_calls=(replace(read.tool_calls[0], call_id=f"c{n}"),)) for n in range(3)]
    model = ScriptedModel([message for call in calls for message in (call, "I have read it.")])
    journal = MemoryJournal()
    run = await Agent(model, journal=journal).run(task)
    assert [result.content for result in run.results] == ["1", "2", "3"]
    assert run.files == {"exercise.txt": b"3"}
    kinds = [type(event.body).__name__ for event in run.events]
    opened = [place for place, kind in enumerate(kinds) if kind == "TurnStarted"]
    assert [kinds[place - 1] for place in opened] == ["SnapshotTaken"] * 3
    assert kinds[kinds.index("RunFinished") - 1] == "SnapshotTaken"  # what the last reply has changed
    assert replay(run.events, lambda output, text: None).is_exact
    verified = await verify_run(journal, run.run_id)
    assert (verified.matched, verified.differences) == (3, ())
    # Between the change of a user and its turn there is nothing to fork: the user makes the change again.
    agent = Agent(ScriptedModel([calls[1], "Read.", calls[2], "Read."]), journal=journal)
    fork = await agent.fork(run.run_id, opened[1])
    assert [result.content for result in fork.results] == ["1", "2", "3"]
    assert fork.files == run.files
    with pytest.raises(ConfigError, match="the turn is over at event 2"):
        await agent.fork(run.run_id, opened[0])


class Manner(SimpleTask, frozen=True):
    """A task whose user has parameters of its own."""

    def reply(self, messages, manner="polite", **further):
        assert not further
        return None if len(messages) > 3 else manner


async def test_other_parameters_of_a_user_are_its_own():
    task = Manner(task_id="a", task_set="t", input="hi", grader=lambda *_: True)
    run = await Agent(ScriptedModel(["yes", "yes"]), journal=MemoryJournal()).run(task)
    assert [message.content for message in run.state.transcript] == ["hi", "yes", "polite", "yes"]
