"""Turns of a session that wait for somebody."""

import asyncio
import sqlite3
from pathlib import Path
from typing import ClassVar

import pytest

from treadle import Agent, Policy, ScriptedModel, ToolContext, load_task, open_journal, tool
from treadle.context.step_view import view_step
from treadle.core.errors import (
    ConfigError,
    JournalError,
    LeaseHeldError,
    RequestError,
    RunExistsError,
    ServerError,
)
from treadle.core.events import Rewarded
from treadle.core.state import fold
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import call
from treadle.runs.task import Grade


async def test_a_waiting_turn_is_decided_within_the_session():
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        sent.append(to)
        return "sent"

    script = [[call("send", {"to": "a"})], "done", [call("send", {"to": "b"})], "done"]
    said = [None, True]
    agent = Agent(
        ScriptedModel(script),
        tools=[send],
        journal=MemoryJournal(),
        policy=Policy(approve={"once": "ask"}),
        approver=lambda request: said.pop(0) if said else None,
    )
    async with agent.session() as session:
        waiting = await session.send("one")
        assert list(waiting.approvals) == ["call_1_0"]
        with pytest.raises(ConfigError, match=r"session\.finish_turn"):
            await session.send("two")
        assert (await session.finish_turn()).output == "done"  # the approver is asked again
        waiting = await session.send("two")
        with pytest.raises(ConfigError, match="no call 'x' waits"):
            await session.finish_turn(approvals={"x": True})
        assert (await session.finish_turn(approvals=dict.fromkeys(waiting.approvals, True))).output == "done"
    assert sent == ["a", "b"]
    assert (await agent.replay(session.run_id)).is_exact


def test_turns_are_finished_and_tried_again_without_an_event_loop() -> None:
    @tool
    async def send(to: str) -> str:
        return f"sent to {to}"

    script = [[call("send", {"to": "a"})], ServerError("no power"), "done"]
    policy = Policy(approve={"once": "ask"})
    heard: list[str] = []
    agent = Agent(ScriptedModel(script), tools=[send], journal="memory:", policy=policy)
    with agent.session() as session:
        waiting = session.send_sync("one")
        failed = session.finish_turn_sync(approvals=dict.fromkeys(waiting.approvals, True))
        assert (failed.stop_reason, failed.results[0].content) == ("error", "sent to a")
        assert session.retry_turn_sync(on_event=lambda event: heard.append(event.type)).output == "done"
    assert heard[0] == "run_resumed"


class OneFile:
    """A task whose check wants a file with the word that is also the answer."""

    task_set, task_id, seed = "one", "one-0001", 1
    input = "unused"
    instructions = "Be exact."
    tools = ("files",)
    files: ClassVar = {"word.txt": b"milk"}

    def check(self, output, files):
        return Grade(float(output == "milk" == files["copy.txt"].decode()), "compared")


COPY = [call("write_file", {"file_path": "copy.txt", "content": "milk"})]


async def test_a_session_on_a_task_is_graded():
    journal = MemoryJournal()
    agent = Agent(ScriptedModel([COPY, "not yet", "milk"]), journal=journal)
    async with agent.session("s", task=OneFile(), metadata={"part": "sample"}) as session:
        assert await session.grade() is None  # before the first turn
        run = await session.send("Copy the word.")
        assert run.messages[0].content == "Be exact."
        assert await session.grade() == 0.0
        run = await session.send("And tell it.")
        assert run.reward is None
        assert await session.grade() == 1.0
        assert await session.grade() == 1.0
    rewarded = [event.body.reward for event in journal.read("s") if isinstance(event.body, Rewarded)]
    assert rewarded == [0.0, 1.0]
    info = journal.runs()[0]
    assert (info.task_set, info.task_id, info.reward) == ("one", "one-0001", 1.0)
    assert info.labels == {"part": "sample"}


