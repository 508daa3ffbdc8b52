"""Old journals: their replays are exact, and their runs go on.

A decision that differs is reported with its sequence number. The journals in `before_contexts` were written by the
last version that compacted no contexts (2.1), those in `before_lost_allowance` by the last one that counted lost
answers as steps (2.3); the others are of version 1.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from treadle import Agent, Policy, ScriptedModel, open_journal
from treadle.core import events as e
from treadle.core.replay import Replay
from treadle.core.replay import replay as decide_again
from treadle.core.spec import MemorySpec
from treadle.core.types import Fault, StopReason
from treadle.journal.jsonl import import_lines
from treadle.models import TieredModel
from treadle.tools.schema.answer_schema import find_output_fault

GOLDEN = sorted((Path(__file__).parent / "data").glob("**/*.jsonl"))


def load(path: Path) -> list[e.Event]:
    return [e.decode_line(line) for line in path.read_bytes().splitlines()]


async def replay(events: list[e.Event], policy: Policy | None = None) -> Replay:
    return decide_again(events, find_output_fault, policy)


def test_there_are_golden_journals() -> None:
    assert len(GOLDEN) >= 10


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
async def test_a_golden_journal_replays_exactly(path: Path) -> None:
    events = load(path)
    found = await replay(events)
    assert found.is_exact, found.divergence
    assert found.events == len(events)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
async def test_every_prefix_replays_exactly(path: Path) -> None:
    """A prefix is the journal of a run whose process was killed at that point."""
    events = load(path)
    for size in range(1, len(events)):
        found = await replay(events[:size])
        assert found.is_exact, (size, found.divergence)


@pytest.mark.parametrize("name", ["tools", "max_steps", "session", "failed"])
async def test_a_smaller_limit_diverges_at_the_inference_that_it_forbids(name: str) -> None:
    events = load(Path(__file__).parent / "data" / f"{name}.jsonl")
    calls_of_turn = 0
    for event in events:
        if isinstance(event.body, e.TurnStarted):
            calls_of_turn = 0
        calls_of_turn += isinstance(event.body, e.InferenceStarted)
        if calls_of_turn == 2:
            break
    found = await replay(events, Policy(max_steps=1))
    assert found.divergence is not None
    assert found.divergence.seq == event.seq
    assert found.events == event.seq - 1
    assert f"first divergence at seq {event.seq}" in str(found.divergence)


def tamper(events: list[e.Event], kind: type, **changes: object) -> tuple[list[e.Event], int]:
    """Change the first event of a type, or remove it if no changes are given. Return the events and its number."""
    index = next(i for i, event in enumerate(events) if isinstance(event.body, kind))
    if changes:
        body = replace(events[index].body, **changes)
        return [*events[:index], replace(events[index], body=body, raw=None), *events[index + 1 :]], index + 1
    return [*events[:index], *events[index + 1 :]], index + 1


async def test_a_journal_that_was_changed_is_told() -> None:
    events = load(Path(__file__).parent / "data" / "tools.jsonl")
    for kind, changes in [
        (e.TurnCompleted, {"stop_reason": StopReason.MAX_STEPS}),
        (e.TurnCompleted, {"output": "something else"}),
        (e.RunFinished, {"stop_reason": StopReason.ERROR}),
        (e.InferenceStarted, {"messages": 7}),
        (e.InferenceStarted, {"has_tools": False}),
        (e.ToolStarted, {"call_id": "nobody's"}),
        (e.InferenceStarted, {}),
        (e.InferenceCompleted, {}),
    ]:
        changed, seq = tamper(events, kind, **changes)
        found = await replay(changed)
        assert found.divergence is not None, (kind, changes)
        assert found.divergence.seq == seq


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
async def test_another_version_may_tell_errors_and_limits_in_other_words(path: Path) -> None:
    """Rules out that the words of errors are frozen by the journals that exist."""
    changed = []
    for event in load(path):
        body = event.body
        if isinstance(body, e.TurnCompleted | e.RunFinished) and body.error is not None:
            body = replace(body, error="It failed.")
        elif isinstance(body, e.MessageInjected) and body.message.is_own:
            body = replace(body, message=replace(body.message, content="Go on."))
        elif isinstance(body, e.ToolCompleted) and body.result.is_error:
            body = replace(body, result=replace(body.result, content="It failed."))
        changed.append(replace(event, body=body, raw=None))
    found = await replay(changed)
    assert found.is_exact, found.divergence


async def test_the_kind_of_an_error_is_compared() -> None:
    events = load(Path(__file__).parent / "data" / "failed.jsonl")
    for changes in ({"error": None}, {"fault": Fault.USER}):
        changed, seq = tamper(events, e.TurnCompleted, **changes)
        found = await replay(changed)
        assert found.divergence is not None
        assert found.divergence.seq == seq


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
async def test_a_run_of_an_older_version_goes_on_today_wherever_it_was_killed(path: Path) -> None:
    """Rules out an old journal that today's agent, with a memory, a window and tiers, cannot continue, or whose
    replay is not exact afterwards."""
    tiers = {tier: ScriptedModel(lambda request: "fine") for tier in ("small", "mid")}
    with open_journal("memory:") as journal:
        await import_lines(journal, path.read_bytes().splitlines())
        agent = Agent(
            TieredModel(tiers),
            tools=["files", "ask"],
            policy=Policy(context_tokens=8000, approve={"once": "ask"}, autonomy="cautious"),
            journal=journal,
            memory=MemorySpec(persona="p", user="u", writes_back=True),
            approver=lambda request: True,
        )
        events = journal.read(load(path)[0].run_id)
        started = events[0].body
        assert isinstance(started, e.RunStarted)
        first = next(event.seq for event in events if isinstance(event.body, e.TurnStarted))
        # A fork has the events that it copied from its beginning.
        for size in range(max(first, started.parent.seq if started.parent else 0), len(events) + 1):
            run_id = f"{size}"
            writer = journal.create(run_id)
            writer.append_events(events[:size])
            await writer.release()
            if started.is_session:
                async with agent.session(run_id) as session:
                    await session.finish_turn()
                    run = await session.send("And now? " + "Tell me more about it. " * 150)
                    assert (run.state.turn.is_open, run.stop_reason) == (False, "completed"), size
            else:
                run = await agent.resume(run_id)
                while run.questions or run.approvals:
                    # The approver is not asked about a call of a tool that the agent does not have any more.
                    run = await agent.resume(
                        run_id,
                        answers=dict.fromkeys(run.questions, "it was done"),
                        approvals=dict.fromkeys(run.approvals, True),
                    )
                assert run.status == "finished", (size, run.questions, run.approvals)
            found = await replay(list(journal.read(run_id)))
            assert found.is_exact, (size, found.divergence)


async def test_what_follows_the_end_is_told() -> None:
    events = load(Path(__file__).parent / "data" / "plain.jsonl")
    extra = e.InferenceStarted(at=events[-1].at, step=2, messages=2)
    found = await replay([*events, e.Event("plain", len(events) + 1, extra)])
    assert found.divergence is not None
    assert found.divergence.seq == len(events) + 1
    assert found.divergence.actual == "nothing more to do"
