"""Verification: real tools run again, and every kind of result that may legitimately differ."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from treadle import (
    Agent,
    Ephemeral,
    Event,
    Run,
    ScriptedModel,
    ToolContext,
    open_journal,
    task_set,
    tool,
)
from treadle.core.errors import ServerError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.types import Message, Role, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.testbed import oracle_for
from treadle.trajectory.run_verification import verify_run

CALLS = 0


@tool(effect="pure")
def count() -> int:
    """Differs at every call."""
    global CALLS
    CALLS += 1
    return CALLS


@tool(effect="once")
def send(text: str) -> str:
    """Sends."""
    return f"sent {text}"


@tool(effect="idempotent")
def shout(text: str) -> str:
    """Louder."""
    return text.upper()


async def run_script(*steps: list[ToolCall], files: dict[str, str] | None = None) -> tuple[Any, str]:
    journal = open_journal("memory:")
    agent = Agent(
        ScriptedModel([*steps, "done"]), tools=["files", count, send, shout], files=files, journal=journal
    )
    run = await agent.run("go")
    assert run.stop_reason == "completed"
    return journal, run.run_id


async def test_calls_that_give_the_same_again_match() -> None:
    journal, run_id = await run_script(
        [call("write_file", {"file_path": "a.txt", "content": "one\n"}), call("list_files", {})],
        [call("edit_file", {"file_path": "a.txt", "old_text": "one", "new_text": "two"})],
        [call("read_file", {"file_path": "a.txt"}), call("read_file", {"file_path": "no.txt"})],
        [call("reed_file", {}), call("read_file", "{"), call("read_file", {"path": "a.txt"})],
        files={"seed.txt": "s"},
    )
    found = await verify_run(journal, run_id)
    assert (found.calls, found.matched, found.skips, found.differences) == (8, 8, (), ())
    assert found.is_verified


async def test_what_cannot_be_made_again_is_named() -> None:
    journal, run_id = await run_script(
        [call("send", {"text": "x"}, call_id="c1")], [call("shout", {"text": "y"})]
    )
    found = await verify_run(journal, run_id)
    assert (found.calls, found.matched, found.skipped) == (2, 1, 1)
    assert found.skips == ("send (c1): its effect is once",)
    assert not found.is_verified
    assert await verify_run(journal, run_id, tools=["files"]) == found, (
        "given tools are added to the run's own"
    )


async def test_a_tool_that_is_not_at_hand_is_named() -> None:
    @tool(effect="pure")
    def local() -> str:
        """Cannot be found by its name."""
        return "x"

    journal = open_journal("memory:")
    run = await Agent(ScriptedModel([[call("local", {})], "done"]), tools=[local], journal=journal).run("go")
    found = await verify_run(journal, run.run_id)
    assert (found.matched, found.unavailable) == (0, found.skips)
    assert "implementation is not available" in found.skips[0]
    assert (await verify_run(journal, run.run_id, tools=[local])).is_verified


async def test_a_result_that_differs_is_told_with_its_event() -> None:
    journal, run_id = await run_script([call("count", {})])
    found = await verify_run(journal, run_id, tools=[count])
    (difference,) = found.differences
    recorded = next(item for item in journal.read(run_id) if item.type == "tool_completed")
    assert difference.seq == recorded.seq
    assert (found.calls, found.matched, found.skipped) == (1, 0, 0)
    assert "recorded" in str(difference)


async def test_files_that_a_tool_changed_without_telling_are_found() -> None:
    """Another implementation gives the same results but leaves other files."""

    class Liar:
        def __init__(self, inner: object) -> None:
            self.spec = inner.spec  # type: ignore[attr-defined]
            self.find_fault = inner.find_fault  # type: ignore[attr-defined]

        async def call(self, arguments: dict[str, str], context: object) -> str:
            return "wrote 3 bytes to a.txt"

    from treadle.tools.resolve import resolve_tools

    journal, run_id = await run_script([call("write_file", {"file_path": "a.txt", "content": "one"})])
    tools = [Liar(item) if item.spec.name == "write_file" else item for item in resolve_tools(["files"])]
    found = await verify_run(journal, run_id, tools=tools)
    assert any("files after write_file" in item.call for item in found.differences)
    assert found.matched == 0


@tool(effect="idempotent")
async def write_slowly(context: ToolContext, name: str, rounds: int) -> str:
    """Writes two files, and lets others run between."""
    assert context.sandbox is not None
    context.sandbox.write(f"{name}.1", b"x")
    for _ in range(rounds):
        await asyncio.sleep(0)
    context.sandbox.write(f"{name}.2", b"x")
    return f"wrote {name}"


@tool(effect="pure")
async def list_slowly(context: ToolContext, rounds: int) -> str:
    """Looks, and lets others run before it answers."""
    assert context.sandbox is not None
    found = " ".join(context.sandbox.paths())
    for _ in range(rounds):
        await asyncio.sleep(0)
    return found


async def beside(*step: ToolCall) -> tuple[Any, str]:
    journal = open_journal("memory:")
    agent = Agent(
        ScriptedModel([list(step), "done"]), tools=[write_slowly, list_slowly, send], journal=journal
    )
    return journal, (await agent.run("go")).run_id


async def test_calls_that_ran_beside_each_other_are_compared_when_all_have_ended() -> None:
    """The snapshot with the first result contains files of the other calls."""
    step = [
        call("write_slowly", {"name": name, "rounds": rounds})
        for name, rounds in (("a", 3), ("b", 0), ("c", 1))
    ]
    journal, run_id = await beside(*step)
    found = await verify_run(journal, run_id, tools=[write_slowly])
    assert (found.matched, found.differences) == (3, ())


async def test_calls_that_ran_beside_each_other_are_tried_as_they_began_too() -> None:
    """The list was made before the files were written, and ended after."""
    journal, run_id = await beside(
        call("list_slowly", {"rounds": 9}), call("write_slowly", {"name": "a", "rounds": 0})
    )
    found = await verify_run(journal, run_id, tools=[write_slowly, list_slowly])
    assert (found.matched, found.differences) == (2, ())


async def test_a_skipped_call_beside_others_leaves_the_recorded_files() -> None:
    journal, run_id = await beside(
        call("send", {"text": "x"}), call("write_slowly", {"name": "a", "rounds": 2})
    )
    found = await verify_run(journal, run_id, tools=[write_slowly, send])
    assert (found.matched, found.skipped, found.differences) == (1, 1, ())


async def test_a_skipped_call_that_undid_the_work_of_another_leaves_the_recorded_files() -> None:
    """Nothing was changed in the end, so there is no snapshot."""
    is_written, is_undone = asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent")
    async def write(context: ToolContext) -> None:
        assert context.sandbox is not None
        context.sandbox.write("a", b"x")
        is_written.set()
        await is_undone.wait()

    @tool(effect="once")
    async def undo(context: ToolContext) -> None:
        assert context.sandbox is not None
        await is_written.wait()
        context.sandbox.delete("a")
        is_undone.set()

    journal = open_journal("memory:")
    steps = [[call("write"), call("undo")], [call("list_slowly", {"rounds": 0})]]
    agent = Agent(ScriptedModel([*steps, "done"]), tools=[write, undo, list_slowly], journal=journal)
    run = await agent.run("go")
    assert run.files == {}
    found = await verify_run(journal, run.run_id, tools=[write, list_slowly])
    assert (found.matched, found.skipped, found.differences) == (2, 1, ())


async def test_calls_that_were_interrupted_are_compared_once_they_were_made() -> None:
    """A tool of the step had written half of its files when the run was cancelled."""
    journal = open_journal("memory:")
    step = [
        call("write_slowly", {"name": "a", "rounds": 0}),
        call("write_slowly", {"name": "b", "rounds": 500}),
    ]
    agent = Agent(ScriptedModel([step, "done"]), tools=[write_slowly], journal=journal)
    running: asyncio.Future[Run]

    def on_event(event: Event | Ephemeral) -> None:
        if event.type == "tool_completed":
            running.cancel()

    running = asyncio.ensure_future(agent.run("go", run_id="r", on_event=on_event))
    with pytest.raises(asyncio.CancelledError):
        await running
    run = await agent.resume("r")
    assert sorted(run.files) == ["a.1", "a.2", "b.1", "b.2"]
    found = await verify_run(journal, "r", tools=[write_slowly])
    assert (found.calls, found.matched, found.differences) == (2, 2, ())


async def test_tools_that_a_resume_brought_are_found() -> None:
    journal = open_journal("memory:")
    files = {"f": "text"}
    run = await Agent(ScriptedModel([ServerError("down")]), files=files, journal=journal).run("go")
    step = [call("read_file", {"file_path": "f"})]
    await Agent(ScriptedModel([step, "done"]), tools=["files"], journal=journal).resume(run.run_id)
    found = await verify_run(journal, run.run_id)
    assert (found.matched, found.skips, found.differences) == (1, (), ())


async def test_calls_before_a_resume_are_made_with_the_tools_before_it() -> None:
    @tool(effect="pure")
    async def wait() -> str:
        await asyncio.sleep(60)
        return ""

    journal = open_journal("memory:")
    step = [call("wait"), call("shout", {"text": "a"})]
    running: asyncio.Future[Run]

    def on_event(event: Event | Ephemeral) -> None:
        if event.type == "tool_completed":
            running.cancel()

    agent = Agent(ScriptedModel([step]), tools=[wait, shout], journal=journal)
    running = asyncio.ensure_future(agent.run("go", run_id="r", on_event=on_event))
    with pytest.raises(asyncio.CancelledError):
        await running
    await Agent(ScriptedModel(["done"]), tools=[count], journal=journal).resume("r")
    found = await verify_run(journal, "r", tools=[wait, shout, count])
    assert (found.matched, found.skips, found.differences) == (2, (), ())


async def test_a_run_that_was_stopped_in_the_middle_is_verified_as_far_as_it_went() -> None:
    journal, run_id = await run_script([call("write_file", {"file_path": "a.txt", "content": "1"})])
    writer = MemoryJournal()
    part = writer.create("r")
    part.append_events(journal.read(run_id)[:6], journal._blobs)
    found = await verify_run(writer, "r")
    assert (found.calls, found.differences) == (0, ())


@pytest.mark.parametrize("mistake_rate", [0.0, 0.5])
async def test_runs_of_the_task_set_are_verified(mistake_rate: float, tmp_path: Path) -> None:
    from itertools import islice

    with open_journal(tmp_path / "runs.db") as journal:
        for task in islice(task_set("files"), 22):
            oracle = oracle_for(task, mistake_rate=mistake_rate)
            assert oracle is not None
            run = await Agent(oracle, journal=journal).run(task)
            assert run.reward == 1.0
            found = await verify_run(journal, run.run_id)
            assert found.is_verified, (found.skips, found.differences)
            assert check_transcript(run.messages) == []


def message(role: Role, *call_ids: str, answers: str | None = None) -> Message:
    calls = tuple(ToolCall(item, "t", "{}") for item in call_ids)
    return Message(role, "x", calls, answers, "t" if answers else None)


USER = message(Role.USER)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, message(Role.ASSISTANT, "a")], "no result for a"),
        ([USER, message(Role.ASSISTANT, "a"), message(Role.ASSISTANT)], "before the results of a"),
        ([USER, message(Role.ASSISTANT), message(Role.ASSISTANT)], "two assistant messages"),
        ([USER, message(Role.TOOL, answers="a")], "no call is waiting for"),
        ([USER, message(Role.TOOL)], "without a call id"),
        ([USER, message(Role.SYSTEM)], "a system message after"),
        (
            [
                USER,
                message(Role.ASSISTANT, "a", "b"),
                message(Role.TOOL, answers="b"),
                message(Role.TOOL, answers="a"),
            ],
            "out of call order",
        ),
        (
            [
                USER,
                message(Role.ASSISTANT, "a"),
                message(Role.TOOL, answers="a"),
                message(Role.TOOL, answers="a"),
            ],
            "no call is waiting for",
        ),
        (
            [
                USER,
                message(Role.ASSISTANT, "a"),
                message(Role.TOOL, answers="a"),
                message(Role.ASSISTANT, "a"),
            ],
            "used twice",
        ),
        ([USER, message(Role.ASSISTANT, "")], "without an id"),
    ],
)
def test_a_broken_transcript_is_told(messages: list[Message], words: str) -> None:
    assert any(words in fault for fault in check_transcript(messages))


def test_a_whole_transcript_has_no_faults() -> None:
    both = message(Role.ASSISTANT, "a", "b")
    assert (
        check_transcript(
            [
                message(Role.SYSTEM),
                USER,
                both,
                message(Role.TOOL, answers="a"),
                message(Role.TOOL, answers="b"),
                message(Role.ASSISTANT),
                USER,
                message(Role.ASSISTANT),
            ]
        )
        == []
    )


@tool(effect="pure")
def clock() -> str:
    """Tells the time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


