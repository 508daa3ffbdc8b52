"""The facts of a run agree with the fold of its events, however the events come in."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.histories import History, histories

from treadle.core import events as e
from treadle.core.asking import open_questions
from treadle.core.calls import waiting_calls
from treadle.core.lineage import Parent, TaskRef
from treadle.core.policy import Policy
from treadle.core.state import State, Status, fold
from treadle.core.types import (
    UNREPORTED,
    Completion,
    FinishReason,
    Message,
    Recalled,
    Role,
    StopReason,
    ToolCall,
    Usage,
)
from treadle.journal.listing import Facts, facts_of

GOLDEN = sorted((Path(__file__).parent.parent / "data").glob("*.jsonl"))


def check(facts: Facts, state: State, bodies: list[e.DurableBody]) -> None:
    """Compare what facts and state both know."""
    started = state.started
    assert started is not None
    task = started.task
    first = next((body for body in bodies if isinstance(body, e.TurnStarted | e.MessageInjected)), None)
    assert facts.status == state.status.value
    if state.status is Status.FINISHED:
        assert facts.stop_reason == state.ending.stop_reason
    assert facts.events == state.seq == len(bodies)
    assert (facts.created_at, facts.updated_at) == (bodies[0].at, state.at)
    assert (facts.turns, facts.steps) == (state.turn.number, state.step)
    if facts.is_exact:
        assert facts.input_tokens == state.usage.input_tokens
    assert facts.cached_input_tokens == state.usage.cached_input_tokens
    assert facts.output_tokens == state.usage.output_tokens
    assert facts.cost_usd == state.cost_usd
    assert facts.reward == state.turn.rewards.get("check")
    assert facts.error == (None if state.ending.error is None else state.ending.error[:200])
    assert facts.fault == (None if state.ending.fault is None else state.ending.fault.value)
    assert (facts.model, facts.is_session) == (state.agent.model.name or None, started.is_session)
    assert (facts.task_set, facts.task_id) == ((task.task_set, task.task_id) if task else (None, None))
    assert facts.is_turn_open == state.turn.is_open
    assert facts.input == (None if first is None else first.message.content[:200])
    waits = {f"question:{body.question_id}" for body in open_questions(state)}
    waits |= {f"call:{item.call.call_id}" for item in waiting_calls(state)}
    assert set(facts.waiting) == waits
    if facts.context_chars is not None:
        assert facts.context_chars == 4 * state.size.last_usage.total_tokens + state.size.unsent_chars


@given(histories())
def test_facts_agree_with_the_fold_after_every_event(history: History) -> None:
    facts = Facts()
    for count, (body, state) in enumerate(zip(history.bodies, history.states[1:], strict=True), 1):
        facts.add([body])
        check(facts, state, history.bodies[:count])
    check(facts_of(history.bodies), history.state, history.bodies)
    assert not facts.is_exact or facts == facts_of(history.bodies)


@given(histories(), st.integers(1, 7))
def test_events_may_come_in_pieces_of_any_size(history: History, size: int) -> None:
    facts = Facts()
    for start in range(0, len(history.bodies), size):
        facts.add(history.bodies[start : start + size])
    assert not facts.is_exact or facts == facts_of(history.bodies)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_facts_of_a_golden_journal_agree_with_its_fold(path: Path) -> None:
    bodies = [e.decode_line(line).body for line in path.read_bytes().splitlines()]
    for count in range(1, len(bodies) + 1):
        check(facts_of(bodies[:count]), fold(bodies[:count]), bodies[:count])


def start(**fields: object) -> list[e.DurableBody]:
    return [
        e.RunStarted(at=1.0, version=e.VERSION, policy=Policy(), instructions="be kind", **fields),  # type: ignore[arg-type]
        e.TurnStarted(at=2.0, turn=1, message=Message(Role.USER, "x" * 300)),
    ]


def answer(usage: Usage, cost_usd: float | None = 0.5) -> e.InferenceCompleted:
    message = Message(Role.ASSISTANT, "an answer", (ToolCall("c", "add", '{"a": 1}'),), reasoning="hm")
    completion = Completion(message, FinishReason.STOP, usage, cost_usd)
    return e.InferenceCompleted(at=3.0, step=1, completion=completion)


def compact(usage: Usage | None) -> e.ContextCompacted:
    return e.ContextCompacted(at=4.0, messages=2, replacement=(Message(Role.USER, "so far"),), usage=usage)


@pytest.mark.parametrize("first", [UNREPORTED, Usage(10, 5, 4)])
@pytest.mark.parametrize("second", [None, Usage(7, 6, 2)])
@pytest.mark.parametrize("third", [UNREPORTED, Usage(8, 8)])
def test_tokens_that_no_server_counted_are_estimated_as_in_the_fold(
    first: Usage, second: Usage | None, third: Usage
) -> None:
    bodies = [*start(), answer(first), compact(second), answer(third), answer(UNREPORTED)]
    state = fold(bodies)
    facts = facts_of(bodies)
    assert facts.is_exact
    assert (facts.input_tokens, facts.output_tokens) == (state.usage.input_tokens, state.usage.output_tokens)
    assert facts.cached_input_tokens == state.usage.cached_input_tokens


def test_an_estimate_behind_a_compaction_says_that_it_is_not_exact() -> None:
    facts = Facts()
    facts.add([*start(), answer(Usage(1, 1)), compact(None), answer(UNREPORTED)])
    assert not facts.is_exact


@pytest.mark.parametrize("cost_usd", [0.25, None])
def test_summaries_and_what_was_recalled_count_as_in_the_fold(cost_usd: float | None) -> None:
    done = replace(compact(Usage(7, 6, 2)), model="small", cost_usd=cost_usd)
    recalled = Recalled("<memory>" + "y" * 400)
    turn = e.TurnStarted(at=5.0, turn=2, message=Message(Role.USER, "and?"), recalled=recalled)
    for bodies in (
        [*start(), answer(UNREPORTED), turn, answer(UNREPORTED)],
        [*start(), answer(Usage(1, 1)), done],
    ):
        facts, state = Facts(), fold(bodies)
        facts.add(bodies)
        assert facts.is_exact
        assert (facts.input_tokens, facts.output_tokens) == (
            state.usage.input_tokens,
            state.usage.output_tokens,
        )
        assert facts.cost_usd == state.cost_usd


def test_labels_are_the_metadata_that_is_text() -> None:
    metadata = {"team": "red", "n": 1, "cli": {"model": "m"}, "none": None}
    facts = facts_of(
        start(metadata=metadata, task=TaskRef("files", "a-1"), parent=Parent("old", 3), model="m")
    )
    assert facts.labels == {"team": "red"}
    info = facts.info("r", is_driven=True)
    assert (info.task_set, info.task_id, info.parent_run_id, info.model) == ("files", "a-1", "old", "m")
    assert info.input == "x" * 200
    assert info.is_driven


def test_a_cost_that_is_unknown_once_stays_unknown() -> None:
    assert facts_of([*start(), answer(Usage(1, 1), 0.25), answer(Usage(1, 1), 0.25)]).cost_usd == 0.5
    assert facts_of([*start(), answer(Usage(1, 1), None), answer(Usage(1, 1), 0.25)]).cost_usd is None


def test_a_failed_run_that_is_resumed_is_open_again() -> None:
    failed = e.TurnCompleted(at=5.0, turn=1, stop_reason=StopReason.ERROR, error="boom")
    finished = e.RunFinished(at=5.0, stop_reason=StopReason.ERROR, error="boom")
    bodies = [*start(), failed, finished, e.RunResumed(at=6.0)]
    check(facts_of(bodies), fold(bodies), bodies)
    assert facts_of(bodies).is_turn_open
