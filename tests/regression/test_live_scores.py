"""Live runs, their scores, and what thresholds say about them."""

from pathlib import Path
from typing import Any

import pytest
from tests.regression.test_replay_agent import ANSWERS, make_agent, record

from treadle import ProviderError, tool
from treadle.core.errors import ConfigError
from treadle.models.config.recipe import load_config
from treadle.models.config.tables import RegressionTable
from treadle.models.scripted import call
from treadle.regression.live_scores import LiveScores, judge_scores, read_scores, score_live, write_scores
from treadle.regression.recorded_parts import ToolReplay
from treadle.regression.recorded_runs import RecordedRun, read_recording
from treadle.regression.regression_suite import Suite, run_recording
from treadle.scoring.registry import read_rewards


@pytest.fixture
async def recorded(tmp_path: Path) -> RecordedRun:
    agent = make_agent(ANSWERS)
    return await record(agent, await agent.run("A euro in NOK?"), tmp_path)


async def score(
    recorded: RecordedRun, answers: list[Any], mode: str = "recorded", rewards: Any = None, **options: Any
) -> LiveScores:
    specs = read_rewards(rewards or {})
    return await score_live(recorded, make_agent(answers, **options), ToolReplay(mode), specs, 1)


async def test_a_run_is_compared_with_the_recording(recorded: RecordedRun) -> None:
    assert (await score(recorded, ANSWERS)).scores == (1.0,)
    other = [[call("rate", {"currency": "USD"})], "1.09"]
    found = await score(recorded, other, rewards={"calls": 1.0, "final_answer": 1.0})
    assert 0 <= found.scores[0] < 0.5
    assert any("final_answer" in reason for reason in found.reasons)


async def test_a_recorded_result_is_found_by_the_arguments(recorded: RecordedRun) -> None:
    # The ids are others than in the recording, and so is the order.
    answers = [
        [call("rate", {"currency": "USD"}, call_id="x")],
        [call("rate", {"currency": "NOK"}, call_id="y")],
        "Ok.",
    ]
    found = await score(recorded, answers)
    assert found.journal is not None
    results = {
        event.body.result.call_id: event.body.result.content
        for event in found.journal.read(recorded.run_id)
        if event.type == "tool_completed"
    }
    assert results == {"x": "1.09", "y": "11.6"}


async def test_a_call_without_a_recorded_result_is_not_made(recorded: RecordedRun) -> None:
    sent: list[str] = []

    @tool(effect="once", name="send")
    async def other(text: str) -> str:
        """Send a letter."""
        sent.append(text)
        return "sent"

    answers = [[call("send", {"text": "something else"})], "Ok."]
    for mode in ("recorded", "live-read-only"):
        await score(recorded, answers, mode, tools=[other])
        assert not sent
    await score(recorded, answers, "live", tools=[other])
    assert sent == ["something else"]


async def test_a_server_that_fails_gives_no_score_of_0(recorded: RecordedRun) -> None:
    found = await score(recorded, [ProviderError("down")])
    assert found.scores == ()
    assert found.error is not None
    assert "failed through no fault of its model" in found.error


async def test_a_session_is_graded(tmp_path: Path) -> None:
    agent = make_agent([*ANSWERS, "Yes."])
    async with agent.session() as session:
        await session.send("A euro in NOK?")
        run = await session.send("Sure?")
    recorded = await record(agent, run, tmp_path)
    assert (await score(recorded, [*ANSWERS, "Yes."])).scores == (1.0,)


async def test_updating_records_the_new_run(recorded: RecordedRun) -> None:
    suite = Suite.of_config(load_config(), is_live=True, is_updating=True)
    found = await run_recording(suite, recorded.path, make_agent(["I do not know."]))
    assert found.is_updated
    assert (await read_recording(recorded.path)).run.output == "I do not know."


def thresholds(**changes: Any) -> RegressionTable:
    return RegressionTable(**changes)


def test_a_least_score_says_if_it_is_not_sure() -> None:
    scores = {f"run-{number}": [1.0] if number % 3 else [0.0] for number in range(12)}
    (verdict,) = judge_scores(thresholds(min_score=0.7), scores, {})
    assert (verdict.is_kept, verdict.is_decided) == (False, False)
    assert "not significant: about" in verdict.text
    assert "recordings would show it" in verdict.text
    (verdict,) = judge_scores(thresholds(min_score=0.3), scores, {})
    assert (verdict.is_kept, verdict.is_decided) == (True, True)
    (verdict,) = judge_scores(thresholds(min_score=0.99), {name: [0.0] for name in scores}, {})
    assert (verdict.is_kept, verdict.is_decided) == (False, True)


def test_a_drop_fails_only_if_it_is_significant() -> None:
    before = {f"run-{number}": [1.0] for number in range(10)}
    after = {**before, "run-0": [0.0]}
    (verdict,) = judge_scores(thresholds(must_not_drop=True), after, before)
    assert (verdict.is_kept, verdict.is_decided) == (True, False)
    assert "recordings would show it" in verdict.text
    (verdict,) = judge_scores(thresholds(must_not_drop=True), {name: [0.2] for name in before}, before)
    assert (verdict.is_kept, verdict.is_decided) == (False, True)
    assert "p = 0.00195 over 10 recordings" in verdict.text
    (verdict,) = judge_scores(thresholds(must_not_drop=True), before, {name: [0.2] for name in before})
    assert verdict.is_kept


def test_few_recordings_cannot_show_a_drop() -> None:
    before, after = {"a": [1.0], "b": [1.0]}, {"a": [0.0], "b": [0.0]}
    (verdict,) = judge_scores(thresholds(must_not_drop=True), after, before)
    assert (verdict.is_kept, verdict.is_decided) == (True, False)
    assert "about 6 recordings would show it" in verdict.text


def test_without_stored_scores_nothing_can_drop() -> None:
    with pytest.raises(ConfigError, match="treadle test --live --update"):
        judge_scores(thresholds(must_not_drop=True), {"a": [1.0]}, {})


def test_scores_are_stored_beside_those_of_others(tmp_path: Path) -> None:
    write_scores(tmp_path, {"b": [1.0]})
    write_scores(tmp_path, {"a": [0.5, 1.0]})
    assert read_scores(tmp_path) == {"a": [0.5, 1.0], "b": [1.0]}
    (tmp_path / "scores.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"scores\.json' has no scores"):
        read_scores(tmp_path)
