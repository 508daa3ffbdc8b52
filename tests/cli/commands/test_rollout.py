"""`treadle rollout`: its options and mistakes, its views, and its report."""

import json
import signal
import time
from pathlib import Path

import msgspec
import pytest
from rich.text import Text
from tests.cli.command import Cli
from tests.testbed.threaded import ThreadedServer
from tests.viewer.pages import IS_BUILT, NEEDS_VIEWER, read_answers

from treadle.cli.jobs.rolling import write_group
from treadle.cli.terminal.job_view import JobBoard, NewestFeed, Pace, TextLines, write_counts
from treadle.rollout.rollout_progress import GroupEnded, RolloutProgress, RolloutRetried, Started
from treadle.testbed.engines import ENGINES, EngineSettings
from treadle.viewer.viewed_data import ViewedData

GIVEN = (
    "rollout",
    "--task",
    "files:csv_sum-*",
    "--model",
    "oracle:0.2",
    "--groups",
    "3",
    "--group-size",
    "2",
)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def test_a_rollout_says_what_it_made_and_goes_on_with_more(cli: Cli) -> None:
    result = cli(*GIVEN)
    assert result.code == 0, result
    assert "rollout: 3 of 3 groups · reward 1.000 ± 0.000 · solved once 100%" in result.out
    assert "treadle rollout report rollouts" in result.err
    assert "3 without variance" in result.out
    alone = cli(*GIVEN, "--deliver", "rollout", "--out", "alone")
    assert "6 of 6 rollouts" in alone.out
    assert "variance" not in alone.out
    more = cli(*GIVEN[:-4], "--groups", "5", "--group-size", "2")
    assert "5 of 5 groups" in more.out
    assert len((cli.folder / "rollouts" / "groups.jsonl").read_text().splitlines()) == 5


def test_a_finished_folder_says_that_another_model_made_nothing(cli: Cli) -> None:
    """The counts are those of the earlier call, and would be taken for those of the other model."""
    assert "nothing to do" not in cli(*GIVEN).err
    again = cli(*GIVEN, "--model", "mock:mediocre")
    assert "3 of 3 groups · reward 1.000" in again.out
    assert (
        "nothing to do: all 3 groups were delivered by earlier calls, with the options of those" in again.err
    )
    assert "nothing to do" not in cli(*GIVEN, "--quiet").err
    assert "nothing to do" not in cli(*GIVEN, "--groups", "4").err


def test_json_has_a_line_for_each_notice_and_a_summary(cli: Cli) -> None:
    lines = cli(*GIVEN, "--json").lines
    assert [line["event"] for line in lines if line["event"] != "rollout_ended"] == [
        "started", "group_ended", "group_ended", "group_ended", "summary",
    ]  # fmt: skip
    assert sum(line["event"] == "rollout_ended" for line in lines) == 6
    assert lines[-1] | {"end": "done", "delivered": 3, "wanted": 3, "no_variance": 3} == lines[-1]
    assert lines[-1]["rewards"]["mean"] == 1.0


