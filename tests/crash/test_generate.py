"""`treadle generate` is killed or interrupted at random times, and the same command goes on.

In the end the number of rows that was asked for is there, no row that was reported is lost, none is doubled, and no
answer of a model was lost, except those that were in flight when the process was killed. The server fails at three
of ten requests. The short form kills a few times, the long form 200 times with SIGKILL and 50 times with Ctrl-C.
"""

import ctypes
import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.conftest import IS_FULL
from tests.crash.generation import WINDOW, Dataset, Server, count_completions

SAMPLES, SECONDS = (24, 1.5) if IS_FULL else (8, 1.0)
"""The samples of a generation, and about how long it takes; the interruptions are spread over it."""
FEW_SAMPLES = 5
"""The samples of a generation that is not stopped at a random time."""
TREADLE = str(Path(sys.executable).with_name("treadle"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def dataset(tmp_path: Path, server: Server) -> Dataset:
    return Dataset(tmp_path, server.url, SAMPLES if IS_FULL else FEW_SAMPLES, Cli(tmp_path).env)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Any:
    """The topics of a generation that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    whole = Dataset(folder, server.url, FEW_SAMPLES, Cli(folder).env)
    whole.finish()
    return whole.topics()


def interrupt(dataset: Dataset, seconds: float, signals: list[int]) -> int:
    """Run the command, send it signals after a time, and return its exit code."""
    process = dataset.start()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        for number in signals:
            process.send_signal(number)
        process.wait(120)
    dataset.take_output()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.parametrize("number", range(25 if IS_FULL else 1))
def test_killed_at_random_times(number: int, tmp_path: Path, topics: Any) -> None:
    """DeepFabric lost all finished rows in a crash, because it wrote them only at the end."""
    draw = random.Random(number)
    kills = 8 if IS_FULL else 3
    with Server() as server:
        dataset = Dataset(tmp_path, server.url, SAMPLES, Cli(tmp_path).env)
        for _ in range(kills):
            code = interrupt(dataset, draw.uniform(0, 2 * SECONDS / kills), [signal.SIGKILL])
            assert code in (0, -signal.SIGKILL), dataset.error
        dataset.finish()
        assert dataset.topics() == topics
        lost = server.answered.total() - count_completions(dataset.path)
        assert 0 <= lost <= kills * WINDOW, "answers were paid for that are not in the journal"


@pytest.mark.sets(0)
@pytest.mark.parametrize("number", range(25 if IS_FULL else 1))
def test_interrupted_at_random_times(number: int, tmp_path: Path, topics: Any) -> None:
    """Ctrl-C once finishes what is in flight, so no answer is lost; twice stops at once."""
    draw = random.Random(number)
    with Server() as server:
        dataset = Dataset(tmp_path, server.url, SAMPLES, Cli(tmp_path).env)
        stops = 0
        for signals in ([signal.SIGINT], [signal.SIGINT] * 2):
            code = interrupt(dataset, draw.uniform(0.2, SECONDS / 2), signals)
            stops += len(signals) - 1
            assert code in (0, 130), dataset.error
            assert "Traceback" not in dataset.error
            # On a busy machine, Ctrl-C may come while the command still imports its modules.
            has_begun = dataset.error != "interrupted\n"
            told = ("treadle generate config.yaml", "interrupted; nothing is missing\n")
            assert code == 0 or not has_begun or any([text in dataset.error for text in told]), dataset.error
            assert told[1] not in dataset.error or len(dataset.rows()) == SAMPLES
        dataset.finish()
        assert dataset.topics() == topics
        lost = server.answered.total() - count_completions(dataset.path)
        assert 0 <= lost <= stops * WINDOW, "answers were paid for that are not in the journal"


@pytest.mark.full
def test_the_disk_is_full(dataset: Dataset) -> None:
    """The command says so in one line, and goes on when there is room."""
    failures = 0
    for limit in (200_000, 500_000, 1_000_000):
        process = start(
            dataset, lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        )
        code = process.wait(120)
        dataset.take_output()
        if code != 0:
            failures += 1
            assert code == 1, dataset.error
            assert dataset.error.splitlines()[-1].startswith("error: "), dataset.error
            assert "Traceback" not in dataset.error
    assert failures
    dataset.finish()


@pytest.mark.sets(0)
def test_the_folder_cannot_be_written(dataset: Dataset) -> None:
    dataset.path.mkdir()
    dataset.path.chmod(0o555)
    process = start(dataset, _obey_permissions)
    assert process.wait(120) in (1, 2)
    assert "Traceback" not in dataset.error
    assert dataset.error.startswith("error: "), dataset.error
    assert str(dataset.path.name) in dataset.error, dataset.error
    dataset.path.chmod(0o755)
    dataset.finish()


def test_rows_that_were_deleted_are_missed(dataset: Dataset) -> None:
    """The command does not go on as if they had never been there."""
    process = dataset.start()
    while not dataset.reported and process.poll() is None:
        time.sleep(0.01)
        dataset.take_output()
    process.send_signal(signal.SIGINT)
    process.wait(120)
    rows = dataset.path / "rows.jsonl"
    saved = rows.rename(dataset.folder / "saved.jsonl")
    assert dataset.start().wait() == 1
    assert "lines are missing" in dataset.error
    assert "Traceback" not in dataset.error
    saved.replace(rows)
    dataset.finish()


def test_two_processes_do_not_work_in_one_folder(dataset: Dataset) -> None:
    first = dataset.start(stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    second = dataset.start()
    assert second.wait() == 2
    assert "another process works on" in dataset.error
    lines = [json.loads(line) for line in first.communicate(timeout=120)[0].splitlines()]
    assert first.returncode == 0
    dataset.reported |= {line["sample_id"] for line in lines if line.get("status") == "kept"}
    dataset.check()


def test_a_changed_configuration_is_refused(dataset: Dataset, server: Server) -> None:
    """DeepFabric only warned, and mixed the rows of two configurations."""
    process, answered = dataset.start(), server.answered.total()
    while server.answered.total() == answered:
        assert process.poll() is None, dataset.error
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    config = dataset.folder / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("seed: 7", "seed: 8"))
    assert dataset.start().wait() == 2
    assert "seed" in dataset.error
    assert "--accept-changes" in dataset.error
    config.write_text(before)
    dataset.finish()


def start(dataset: Dataset, prepare: Callable[[], None]) -> "subprocess.Popen[str]":
    """Start the installed command in a process that is prepared by a function."""
    with (dataset.folder / "out").open("w") as out, (dataset.folder / "err").open("w") as err:
        return subprocess.Popen(
            [TREADLE, "generate", "config.yaml", "--json"],
            cwd=dataset.folder, env=dataset.env, stdout=out, stderr=err, preexec_fn=prepare, text=True,
        )  # fmt: skip


def _obey_permissions() -> None:
    """Take from root the right to ignore permissions; other users do not have it."""
    drop_capability = 24
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(drop_capability, capability, 0, 0, 0)
