"""`treadle rollout` is killed or interrupted at random times, and the same command goes on.

In the end every group is in the file once, no group that was reported is lost, and no answer of the model was lost
or sampled again, except those that were in flight when the process was killed. The server fails at three of ten
requests.
"""

import json
import random
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.conftest import IS_FULL
from tests.crash.generation import Server
from tests.forks.process import FORKS, Process

from treadle import open_journal
from treadle.core.events import InferenceCompleted
from treadle.core.types import StopReason
from treadle.rollout.rollout_folder import read_stored

GROUPS, SIZE, WINDOW = 8, 3, 6
SECONDS = 2.0
"""About how long the work takes; the interruptions are spread over it."""


class Work:
    """The rollouts in a folder of their own, and the command that makes them."""

    def __init__(self, folder: Path, url: str, workers: str = "here") -> None:
        self.folder = folder
        self.env = {**Cli(folder).env, "OPENAI_API_KEY": "none"}
        self.reported: set[str] = set()
        """The ids of the groups that were reported as delivered."""
        (folder / "rollout.yaml").write_text(
            f"model: {{model: 'openai:oracle:0.3', base_url: '{url}', max_attempts: 12}}\n"
            f"tasks: ['files:csv_sum-*']\nseed: 5\ngroups: {GROUPS}\ngroup_size: {SIZE}\nwindow: {WINDOW}\n"
            f"workers: '{workers}'\nretries: {{attempts: 10, delay_seconds: 0.01}}\ntree: {{roots: 2}}\n"
            f"held_out: {{tasks: ['files:todo_count-000[0-3]'], share: 0.5}}\nsinks: ['jsonl:rows.jsonl']\n"
        )

    def start(self) -> Process | subprocess.Popen[str]:
        """Start the command. Its output goes to files, which a kill does not lose."""
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            return FORKS.start(
                "-m", "treadle", "rollout", "rollout.yaml", "--json",
                cwd=self.folder, env=self.env, stdout=out.fileno(), stderr=err.fileno(),
            )  # fmt: skip

    def run(self, seconds: float | None = None, signals: Sequence[int] = ()) -> int:
        """Run the command, send it signals after a time, and return its exit code."""
        process = self.start()
        try:
            process.wait(seconds or 120)
        except subprocess.TimeoutExpired:
            for number in signals:
                process.send_signal(number)
            process.wait(120)
        for line in self.read_output():
            if line["event"] == "group_ended" and line["status"] == "delivered":
                self.reported.add(line["group_id"])
        assert process.returncode is not None
        return process.returncode

    def read_output(self) -> list[Any]:
        text = (self.folder / "out").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def error(self) -> str:
        return (self.folder / "err").read_text()

    def finish(self) -> int:
        """Run the command to its end, check everything, and return the number of answers in the journal."""
        assert self.run() == 0, self.error
        assert self.read_output()[-1]["delivered"] == GROUPS
        folder = self.folder / "rollouts"
        lines = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
        ids = [line["group_id"] for line in lines]
        assert sorted(ids) == sorted(f"rollout-{number}" for number in range(1, GROUPS + 1))
        assert self.reported <= set(ids)
        runs = [rollout["run_id"] for line in lines for rollout in line["rollouts"]]
        assert len(set(runs)) == len(runs) == GROUPS * SIZE
        assert {rollout["reward"] for line in lines for rollout in line["rollouts"]} == {1.0}
        rows = [json.loads(line) for line in (self.folder / "rows.jsonl").read_text().splitlines()]
        branches = [(row["branch_run_id"], row["branch"]) for row in rows]
        assert len(set(branches)) == len(branches)
        assert {row["run_id"] for row in rows} == set(runs)
        # The server reports no version, so that the weights are evaluated at first and at last.
        found = [(item.score.mean, item.score.samples) for item in read_stored(folder).held_out if item.score]
        assert found == [(1.0, 4), (1.0, 4)]
        answers = 0
        with open_journal(folder / "runs.db", must_exist=True) as journal:
            held_out = [f"rollout-held-{number}-{index}" for number in (1, 2) for index in range(4)]
            assert sorted(info.run_id for info in journal.runs()) == sorted([*runs, *held_out])
            for info in journal.runs():
                assert info.stop_reason == StopReason.COMPLETED
                events = journal.read(info.run_id)
                parent = events[0].body.parent
                answers += sum(
                    isinstance(event.body, InferenceCompleted)
                    for event in events[0 if parent is None else parent.seq :]
                )
        return answers


@pytest.mark.parametrize("number", range(20 if IS_FULL else 1))
def test_killed_at_random_times(number: int, tmp_path: Path) -> None:
    draw = random.Random(number)
    kills = 6 if IS_FULL else 4
    with Server(0.03) as server:
        work = Work(tmp_path, server.url)
        for _ in range(kills):
            code = work.run(draw.uniform(0.1, 2 * SECONDS / kills), [signal.SIGKILL])
            assert code in (0, -signal.SIGKILL), work.error
        answers = work.finish()
        lost = server.answered.total() - answers
        assert 0 <= lost <= kills * WINDOW, "answers were sampled that are not in the journal"


@pytest.mark.sets(0)
def test_interrupted_once_and_twice(tmp_path: Path) -> None:
    """Ctrl-C once finishes what is in flight, so no answer is lost; twice stops at once."""
    with Server(0.03) as server:
        work = Work(tmp_path, server.url)
        assert work.run(SECONDS / 6, [signal.SIGINT]) in (0, 130), work.error
        first = server.answered.total()
        assert work.run(SECONDS / 6, [signal.SIGINT, signal.SIGINT]) in (0, 130), work.error
        assert "Traceback" not in work.error
        answers = work.finish()
        assert first <= answers
        assert 0 <= server.answered.total() - answers <= WINDOW


def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    result = Cli(tmp_path)(
        "rollout", "--task", "files", "--model", "openai:oracle", "--base-url", "http://127.0.0.1:9/v1",
        env={"OPENAI_API_KEY": "none"},
    )  # fmt: skip
    assert (result.code, "is the server running?" in result.err) == (1, True), result


def test_a_server_that_dies_is_a_failure_and_no_reward(tmp_path: Path) -> None:
    server = Cli(tmp_path).start("mock", "--port", "0", "--latency", "0.03")
    assert server.stdout is not None
    work = Work(tmp_path, server.stdout.readline().strip())
    config = (tmp_path / "rollout.yaml").read_text()
    config = config.replace("max_attempts: 12", "max_attempts: 2").replace("attempts: 10", "attempts: 2")
    (tmp_path / "rollout.yaml").write_text(config.replace(f"groups: {GROUPS}", "groups: 1000"))
    process = work.start()
    while not any(line["event"] == "group_ended" for line in work.read_output()):
        assert process.poll() is None, work.error
        threading.Event().wait(0.02)
    server.kill()
    server.communicate()
    assert process.wait(120) == 1
    assert "too many groups failed, the last one with: infrastructure: run rollout-" in work.error
    assert "go on later with: treadle rollout rollout.yaml" in work.error
    notices = work.read_output()
    assert {line["reward"] for line in notices if line["event"] == "rollout_ended"} == {1.0}
    ended = [line for line in notices if line["event"] == "group_ended"]
    assert {line["status"] for line in ended} == {"delivered", "failed"}
    assert all(line.get("rewards", []) == [] for line in ended if line["status"] == "failed")
