"""`treadle eval` and its reports: tables, Markdown, JSON, the page, and the log that Inspect reads."""

import asyncio
import base64
import csv
import gzip
import io
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.models.answers import answer
from tests.models.server import Reply, serve

from treadle.viewer.bundle import is_built

EVAL = ("--task", "files:csv_sum-00*", "--limit", "4", "--model", "oracle", "--model", "oracle:0.6")
REWARDS = ("--reward", "check", "--reward", "tool_use")
TRIPS = '''from treadle import tool
from treadle.tasks import SimpleTask

@tool(effect="pure")
def weather(city: str, days: int = 1) -> str:
    """Return the weather."""
    return f"sunny in {city}"

def make_trips():
    calls = [{"name": "weather", "arguments": {"city": "Rome"}}]
    for name, days in (("right", '"1"'), ("wrong", "3")):
        data = {"calls": calls, "answer": "sunny"}
        text = f'call weather {{"city": "Rome", "days": {days}}}\\nsay sunny'
        yield SimpleTask(task_id=name, input=text, tools=["trips.py:weather"], data=data)

def trips():
    return list(make_trips())
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A folder with the evaluations `one` and `two`."""
    cli = Cli(tmp_path_factory.mktemp("eval"))
    for name, seed in (("one", "1"), ("two", "2")):
        result = cli("eval", *EVAL, *REWARDS, "--epochs", "2", "--seed", seed, "--name", name, "--out", name)
        assert result.code == 0, result
    return cli


def test_the_table_says_what_was_measured(made: Cli) -> None:
    above = made("eval", "report", ".")
    assert (above.code, "'.' has no evaluations; choose one below it, such as 'one'" in above.err) == (
        2,
        True,
    ), above
    out = made("eval", "report", "one").out
    assert re.search(r"oracle\s+8\s+1\.000 \[0\.\d+, 1\.000\]\s+1\.000", out)
    assert re.search(r"oracle - oracle:0\.6: \+0\.\d+ \[", out)
    assert "calls are well-formed and not repeated  (oracle:0.6 " in out
    # The scorers are lines, because models are few.
    assert re.search(r"scorer +oracle +oracle:0\.6 *\n─+\ncheck +1\.000 \[.*\ntool_use +1\.000 \[", out)
    told = r"\nScore by a bootstrap over tasks: oracle 1\.000 \[1\.000, 1\.000\], oracle:0\.6 0\.\d+ \["
    assert re.search(told, out)
    assert "pass@2" in out
    assert "pass^2" in out
    both = made("eval", "report", "one", "two").out
    assert "two: oracle:0.6 - one: oracle:0.6: " in both
    assert "\none in one\n" in both
    assert "\ntwo in two\n" in both


def test_two_evaluations_with_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    for task, out in (("0001", "a"), ("0001", "b"), ("0002", "c")):
        done = cli("eval", "--task", f"files:csv_sum-{task}", "--model", "oracle", "--out", out)
        assert done.code == 0, done
    assert "\nb: oracle - a: oracle: " in cli("eval", "report", "a", "b").out
    other = cli("eval", "report", "a", "c")
    assert other.err == "no task has a grade in both evaluations, so they are not compared\n"
    text = cli("eval", "report", "a", "c", "--format", "markdown").out
    assert re.findall(r"^# .*", text, re.MULTILINE) == ["# a and c", "# a", "# c"]
    assert "\nNo task has a grade in both evaluations, so they are not compared.\n" in text
    for form in ("csv", "inspect", "deepfabric"):
        refused = cli("eval", "report", "a", "b", "--format", form, "--out", "x")
        assert refused.code == 2
        assert refused.err == f"error: the format '{form}' is of one evaluation; leave out 'b'\n"


def test_a_comparison_says_that_the_scorers_were_others(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    given = ("eval", "--task", "files:csv_sum-000*", "--limit", "3", "--model", "oracle")
    for out, reward in (("a", "tool_use"), ("b", "tool_use"), ("c", "check")):
        assert cli(*given, "--reward", reward, "--out", out).code == 0
    assert cli("eval", "report", "a", "b").err == ""
    # A scorer that does not count changes no score.
    again = cli(*given, "--reward", "check", "--reward", "tool_use=0", "--out", "d")
    assert again.code == 0
    assert cli("eval", "report", "c", "d").err == ""
    remark = (
        "he two were graded by different scorers, a by tool_use=1, c by check=1, so their difference may be"
    )
    assert f"t{remark}" in cli("eval", "report", "a", "c").err
    assert f"T{remark}" in cli("eval", "report", "a", "c", "--format", "markdown").out
    assert json.loads(cli("eval", "report", "a", "c", "--format", "json").out)["remarks"][0].startswith("t")


def test_the_columns_of_a_table_of_samples_have_different_names(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    code = (
        "def steps(subject):\n"
        "    if subject.run.run_id.endswith('-3'):\n        raise OSError('away')\n"
        "    return 0.5\n"
    )
    cli.write("rewards.py", code)
    given = ("--task", "files:csv_sum-000*", "--limit", "3", "--model", "oracle", "--out", "a")
    rewards = ("--reward", "rewards.py:steps", "--reward", "check")
    assert cli("eval", *given, *rewards, "--set", "retries.attempts=1").code == 1
    heads, *lines = csv.reader(io.StringIO(cli("eval", "report", "a", "--format", "csv").out))
    assert len(set(heads)) == len(heads)
    first, second, third = [dict(zip(heads, line, strict=True)) for line in lines]
    assert (first["steps_score"], first["check"]) == ("0.5", "1.0")
    assert int(first["steps"]) > 1
    assert int(first["calls"]) > 0
    assert (second["failure"], second["model"]) == ("steps", "oracle")
    assert (third["run_id"], third["score"]) == ("eval-3", "")
    assert "OSError: away" in third["failure"]


def test_an_evaluation_without_a_grade_has_no_empty_table(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.write("rewards.py", "def wrong(subject):\n    return subject.output\n")
    given = ("--task", "files:csv_sum-000*", "--limit", "3", "--model", "oracle", "--out", "a")
    assert "AttributeError" in cli("eval", *given, "--reward", "rewards.py:wrong").err
    text = cli("eval", "report", "a", "--format", "markdown").out
    assert "0 of 3 samples" in text
    assert "family" not in text
    again = cli("rescore", "--all", "--journal", "a/runs.db", "--reward", "rewards.py:wrong")
    assert (again.code, again.err.count("AttributeError")) == (1, 1), again


def test_the_report_says_what_the_scores_lack(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.write(
        "rewards.py",
        "import os, signal\n"
        "def partly(subject):\n"
        "    number = int(subject.run.run_id.rpartition('-')[2])\n"
        "    if number == 3 and os.path.exists('stop'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 1 if number == 1 else None\n",
    )
    cli.write("stop", "")
    given = ("--task", "files:csv_sum-000*", "--limit", "4", "--model", "oracle", "--window", "1")
    command = ("eval", *given, "--reward", "rewards.py:partly", "--out", "a")
    assert cli(*command).code < 0
    assert "\nunfinished: 2 of 4 samples\n" in cli("eval", "report", "a").out
    (tmp_path / "stop").unlink()
    lacking = "oracle: 3 of 4 samples have no score, because no reward with a weight has a verdict"
    assert lacking in " ".join(cli(*command).out.split())
    silent = "oracle: the scorer 'partly' had no verdict on 3 of 4 samples"
    for form in ("table", "markdown"):
        told = cli("eval", "report", "a", "--format", form).out
        assert lacking in " ".join(told.split()), told
        assert silent in " ".join(told.split()), told
        assert "unfinished" not in told
    given = ("--journal", "a/runs.db", "--reward", "rewards.py:partly")
    assert "partly has no verdict on this run" in cli("rescore", "eval-2", *given).out


def test_a_damaged_ledger_and_a_folder_in_place_of_a_file(made: Cli) -> None:
    (made.folder / "damaged").mkdir()
    content = bytearray((made.folder / "one/evaluation.db").read_bytes())
    content[100:107] = b"garbage"
    (made.folder / "damaged/evaluation.db").write_bytes(content)
    for arguments in (("eval", "report", "damaged"), ("view", "damaged"), ("report", "damaged")):
        found = made(*arguments)
        assert (found.code, found.out) == (1, ""), found
        assert (
            found.err
            == "error: cannot open the ledger 'damaged/evaluation.db': database disk image is malformed\n"
        )
    for out in ("/", ".", ".."):
        found = made("eval", "report", "one", "--format", "markdown", "--out", out)
        told = f"error: cannot write '{out}': it is a folder; name a file in it\n"
        assert (found.code, found.err) == (2, told), found


def test_a_limit_of_all_runs_ends_the_work(tmp_path: Path) -> None:
    limited = ("--set", "limits.max_tokens=3000", "--window", "1", "--out", "a")
    found = Cli(tmp_path)("eval", "--task", "files:test", "--limit", "20", "--model", "oracle", *limited)
    assert found.code == 3, found
    assert "samples missing: limits.max_tokens is reached; raise it and run the same command" in found.err
    assert not re.search(r"[1-9]\d* failed|without a grade", found.out + found.err), found


def test_markdown_and_json(made: Cli) -> None:
    text = made("eval", "report", "one", "two", "--format", "markdown").out
    parts = (
        "# one",
        "# two",
        "## Differences",
        "## Scores by family",
        "## Failures by kind",
        "files:csv_sum",
    )
    for part in parts:
        assert part in text
    # A table of models with a column for each scorer cannot be read.
    heads = [line for line in text.splitlines() if line.startswith("| model |")]
    assert [head for head in heads if "tool_use" in head] == []
    assert re.search(r"## Scores by scorer\n\n\| scorer \| oracle \| oracle:0\.6 \|\n.*\n\| check \|", text)
    view = json.loads(made("eval", "report", "one", "--format", "json").out)
    (found,) = view["evaluations"]
    assert len(found["samples"]) == found["planned"] == 16
    assert found["models"][0]["score"]["mean"] == found["models"][0]["bootstrap"]["mean"] == 1
    assert "Score by a bootstrap over tasks: oracle 1.000 [" in text


def test_an_inspect_log_has_the_samples(made: Cli) -> None:
    result = made("eval", "report", "one", "--format", "inspect", "--out", "log.json")
    assert result.out.split() == ["log_oracle.json", "log_oracle_0.6.json"]
    log = json.loads((made.folder / "log_oracle_0.6.json").read_text())
    assert (log["version"], log["status"], len(log["samples"])) == (2, "success", 8)
    assert log["samples"][0]["messages"][-1]["role"] == "assistant"
    refused = made("eval", "report", "one", "--format", "inspect")
    assert (refused.code, "name one with --out" in refused.err) == (2, True)


@pytest.mark.skipif(not is_built(), reason="the viewer is not built")
def test_the_page_has_the_runs_that_failed(made: Cli) -> None:
    page = made("report", "one").out
    data = re.search(r'id="data">([^<]+)<', page)
    assert data is not None
    given: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data[1])))
    assert given["start"] == "#/evaluation"
    view = json.loads(given["answers"]["/v1/view/evaluation"])
    failed = [run for kind in view["evaluations"][0]["failures"] for run in kind["run_ids"]]
    assert failed
    assert all(f"/v1/view/runs/{run}/events" in given["answers"] for run in failed)
    both = made("report", "one", "two").out
    assert "one and two: evaluation" in both


def test_expectations_of_a_users_tasks(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.write("trips.py", TRIPS)
    given = ("--task", "trips.py:trips", "--model", "mock:echo", "--out", "e")
    result = cli("eval", *given, "--reward", "calls", "--reward", "final_answer", "--json")
    assert result.code == 0, result
    samples = {line["task"]: line["scores"] for line in result.lines if line["event"] == "sample_graded"}
    assert samples == {
        "trips.py:trips:right": {"calls": 1.0, "final_answer": 1.0},
        "trips.py:trips:wrong": {"calls": 0.0, "final_answer": 1.0},
    }
    view = json.loads(cli("eval", "report", "e", "--format", "json").out)
    (kind,) = view["evaluations"][0]["failures"]
    assert kind["kind"] == "calls: 'weather' has the argument 'days', which is 3"
    again = cli("eval", *given, "--reward", "arguments", "--rescore", "--json")
    assert again.code == 0, again
    # A number as text means the same, and does not fit the schema.
    fits = {line["task"]: line["scores"] for line in again.lines if line["event"] == "sample_graded"}
    assert fits == {"trips.py:trips:right": {"arguments": 0.0}, "trips.py:trips:wrong": {"arguments": 1.0}}


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    for arguments, text in (
        ((), "give a configuration, or options: treadle eval --task files:test"),
        (("--task", "files:tset", "--model", "oracle"), "has no split 'tset'; did you mean 'test'"),
        (("--model", "oracle"), "give tasks, such as 'files:test' (--task)"),
        (("--task", "files:test"), "give a model (--model), such as"),
        (("--rows", "r.jsonl", "--model", "oracle"), "whole conversations: --task conversations:r.jsonl"),
        (("--rows", "none.jsonl", "--model", "mock:echo"), "there is no file 'none.jsonl'"),
        ((*EVAL, "--rescore"), "'evaluation' has no samples to grade again; make them first"),
        ((*EVAL, "--reward", "check=nan"), "the weight of the reward 'check' is nan; give a finite number"),
    ):
        result = cli("eval", *arguments)
        assert (result.code, text in result.err) == (2, True), result
    missing = cli("eval", "report", "nothing")
    assert (missing.code, "has no evaluations; give the folder" in missing.err) == (2, True), missing


BROKEN_TASKS = """
class Task:
    task_set, seed, instructions, tools, files, input = "", None, None, (), {}, "hi"

    def __init__(self, task_id, **parts):
        self.task_id = task_id
        self.__dict__.update(parts)

    def check(self, output, files):
        return 1.0

class Unread(Task):
    @property
    def files(self):
        return {"a": open("absent").read().encode()}

def read(*_):
    open("absent")

def get(task_id, **parts):
    return lambda: [Task(task_id, **parts)]

outside = get("t", files={"../x": b"1"})
nested = get("t", files={"x": b"1", "x/y": b"2"})
number = get("t", files={"x": 5})
unread = lambda: [Unread("t")]
check = get("t", check=read)
steps = get("t", score_steps=read)
user = get("t", reply=read)
tools = get("t", tools=["absent"])
input = get("t", input=5)
instructions = get("t", instructions=5)
seed = get("t", seed="x")
environment = get("t", environment=["absent-program"])
words = get("t", environment="echo hi")
"""


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("outside", r"the files of the task 'b\.py:outside:t' cannot be used: '\.\./x' leaves the sandbox"),
        ("nested", r"the files of the task 'b\.py:nested:t' cannot be used: 'x' is a file"),
        ("number", r"the files of the task 'b\.py:number:t' cannot be used: TypeError"),
        ("unread", r"the files of the task 'b\.py:unread:t' cannot be used: FileNotFoundError.* 'absent'"),
        ("check", r"the check of the task 'b\.py:check:t' failed .* 'absent'.*b\.py, line 18\)"),
        ("steps", r"the check of the task 'b\.py:steps:t' failed .* 'absent'"),
        ("user", r"the user of the task 'b\.py:user:t' failed .* 'absent'"),
        ("tools", r"of the task 'b\.py:tools:t' cannot be made: .*'absent'"),
        ("input", r"of the task 'b\.py:input:t' cannot be made: the task's input is 5; give a str"),
        ("instructions", r"of the task 'b\.py:instructions:t' cannot be made: .* is 5; give a str"),
        ("seed", r"of the task 'b\.py:seed:t' cannot be made: the task's seed is 'x'; give an int"),
        ("environment", r"of the task 'b\.py:environment:t' cannot be made: .*absent-program"),
        ("words", r"the environment of the task 'b\.py:words:t' is 'echo hi'; give a list with the words"),
    ],
)
def test_a_mistake_in_a_task_is_told_once_with_its_name(tmp_path: Path, part: str, told: str) -> None:
    cli = Cli(tmp_path)
    cli.write("b.py", BROKEN_TASKS)
    found = cli("eval", "--task", f"b.py:{part}", "--model", "mock:echo")
    assert found.code == (1 if part == "environment" else 2), found
    assert re.fullmatch(rf"error: .*{told}.*\n", found.err), found
    assert "tried again" not in found.out + found.err


@pytest.mark.parametrize(("window", "end"), [(2, "go on with: treadle eval"), (3, "nothing is missing")])
def test_ctrl_c_counts_the_samples_in_flight_before_the_first_has_ended(
    tmp_path: Path, window: int, end: str
) -> None:
    cli = Cli(tmp_path)
    check = "    open(task.task_id, 'w').close()\n    while not os.path.exists('go'):\n"
    check += "        time.sleep(0.01)\n    return 1\n"
    cli.write(
        "slow.py",
        f"import os, time\nfrom treadle.tasks import SimpleTask\ndef check(task, output, files):\n{check}"
        "TASKS = [SimpleTask(task_id=f't-{n}', input='hi', grader=check) for n in range(3)]\n",
    )
    process = cli.start(
        "eval", "--task", "slow.py:TASKS", "--model", "mock:echo", "--window", str(window), "--out", "e"
    )
    while not all((tmp_path / f"t-{number}").exists() for number in range(window)):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.stderr
    told = process.stderr.readline()
    (tmp_path / "go").touch()
    _, rest = process.communicate(timeout=120)
    assert told.startswith(f"stopping: {window} samples in flight will be finished"), told
    assert (process.returncode, rest.count(f"interrupted; {end}")) == (130, 1), rest


def test_reports_are_written_at_the_end(made: Cli) -> None:
    """The same command writes them again, without a model."""
    files = [f"{form}=reports/one.{form}" for form in ("csv", "json", "markdown", "deepfabric", "inspect")]
    again = [*EVAL, *REWARDS, "--epochs", "2", "--seed", "1", "--name", "one", "--out", "one"]
    result = made("eval", *again, "--json", *[part for given in files for part in ("--report", given)])
    assert result.code == 0, result
    assert all(json.loads(line) for line in result.out.splitlines())
    written = [line.removeprefix("report written: ") for line in result.err.splitlines() if "written" in line]
    assert [*map(Path, written)] == [
        *(Path("reports") / f"one.{form}" for form in ("csv", "json", "markdown")),
        *(
            Path("reports") / f"one_oracle{rest}.{form}"
            for form in ("deepfabric", "inspect")
            for rest in ("", "_0.6")
        ),
    ]
    folder = made.folder / "reports"
    heads, *lines = csv.reader(io.StringIO((folder / "one.csv").read_text()))
    wanted = ["run_id", "task", "model", "epoch", "score", "check", "tool_use", "stop_reason", "failure"]
    assert heads[: len(wanted)] == wanted
    assert [line[0] for line in lines] == [f"one-{number}" for number in range(1, 17)]
    assert (folder / "one.json").read_text() == made("eval", "report", "one", "--format", "json").out
    names = sorted(path.name for path in folder.iterdir())
    both = [f"one_oracle{rest}.{form}" for form in ("deepfabric", "inspect") for rest in ("", "_0.6")]
    assert names == sorted(["one.csv", "one.json", "one.markdown", *both])
    found = json.loads((folder / "one_oracle.deepfabric").read_text())
    assert found["metrics"]["overall_score"] == 1
    assert found["predictions"][0]["predicted_tool"] == "list_files"
    assert made("eval", "report", "one", "--format", "csv").out == (folder / "one.csv").read_text()


def test_the_agreement_with_labels_is_measured(made: Cli) -> None:
    labels = made.folder / "labels.csv"
    runs = list(csv.DictReader(io.StringIO(made("eval", "report", "one", "--format", "csv").out)))
    said = ["yes", "No", "", "1"]
    labels.write_text(
        "\n".join(["note,run_id,label", *[f"x,{run['run_id']},{said[n % 4]}" for n, run in enumerate(runs)]])
    )
    measure = ("eval", "report", "one", "--labels", "labels.csv")
    found = json.loads(made(*measure, "--format", "json").out)
    # The check of all 16 samples is 1, and 4 of 12 labels say no.
    assert (found["check"]["share"]["samples"], found["check"]["share"]["mean"]) == (
        12,
        pytest.approx(8 / 12),
    )
    assert found["check"]["kappa"] == 0
    assert re.search(r"^check +12 +0\.667 \[.*\] +0\.000$", made(*measure).out, re.MULTILINE)
    for text, told in (
        ("run_id,label\none-1,maybe\n", "line 2: the label is 'maybe'"),
        ("run,label\none-1,yes\n", "needs the columns 'run_id' and 'label'"),
        ("run_id,label\nother-1,yes\n", "no sample with a score in 'one' has a label"),
    ):
        labels.write_text(text)
        wrong = made(*measure)
        assert (wrong.code, told in wrong.err) == (2, True), wrong


def test_names_of_scorers_and_models_hide_no_other_figure(tmp_path: Path) -> None:
    """A scorer may have the name of a column, and the files of two models the same letters."""
    cli = Cli(tmp_path)
    (tmp_path / "trips.py").write_text(TRIPS)
    (tmp_path / "own.py").write_text(
        "from treadle.scoring.protocol import Score\n\ndef score(subject):\n    return Score(0.25, 'a quarter')\n"
    )
    (tmp_path / "eval.yaml").write_text(
        'models: {"a b": "mock:echo", "a:b": "mock:echo"}\ntasks: [trips.py:trips]\n'
    )
    forms = ("csv", "inspect", "json")
    reports = [part for form in forms for part in ("--report", f"{form}=one.{form}")]
    done = cli("eval", "eval.yaml", "--reward", "own.py:score", "--reward", "calls", *reports)
    assert done.code == 0, done
    lines = list(csv.DictReader(io.StringIO((tmp_path / "one.csv").read_text())))
    figures = [(line["score"], line["calls_score"], line["score_score"], line["calls"]) for line in lines]
    assert figures == [("0.625", "1.0", "0.25", "1")] * 2 + [("0.125", "0.0", "0.25", "1")] * 2
    logs = [json.loads((tmp_path / f"one_a_b{rest}.inspect").read_text()) for rest in ("", "_2")]
    assert [log["eval"]["model"] for log in logs] == ["a b", "a:b"]
    scores = logs[0]["samples"][1]["scores"]
    assert {name: item["value"] for name, item in scores.items()} == {
        "score": 0.125,
        "calls": 0.0,
        "score_score": 0.25,
    }
    (evaluation,) = json.loads((tmp_path / "one.json").read_text())["evaluations"]
    (kind,) = [item for item in evaluation["failures"] if "days" in item["kind"]]
    assert kind["example"] == "'weather' has the argument 'days', which is 3"
    assert kind["kind"] == f"calls: {kind['example']}"


def test_a_report_that_cannot_be_written_keeps_no_other_back(made: Cli) -> None:
    again = [*EVAL, *REWARDS, "--epochs", "2", "--seed", "1", "--name", "one", "--out", "one"]
    made.write("taken", "")
    given = ("csv=taken/one.csv", "otel", "markdown=kept/one.md")
    found = made("eval", *again, *[part for report in given for part in ("--report", report)])
    assert found.code == 1, found
    assert "error: cannot write the report 'csv=taken/one.csv': " in found.err
    assert "error: cannot write the report 'otel': the process has no provider of OpenTelemetry" in found.err
    assert "report written: kept/one.md\n" in found.err
    assert "look at the samples: treadle view one\n" in found.err
    assert (made.folder / "kept/one.md").read_text().startswith("# one")


def test_curves_are_written_at_the_end(made: Cli) -> None:
    again = [*EVAL, *REWARDS, "--epochs", "2", "--seed", "1", "--name", "one", "--out", "one"]
    result = made("eval", *again, "--report", "tensorboard=curves")
    if result.code:
        assert "pip install 'treadle[tensorboard]'" in result.err
    else:
        assert list((made.folder / "curves" / "one").glob("events.*"))


def test_several_mistakes_in_options_are_told_together(tmp_path: Path) -> None:
    given = ("--task", "files", "--model", "oracle", "--set", "window=x", "--set", "epochs=0")
    refused = Cli(tmp_path)("eval", *given)
    assert refused.code == 2
    assert refused.err.startswith("error: the options have 2 mistakes:\n--set epochs: ")


def test_a_dry_run_checks_what_needs_no_answer(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    (tmp_path / "desk.py").write_text(
        "from treadle.tasks import SimpleTask\n"
        "TASKS = [SimpleTask(task_id='a', input='hi', tools=['mcp:no-such-server x'])]\n"
    )
    for command, tasks, planned in (
        (("eval", "--epochs", "3"), "files:csv_sum-000*", ("samples", 30)),
        (("rollout", "--groups", "3", "--set", "group_size=5"), "files:csv_sum-000*", ("rollouts", 15)),
    ):
        dry = (*command, "--model", "mock:echo", "--out", "out", "--dry-run")
        shown = cli(*dry, "--task", tasks)
        assert shown.code == 0, shown
        assert re.search(rf"^{planned[0]} +{planned[1]}$", shown.out, re.MULTILINE)
        assert "not checked: whether keys are valid and servers answer" in shown.err
        (plan,) = [json.loads(line) for line in cli(*dry, "--task", tasks, "--json").out.splitlines()]
        assert (plan["plan"][planned[0]], plan["plan"]["tools"]) == (planned[1], ["files"])
        lost = cli(*dry, "--task", "desk.py:TASKS")
        assert lost.code == 2
        assert "the command 'no-such-server' of the MCP server" in lost.err
        own = cli(
            *command, "--model", "mock:echo", "--task", tasks, "--set", 'agent.tools=["desk.py", "shel"]'
        )
        assert own.code == 2
        assert "--set agent.tools.1: unknown toolset 'shel'; did you mean 'shell'" in own.err
        refused = cli(*dry, "--task", tasks, "--workers", "local:0")
        assert (refused.code, "--workers: workers '" in refused.err) == (2, True), refused
        assert not (tmp_path / "out").exists()
    for odd in (("eval", "--rescore"), ("rollout", "--demo"), ("rollout", "--retry-failed")):
        assert f"out {odd[1]}" in (refused := cli(*odd, "--dry-run")).err or "leave one" in refused.err
        assert refused.code == 2


@pytest.mark.parametrize(("tools", "is_told"), [("['files']", True), ("[]", False)])
def test_a_model_that_never_calls_its_tools_is_named(tmp_path: Path, tools: str, is_told: bool) -> None:
    """A template that hides the tools looks like a weak model."""
    (tmp_path / "own.py").write_text(
        "from treadle.tasks import SimpleTask\n"
        f"TASKS = [SimpleTask(task_id=f't-{{n}}', input='say no', tools={tools}, data={{'answer': 'yes'}})\n"
        "         for n in range(3)]\n"
    )
    done = Cli(tmp_path)("eval", "--task", "own.py:TASKS", "--model", "mock:echo", "--reward", "final_answer")
    assert done.code == 0, done
    assert ("mock:echo: no tool was called in any sample" in done.out) is is_told


async def test_models_on_a_server_of_the_user_need_no_file(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    given = ("eval", "--task", "files:csv_sum-0001")
    async with serve(lambda _: Reply(answer("no"))) as server:
        models = ("--model", "ollama:one", "--model", "ollama:two", "--base-url", server.base_url)
        done = await asyncio.to_thread(cli, *given, *models)
        asked = {request.json()["model"] for request in server.requests if request.body}
    assert done.code == 0, done
    assert asked == {"one", "two"}
    refused = cli(*given, "--base-url", "http://localhost:1/v1")
    assert refused.code == 2
    assert "--base-url is the address of the models of --model" in refused.err