async def test_a_result_with_the_time_of_the_call_is_not_counted_as_equal() -> None:
    """A tool that reads the clock gives the same result within a second, but not later, so its calls prove
    nothing."""
    journal = open_journal("memory:")
    agent = Agent(ScriptedModel([[call("clock", {})], "done"]), tools=[clock], journal=journal)
    run = await agent.run("go")
    found = await verify_run(journal, run.run_id, [clock])
    assert (found.calls, found.matched, found.skipped) == (1, 0, 1)
    assert not found.is_verified
    assert "its result has the time at which it ran" in found.skips[0]


@pytest.mark.parametrize("shares_files", [False, True])
async def test_the_run_of_a_sub_agent_is_verified_in_place_of_the_call(shares_files: bool) -> None:
    """A run with a sub-agent could not be verified at all, because no package is called `agent`."""
    journal = open_journal("memory:")
    steps = [call("write_file", {"path": "a.txt", "content": "b"}), call("shout", {"text": "hi"})]
    writer = Agent(ScriptedModel([[step] for step in steps] + ["Done."]), tools=["files", shout])
    inner = Agent(
        ScriptedModel([[call("write", {"task": "write"})], [call("count", {})], "Done."]),
        tools=[writer.as_tool("write", shares_files=shares_files), count],
    )
    script = [[call("shout", {"text": "yes"})], [call("plan", {"task": "plan"})], "Done."]
    agent = Agent(
        ScriptedModel(script),
        tools=["files", shout, inner.as_tool("plan", shares_files=True)],
        journal=journal,
    )
    run = await agent.run("go")
    assert run.output == "Done."
    found = await verify_run(journal, run.run_id, [shout, count])
    assert (found.calls, found.matched, found.skips) == (6, 5, ())
    (difference,) = found.differences
    assert difference.tool == "count"
    assert difference.run_id is not None
    assert difference.run_id in str(difference)
    journal.delete(difference.run_id)
    found = await verify_run(journal, run.run_id, [shout, count])
    assert [skip.partition(": ")[2] for skip in found.skips] == [
        f"the run {difference.run_id!r} that it drove is not in the journal"
    ]
