"""The fold of turns agrees with the state of the run, however the events come in."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.histories import History, histories

from treadle.core import events as e
from treadle.core.asking import open_questions
from treadle.core.calls import waiting_calls
from treadle.core.state import State, fold
from treadle.core.turns import StepFold, TurnFold, find_handlers

GOLDEN = sorted((Path(__file__).parent.parent / "data").glob("*.jsonl"))


def take(fold: TurnFold, body: e.DurableBody) -> bool:
    """Take an event, and return whether it changed something."""
    if isinstance(fold, StepFold):
        return fold.take(body)
    change = find_handlers(TurnFold).get(type(body))
    return change is not None and change(fold, body)


def check(turns: TurnFold, state: State) -> None:
    """Compare what the fold and the state both know."""
    assert (turns.turns, turns.is_turn_open) == (state.turn.number, state.turn.is_open)
    waits = {f"question:{body.question_id}" for body in open_questions(state)}
    waits |= {f"call:{item.call.call_id}" for item in waiting_calls(state)}
    assert set(turns.waiting) - {"resume"} == waits
    if isinstance(turns, StepFold):
        assert turns.is_asking == (state.turn.asked is not None)
        assert (turns.started, turns.at) == (state.started, state.at)


@given(histories(), st.data())
def test_a_fold_of_some_events_and_then_of_the_rest_equals_the_fold_of_all(
    history: History, data: st.DataObject
) -> None:
    bodies = history.bodies
    cut = data.draw(st.integers(0, len(bodies)))
    for kind in (TurnFold, StepFold):
        whole, parts = kind(), kind()
        for body in bodies:
            take(whole, body)
        for piece in (bodies[:cut], bodies[cut:]):
            for body in piece:
                take(parts, body)
        assert whole == parts


@given(histories())
def test_the_fold_agrees_with_the_state_after_every_event(history: History) -> None:
    turns, steps = TurnFold(), StepFold()
    for body, state in zip(history.bodies, history.states[1:], strict=True):
        assert take(turns, body) == take(steps, body)
        check(turns, state)
        check(steps, state)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_journals_of_every_version_are_folded(path: Path) -> None:
    runs: dict[str, list[e.DurableBody]] = {}
    for line in path.read_bytes().splitlines():
        event = e.decode_line(line)
        runs.setdefault(event.run_id, []).append(event.body)
    for bodies in runs.values():
        steps, state = StepFold(), State()
        for body in bodies:
            steps.take(body)
            state = fold([body], state)
            check(steps, state)