async def test_the_task_of_a_session_is_found_again():
    """A session that is opened again has the tools and the check of its task."""
    journal = MemoryJournal()
    task = load_task("files:csv_sum-0042")
    async with Agent(ScriptedModel(["Answer: 1"]), journal=journal).session("s", task=task) as session:
        await session.send("go")
    again = Agent(ScriptedModel([[call("list_files")], "Answer: 2"]), journal=journal)
    async with again.session("s") as session:
        run = await session.send("look again")
        assert [result.is_error for result in run.results] == [False]
        assert await session.grade() == 0.0


async def test_the_files_of_a_session_are_those_of_now():
    """They are what its tools left, also after a turn that failed, and when the session is opened again."""
    script = [
        [call("write_file", {"file_path": "b/new.txt", "content": "two"})],
        [call("write_file", {"file_path": "a.bin", "content": "changed"})],
        "done",
        [call("write_file", {"file_path": "c.txt", "content": "three"})],
        ServerError("down"),
    ]
    agent = Agent(ScriptedModel(script), tools=["files"], journal=MemoryJournal())
    async with agent.session("s", files={"a.bin": b"\xff\x00"}) as session:
        assert session.files == {"a.bin": b"\xff\x00"}
        run = await session.send("go")
        known = {"a.bin": b"changed", "b/new.txt": b"two"}
        assert (session.files, run.files) == (known, known)
        session.files["a.bin"] = b"mine"  # a copy
        failed = await session.send("go on")
        assert failed.stop_reason == "error"
        assert session.files == {**known, "c.txt": b"three"}
    async with agent.session("s") as session:
        assert session.files == {**known, "c.txt": b"three"}
    with pytest.raises(ConfigError, match="the session is not open"):
        _ = session.files
    async with Agent(ScriptedModel([]), journal=MemoryJournal()).session() as session:
        assert session.files == {}


async def test_a_session_without_a_task_has_no_grade():
    async with Agent(ScriptedModel(["hi"]), journal=MemoryJournal()).session() as session:
        await session.send("hello")
        assert await session.grade() is None


@pytest.mark.parametrize("expects_new", [True, False])
async def test_a_session_is_begun_or_continued_whatever_is_expected(expects_new):
    journal = MemoryJournal()
    agent = Agent(ScriptedModel(["one", "two"]), journal=journal)
    for expected in ("one", "two"):
        async with agent.session("s", expects_new=expects_new) as session:
            assert (await session.send("go")).output == expected
    assert len(session.run_id) == 1
    assert fold([event.body for event in journal.read("s")]).turn.number == 2


async def test_a_session_that_begins_with_its_message_leaves_nothing_without_one_and_is_never_begun_twice():
    journal, model = MemoryJournal(), ScriptedModel(["one", "two"])
    agent = Agent(model, journal=journal)
    async with agent.session("s", begins_with_message=True):
        assert not list(journal.runs())
    assert not list(journal.runs())
    async with agent.session("s", begins_with_message=True) as session:
        assert (await session.send("go")).output == "one"
    known = [event.body for event in journal.read("s")]
    with pytest.raises(RunExistsError):
        async with agent.session("s", begins_with_message=True) as session:
            await session.send("go")
    assert [event.body for event in journal.read("s")] == known
    async with agent.session("s") as session:  # the model was not asked in between
        assert (await session.send("go on")).output == "two"


@pytest.mark.parametrize("is_graded", [True, False])
async def test_the_last_turn_the_pause_and_the_release_are_one_write(tmp_path, is_graded):
    with open_journal(tmp_path / "j.db") as journal:
        agent = Agent(ScriptedModel(["hi"]), journal=journal)
        task = load_task("files:csv_sum-0000") if is_graded else None
        async with agent.session("s", begins_with_message=True, task=task) as session:
            await session.send("hello", is_last=True)
            await session.grade()
        (info,) = journal.runs()
        assert not info.is_driven
        tags = [type(event.body).__name__ for event in journal.read("s")]
        assert tags[-3:] == (
            ["TurnCompleted", "Rewarded", "RunPaused"]
            if is_graded
            else ["InferenceCompleted", "TurnCompleted", "RunPaused"]
        )
        with sqlite3.connect(tmp_path / "j.db") as db:
            frames = db.execute("SELECT count(*) FROM frames").fetchone()[0]
        assert frames == 2  # what leads to the request, and what follows the answer


