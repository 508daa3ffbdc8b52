"""Whole conversations of rows, against the verdicts of DeepFabric's own evaluator in its mode `multi_turn`.

`deepfabric_conversations.jsonl` has what `Evaluator.evaluate_sample` of DeepFabric 4.13.0 said about fixed
predictions, the results that it gave to the model, and what the scorers say by value: `null` for nothing.
`make_deepfabric_conversations.py` writes it.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.core.types import Request, Role
from treadle.evals.evaluation import Evaluated, evaluate
from treadle.evals.evaluation_config import READER
from treadle.evals.evaluation_reports import make_deepfabric_result
from treadle.journal.registry import open_journal
from treadle.models.config.bare import MAKERS
from treadle.models.scripted import ScriptedModel, call
from treadle.runs.run import Run

PLACE = Path(__file__).with_name("deepfabric_conversations.jsonl")
HEAD, *CASES = map(json.loads, PLACE.read_text().splitlines())
NAMES = ("tool_selection_accuracy", "parameter_accuracy", "execution_success_rate")
LEGACY = [f"deepfabric_{name}" for name in (*NAMES, "response_quality")]
OTHER_RESULTS = {
    "an argument missing": "the loop tells the model what is missing",
    "a tool that does not exist": "the loop tells the model which tools there are",
    "the same call twice": "each call gets its own result, where DeepFabric gives the last one",
    "the changed value at once": "as above",
}
"""The cases in which the model is given other results than by DeepFabric, with the reason."""


def predict(request: Request) -> Any:
    """Return the fixed prediction for a request."""
    asked = next(item.content for item in request.messages if item.content.startswith("question"))
    said = CASES[int(asked.split()[1])]["predicted"]
    number = sum([item.role is Role.ASSISTANT for item in request.messages])
    is_offered = bool(request.tools) or number == 2 == len(said) - 1
    answer = said[number] if number < len(said) and is_offered else "no more"
    return answer if isinstance(answer, str) else [call(name, given) for name, given in answer]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Evaluated]]:
    """The evaluation of each `max_turns`, as DeepFabric's configuration asks for it."""
    before = dict(MAKERS._loaded)
    MAKERS.add("fixed", lambda config: ScriptedModel(predict))
    found = {}
    for most in {case["max_turns"] for case in CASES}:
        folder = tmp_path_factory.mktemp("conversations")
        rows = [
            json.dumps({"messages": case["row"], "tools": HEAD["tools"]})
            for case in CASES
            if case["max_turns"] == most
        ]
        (folder / "rows.jsonl").write_text("\n".join(rows))
        (folder / "eval.json").write_text(
            json.dumps(
                {
                    "dataset_path": str(folder / "rows.jsonl"),
                    "output_path": str(folder / "made.json"),
                    "inference_config": {"model": "it", "backend": "ollama"},
                    "multi_turn": True,
                    **({"max_turns": most} if most != 10 else {}),
                }
            )
        )
        config = READER.load(folder / "eval.json", {"models": ["fixed:it"]}, tell=lambda text: None)
        found[most] = asyncio.run(evaluate(config))
    yield found
    MAKERS._loaded.clear()
    MAKERS._loaded.update(before)


@pytest.fixture(scope="module")
def runs(made: dict[int, Evaluated]) -> dict[str, tuple[dict[str, float], Run[Any]]]:
    """The scores and the run of each case, by its reason."""
    found = {}
    for done in made.values():
        journal = open_journal(done.folder.journal)
        for sample in done.results.samples:
            run = Run.load(sample.run_id, journal)
            asked = next(item.content for item in run.messages if item.role is Role.USER)
            found[CASES[int(asked.split()[1])]["why"]] = sample.details.scores, run
        run.events  # noqa: B018 (it is read while the journal is open)
    assert len(found) == len(CASES)
    return found


@pytest.mark.sets(0)
def test_deepfabrics_definition_gives_what_deepfabric_says(runs: Any) -> None:
    for case in CASES:
        scores, _ = runs[case["why"]]
        assert [scores[name] for name in LEGACY] == pytest.approx(case["deepfabric"], abs=1e-6), case["why"]


def test_by_value_the_calls_are_the_expected_ones(runs: Any) -> None:
    for case in CASES:
        scores, _ = runs[case["why"]]
        if "value" in case:
            found = [scores.get(name) for name in (*NAMES, "calls_in_order")]
            assert found == pytest.approx(case["value"]), case["why"]
        assert ("value" in case) == (not case["why"].startswith("drawn"))


def test_the_model_gets_the_results_that_deepfabric_gives_it(runs: Any) -> None:
    others = []
    for case in CASES:
        messages = runs[case["why"]][1].messages
        ends = [at for at, item in enumerate(messages) if item.role is Role.USER][1:]
        turn = messages[: ends[0] if ends else len(messages)]
        if [item.content for item in turn if item.role is Role.TOOL] != case["results"]:
            others.append(case["why"])
    assert others == list(OTHER_RESULTS)


def test_the_users_later_messages_are_further_turns_of_the_run(runs: Any) -> None:
    _, run = runs["a later message"]
    said = [(item.role.value, item.content) for item in run.messages if not item.tool_calls]
    assert said[-5:] == [
        ("tool", "old"),
        ("assistant", "old"),
        ("user", "again"),
        ("tool", "bee"),
        ("assistant", "bee"),
    ]
    assert run.stop_reason == "completed"


def test_a_sample_is_one_run_that_can_be_graded_again(made: dict[int, Evaluated]) -> None:
    done = made[2]
    again = asyncio.run(
        evaluate(
            READER.load(
                done.folder.path.parent / "eval.json", {"models": ["fixed:it"]}, tell=lambda text: None
            ),
            is_rescored=True,
        )
    )
    assert again.results.samples == done.results.samples
    assert len(done.results.samples) == sum([case["max_turns"] == 2 for case in CASES])
    (family,) = done.results.families
    assert family == f"conversations:{done.folder.path.parent / 'rows.jsonl'}:row"


def test_the_report_has_the_predictions_of_whole_conversations(made: dict[int, Evaluated]) -> None:
    done = made[10]
    (model,) = done.results.models
    with open_journal(done.folder.journal) as journal:
        found = make_deepfabric_result(done.results, model, journal)
    assert found["config"]["dataset_path"] == str(done.folder.path.parent / "rows.jsonl")
    by_query = {item["query"]: item for item in found["predictions"]}
    for number, case in enumerate(CASES):
        if case["max_turns"] == 10:
            item = by_query[f"question {number}"]
            wanted = [call["function"] for message in case["row"] for call in message.get("tool_calls", ())]
            name, given = (wanted[0]["name"], json.loads(wanted[0]["arguments"])) if wanted else (None, {})
            assert (item["expected_tool"], item["expected_parameters"]) == (name, given)
            assert item["expected_answer"] == case["row"][-1]["content"]
