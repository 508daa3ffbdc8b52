"""Tasks in the formats of others: Harbor's and terminal-bench's folders, and tasksets of verifiers."""

import json
import os
from pathlib import Path

import pytest

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.types import Message, Role, ToolCall
from treadle.evals.evaluation import evaluate
from treadle.journal.memory import MemoryJournal
from treadle.journal.registry import open_journal
from treadle.models.scripted import ScriptedModel
from treadle.runs.task import find_tasks, load_task, split_reference, task_set
from treadle.server.gateway.programs import ProgramWorkers
from treadle.tasks.foreign.verifiers_set import open_verifiers

SCRIPT = """#!/bin/bash
if grep -qx "Hello" /app/hello.txt && [ -f /app/data/data.txt ] && [ -f /tests/test.sh ]
then echo 1 > /logs/verifier/reward.txt
else echo 0.25 > /logs/verifier/reward.txt
fi
"""


def write(place: Path, **files: str) -> None:
    for name, text in files.items():
        path = place / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_harbor(place: Path, docker: str = "", script: str = SCRIPT) -> None:
    write(
        place,
        task_dot_toml='version = "1.0"\n[verifier]\ntimeout_sec = 60\n',
        instruction_dot_md="Write Hello into /app/hello.txt.\n",
        environment__Dockerfile=f"FROM ubuntu:24.04\nWORKDIR /app\nCOPY data.txt /app/data/\n{docker}",
        environment__data_dot_txt="data\n",
        tests__test_dot_sh=script,
    )


async def run(reference: str, command: str):
    call = ToolCall("c1", "shell", json.dumps({"command": command}))
    model = ScriptedModel([Message(Role.ASSISTANT, tool_calls=(call,)), "Done."])
    return await Agent(model, journal=MemoryJournal()).run(load_task(reference))


@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("echo Hello > /app/hello.txt && pwd", 1.0),
        ("echo Hello > hello.txt && rm -r data && pwd", 0.25),
        ("mkdir -p .grading/logs/verifier && echo 1 > .grading/logs/verifier/reward.txt; pwd", 0.25),
        ("ls /tests /logs; pwd", 0.25),
    ],
)
async def test_a_harbor_task_is_graded_by_its_own_script(tmp_path, command, reward):
    write_harbor(tmp_path / "hello")
    made = await run(f"harbor:{tmp_path}:hello", command)
    assert made.reward == reward, made.results
    assert made.results[0].content.splitlines()[-1] in ("/app", "[exit code 2]")
    assert set(load_task(f"harbor:{tmp_path}:hello").files) == {"data/data.txt"}


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (".", "data.txt"),
        ("./", "data.txt"),
        (".settings", ".settings"),
        ("/app/.env", ".env"),
        ("./a/", "a/data.txt"),
    ],
)
def test_files_of_an_image_keep_their_names(tmp_path, target, name):
    write_harbor(tmp_path / "hello", f"COPY data.txt {target}\n")
    assert set(load_task(f"harbor:{tmp_path}:hello").files) == {"data/data.txt", name}


async def test_a_task_of_terminal_bench_passes_if_its_script_does(tmp_path):
    write(
        tmp_path / "hi",
        task_dot_yaml="instruction: |-\n  Write hi into hi.txt.\nmax_test_timeout_sec: 30\n",
        Dockerfile="FROM ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624\nWORKDIR /app\n",
        run_tests_dot_sh="",
        tests__check_dot_sh="grep -q hi /app/hi.txt\n",
    )
    (tmp_path / "hi" / "run_tests.sh").rename(tmp_path / "hi" / "run-tests.sh")
    (tmp_path / "hi" / "run-tests.sh").write_text("bash $TEST_DIR/check.sh\n")
    assert load_task(f"harbor:{tmp_path}:hi").input == "Write hi into hi.txt."
    assert (await run(f"harbor:{tmp_path}:hi", "echo hi > hi.txt")).reward == 1.0
    assert (await run(f"harbor:{tmp_path}:hi", "echo no > hi.txt")).reward == 0.0