async def test_a_last_turn_that_cannot_be_stored_is_an_error_of_the_close(tmp_path):
    with open_journal(tmp_path / "j.db") as journal:
        agent = Agent(ScriptedModel(["one", "two"]), journal=journal)
        async with agent.session("s") as session:
            await session.send("go")
            with sqlite3.connect(tmp_path / "j.db") as db:
                db.execute(
                    "CREATE TRIGGER full BEFORE INSERT ON frames BEGIN SELECT RAISE(ABORT, 'full'); END"
                )
            with pytest.raises(JournalError, match="full"):
                await session.send("go on")
        with sqlite3.connect(tmp_path / "j.db") as db:
            db.execute("DROP TRIGGER full")

    def refuse(request):
        with sqlite3.connect(tmp_path / "k.db") as db:
            db.execute("CREATE TRIGGER full BEFORE INSERT ON frames BEGIN SELECT RAISE(ABORT, 'full'); END")
        return "lost"

    with open_journal(tmp_path / "k.db") as journal:
        agent = Agent(ScriptedModel(refuse), journal=journal)
        with pytest.raises(JournalError, match="full"):
            async with agent.session("s") as session:
                assert (await session.send("go", is_last=True)).output == "lost"


async def test_a_run_that_is_no_session_is_refused_even_if_a_new_one_is_expected():
    agent = Agent(ScriptedModel(["one"]), journal=MemoryJournal())
    await agent.run("go", run_id="r")
    with pytest.raises(ConfigError, match="is not a session"):
        async with agent.session("r", expects_new=True):
            pass
    async with agent.session() as session:
        assert not session.is_turn_open


@pytest.mark.parametrize("pauses", [True, False])
async def test_a_cancelled_turn_can_stay_open(pauses):
    begun = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(3600)
        return "waited"

    agent = Agent(ScriptedModel([[call("wait")], "done"]), tools=[wait], journal=MemoryJournal())
    async with agent.session("s", pauses_when_cancelled=pauses) as session:
        sending = asyncio.ensure_future(session.send("go"))
        await begun.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert session.is_turn_open is pauses
    async with agent.session("s") as session:
        run = await session.finish_turn()
        assert run.stop_reason == ("completed" if pauses else "cancelled")
        assert run.output == ("done" if pauses else "")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"file": {}}, "files"), ({"files": 3}, "files is 3"), ({"metadata": {"a": object()}}, "JSON values")],
)
def test_wrong_options_of_a_session(options, message):
    with pytest.raises(ConfigError, match=message):
        Agent(ScriptedModel([]), journal=MemoryJournal()).session(**options)


async def test_the_events_that_a_session_keeps_are_those_of_its_journal(tmp_path):
    """A session that was opened again has appended only a part of them, so it reads all from the journal."""
    with open_journal(tmp_path / "j.db") as journal:
        agent = Agent(
            ScriptedModel([[call("write", {"x": (1, 2)})], "one", "two"]), tools=[write], journal=journal
        )
        async with agent.session("s", keeps_events=True, files={"a": "b"}) as session:
            await session.send("go")
            kept = await session.read_events()
            read = journal.read("s")
        assert [(event.seq, event.body) for event in kept] == [(event.seq, event.body) for event in read]
        assert len(kept) > 5
        async with agent.session("s", keeps_events=True) as session:
            await session.send("go on")
            assert [event.seq for event in await session.read_events()] == [
                *range(1, len(journal.read("s")) + 1)
            ]


@tool(effect="pure")
def write(x: list[int]) -> str:
    return str(x)


