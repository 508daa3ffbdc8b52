"""Grades are computed from finished runs, recorded once, and never invented for a fault of the infrastructure."""

from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, Run, ScriptedModel, load_task, open_journal, tool
from treadle.core.errors import ConfigError, ScoringError, ServerError, UntrustedError
from treadle.core.events import Rewarded
from treadle.core.types import Completion, FinishReason, Message, Role, Usage
from treadle.journal.jsonl import export_run, import_lines
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.models import call
from treadle.scoring.grade import NotGradableError, grade
from treadle.scoring.protocol import Score, Scorer, Subject
from treadle.scoring.registry import (
    RewardSpec,
    make_scorers,
    mean_reward,
    parse_reward,
    read_rewards,
    total_reward,
)
from treadle.scoring.scorers import FunctionScorer
from treadle.testbed import oracle_for

TASK = "files:csv_sum-0001"


@tool(effect="pure")
def look(path: str) -> str:
    """Look at a path."""
    return "seen"


@tool(effect="idempotent")
def change(path: str) -> str:
    """Change a path."""
    return "changed"


async def run_task(journal: Journal) -> Run[Any]:
    task = load_task(TASK)
    return await Agent(oracle_for(task), journal=journal).run(task)


async def run_calls(journal: Journal, *steps: Any) -> Run[Any]:
    agent = Agent(ScriptedModel([*steps, "done"]), tools=[look, change], journal=journal)
    return await agent.run("go")


def scorers(*texts: str) -> tuple[Scorer, ...]:
    return make_scorers(read_rewards(texts))


async def score_of(journal: Journal, run: Run[Any], name: str, **settings: Any) -> float:
    (scorer,) = make_scorers([RewardSpec("it", name, 1.0, settings)])
    return (await grade(journal, run.run_id, [scorer])).rewards["it"]


def rewarded(journal: Journal, run_id: str) -> list[tuple[str, float]]:
    bodies = [event.body for event in journal.read(run_id)]
    return [(body.name, body.reward) for body in bodies if isinstance(body, Rewarded)]


async def test_a_grade_is_an_event_and_is_recorded_only_when_it_changes() -> None:
    journal = MemoryJournal()
    run = await run_task(journal)
    assert rewarded(journal, run.run_id) == [("check", 1.0)]
    found = await grade(journal, run.run_id, scorers("check", "tool_use"))
    assert (found.rewards, found.changed) == ({"check": 1.0, "tool_use": 1.0}, ("tool_use",))
    again = await grade(journal, run.run_id, scorers("check", "tool_use"))
    assert again.changed == ()
    assert rewarded(journal, run.run_id) == [("check", 1.0), ("tool_use", 1.0)]
    assert Run.load(run.run_id, journal).state.turn.rewards == {"check": 1.0, "tool_use": 1.0}


async def test_numbers_that_an_event_cannot_have_are_not_recorded() -> None:
    with open_journal("memory:") as journal:
        run = await run_task(journal)
        made = FunctionScorer("it", function=lambda _: Score(1.0, "", {"recall": float("nan"), "found": 2.0}))
        for changed in (("it",), ()):
            assert (await grade(journal, run.run_id, [made])).changed == changed
        assert [event.body for event in journal.read(run.run_id)][-1].metrics == {"found": 2.0}  # type: ignore[union-attr]
        wrong = FunctionScorer("it", function=lambda _: Score("good"))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="TypeError: must be real number, not str"):
            await grade(journal, run.run_id, [wrong])


@pytest.mark.parametrize(
    ("steps", "settings", "expected"),
    [
        ([], {}, 1.0),
        ([[call("look", {"path": "a"})], [call("look", {"path": "b"})]], {}, 1.0),
        ([[call("look", {"path": "a"})], [call("look", {"path": "a"})]], {}, 0.5),
        (
            [[call("look", {"path": "a"})], [call("change", {"path": "a"})], [call("look", {"path": "a"})]],
            {},
            1.0,
        ),
        ([[call("nothing", {"path": "a"})]], {}, 0.0),
        ([[call("look", {"way": "a"})], [call("look", {"path": "a"})]], {}, 0.5),
        ([[call("look", {"path": "a"})]], {"forbidden": ["look"]}, 0.0),
        ([[call("look", {"path": "a"})]], {"required": ["change"]}, 0.0),
        ([[call("look", {"path": "a"}), call("look", {"path": "b"})]], {"max_calls": 1}, 0.5),
    ],
)
async def test_tool_use_is_the_share_of_useful_calls(steps: Any, settings: Any, expected: float) -> None:
    journal = MemoryJournal()
    assert await score_of(journal, await run_calls(journal, *steps), "tool_use", **settings) == expected


