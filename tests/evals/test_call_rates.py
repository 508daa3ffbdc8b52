"""The scorers under DeepFabric's names, against the verdicts of DeepFabric's own evaluator on the same rows.

`deepfabric_verdicts.jsonl` has what `Evaluator.evaluate_sample` of DeepFabric 4.13.0 said about fixed predictions,
and what the scorers say by value; `null` where they say nothing.
"""

import asyncio
import json
from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.evals import evaluate
from treadle.evals.evaluation_reports import make_deepfabric_result
from treadle.journal.registry import open_journal
from treadle.models.config.bare import MAKERS
from treadle.models.scripted import ScriptedModel, call
from treadle.scoring.registry import RewardSpec, make_scorers

HEAD, *CASES = map(json.loads, (Path(__file__).parent / "deepfabric_verdicts.jsonl").read_text().splitlines())
NAMES = ("tool_selection_accuracy", "parameter_accuracy", "execution_success_rate")
REWARDS = {
    **dict(zip(NAMES, (0.4, 0.35, 0.25), strict=True)), "response_quality": 0.0,
    **{f"deepfabric_{name}": {"scorer": name, "definition": "deepfabric", "weight": 0} for name in NAMES},
}  # fmt: skip


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a test registers."""
    monkeypatch.setattr(MAKERS, "_loaded", {})


def make_row(number, case):
    """Return a row as DeepFabric writes it."""
    wanted = [
        {
            "id": f"call{number:04}{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(made)},
        }
        for place, (name, made) in enumerate(case["expected"])
    ]
    asked = [{"role": "system", "content": "You help."}, {"role": "user", "content": f"question {number}"}]
    done = [{"role": "tool", "content": "result", "tool_call_id": item["id"]} for item in wanted]
    calls = [{"role": "assistant", "content": "", "tool_calls": wanted}, *done] if wanted else []
    row = {
        "messages": [*asked, *calls, {"role": "assistant", "content": "done here"}],
        "tools": HEAD["tools"],
    }
    if wanted:
        row["tool_context"] = {
            "executions": [
                {"function_name": name, "arguments": json.dumps(made), "reasoning": "r", "result": "result"}
                for name, made in case["expected"]
            ]
        }
    return row


def predict(request):
    """Return the fixed prediction for a request."""
    asked = next(message.content for message in request.messages if message.content.startswith("question"))
    made = CASES[int(asked.split()[-1])]["predicted"]
    return [call(name, arguments) for name, arguments in made] or "done"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rates")
    rows = folder / "rows.jsonl"
    rows.write_text("".join([json.dumps(make_row(*item)) + "\n" for item in enumerate(CASES)]))
    MAKERS.add("fixed", lambda config: ScriptedModel(predict))
    return asyncio.run(
        evaluate(models=["fixed:it"], rows=[str(rows)], rewards=REWARDS, path=str(folder / "made"))
    )


def first_scores(made):
    """Return the scores of the first answer of each row, which is the one that DeepFabric asks for."""
    found = {sample.spec.task.partition("#")[2]: sample.details.scores for sample in made.results.samples}
    return [found[f"{number}.1"] for number in range(1, len(CASES) + 1)]


def test_deepfabrics_definition_gives_what_deepfabric_says(made):
    for case, scores in zip(CASES, first_scores(made), strict=True):
        assert [scores[f"deepfabric_{name}"] for name in NAMES] == case["deepfabric"], case["why"]


def test_by_value_a_call_is_right_if_it_is_the_expected_one(made):
    for case, scores in zip(CASES, first_scores(made), strict=True):
        assert [scores.get(name) for name in NAMES] == case["value"], case["why"]


def test_the_score_is_the_weighted_mean_of_what_is_known(made):
    for sample in made.results.samples:
        known = [
            (REWARDS[name], sample.details.scores[name]) for name in NAMES if name in sample.details.scores
        ]
        whole = sum(weight for weight, _ in known)
        assert sample.details.score == pytest.approx(sum(weight * score for weight, score in known) / whole)


def test_the_report_has_the_form_of_deepfabrics(made):
    (model,) = made.results.models
    with open_journal(made.folder.journal) as journal:
        found = make_deepfabric_result(made.results, model, journal)
    assert sorted(found["predictions"][0]) == HEAD["prediction_fields"]
    assert sorted(found["metrics"]) == HEAD["metric_fields"]
    assert found["metrics"]["overall_score"] == model.score.mean
    by_query = {}
    for item in found["predictions"]:
        by_query.setdefault(item["query"], item)
    for number, case in enumerate(CASES):
        item = by_query[f"question {number}"]
        first = [case[key][0] if case[key] else [None, {}] for key in ("expected", "predicted")]
        assert [item["expected_tool"], item["expected_parameters"]] == first[0]
        assert [item["predicted_tool"], item["predicted_parameters"]] == first[1]
        assert item["tool_selection_correct"] == (case["value"][0] == 1)


@pytest.mark.parametrize(
    ("right", "said", "score"), [("a b c", "A b d", 0.5), ("x", "x", 1.0), ("a", "b", 0.0)]
)
async def test_response_quality_is_the_overlap_of_words(right, said, score):
    """The numbers are those of `compute_response_similarity`, which DeepFabric has and does not use."""
    from treadle import Agent
    from treadle.journal.memory import MemoryJournal
    from treadle.scoring.grade import grade

    journal = MemoryJournal()
    run = await Agent(ScriptedModel([said]), journal=journal).run(
        "go", metadata={"expected": {"answer": right}}
    )
    specs = [
        RewardSpec("a", "response_quality"),
        RewardSpec("b", "response_quality", 0, {"definition": "deepfabric"}),
    ]
    graded = await grade(journal, run.run_id, make_scorers(specs))
    assert graded.rewards == {"a": score, "b": 0.0}


def test_an_unknown_definition_is_told():
    with pytest.raises(
        ConfigError, match=r"definition of the reward 'it' is 'df'; give one of value, deepfabric"
    ):
        make_scorers([RewardSpec("it", "parameter_accuracy", 1.0, {"definition": "df"})])
