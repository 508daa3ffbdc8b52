"""Evaluations of tasks x models x epochs: killed, stopped, limited, continued and graded again."""

import asyncio
import json
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.conftest import IS_FULL
from tests.crash.generation import Server
from tests.models.server import Received, Reply, serve
from tests.testbed.threaded import ThreadedServer

from treadle import ScriptedModel, open_journal
from treadle.core.errors import ConfigError
from treadle.core.events import InferenceCompleted, Rewarded, RunStarted
from treadle.evals import Evaluated, EvaluationConfig, evaluate
from treadle.evals.evaluation import SampleGraded, SampleRetried
from treadle.evals.evaluation_config import choose
from treadle.evals.evaluation_folder import Sample, read_stored
from treadle.evals.evaluation_reports import make_rows, write_csv, write_markdown
from treadle.jobs.ledger import ItemStatus, Ledger
from treadle.jobs.progress import JobNotice
from treadle.runs.task import find_tasks
from treadle.tasks import SimpleTask
from treadle.testbed.server.oracle_app import OracleApp, ServerSettings
from treadle.viewer import make_page
from treadle.viewer.bundle import is_built

TASKS = [f"files:csv_sum-000{number}" for number in range(6)]
MODELS = ["oracle", "oracle:0.5"]
PLANNED = 6 * 2 * 3
REWARDS = {"check": 0.5, "tool_use": 0.5}


def configure(path: Path, **changes: Any) -> EvaluationConfig:
    given: dict[str, Any] = {"models": MODELS, "tasks": TASKS, "epochs": 3, "seed": 4, "window": 5}
    given["rewards"] = REWARDS
    return EvaluationConfig.model_validate({**given, "path": path / "evaluation", **changes})


def samples(path: Path) -> list[Sample]:
    return read_stored(path / "evaluation").samples


def count_answers(path: Path) -> dict[str, int]:
    """Return how many answers each run has. Each was begun once."""
    counts: dict[str, int] = {}
    with open_journal(path / "evaluation" / "runs.db", must_exist=True) as journal:
        for info in journal.runs():
            bodies = [event.body for event in journal.read(info.run_id)]
            assert sum(isinstance(body, RunStarted) for body in bodies) == 1
            counts[info.run_id] = sum(isinstance(body, InferenceCompleted) for body in bodies)
    return counts


def check_whole(path: Path) -> None:
    """Check that every sample was made and graded exactly once."""
    found = samples(path)
    assert Counter((item.spec.task, item.spec.model, item.spec.epoch) for item in found) == {
        (task, model, epoch): 1 for task in TASKS for model in MODELS for epoch in range(3)
    }
    assert {item.run_id: item.details.steps for item in found} == count_answers(path)


def test_an_option_that_is_wrong_is_named_as_in_python() -> None:
    with pytest.raises(ConfigError, match=r"^models\.0: <object .* is not possible; give 'provider:name'"):
        asyncio.run(evaluate(models=[object()], tasks=["files"]))
    with pytest.raises(
        ConfigError, match=r"^agent\.max_step: there is no such key; did you mean 'max_steps'"
    ):
        asyncio.run(evaluate(models=["oracle"], tasks=["files"], agent={"max_step": 3}))
    named = {"hot": {"model": "oracle:0.1"}, "cold": {"modl": "oracle"}}
    with pytest.raises(ConfigError, match=r"models\.cold\.modl: there is no such key; did you mean 'model'"):
        asyncio.run(evaluate(models=named, tasks=["files"]))
    rewards = {"judge": {"model": "mock:teacher"}}
    with pytest.raises(
        ConfigError, match=r"'judge: {rubric: \.\.\.}', or as --set rewards\.judge\.rubric=\.\.\.$"
    ):
        asyncio.run(evaluate(models=["oracle"], tasks=["files"], rewards=rewards))
    with pytest.raises(ConfigError, match=r"^tasks: 'files' is not possible; it should be a list$"):
        asyncio.run(evaluate(models=["oracle"], tasks="files"))