@pytest.mark.parametrize(("tokens", "expected"), [(50, 1.0), (100, 1.0), (150, 0.5), (200, 0.0), (900, 0.0)])
async def test_a_long_answer_costs_reward_evenly(tokens: int, expected: float) -> None:
    journal = MemoryJournal()
    answer = Completion(Message(Role.ASSISTANT, "x"), FinishReason.STOP, Usage(1, tokens))
    run = await Agent(ScriptedModel([answer]), journal=journal).run("go")
    assert await score_of(journal, run, "length", max_tokens=100) == expected


async def test_a_judge_is_asked_once_for_a_run_and_a_rubric() -> None:
    journal = MemoryJournal()
    run = await run_calls(journal, [call("look", {"path": "a"})])
    judge = ScriptedModel(['{"score": 0.75, "reason": "good"}'])
    for _ in range(2):
        (scorer,) = make_scorers([RewardSpec("quality", "judge", 1.0, {"model": judge, "rubric": "be good"})])
        found = await grade(journal, run.run_id, [scorer])
        assert found.rewards == {"quality": 0.75}
    assert len(judge.requests) == 1


def brevity(subject: Subject) -> float:
    return 1 / len(subject.run.output)


async def verdict(subject: Subject) -> Score:
    return Score(0.25, "because")


def silent(subject: Subject) -> None:
    return None


def broken(subject: Subject) -> float:
    raise KeyError("reward")


async def test_functions_of_the_user_are_scorers(tmp_path: Path) -> None:
    journal = MemoryJournal()
    run = await run_calls(journal)
    for function, expected in ((brevity, 1 / 4), (verdict, 0.25)):
        found = await grade(journal, run.run_id, [FunctionScorer("mine", function=function)])
        assert found.rewards["mine"] == expected
    file = tmp_path / "rewards.py"
    file.write_text("def half(subject):\n    return 0.5\n")
    found = await grade(journal, run.run_id, scorers(f"{file}:half=2"))
    assert found.rewards["half"] == 0.5


async def test_a_function_that_returns_something_else_is_told_what_it_may_return() -> None:
    scorer = FunctionScorer("odd", function=lambda subject: "good")
    with pytest.raises(ConfigError, match="'odd' returned 'good'; return a number, a Score or None"):
        await scorer.score(Subject(None, None, [], None))