@pytest.mark.parametrize("store", ["memory:", "file"])
async def test_a_session_without_a_message_leaves_nothing_behind(store: str, tmp_path: Path) -> None:
    """A session was made in the store as soon as somebody asked for one, used or not."""
    with open_journal(store if store == "memory:" else tmp_path / "runs.db") as journal:
        agent = Agent(
            ScriptedModel(["one", "two"]), journal=journal, instructions="Be brief.", files={"a": "1"}
        )
        async with agent.session() as session:
            assert not session.is_turn_open
            assert [message.role for message in session.messages] == ["system"]
            assert await session.read_events() == ()
            assert await session.grade() is None
            assert journal.runs() == []
        assert journal.runs() == []
        async with agent.session() as session:
            run = await session.send("hello")
            assert [event.type for event in journal.read(run.run_id)][:3] == [
                "run_started",
                "snapshot_taken",
                "turn_started",
            ]
            assert run.files == {"a": b"1"}
        async with agent.session(run.run_id) as session:
            assert len(session.messages) == 3


async def test_a_session_with_a_given_id_begins_at_once() -> None:
    journal = open_journal("memory:")
    agent = Agent(ScriptedModel(["one"]), journal=journal)
    async with agent.session("s"):
        assert [info.run_id for info in journal.runs()] == ["s"]
        with pytest.raises(LeaseHeldError):
            await agent.session("s").open()
    assert journal.read("s")[-1].type == "run_paused"


async def test_sessions_are_listed_with_their_titles() -> None:
    agent = Agent(ScriptedModel(["hi"]), journal=MemoryJournal(), files={"a.txt": "a"})
    async with agent.session("mine"):
        pass
    async with agent.session() as session:
        await session.send("hello there. More text.")
    assert [info.run_id for info in await agent.sessions()] == [session.run_id, "mine"]
    assert (await agent.sessions(1))[0].title == "hello there."


async def test_the_summary_of_a_session() -> None:
    """A `null` result is a success, and failed calls and turns are counted as such: rules out the defect that the
    counts of a session and of its results disagree about a result without a value."""

    @tool(effect="pure")
    async def nothing() -> None:
        return None

    @tool(effect="pure")
    async def fail() -> str:
        raise ValueError("no")

    script = [[call("nothing"), call("fail")], "one", RuntimeError("no server"), "three"]
    agent = Agent(ScriptedModel(script), tools=[nothing, fail], journal=MemoryJournal())
    async with agent.session() as session:
        await session.send("# Two calls, please\nAnd more.")
        failed = await session.send("fail")
        assert failed.stop_reason == "error"
        assert (await session.send("again")).output == "three"
        summary = await session.summary()
    assert (summary.title, summary.turns, summary.steps) == ("Two calls, please", 3, 3)
    assert (summary.messages, summary.tool_calls, summary.failed_tool_calls) == (6, 2, 1)
    assert len(summary.errors) == 1
    assert "no server" in summary.errors[0]
    assert summary.usage.total_tokens > 0
    assert (summary.questions, summary.approvals, summary.queued) == ({}, (), ())
    assert summary.began_at <= summary.updated_at


async def test_a_session_takes_any_number_of_messages_and_limits_count_for_each_turn() -> None:
    """Rules out a session that is complete after one answer, and a limit of steps for its whole life."""

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    script = [item for number in range(4) for item in ([call("look")], f"answer {number}")]
    agent = Agent(ScriptedModel(script), tools=[look], journal=MemoryJournal(), policy=Policy(max_steps=2))
    async with agent.session() as session:
        for number in range(4):
            run = await session.send("again")
            assert (run.stop_reason, run.output) == ("completed", f"answer {number}")


async def test_what_a_failed_turn_has_done_is_not_lost() -> None:
    """Rules out the defect that a failed step hides the steps before it from the caller."""

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    agent = Agent(
        ScriptedModel([[call("look")], RuntimeError("no server")]), tools=[look], journal=MemoryJournal()
    )
    async with agent.session() as session:
        run = await session.send("go")
    assert (run.stop_reason, run.fault) == ("error", "infrastructure")
    assert [result.content for result in run.results] == ["seen"]
    assert run.steps == 1


async def test_a_session_of_a_wrong_id_is_told_at_once() -> None:
    """Rules out the defect that a wrong id of a session fails only at a server. A new id begins a session."""
    agent = Agent(ScriptedModel(["hi"]), journal=MemoryJournal())
    await agent.run("go", run_id="plain")
    with pytest.raises(ConfigError, match="is not a session"):
        async with agent.session("plain"):
            pass