def test_the_results_have_the_means_of_each_model(tmp_path: Path) -> None:
    notices: list[object] = []
    made = asyncio.run(evaluate(configure(tmp_path), listener=lambda notice, _: notices.append(notice)))
    assert (made.end.reason, made.progress.kept, made.progress.wanted) == ("done", PLANNED, PLANNED)
    right, wrong = made.results.models
    assert right.score is not None
    assert wrong.score is not None
    assert (right.model, right.samples, right.score.mean, right.score.tasks) == ("oracle", 18, 1.0, 6)
    assert 0.5 < wrong.score.low < wrong.score.mean < wrong.score.high < 1
    assert right.pass_all[3].mean == right.pass_at[1].mean == 1
    assert wrong.scorers["check"].mean == 1 > wrong.scorers["tool_use"].mean
    assert wrong.score.mean == pytest.approx((1 + wrong.scorers["tool_use"].mean) / 2)
    assert made.results.pairs[0].difference.is_significant
    assert made.results.pairs[0].difference.mean == pytest.approx(1 - wrong.score.mean)
    assert sum(isinstance(item, SampleGraded) for item in notices) == PLANNED
    kinds = {kind.kind: kind for kind in made.results.failures}
    assert list(kinds) == ["tool_use: … of … calls are well-formed and not repeated"]
    assert set(next(iter(kinds.values())).models) == {"oracle:0.5"}
    check_whole(tmp_path)


@pytest.mark.parametrize("most", [20, 24, 50, 100])
def test_a_part_of_the_tasks_has_those_of_all_kinds(most: int) -> None:
    """The tasks of a set are in an order that mixes its kinds, at equal distances."""
    tasks = find_tasks(["lookup:train"])
    chosen = choose(tasks, most)
    kinds = Counter([task.rpartition("-")[0] for task in chosen])
    assert len(set(chosen)) == most
    assert chosen == sorted(chosen, key=tasks.index) == choose(tasks, most)
    assert len(kinds) == 6
    assert max(kinds.values()) < most / 2


def test_all_models_have_the_same_tasks_and_seeds(tmp_path: Path) -> None:
    asyncio.run(evaluate(configure(tmp_path, models=["oracle:0.5", "oracle:0.50"])))
    steps: dict[tuple[str, int], set[int]] = {}
    for item in samples(tmp_path):
        steps.setdefault((item.spec.task, item.spec.epoch), set()).add(item.details.steps)
    assert len(steps) == 18
    assert all(len(found) == 1 for found in steps.values())
    assert len({min(found) for found in steps.values()}) > 1