def test_a_function_that_cannot_be_called_is_refused_before_anything_is_graded(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text("def two(run, task):\n    return 1\ndef more(subject, limit=3):\n    return 1\n")
    with pytest.raises(ConfigError, match=r"two' cannot be called with one argument, a Subject: .*'task'"):
        scorers(f"{file}:two")
    with pytest.raises(ConfigError, match="'<lambda>' cannot be called with one argument, a Subject"):
        FunctionScorer("mine", function=lambda: 1)  # type: ignore[misc,arg-type]
    assert len(scorers(f"{file}:more")) == 1
    assert FunctionScorer("mine", function=print).name == "mine"


@pytest.mark.parametrize("given", ["check:0.5", "rewards.py"])
def test_what_is_no_reference_of_a_function_is_told_how_one_is_written(given: str) -> None:
    with pytest.raises(ConfigError, match=f"no scorer '{given}'.* or file.py:function.* as in check=0.5"):
        scorers(given)


async def test_a_scorer_that_fails_gives_no_reward_instead_of_0() -> None:
    """The reference records a reward of 0 when its grader raises, which training takes for a real 0."""
    journal = MemoryJournal()
    run = await run_calls(journal)
    both = [FunctionScorer("fine", function=brevity), FunctionScorer("mine", function=broken)]
    with pytest.raises(ScoringError, match=r"'mine'.*KeyError"):
        await grade(journal, run.run_id, both)
    assert rewarded(journal, run.run_id) == []
    assert (await grade(journal, run.run_id, [FunctionScorer("none", function=silent)])).rewards == {}


async def test_a_run_that_the_infrastructure_failed_has_no_grade() -> None:
    """The reference gives such a run the reward 0."""
    journal = MemoryJournal()
    task = load_task(TASK)
    run = await Agent(ScriptedModel([ServerError("down")]), journal=journal).run(task)
    assert run.fault == "infrastructure"
    with pytest.raises(NotGradableError, match="no fault of its model"):
        await grade(journal, run.run_id, scorers("check"))
    assert rewarded(journal, run.run_id) == []


async def test_a_task_of_a_run_from_elsewhere_is_not_loaded() -> None:
    journal, other = MemoryJournal(), open_journal("memory:")
    run = await run_task(journal)
    await import_lines(other, list(export_run(journal, run.run_id)))
    with pytest.raises(UntrustedError, match="task set 'files'"):
        await grade(other, run.run_id, scorers("check"))
    assert (await grade(other, run.run_id, scorers("check"), trust=True)).rewards == {"check": 1.0}


def test_rewards_are_written_as_texts_or_settings() -> None:
    assert parse_reward("tool_use=0.2") == RewardSpec("tool_use", "tool_use", 0.2)
    assert parse_reward("pkg.rewards:brevity") == RewardSpec("brevity", "pkg.rewards:brevity")
    found = read_rewards({"check": 1, "short": {"scorer": "length", "weight": 0.5, "max_tokens": 100}})
    assert found == (RewardSpec("check", "check"), RewardSpec("short", "length", 0.5, {"max_tokens": 100}))
    assert total_reward({"check": 1.0, "short": 0.5}, found) == 1.25
    assert total_reward({"check": 1.0}, found) == 1.0
    assert total_reward({}, found) is None


def test_a_score_without_a_penalty_is_not_above_what_was_reached() -> None:
    specs = read_rewards({"check": 1, "tool_use": 0.5, "length": {"weight": -0.5, "max_tokens": 100}})
    assert mean_reward({"check": 0.5, "tool_use": 1.0, "length": 0.0}, specs) == pytest.approx(2 / 3)
    assert mean_reward({"check": 1.0, "tool_use": 1.0, "length": 1.0}, specs) == pytest.approx(2 / 3)
    assert mean_reward({"check": 1.0, "length": 0.0}, specs) == 1.0
    assert mean_reward({"length": 1.0}, specs) == -0.5
    assert mean_reward({}, specs) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (["chek"], "did you mean 'check'"),
        (["check=much"], "'much'; write a number"),
        (["check=nan"], "the weight of the reward 'check' is nan; give a finite number"),
        ({"check": {"weight": float("inf")}}, "is inf; give a finite number"),
        (
            {"length": {"max_tokens": "x"}},
            "max_tokens of the reward 'length' is 'x': expected 'int', got 'str'",
        ),
        ({"calls": {"ordered": "no"}}, "ordered of the reward 'calls' is 'no': expected 'bool', got 'str'"),
        ({"tool_use": {"forbidden": "x"}}, "forbidden of the reward 'tool_use' is 'x': expected 'list'"),
        ({"policy": {"at_most": {"x": True}}}, "is {'x': True}: expected 'int', got 'bool'"),
        ({"policy": {"at_most": {"x": -1}}}, "at_most of the reward 'policy' has 'x': -1; give 0 or more"),
        ({"final_answer": {"tolerance": -1}}, "tolerance of the reward 'final_answer' is -1; give 0 or more"),
        ({"f": {"scorer": "builtins:len", "k": 1}}, "has no setting 'k'; its settings are weight$"),
        (["check", "check=2"], "given twice"),
        ({"length": {"max_token": 5}}, "did you mean 'max_tokens'"),
        ({"length": 1}, "max_tokens"),
        ({"length": {"max_tokens": 5, "zero_tokens": 4}}, "zero_tokens 4"),
        ({"judge": {"model": "mock:echo", "rubric": " "}}, "rubric"),
        (
            {"judge": {"model": {"model": "openai:x"}, "rubric": "be good"}},
            "or that of a model in treadle.toml",
        ),
        ({"check": "1"}, "give a weight"),
        (["no.such.module:reward"], "no.such.module"),
    ],
)
def test_a_mistake_in_a_reward_names_it(raw: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_scorers(read_rewards(raw))
