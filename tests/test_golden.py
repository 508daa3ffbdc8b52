"""Replays of old journals are exact. A decision that differs is reported with its sequence number."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from treadle import Policy
from treadle.core import events as e
from treadle.core.replay import Replay
from treadle.core.replay import replay as decide_again
from treadle.core.types import StopReason
from treadle.tools.schema.output import find_output_fault

GOLDEN = sorted((Path(__file__).parent / "data").glob("*.jsonl"))


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


async def test_what_follows_the_end_is_told() -> None:
    events = load(Path(__file__).parent / "data" / "plain.jsonl")
    extra = e.InferenceStarted(at=events[-1].at, step=2, messages=2)
    found = await replay([*events, e.Event("plain", len(events) + 1, extra)])
    assert found.divergence is not None
    assert found.divergence.seq == len(events) + 1
    assert found.divergence.actual == "nothing more to do"
