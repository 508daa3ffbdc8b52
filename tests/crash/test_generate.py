"""`treadle generate` is killed or interrupted at random times, and the same command goes on.

In the end the number of rows that was asked for is there, no row that was reported is lost, none is doubled, and no
answer of a model was paid for twice, except those that were in flight when the process was killed. The server fails
at three of ten requests. The short form kills a few times, the long form 200 times with SIGKILL and 50 with Ctrl-C.
"""

import ctypes
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.conftest import IS_FULL
from tests.crash.generation import WINDOW, Dataset, Server, count_completions

SAMPLES = 30
SECONDS = 3.0
"""About how long a generation takes without interruptions; kills are spread over it."""
TREADLE = str(Path(sys.executable).with_name("treadle"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def dataset(tmp_path: Path, server: Server) -> Dataset:
    return Dataset(tmp_path, server.url, SAMPLES, Cli(tmp_path).env)


def test_a_generation_that_is_not_interrupted(dataset: Dataset) -> None:
    dataset.finish()
    ...


@pytest.mark.parametrize("number", range(25 if IS_FULL else 1))
def test_killed_at_random_times(number: int, tmp_path: Path) -> None:
    """The generator that this replaces lost all finished rows at a crash, because it kept them in memory."""
    draw = random.Random(number)
    kills = 8 if IS_FULL else 6
    with Server() as server:
        dataset = Dataset(tmp_path, server.url, SAMPLES, Cli(tmp_path).env)
        topics = None
        for _ in range(kills):
            process = dataset.start()
            try:
                process.wait(draw.uniform(0.05, SECONDS / kills * 2))
            except subprocess.TimeoutExpired:
                process.kill()
                assert process.wait() == -signal.SIGKILL, dataset.error
            else:
                assert process.returncode == 0, dataset.error
            dataset.take_output()
            if topics is not None:
                assert dataset.topics() == topics, "the topics changed"
            topics = dataset.topics()
        dataset.finish()
        assert topics in (None, dataset.topics())
        paid, kept = server.answered.total(), count_completions(dataset.path)
        assert paid - kept <= kills * 2 * WINDOW, "answers were lost that were not in flight"