@pytest.mark.parametrize("number", range(100 // 5 if IS_FULL else 1))
def test_a_killed_evaluation_goes_on_and_makes_nothing_twice(number: int, tmp_path: Path) -> None:
    """The command is killed with SIGKILL at random times. No sample is lost or made twice, and no answer is asked
    for again except those that were in flight. The server fails at three of ten requests."""
    kills, window, planned = 5 if IS_FULL else 3, 6, 4 * 2 * 3
    draw = random.Random(number)
    with Server(0.03) as server:
        config = {
            "models": [
                {"model": "openai:oracle:0.3", "base_url": server.url, "max_attempts": 12},
                {"model": "openai:oracle", "base_url": server.url, "max_attempts": 12},
            ],
            "tasks": TASKS[:4], "epochs": 3, "window": window, "name": "killed",
            "retries": {"attempts": 10, "delay_seconds": 0.01},
        }  # fmt: skip
        (tmp_path / "eval.json").write_text(json.dumps(config))
        cli = Cli(tmp_path)
        cli.env["OPENAI_API_KEY"] = "none"
        reported: set[str] = set()
        for _ in range(kills):
            with (tmp_path / "out").open("w") as out:
                process = cli.start("eval", "eval.json", "--json", stdout=out.fileno(), stderr=out.fileno())
                try:
                    process.wait(draw.uniform(0.1, 4.0 / kills))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait(120)
            text = (tmp_path / "out").read_text()
            lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
            reported |= {line["run_id"] for line in lines if line["event"] == "sample_graded"}
        result = cli("eval", "eval.json", "--json")
        assert result.code == 0, result
    found = samples(tmp_path)
    assert len(found) == len({item.run_id for item in found}) == planned
    assert {(item.spec.task, item.spec.model, item.spec.epoch) for item in found} == {
        (task, model, epoch)
        for task in TASKS[:4]
        for model in ("openai:oracle:0.3", "openai:oracle")
        for epoch in range(3)
    }
    assert reported <= {item.run_id for item in found}
    assert {item.details.score for item in found} == {1.0}
    answers = count_answers(tmp_path)
    assert {item.run_id: item.details.steps for item in found} == answers
    lost = server.answered.total() - sum(answers.values())
    assert 0 <= lost <= kills * window, "answers were sampled that are not in the journal"


def test_a_stopped_evaluation_finishes_what_is_in_flight(tmp_path: Path) -> None:
    async def make() -> Evaluated:
        stop = asyncio.Event()
        return await evaluate(configure(tmp_path), stop=stop, listener=lambda notice, progress: stop.set())

    assert asyncio.run(make()).end.reason == "stopped"
    assert 0 < len(samples(tmp_path)) <= 5
    asyncio.run(evaluate(configure(tmp_path)))
    check_whole(tmp_path)


def test_faults_of_the_infrastructure_are_retried_and_are_no_grades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ThreadedServer(OracleApp(ServerSettings(failure_rate=0.4))) as server:
        student = {"model": "openai:oracle", "base_url": server.url, "max_attempts": 1}
        retries = {"attempts": 60, "delay_seconds": 0}
        config = configure(tmp_path, models=[student], epochs=2, retries=retries, rewards={})
        made = asyncio.run(evaluate(config))
    assert made.end.reason == "done"
    assert made.results.models[0].score is not None
    assert made.results.models[0].score.mean == 1
    assert made.progress.retried > 0


async def test_a_stopped_evaluation_does_not_try_a_failed_sample_again(tmp_path: Path) -> None:
    asked: list[Received] = []
    is_up = False

    def answer(request: Received) -> Reply:
        asked.append(request)
        if is_up:
            return Reply({"choices": [{"message": {"content": "I do not know."}, "finish_reason": "stop"}]})
        return Reply({"error": {"message": "down"}}, status=500)

    async with serve(answer) as server:
        student = {"model": "openai:m", "base_url": server.base_url, "max_attempts": 1}
        retries = {"attempts": 3, "delay_seconds": 1}
        config = configure(tmp_path, models=[student], epochs=1, window=1, retries=retries)
        stop = asyncio.Event()
        made = await evaluate(config, stop=stop, listener=lambda notice, progress: stop.set())
        assert (made.end.reason, len(asked), samples(tmp_path)) == ("stopped", 1, [])
        is_up = True
        made = await evaluate(config)
    assert [(model.samples, model.failed) for model in made.results.models] == [(6, 0)]


def test_samples_without_a_grade_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    retries = {"attempts": 1, "delay_seconds": 0}
    with ThreadedServer(OracleApp(ServerSettings(failure_rate=1.0))) as server:
        student = {"model": "openai:oracle", "base_url": server.url, "max_attempts": 1}
        config = configure(tmp_path, models=[student, "oracle"], epochs=1, retries=retries)
        made = asyncio.run(evaluate(config))
        assert [model.samples for model in made.results.models] == [0, 6]
        assert [model.failed for model in made.results.models] == [6, 0]
        assert made.results.models[0].score is None
        assert make_rows(made.results)[1][0][2:] == ["–"] * 6
        assert all("infrastructure: run " in reason for reason in made.results.failed.values())
        # The report has each reason once, with how many samples of each model have it.
        lost = (
            write_markdown(made.results).partition("## Samples without a grade")[2].strip().splitlines()[2:]
        )
        cells = [[cell.strip() for cell in line.split("|")] for line in lost]
        assert 1 <= len({row[1] for row in cells}) == len(cells) < 6
        assert [sum([int(row[at]) for row in cells]) for at in (2, 3)] == [6, 0]


class Unsolved(SimpleTask):
    """A task without a reference solution."""

    def find_solver(self, prompt: str) -> None:
        return None


UNSOLVED = [Unsolved(task_id=name, input="hi", grader=lambda *_: 0.0) for name in ("a", "b")]


def test_a_sample_without_a_grade_counts_for_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracles do not attempt tasks without a reference solution, so models do not take turns."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ThreadedServer(OracleApp(ServerSettings(failure_rate=1.0))) as server:
        student = {"model": "openai:oracle", "base_url": server.url, "max_attempts": 1}
        tasks = ["files:csv_sum-0001", f"{__name__}:UNSOLVED"]
        given = {"tasks": tasks, "models": [student, "oracle"], "epochs": 1}
        config = configure(tmp_path, **given, retries={"attempts": 1}, rewards={"check": 1})
        made = asyncio.run(evaluate(config))
    assert [(model.samples, model.failed) for model in made.results.models] == [(0, 3), (1, 0)]


def test_a_limit_ends_the_evaluation_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    made = asyncio.run(evaluate(configure(tmp_path, limits={"max_tokens": 3000})))
    assert made.end.reason == "max_tokens"
    assert made.progress.kept < PLANNED
    with Ledger(made.folder.ledger, is_readonly=True) as ledger:
        assert {entry.status for entry in ledger.entries()} <= {ItemStatus.KEPT}
    assert made.progress.failed == 0
    assert made.results.failed == {}
    asyncio.run(evaluate(configure(tmp_path)))
    check_whole(tmp_path)


def test_another_evaluation_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    asyncio.run(evaluate(configure(tmp_path, epochs=1)))
    with pytest.raises(ConfigError, match="epochs was 1 and is now 2"):
        asyncio.run(evaluate(configure(tmp_path, epochs=2)))
    with pytest.raises(
        ConfigError, match=r"settings: rewards\.check\.weight was 0\.5 .*\. Give .* --rescore"
    ):
        asyncio.run(evaluate(configure(tmp_path, epochs=1, rewards={"check": 1.0})))


def test_what_counts_as_solved_changes_for_all_samples_or_for_none(tmp_path: Path) -> None:
    """The kinds of failures are stored, and pass@k follows from the configuration."""
    asyncio.run(evaluate(configure(tmp_path)))
    with pytest.raises(
        ConfigError, match=r"other settings: solved_at was 1\.0 and is now 0\.0\. .* --rescore"
    ):
        asyncio.run(evaluate(configure(tmp_path, solved_at=0.0)))
    assert any(sample.details.kind for sample in samples(tmp_path))
    made = asyncio.run(evaluate(configure(tmp_path, solved_at=0.0), is_rescored=True))
    assert all(model.pass_at[1].mean == 1 for model in made.results.models)
    assert not any(sample.details.kind for sample in samples(tmp_path))


def test_a_plan_of_which_nothing_was_made_binds_nobody(tmp_path: Path) -> None:
    """It bound the folder although a mistake in the configuration had ended it before the first sample."""
    (tmp_path / "asked.py").write_text(
        "from treadle.tasks import SimpleTask\n"
        "TASKS = [SimpleTask(task_id=f'a{n}', input='hi', grader=lambda task, output, files: 1.0)"
        " for n in range(3)]\n"
    )
    asked = [f"{tmp_path}/asked.py:TASKS:a{number}" for number in range(3)]
    with pytest.raises(ConfigError, match=r"no task has a reference solution, such as .*asked\.py:TASKS:a0"):
        asyncio.run(evaluate(configure(tmp_path, tasks=asked)))
    given = configure(tmp_path, tasks=asked[:2], models=["mock:echo"], rewards={"check": 1.0})
    made = asyncio.run(evaluate(given))
    assert (made.end.reason, made.progress.kept) == ("done", 2 * 3)
    with pytest.raises(ConfigError, match="another configuration: models was"):
        asyncio.run(evaluate(configure(tmp_path, tasks=asked[:2], rewards={"check": 1.0})))


def test_samples_are_graded_again_without_a_model(tmp_path: Path) -> None:
    asyncio.run(evaluate(configure(tmp_path, rewards={"check": 1.0})))
    answers = count_answers(tmp_path)
    made = asyncio.run(evaluate(configure(tmp_path), is_rescored=True))
    assert made.progress.kept == PLANNED
    assert made.results.models[1].scorers["tool_use"].mean < 1
    assert count_answers(tmp_path) == answers
    check_whole(tmp_path)
    with open_journal(made.folder.journal) as journal:
        bodies = [event.body for event in journal.read("eval-1")]
    assert [body.name for body in bodies if isinstance(body, Rewarded)] == ["check", "tool_use"]


async def test_samples_without_a_grade_are_told_with_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an oracle leaves tasks out, so that numbers say nothing about models."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "from treadle.tasks import SimpleTask\n\n"
        "class Unsolved(SimpleTask):\n    def find_solver(self, text):\n        return None\n\n"
        "TASKS = [Unsolved(task_id='open', input='hi', grader=lambda *_: True)]\n"
    )
    lost = {"model": "openai:x", "base_url": "http://127.0.0.1:9/v1", "max_attempts": 1}
    done = await evaluate(
        models={"best": "oracle", "lost": lost},
        tasks=["own.py:TASKS", "files:csv_sum-0001"],
        retries={"attempts": 1},
        path=tmp_path / "out",
    )
    assert {item.model: (item.samples, item.failed) for item in done.results.models} == {
        "best": (1, 0),
        "lost": (0, 2),
    }
    lines = write_csv(done.results).splitlines()
    assert [line.split(",")[:3] for line in lines[2:]] == [
        ["eval-1", "own.py:TASKS:open", "lost"],
        ["eval-3", "files:csv_sum-0001", "lost"],
    ]
    assert all("infrastructure: run " in line for line in lines[2:])


@pytest.mark.parametrize("subject", ["agent", "judge"])
async def test_a_prompt_that_is_too_long_is_asked_for_once(
    tmp_path: Path, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[Received] = []

    def refuse(request: Received) -> Reply:
        asked.append(request)
        return Reply({"error": {"message": "too long", "code": "context_length_exceeded"}}, status=400)

    async with serve(refuse) as server:
        Path("treadle.toml").write_text(
            f'[models.short]\nmodel = "openai:m-1"\nbase_url = "{server.base_url}"\n'
        )
        judge = {"judge": {"model": "short", "rubric": "The answer is polite."}}
        agent, rewards = ("short", {}) if subject == "agent" else ("oracle", judge)
        config = configure(tmp_path, models=[agent], epochs=1, tasks=TASKS[:1], rewards=rewards)
        notices: list[JobNotice] = []
        done = await evaluate(config, listener=lambda notice, progress: notices.append(notice))
    assert len({request.body for request in asked}) == len(asked)  # what is asked again was shortened
    assert done.progress.retried == 0
    assert not [notice for notice in notices if isinstance(notice, SampleRetried)]
    (why,) = done.results.failed.values()
    assert "too long" in why


async def test_the_reports_of_a_program_are_written(tmp_path: Path) -> None:
    reports = [f"{name}={tmp_path}/all/r.{name}" for name in ("json", "csv", "markdown", "inspect", "html")]
    given: dict[str, Any] = {"models": ["oracle"], "tasks": TASKS[:1], "path": tmp_path / "a"}
    with pytest.raises(ConfigError, match=r"give make_page=treadle\.viewer\.make_page"):
        await evaluate(**given, reports=reports)
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    wrong = f"csv={tmp_path}/file/r.csv"
    done = await evaluate(**given, reports=[wrong, *reports], make_page=make_page if is_built() else _page)
    assert [report.given for report in done.reports] == [wrong, *reports]
    assert "File exists" in (done.reports[0].error or "")
    files = [Path(place) for report in done.reports for place in report.places]
    assert sorted(files) == sorted((tmp_path / "all").iterdir())
    assert len(files) == len(reports)


def _page(path: Path, *, journal: str | None = None) -> bytes:
    return b"<!doctype html>"


async def test_what_a_judge_used_counts_for_the_limits(tmp_path: Path) -> None:
    rewards = {"judge": {"model": "mock:teacher", "rubric": "The answer is polite."}}
    asked: dict[str, Any] = {"tasks": ["files:csv_sum-000*"], "models": ["oracle"], "rewards": rewards}
    asked |= {"path": tmp_path / "out", "max_tasks": 3}
    done = await evaluate(**asked)
    with open_journal(done.folder.journal) as journal:
        used = {info.run_id: info.input_tokens + info.output_tokens for info in journal.runs()}
    assert len(used) == 6
    assert done.progress.input_tokens + done.progress.output_tokens == sum(used.values())
    again = (await evaluate(**asked)).progress
    assert again.input_tokens + again.output_tokens == sum(used.values())
    few = {**asked, "path": tmp_path / "few", "limits": {"max_tokens": 3000}, "window": 1}
    end = (await evaluate(**few)).end
    assert end.reason == "max_tokens"
    for _ in range(5):
        end = (await evaluate(**{**few, "limits": {"max_tokens": 10**6}})).end
    assert end.reason == "done"
    with open_journal(tmp_path / "few" / "runs.db") as journal:
        assert {info.run_id for info in journal.runs()} == set(used)


def test_mistakes_of_a_configuration_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(evaluate(models=["oracle", "oracle", "nobody:x"], rewards={"chek": 1}))
    for part in (
        "give tasks, such as 'files:test' (--task), or rows",
        "'oracle' is given twice",
        "nobody",
        "did you mean 'check'",
    ):
        assert part in str(caught.value)


async def test_models_that_a_program_made_are_evaluated(tmp_path: Path) -> None:
    def made(*answers: str) -> ScriptedModel:
        return ScriptedModel(list(answers), name="mine")

    asked: dict[str, Any] = {"tasks": ["files:csv_sum-0001"], "path": tmp_path / "out"}
    done = await evaluate(models=[made("1"), "oracle"], **asked)
    assert [item.model for item in done.results.models] == ["program:mine", "oracle"]
    assert [item.score.mean for item in done.results.models] == [0.0, 1.0]
    assert (await evaluate(models=[made(), "oracle"], **asked)).progress.resumed == 2
    with pytest.raises(ConfigError, match="the same name"):
        await evaluate(models=[made(), made()], **asked)
    more: dict[str, Any] = {**asked, "path": tmp_path / "more", "workers": "local:2"}
    with pytest.raises(ConfigError, match="only this process"):
        await evaluate(models=[made()], **more)
    with pytest.raises(ConfigError, match="unknown provider 'program'"):
        await evaluate(models=["program:mine"], **{**asked, "path": more["path"]})
    assert not more["path"].exists()
    named: dict[str, Any] = {"a": made("1"), "b": lambda task, seed: made("2")}
    done = await evaluate(models=named, **{**asked, "path": more["path"]})
    assert [item.model for item in done.results.models] == ["program:a", "program:b"]


async def test_one_model_is_compared_with_two_settings(tmp_path: Path) -> None:
    def table(temperature: float) -> dict[str, Any]:
        return {"model": "mock:echo", "temperature": temperature}

    given = {"warm": table(0.9), "made": ScriptedModel(["1"]), "cold": table(0.1), "best": "oracle"}
    asked: dict[str, Any] = {"tasks": ["files:csv_sum-0001"], "path": tmp_path / "out"}
    done = await evaluate(models=given, **asked)
    assert [item.model for item in done.results.models] == ["warm", "program:made", "cold", "best"]
    with open_journal(done.folder.journal) as journal:
        started = [journal.read(f"eval-{number}")[0].body for number in (1, 3)]
    assert [(body.spec.model.settings or {})["temperature"] for body in started] == [0.9, 0.1]
    assert (await evaluate(models=given, **asked)).progress.resumed == 4
    with pytest.raises(
        ConfigError, match=r"configuration: models.cold.temperature was 0.1 and is now 0.2\. "
    ):
        await evaluate(models=given | {"cold": table(0.2)}, **asked)
    with pytest.raises(ConfigError, match="the name '' cannot be shown"):
        await evaluate(models={"": "oracle"}, **asked)


async def test_two_evaluations_at_once_may_have_models_of_one_name(tmp_path: Path) -> None:
    """Each asks its own."""

    async def run(folder: str, answer: str) -> float:
        model = ScriptedModel([answer], name="mine")
        done = await evaluate(
            models=[model],
            tasks=["files:csv_sum-0001"],
            path=tmp_path / folder,
            rewards={"final_answer": {"answer": "1"}},
        )
        assert [item.model for item in done.results.models] == ["program:mine"]
        return done.results.models[0].score.mean

    assert await asyncio.gather(run("one", "1"), run("two", "2")) == [1.0, 0.0]


def test_slow_checks_of_a_user_wait_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meeting.py").write_text(
        "import threading\n"
        "from treadle.tasks import SimpleTask\n"
        "MEETING = threading.Barrier(3)\n"
        "def meet(task, output, files):\n    MEETING.wait(60)\n    return True\n"
        "TASKS = [SimpleTask(task_id=name, input='say hi', grader=meet) for name in 'abc']\n"
    )
    done = asyncio.run(evaluate(models=["mock:echo"], tasks=["meeting.py:TASKS"], path=tmp_path / "out"))
    assert [sample.details.score for sample in done.results.samples] == [1.0, 1.0, 1.0]
