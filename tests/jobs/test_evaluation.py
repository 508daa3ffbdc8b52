"""An evaluation of tasks x models x epochs over `jobs/`, in at most 200 lines of its own."""

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.forks.process import FORKS
from tests.jobs import evaluation
from tests.jobs.evaluation import AttemptGraded, EvaluationConfig, EvaluationResult, evaluate
from tests.testbed.threaded import ThreadedServer

from treadle import open_journal
from treadle.core.errors import ConfigError
from treadle.core.events import InferenceCompleted, RunStarted
from treadle.jobs.ledger import ItemStatus, Ledger
from treadle.testbed.server.oracle_app import OracleApp, ServerSettings

TASKS = [f"files:csv_sum-000{number}" for number in range(6)]
PLANNED = 6 * 2 * 3


def configure(path: Path, **changes: Any) -> EvaluationConfig:
    given: dict[str, Any] = {
        "models": ["oracle", "oracle:0.5"],
        "tasks": TASKS,
        "epochs": 3,
        "seed": 4,
        "window": 5,
    }
    given["rewards"] = {"check": 0.5, "tool_use": 0.5}
    return EvaluationConfig.model_validate({**given, "path": path / "evaluation", **changes})


def grades(path: Path) -> list[dict[str, Any]]:
    text = (path / "evaluation" / "grades.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def count_answers(path: Path) -> dict[str, int]:
    """Return how often each run was begun and how many answers it has, which must be those that it needed."""
    counts: dict[str, int] = {}
    with open_journal(path / "evaluation" / "runs.db", must_exist=True) as journal:
        for info in journal.runs():
            bodies = [event.body for event in journal.read(info.run_id)]
            assert sum(isinstance(body, RunStarted) for body in bodies) == 1
            counts[info.run_id] = sum(isinstance(body, InferenceCompleted) for body in bodies)
    return counts


def check_whole(path: Path) -> None:
    """Check that every attempt was made and graded exactly once."""
    found = grades(path)
    assert Counter((item["task"], item["model"], item["epoch"]) for item in found) == {
        (task, model, epoch): 1 for task in TASKS for model in ("oracle", "oracle:0.5") for epoch in range(3)
    }
    answers = count_answers(path)
    assert {item["run_id"]: item["steps"] for item in found} == answers


def test_an_evaluation_needs_at_most_200_lines_of_its_own() -> None:
    lines = Path(evaluation.__file__).read_text().splitlines()
    assert len(lines) <= 200


def test_the_table_has_the_means_of_each_model(tmp_path: Path) -> None:
    notices: list[object] = []
    result = asyncio.run(evaluate(configure(tmp_path), listener=lambda notice, _: notices.append(notice)))
    assert (result.end.reason, result.progress.kept, result.progress.wanted) == ("done", PLANNED, PLANNED)
    right, wrong = result.table
    assert (right.model, right.attempts, right.reward, right.error) == ("oracle", 18, 1.0, 0.0)
    assert wrong.attempts == 18
    assert 0 < wrong.reward < 1
    assert wrong.error > 0
    mean = sum(item["reward"] for item in grades(tmp_path) if item["model"] == "oracle:0.5") / 18
    assert wrong.reward == pytest.approx(mean)
    assert sum(isinstance(item, AttemptGraded) for item in notices) == PLANNED
    assert result.progress.results() == [
        f"reward {(1 + mean) / 2:.3f} ± {result.progress.grades.deviation:.3f}"
    ]
    check_whole(tmp_path)


@pytest.mark.parametrize("workers", ["here", pytest.param("local:2", marks=pytest.mark.full)])
def test_a_killed_evaluation_goes_on_and_makes_nothing_twice(tmp_path: Path, workers: str) -> None:
    """The process is killed with SIGKILL, twice, and the same configuration goes on."""
    config = configure(tmp_path, workers=workers)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    for number in (1, 2):
        before = len(grades(tmp_path)) if number > 1 else 0
        process = FORKS.start(
            "-m", "tests.jobs.evaluation", str(tmp_path / "config.json"), env=Cli(tmp_path).env
        )
        file = tmp_path / "evaluation" / "grades.jsonl"
        while process.poll() is None and not (file.exists() and len(grades(tmp_path)) > before + 3):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    early = grades(tmp_path)
    done = {item["run_id"]: count_answers(tmp_path)[item["run_id"]] for item in early}
    result = asyncio.run(evaluate(config))
    assert (result.end.reason, result.progress.kept) == ("done", PLANNED)
    assert grades(tmp_path)[: len(early)] == early
    assert done.items() <= count_answers(tmp_path).items()
    check_whole(tmp_path)


def test_a_stopped_evaluation_finishes_what_is_in_flight(tmp_path: Path) -> None:
    async def make() -> EvaluationResult:
        stop = asyncio.Event()
        return await evaluate(configure(tmp_path), stop=stop, listener=lambda notice, progress: stop.set())

    assert asyncio.run(make()).end.reason == "stopped"
    some = len(grades(tmp_path))
    assert 0 < some <= 5
    asyncio.run(evaluate(configure(tmp_path)))
    check_whole(tmp_path)


def test_faults_of_the_infrastructure_are_retried_and_are_no_grades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("TREADLE_CONFIG", str(tmp_path / "treadle.toml"))
    with ThreadedServer(OracleApp(ServerSettings(failure_rate=0.4))) as server:
        (tmp_path / "treadle.toml").write_text(
            f'[models.student]\nmodel = "openai:oracle"\nbase_url = "{server.url}"\nmax_attempts = 1\n'
        )
        monkeypatch.chdir(tmp_path)
        config = configure(
            tmp_path, models=["student"], epochs=2, retries={"attempts": 60, "delay_seconds": 0}
        )
        result = asyncio.run(evaluate(config))
    assert (result.end.reason, result.table[0].reward) == ("done", 1.0)
    assert result.progress.retried > 0


def test_a_limit_ends_the_evaluation_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    result = asyncio.run(evaluate(configure(tmp_path, limits={"max_tokens": 3000})))
    assert result.end.reason == "max_tokens"
    assert result.progress.kept < PLANNED
    with Ledger(tmp_path / "evaluation" / "ledger.db", is_readonly=True) as ledger:
        assert all(entry.status != ItemStatus.REJECTED for entry in ledger.entries())
    asyncio.run(evaluate(configure(tmp_path)))
    check_whole(tmp_path)


def test_another_evaluation_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    asyncio.run(evaluate(configure(tmp_path, epochs=1)))
    with pytest.raises(ConfigError, match="epochs was 1 and is now 2"):
        asyncio.run(evaluate(configure(tmp_path, epochs=2)))