def test_quiet_prints_nothing(cli: Cli) -> None:
    result = cli(*GIVEN, "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_all_mistakes_are_told_with_line_and_nearest_key(cli: Cli) -> None:
    cli.write(
        "rollout.yaml",
        "tasks: [files]\ngroup_sizes: 4\nretries:\n  attemps: 3\nmodel: {model: oracle, temprature: 1}\n"
        "deliver: groups\n",
    )
    result = cli("rollout", "rollout.yaml", "--window", "0", "--set", "tree.rots=2")
    assert result.code == 2
    assert result.err.splitlines() == [
        "error: 'rollout.yaml' has 6 mistakes:",
        "--set tree.rots: there is no such key; did you mean 'roots'?",
        "--window: 0 is not possible; it should be greater than or equal to 1",
        "rollout.yaml:2: group_sizes: there is no such key; did you mean 'group_size'?",
        "rollout.yaml:4: retries.attemps: there is no such key; did you mean 'attempts'?",
        "rollout.yaml:5: model.temprature: there is no such key; did you mean 'temperature'?",
        "rollout.yaml:6: deliver: 'groups' is unknown; did you mean 'group'? known are group, rollout",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--task", "fles"), "--task: unknown task set 'fles'; did you mean 'files'?"),
        (
            ("--task", "files:csv_smu-*"),
            "--task: no task of the set 'files' fits 'csv_smu-*'; did you mean 'csv_sum'?",
        ),
        (("--model", "oracel:0.1"), "--model"),
        (("--workers", "locl:2"), "--workers: unknown kind of workers 'locl'; did you mean 'local'?"),
        (("--engine", "local:2"), "no such option: --engine; it is called --workers now."),
        (("--set", "engine=local:2"), "engine: this key is called 'workers' now; rename it"),
        (("--reward", "check", "--reward", "check=2"), "the reward 'check' is given twice"),
        (("--reward", "check=nan"), "the weight of the reward 'check' is nan; give a finite number"),
        (("--reward", "chekc"), "--reward: there is no scorer 'chekc'; did you mean 'check'?"),
        (("--set", "tree={roots: 9}"), "tree.roots: 9 is more than group_size, which is 2"),
        (("--deliver", "rollout", "--set", "no_variance=drop"), "a single rollout has no variance"),
        (("--name", "a/b"), "--name: 'a/b' is not possible"),
        (("--temperature", "-1"), "--temperature"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_made(
    cli: Cli, options: tuple[str, ...], said: str
) -> None:
    result = cli(*GIVEN, *options)
    assert result.code == 2, result
    assert said in result.err
    assert not (cli.folder / "rollouts").exists()


def test_without_anything_the_command_says_how_to_begin(cli: Cli) -> None:
    assert "treadle rollout --task files --model MODEL" in cli("rollout").err


def test_a_missing_model_is_told_by_its_key(cli: Cli) -> None:
    found = cli("rollout", "--task", "files")
    assert found.code == 2, found
    assert found.err.startswith("error: model: there is no model")


def test_the_schema_knows_the_keys(cli: Cli) -> None:
    schema = json.loads(cli("schema", "rollout").out)
    assert {"tasks", "group_size", "max_staleness", "curriculum"} <= schema["properties"].keys()
    assert all("description" in value for value in schema["properties"].values())


@NEEDS_VIEWER
def test_the_report_shows_the_groups(cli: Cli) -> None:
    cli(*GIVEN)
    result = cli("rollout", "report", "rollouts", "--json")
    assert result.lines == [{"report": "rollouts/report.html", "groups": 3}]
    page = (cli.folder / "rollouts" / "report.html").read_text()
    assert "/v1/view/rollouts/rollout-2/rollout-2-0" in read_answers(page)
    done = cli("report", "rollouts", "--out", "again.html")
    assert (done.code, done.out) == (0, "again.html\n")
    answers = read_answers((cli.folder / "again.html").read_text())
    assert answers == read_answers(page)
    # A page that asks a server is told the same.
    data = ViewedData([cli.folder / "rollouts"])
    assert data.describe() == {"pages": ["runs", "rollouts"], "start": "#/rollouts"}
    with data.open_journals([]) as (journal,):
        asked = msgspec.json.decode(msgspec.json.encode(data.rollouts(journal, 0, 100)))
        assert {**asked, "folder": "rollouts"} == answers["/v1/view/rollouts"]
        body = msgspec.json.decode(msgspec.json.encode(data.rollout(journal, "rollout-2", "rollout-2-0")))
        assert body == answers["/v1/view/rollouts/rollout-2/rollout-2-0"]
        assert data.rollout(journal, "rollout-2", "nobody") is None
    assert "has no rollouts" in cli("rollout", "report", "nothing").err


def draw(width: int, height: int, progress: RolloutProgress, *, is_over: bool = False) -> list[str]:
    board = JobBoard("parcels", progress, NewestFeed(GroupEnded, write_group))
    try:
        board.on_notice(Started(groups=4, done=0, tasks=9), progress)
        for number in range(3):
            ended = GroupEnded(
                group_id=f"parcels-{number}",
                task="files:a\x1b[31m",
                status="delivered",
                rewards=(0.0, 1.0, None),
            )
            board.on_notice(ended, progress)
        lines: list[Text] = board.lines(width, height, is_over=is_over)
    finally:
        board.close()
    return [line.plain for line in lines]


def test_the_board_fits_any_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RolloutProgress(
        wanted=4, kept=2, in_flight=7, on_model=5, on_tools=2, graded_groups=2, solved_once=1
    )
    progress.rewards.add(1.0)
    progress.rewards.add(0.0)
    progress.weight_version, progress.staleness, progress.oldest = "step-3", 1, 2
    progress.rejected, progress.reasons = 2, {"stale": 2}
    lines = draw(100, 24, progress)
    assert "2 of 4 groups · reward 0.500 ± 0.707 · solved once 50%" in lines[0]
    assert "weights step-3 · staleness 1 (at most 2)" in lines[1]
    assert "7 in flight · 2 dropped (stale 2) · 5 wait for the model, 2 for tools" in lines[2]
    assert "parcels-2 ▁█· files:a" in lines[-2]
    assert lines[-1].startswith("Ctrl-C finishes")
    for width in (5, 30, 80):
        for height in (2, 5, 9):
            assert len(draw(width, height, progress)) <= max(3, height - 1)


def test_lines_in_a_pipe_have_all_counts() -> None:
    parts = [
        part
        for line in write_counts(RolloutProgress(wanted=2, kept=2), Pace(), is_over=True)
        for part in line
    ]
    assert parts[0] == "2 of 2 groups"


def test_the_demo_goes_from_tasks_to_a_report(cli: Cli) -> None:
    result = cli("rollout", "--demo", "--groups", "3", "--group-size", "2", "--json")
    assert result.code == 0, result
    assert "kill -9" in result.err
    assert result.lines[-1]["groups"] == 3
    rows = [json.loads(line) for line in (cli.folder / "rollout-demo/rollouts/rows.jsonl").open()]
    assert len(rows) == 6
    assert "sampled tokens with the engine's ids and logprobs" in result.err
    assert "6 token-exact branches of 6 rollouts" in result.err
    assert (cli.folder / "rollout-demo/rollouts/report.html").exists() is IS_BUILT


def test_the_demo_removes_no_rollouts_of_others(cli: Cli) -> None:
    given = ("--task", "files:csv_sum-0001", "--model", "oracle", "--groups", "1", "--group-size", "1")
    assert cli("rollout", *given).code == 0
    result = cli("rollout", "--demo", "--groups", "1", "--group-size", "1", "--out", ".")
    assert (result.code, "'rollouts' is not of a demonstration" in result.err) == (2, True), result
    assert len((cli.folder / "rollouts/groups.jsonl").read_text().splitlines()) == 1


def test_a_stop_says_which_groups_no_sink_has_taken(cli: Cli) -> None:
    """Nothing is lost: the groups stay in the folder, and the same command goes on to deliver them."""
    with ThreadedServer(ENGINES["vllm"](EngineSettings())) as server:
        process = cli.start(
            *("rollout", "--task", "files:csv_sum-*", "--groups", "2", "--group-size", "2"),
            *("--model", "vllm:oracle", "--base-url", server.url, "--sink", "atropos:http://127.0.0.1:9"),
        )
        groups = cli.folder / "rollouts" / "groups.jsonl"
        while not groups.exists() or len(groups.read_text().splitlines()) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; 2 groups not taken by a sink yet; go on with: treadle rollout --task" in err


def test_what_a_stop_does_is_said() -> None:
    assert "the groups of 3 rollouts in flight" in RolloutProgress(in_flight=3, undelivered=1).stopping()
    assert "1 group that no sink has taken stays" in RolloutProgress(undelivered=1).stopping()
    assert "2 groups that no sink has taken stay" in RolloutProgress(undelivered=2).stopping()
    assert "as soon as nothing is in flight" in RolloutProgress().stopping()


def test_an_error_of_many_rollouts_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = TextLines("name")
    for number in range(3):
        lines.on_notice(RolloutRetried(run_id=f"run-{number}", attempt=1, error="refused"), RolloutProgress())
    lines.on_notice(RolloutRetried(run_id="run-3", attempt=1, error="slow"), RolloutProgress())
    out, _ = capsys.readouterr()
    assert out.splitlines() == ["name: run-0 is tried again: refused", "name: run-3 is tried again: slow"]


def test_the_end_of_an_error_is_printed_and_a_longer_one_is_marked_as_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = TextLines("name")
    for error in ("x" * 300 + ". Give another address", "y" * 3_000):
        lines.on_notice(RolloutRetried(run_id="run-0", attempt=1, error=error), RolloutProgress())
    out, _ = capsys.readouterr()
    whole, cut = out.splitlines()
    assert whole.endswith("Give another address")
    assert cut.endswith("y…")
    assert len(cut) < 600


def test_an_export_has_the_rewards_that_were_delivered(cli: Cli) -> None:
    """Rewards have weights, which an export of the journal must not forget."""
    weights = ("--reward", "check=0.5", "--reward", "tool_use=0", "--set", "tree={roots: 1}")
    assert cli(*GIVEN, *weights).code == 0
    exported = cli("export", "--all", "--journal", "rollouts/runs.db", "--format", "tokens").lines
    lines = (cli.folder / "rollouts" / "groups.jsonl").read_text().splitlines()
    delivered = {item["run_id"]: item["reward"] for line in lines for item in json.loads(line)["rollouts"]}
    assert {row["run_id"]: row["reward"] for row in exported} == delivered
    assert set(delivered.values()) == {0.5}


def test_a_reward_keeps_its_weight_when_it_gets_settings(cli: Cli) -> None:
    missing = cli(*GIVEN, "--reward", "length=0.5")
    assert "the reward 'length' needs the setting 'max_tokens'" in missing.err
    assert "--set rewards.length.max_tokens=..." in missing.err
    made = cli(*GIVEN, "--reward", "length=0.5", "--set", "rewards.length.max_tokens=100000")
    assert "reward 0.500 ± 0.000" in made.out
