"""Logs of Inspect: the whole of a sample, those without a grade, and what Inspect's own code reads of them."""

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.command import Cli

from treadle import ScriptedModel, open_journal
from treadle.core.types import Completion, FinishReason, Message, Role, Usage
from treadle.evals import evaluate
from treadle.evals.inspect_log import make_inspect_log, name_inspect_log
from treadle.scoring.expectations import Expectation
from treadle.tasks import SimpleTask


def completion(text: str, usage: Usage, cost_usd: float, reasoning: str | None = None) -> Completion:
    said = Message(Role.ASSISTANT, text, reasoning=reasoning)
    return Completion(said, FinishReason.STOP, usage=usage, cost_usd=cost_usd)


ANSWERS = {
    "a": completion("yes", Usage(100, 9, 60, 4, 30), 0.25, "Hm."),
    "b": completion("no", Usage(7, 2), 0.5),
    "c": completion("yes", Usage(7, 2), 0.5),
}
READ = """
import sys
from inspect_ai.analysis import evals_df, messages_df, samples_df
from inspect_ai.log import list_eval_logs, read_eval_log
(info,) = list_eval_logs(sys.argv[1])
assert read_eval_log(info, header_only=True).plan.name == "treadle"
log = read_eval_log(info)
usage = log.samples[0].model_usage["program:mine"]
assert usage.input_tokens + usage.input_tokens_cache_read + usage.input_tokens_cache_write == 100
assert log.samples[0].messages[-1].content[0].reasoning == "Hm."
assert (log.results.total_samples, log.results.completed_samples) == (3, 2)
assert "away" in log.samples[2].error.message
assert [len(read(sys.argv[1])) for read in (evals_df, samples_df)] == [1, 3]
found = messages_df(sys.argv[1])
assert list(found.role) == ["user", "assistant"] * 3
assert list(found.content)[:2] == ["Is it a?", "yes"]
assert found.message_id.nunique() == 6
"""


def make_tasks() -> list[SimpleTask]:
    expected = Expectation(answer=["yes", 7])
    return [SimpleTask(task_id=name, input=f"Is it {name}?", data=expected) for name in ANSWERS]


def is_yes(subject: Any) -> float:
    if subject.run.messages[0].content == "Is it c?":
        raise OSError("the service is away")
    return float(subject.run.output == "yes")


@pytest.fixture
async def log(tmp_path: Path) -> dict[str, Any]:
    """The log of two samples that were graded, and one that was not."""
    model = ScriptedModel(lambda request: ANSWERS[request.messages[-1].content[-2]], name="mine")
    done = await evaluate(
        models=[model],
        tasks=[f"{__name__}:make_tasks"],
        rewards={f"{__name__}:is_yes": 1},
        retries={"attempts": 1},
        path=tmp_path / "done",
    )
    with open_journal(done.folder.journal) as journal:
        return make_inspect_log(done.results, done.results.models[0], journal)


async def test_a_log_has_the_whole_of_each_sample(log: dict[str, Any]) -> None:
    first, second, third = log["samples"]
    assert first["target"] == ["yes", "7"]
    assert first["metadata"]["expected"]["answer"] == ["yes", 7]
    content = first["messages"][-1]["content"]
    assert content == [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "yes"}]
    assert first["model_usage"]["program:mine"] == {
        "input_tokens": 10,
        "output_tokens": 9,
        "total_tokens": 109,
        "input_tokens_cache_read": 60,
        "input_tokens_cache_write": 30,
        "reasoning_tokens": 4,
        "total_cost": 0.25,
    }
    assert log["stats"]["model_usage"]["program:mine"]["total_cost"] == 0.75
    assert (first["scores"]["is_yes"]["value"], second["scores"]["is_yes"]["value"]) == (1, 0)
    assert third["input"] == "Is it c?"
    assert "the service is away" in third["error"]["message"]


async def test_a_log_has_each_answer_with_what_came_before_it(log: dict[str, Any]) -> None:
    for sample in log["samples"]:
        (event,) = sample["events"]
        ((begin, end),) = event["input_refs"]
        seen = [*sample["events_data"]["messages"][begin:end], event["output"]["choices"][0]["message"]]
        assert seen == sample["messages"]


async def test_a_log_counts_the_samples_without_a_grade(log: dict[str, Any]) -> None:
    assert log["status"] == "success"
    assert (log["results"]["total_samples"], log["results"]["completed_samples"]) == (3, 2)
    assert log["eval"]["dataset"]["samples"] == 3
    (score, _) = log["results"]["scores"]
    assert (score["name"], score["scored_samples"]) == ("score", 2)


async def test_the_head_of_a_log_is_in_the_order_in_which_inspect_reads_it(log: dict[str, Any]) -> None:
    assert list(log) == ["version", "status", "eval", "plan", "results", "stats", "samples"]
    assert log["eval"]["created"][:19] in log["eval"]["eval_id"]
    assert name_inspect_log(log) == f"{log['eval']['created'][:19].replace(':', '-')}_eval_program-mine.json"


def test_logs_in_a_folder_have_the_names_of_inspect(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    given = ("--task", "files:csv_sum-0001", "--model", "oracle", "--model", "oracle:0.5", "--out", "a")
    assert cli("eval", *given).code == 0
    (tmp_path / "logs").mkdir()
    written = cli("eval", "report", "a", "--format", "inspect", "--out", "logs").out.split()
    assert len(set(written)) == 2
    assert all(name.startswith("logs/20") and (tmp_path / name).is_file() for name in written)


@pytest.mark.full
async def test_inspect_reads_a_log(log: dict[str, Any], tmp_path: Path) -> None:
    place = Path(os.environ.get("TREADLE_INSPECT") or "/nowhere")
    if not (place / "bin/python").exists():
        pytest.skip("it needs `python -m tests.environments inspect FOLDER`; TREADLE_INSPECT is the folder")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / name_inspect_log(log)).write_bytes(msgspec.json.encode(log))
    subprocess.run([place / "bin/python", "-c", READ, tmp_path / "logs"], check=True)