async def test_a_turn_that_failed_is_tried_again_within_the_session():
    """The message is not sent twice."""
    answers = [ServerError("the server is down"), "Here I am.", "Still here."]

    def answer(request):
        item = answers.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    agent = Agent(ScriptedModel(answer), journal=MemoryJournal())
    async with agent.session() as session:
        with pytest.raises(ConfigError, match="did not end with an error"):
            await session.retry_turn()
        assert (await session.send("Are you there?")).stop_reason == "error"
        run = await session.retry_turn()
        assert run.output == "Here I am."
        with pytest.raises(ConfigError, match="did not end with an error"):
            await session.retry_turn()
        run = await session.send("And now?")
    sent = [message.content for message in run.messages if message.role == "user"]
    assert sent == ["Are you there?", "And now?"]
    assert (await agent.replay(run.run_id)).is_exact


async def test_a_turn_that_failed_is_tried_again_when_the_session_is_opened_again():
    """The turn is open again by then. The message after it waits, and is not answered in its place."""
    answers = ["Hi.", ServerError("down"), "Two.", "Three.", [call("wait")], "Four."]

    def answer(request):
        item = answers.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    @tool(effect="pure")
    async def wait(context: ToolContext) -> str:
        """Wait."""
        return (await context.ask("Go on?")).text

    agent = Agent(ScriptedModel(answer), tools=[wait], journal=MemoryJournal())
    async with agent.session("s") as session:
        await session.send("one")
        await session.send("two")
        session.post("three")
    async with agent.session("s") as session:
        assert session.has_reopened_turn
        run = await session.retry_turn()
        assert (run.output, [message.content for message in session.queued]) == ("Two.", ["three"])
        assert not session.has_reopened_turn
        assert (await session.finish_turn()).output == "Three."
        assert (await session.send("four")).stop_reason is None
        with pytest.raises(ConfigError, match="did not end with an error"):  # it is open for another reason
            await session.retry_turn()
    sent = [message.content for message in run.messages if message.role == "user"]
    assert sent == ["one", "two"]
    assert (await agent.replay("s")).is_exact


async def test_an_image_that_the_server_refuses_is_not_in_later_requests(tmp_path: Path):
    """A session must not be unusable because of one message."""
    png = tmp_path / "photo.png"
    png.write_bytes(b"\x89PNG")
    requests = []

    def answer(request):
        requests.append([(message.content, bool(message.parts)) for message in request.messages])
        if any(message.parts for message in request.messages):
            raise RequestError("images are not supported")
        return "Hello."

    journal = MemoryJournal()
    agent = Agent(ScriptedModel(answer), journal=journal)
    async with agent.session() as session:
        await session.send("Hi.")
        assert (await session.send("What is this?", attach=[png])).stop_reason == "error"
        assert (await session.retry_turn()).stop_reason == "error"  # it may have had another reason
        run = await session.send("Never mind.")
        assert run.output == "Hello."
        assert [bool(message.parts) for message in session.messages] == [False, False, True, False, False]
    note = "What is this?\n\n[photo.png: left out, because the request with it was refused]"
    assert requests[-1][2:] == [(note, False), ("Never mind.", False)]
    assert requests[2] == requests[1]
    assert (await agent.replay(run.run_id)).is_exact
    assert view_step(list(journal.read(run.run_id)), 2).messages[2].message.content == note


async def test_a_question_that_a_cancelled_turn_leaves_is_not_a_call_with_an_unknown_outcome():
    async def leave(question):
        turn.cancel()
        await asyncio.sleep(60)

    script = ScriptedModel([[call("ask_user", {"question": "Which?"})], "Fine."])
    agent = Agent(script, tools=["ask"], asker=leave, journal=MemoryJournal())
    async with agent.session() as session:
        turn = asyncio.ensure_future(session.send("Ask me."))
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert session.run.results[0].content == "Not answered: the turn was ended."
        assert (await session.send("Never mind.")).output == "Fine."
    assert (await agent.replay(session.run_id)).is_exact
