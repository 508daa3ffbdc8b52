"""The answers of rows are samples: the model is asked once for the next message, and its calls are compared."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.testbed.threaded import ThreadedServer

from treadle import Agent, Run, load_task, open_journal
from treadle.core.errors import ConfigError
from treadle.core.events import InferenceCompleted
from treadle.core.types import Role, ToolCall
from treadle.evals import evaluate
from treadle.evals.evaluation_config import EvaluationConfig
from treadle.evals.evaluation_reports import find_gaps
from treadle.evals.row_samples import read_answers
from treadle.export.exporter import FORMATS, encode_row
from treadle.export.rows import load_row
from treadle.journal.memory import MemoryJournal
from treadle.runs.options import StreamOptions
from treadle.scoring.grade import grade
from treadle.scoring.registry import make_scorers, read_rewards
from treadle.testbed import oracle_for
from treadle.testbed.server.oracle_app import OracleApp, ServerSettings

TASKS = ("files:csv_sum-0001", "files:config_fix-0003")


async def make_run(journal: Any, name: str) -> Run[Any]:
    task = load_task(name)
    options: StreamOptions = {"run_id": name.replace(":", "-")}
    return await Agent(oracle_for(task), journal=journal).run(task, **options)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[list[ToolCall]]]]:
    """A file of rows that the oracle made, and the calls of each of their answers."""
    journal, path = MemoryJournal(), tmp_path_factory.mktemp("rows") / "rows.jsonl"
    runs = [asyncio.run(make_run(journal, name)) for name in TASKS]
    lines = [encode_row(load_row(journal, run.run_id), FORMATS.load("treadle")) + b"\n" for run in runs]
    path.write_bytes(b"".join(lines))
    said = [[list(item.tool_calls) for item in run.messages if item.role is Role.ASSISTANT] for run in runs]
    return path, said


def test_each_answer_of_a_row_is_a_sample(rows: tuple[Path, list[list[list[ToolCall]]]]) -> None:
    path, said = rows
    found = read_answers([str(path)])
    assert len(found) == sum(map(len, said))
    for row, answers in enumerate(said, 1):
        for place, calls in enumerate(answers, 1):
            answer = found[f"rows:{path}#{row}.{place}"]
            wanted = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]
            assert answer.expected["calls"] == wanted
            assert ("answer" in answer.expected) == (not wanted)
            assert len(answer.since) == sum(1 + len(earlier) for earlier in answers[: place - 1])
    one, other = [list(found).index(name) for name in read_answers([str(path)], 2)]
    assert one < len(found) // 2 <= other


def test_models_are_asked_once_for_each_answer_and_nothing_is_run(
    rows: tuple[Path, list[list[list[ToolCall]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    path, said = rows
    with ThreadedServer(OracleApp(ServerSettings())) as server:
        models = [{"model": name, "base_url": server.url} for name in ("openai:oracle", "openai:oracle:0.7")]
        given: dict[str, Any] = {"models": models, "rows": [str(path)], "path": str(tmp_path / "e")}
        made = asyncio.run(evaluate(**given))
        again = asyncio.run(evaluate(**given))
        count = sum(map(len, said))

    right, wrong = made.results.models
    assert right.score is not None
    assert wrong.score is not None
    assert (right.samples, right.score.mean, right.score.tasks) == (count, 1.0, len(TASKS))
    assert wrong.score.mean < 1
    assert again.results.models == made.results.models
    # One message was asked for, and no limit cut anything off.
    assert {sample.details.stop_reason for sample in made.results.samples} == {"completed"}
    with open_journal(made.folder.journal) as journal:
        for info in journal.runs():
            bodies = [event.body for event in journal.read(info.run_id)]
            assert sum(isinstance(body, InferenceCompleted) for body in bodies) == 1
        # The run has all that its grade needs; the file of rows is not read again.
        (scorer,) = make_scorers(read_rewards(["calls"]))
        for sample in made.results.samples:
            graded = asyncio.run(grade(journal, sample.run_id, [scorer]))
            assert graded.rewards["calls"] == sample.details.score
            assert not graded.changed


def test_files_without_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_answers([str(tmp_path / "none.jsonl")])
    row = {"messages": [{"role": "assistant", "content": "hello"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ConfigError, match="has no answer after a message of a user"):
        read_answers([str(tmp_path)])


def test_a_file_of_rows_that_changed_is_told(tmp_path: Path) -> None:
    """The samples of an evaluation are known by their numbers, which now mean other rows."""
    path = tmp_path / "r.jsonl"
    for key, place in (("rows", str(path)), ("tasks", f"conversations:{path}")):
        given: dict[str, Any] = {key: [place], "models": ["mock:echo"], "path": str(tmp_path / key)}
        said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}]
        line = json.dumps({"messages": said})
        path.write_text(f"{line}\n{line}\n")
        before = asyncio.run(evaluate(**given))
        assert asyncio.run(evaluate(**given)).results.models == before.results.models
        path.write_text(line.replace("hi", "ho") + f"\n{line}\n")
        with pytest.raises(ConfigError, match=r"the file '.*r\.jsonl' changed since the evaluations"):
            asyncio.run(evaluate(**given))
        path.write_text(line)
        with pytest.raises(ConfigError, match="and the list of tasks changed since"):
            asyncio.run(evaluate(**given))


def test_calls_of_unknown_tools_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "r.jsonl"
    calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    said.append({"role": "tool", "tool_call_id": "1", "content": "seen"})
    path.write_text("\n".join([json.dumps({"messages": said}), json.dumps({"messages": said[:1]})]))
    assert len(read_answers([str(path)])) == 1
    assert "no model can make the calls of 1 of its rows: line 1: it calls 'look'" in caplog.text
    assert "left out 1 of its rows: line 2: " in caplog.text


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"tasks": ["files:test"]}, ["check"]),
        ({"rows": ["rows.jsonl"]}, ["calls"]),
        ({"tasks": ["files:test"], "rows": ["rows.jsonl"]}, ["check", "calls"]),
    ],
)
def test_only_scorers_that_have_something_to_judge_are_the_default(
    given: dict[str, list[str]], names: list[str]
) -> None:
    config = EvaluationConfig.model_validate({"models": ["oracle"], **given})
    assert [spec.name for spec in config.scorers()] == names


async def test_a_scorer_of_tasks_lacks_no_verdict_on_rows(
    rows: tuple[Path, list[list[list[ToolCall]]]], tmp_path: Path
) -> None:
    path, said = rows
    given = {"tasks": [TASKS[0]], "rows": [str(path)], "models": ["mock:echo"]}
    folder = tmp_path / "both"
    results = (await evaluate(EvaluationConfig.model_validate({**given, "path": folder}))).results
    assert {name: found.samples for name, found in results.models[0].scorers.items()} == {
        "check": 1,
        "calls": sum(map(len, said)),
    }
    assert [line for line in find_gaps(results) if "no verdict" in line] == []
    # A verdict that one of the rows lacks is told, among those of its kind.
    scored = results.samples[-1]
    assert scored.spec.task.startswith("rows:")
    bare = replace(scored, details=replace(scored.details, scores={}))
    told = find_gaps(replace(results, samples=[*results.samples[:-1], bare]))
    assert f"mock:echo: the scorer 'calls' had no verdict on 1 of {sum(map(len, said))} samples" in told
    silent = [replace(one, details=replace(one.details, scores={})) for one in results.samples]
    told = find_gaps(replace(results, samples=silent))
    assert f"mock:echo: the scorer 'calls' had no verdict on {len(silent)} of {len(silent)} samples" in told


def test_limits_of_a_loop_are_refused_for_rows_alone(tmp_path: Path) -> None:
    """Only the next message is asked for, and its calls are not run."""
    given: dict[str, Any] = {"rows": ["r.jsonl"], "models": ["mock:echo"], "path": tmp_path / "out"}
    for key in ("max_steps", "max_tool_calls", "parallel_tool_calls", "max_result_chars", "tools"):
        with pytest.raises(ConfigError, match=rf"agent\.{key}.*; delete it"):
            asyncio.run(evaluate(agent={key: ["files"] if key == "tools" else 5}, **given))