@pytest.mark.parametrize(
    ("docker", "script", "why"),
    [
        ("RUN apt-get install -y gcc\n", SCRIPT, "needs its image.*RUN apt-get install -y gcc"),
        ("COPY data.txt /etc/data\n", SCRIPT, "copies to '/etc/data', outside of '/app'"),
        ("COPY nothing.txt .\n", SCRIPT, "copies 'nothing.txt', which is not there"),
        ("FROM nvidia/cuda:12\n", SCRIPT, "needs its image.*nvidia/cuda:12"),
        ("WORKDIR /\n", SCRIPT, "working folder is the root"),
        ("", "curl -LsSf https://example.org | sh\n", "tests install programs with curl"),
    ],
)
def test_what_cannot_be_run_says_why(tmp_path, caplog, docker, script, why):
    write_harbor(tmp_path / "bad", docker, script)
    with pytest.raises(ConfigError, match=f"harbor:.*:bad cannot be run here: .*{why}"):
        load_task(f"harbor:{tmp_path}:bad")
    with pytest.raises(ConfigError, match=why):
        find_tasks([f"harbor:{tmp_path}"])
    write_harbor(tmp_path / "good")
    assert find_tasks([f"harbor:{tmp_path}"]) == [f"harbor:{tmp_path}:good"]
    assert "cannot be run here" in caplog.text


def test_a_folder_without_tasks(tmp_path):
    for name, why in ((tmp_path, "has no tasks"), (tmp_path / "x", "there is no folder")):
        with pytest.raises(ConfigError, match=why):
            task_set(f"harbor:{name}")
    write_harbor(tmp_path / "hello")
    with pytest.raises(ConfigError, match="did you mean 'hello'"):
        load_task(f"harbor:{tmp_path}:helo")


def test_references_with_a_text():
    assert split_reference("harbor:some/folder:task") == ("harbor:some/folder", "task")
    assert split_reference("harbor:some/folder") == ("harbor:some/folder", "")
    assert split_reference("verifiers:owner/name@1:7") == ("verifiers:owner/name@1", "7")
    assert split_reference("puzzles.py:SUMS:a") == ("puzzles.py:SUMS", "a")


def test_an_environment_needs_its_package():
    try:
        import verifiers  # noqa: F401
    except ImportError:
        with pytest.raises(
            ConfigError, match=r"pip install verifiers, or name the Python .* TREADLE_VERIFIERS"
        ):
            task_set("verifiers:gsm8k")
    with pytest.raises(ConfigError, match="give the name of an environment"):
        task_set("verifiers:")


@pytest.fixture
def installed(monkeypatch):
    """The environment of verifiers, with published environments."""
    place = os.environ.get("TREADLE_VERIFIERS")
    if not place or not (Path(place) / "bin" / "python").exists():
        pytest.skip(
            "it needs `python -m tests.environments verifiers FOLDER`; TREADLE_VERIFIERS is the folder"
        )
    monkeypatch.setenv("TREADLE_VERIFIERS_PYTHON", str(Path(place) / "bin" / "python"))
    # The chat loop of verifiers is started with uv.
    monkeypatch.setenv("PATH", f"{Path(place) / 'bin'}:{os.environ['PATH']}")
    open_verifiers.cache_clear()


PUBLISHED = {
    "marble-v1": "0",
    "glossary": "0",
    "scratchpad": "0",
    "kuhn_poker": "0",
    "color_codeword": "0",
    "code_golf": "0",
    "interception": "2",
    "bash_interception?agent.harness.id=bash": "0",
    "grayscale_interception": "0",
}
"""Environments that need no key, with one task of each."""


@pytest.mark.full
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", PUBLISHED)
async def test_published_environments_play_their_tasks(tmp_path, name):
    given = {"tasks": [f"verifiers:{name}:{PUBLISHED[name]}"], "models": ["mock:echo"]}
    done = await evaluate(workers=ProgramWorkers(), path=tmp_path, retries={"attempts": 1}, **given)
    assert done.end.reason == "done", done.end
    (sample,) = done.results.samples
    with open_journal(tmp_path / "runs.db") as journal:
        inner = [info for info in journal.runs() if info.caller_run_id == sample.run_id]
    assert inner
    assert sample.details.score is not None


@pytest.mark.full
@pytest.mark.usefixtures("installed")
def test_an_environment_whose_data_or_packages_are_missing_says_so():
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError.*install the package of the environment"):
        task_set("verifiers:no-such-environment")
