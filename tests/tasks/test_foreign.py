"""Tasks in the formats of others: Harbor's and terminal-bench's folders."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from treadle.agent.agent import Agent
from treadle.cli.jobs.job_command import find_program_workers
from treadle.core.errors import ConfigError
from treadle.core.types import Message, Role, ToolCall
from treadle.evals import evaluate
from treadle.jobs.sections import AttemptSection
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import ScriptedModel
from treadle.runs.task import find_tasks, load_task, split_reference, task_set
from treadle.sandbox.commands.bubblewrap import ImageRoot
from treadle.scoring.outcome_scorers import FinalStateScorer
from treadle.scoring.protocol import Subject
from treadle.scoring.scorers import CheckScorer
from treadle.tasks.foreign.installers import _debian_packages, _image_packages, find_obstacle
from treadle.testbed import named_oracle, oracle_for

SCRIPT = """#!/bin/bash
if grep -qx "Hello" /app/hello.txt && [ -f /app/data/data.txt ] && [ -f /tests/test.sh ]
then echo 1 > /logs/verifier/reward.txt
else echo 0.25 > /logs/verifier/reward.txt
fi
"""


SUMMARY = """grep -q hi /app/hi.txt && status=PASSED || status=FAILED
echo "=== short test summary info ==="
echo "$status test_outputs.py::test_hi"
"""
UV_SCRIPT = """apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.7.13/install.sh | sh
source $HOME/.local/bin/env
uv venv .tbench-testing
source .tbench-testing/bin/activate
uv run --with pip -p 3.13 bash $TEST_DIR/check.sh
"""


@pytest.fixture(autouse=True)
def _without_images(monkeypatch):
    """What needs an image is refused, also where Docker or Podman could make it."""
    monkeypatch.setenv("TREADLE_IMAGE_BUILDER", "none")


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


async def solve(reference: str):
    task = load_task(reference)
    return await Agent(oracle_for(task), journal=MemoryJournal()).run(task)


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
        tests__check_dot_sh=SUMMARY,
    )
    (tmp_path / "hi" / "run-tests.sh").write_text(UV_SCRIPT)
    (tmp_path / "hi" / "solution.yaml").write_text("- command: echo hi > hi.txt\n- command: ''\n")
    assert load_task(f"harbor:{tmp_path}:hi").input == "Write hi into hi.txt."
    assert (await run(f"harbor:{tmp_path}:hi", "echo hi > hi.txt")).reward == 1.0
    assert (await run(f"harbor:{tmp_path}:hi", "echo no > hi.txt")).reward == 0.0
    assert (await run(f"harbor:{tmp_path}:hi", "echo 'exit 0' > check.sh")).reward == 0.0
    assert (await solve(f"harbor:{tmp_path}:hi")).reward == 1.0


@pytest.mark.parametrize(("last", "reward"), [("", 1.0), ("sleep 60\n", 0.0)])
async def test_tests_of_terminal_bench_that_run_out_of_time_do_not_count(tmp_path, last, reward):
    write(tmp_path / "hi", task_dot_yaml="instruction: Write hi into hi.txt.\nmax_test_timeout_sec: 3\n")
    write(tmp_path / "hi", Dockerfile="FROM ubuntu:24.04\nWORKDIR /app\n", solution_dot_sh="true\n")
    summary = "echo '==== short test summary info ===='; echo 'PASSED tests/a.py::test_a'\n"
    (tmp_path / "hi" / "run-tests.sh").write_text(summary + last)
    assert (await run(f"harbor:{tmp_path}:hi", "true")).reward == reward


async def test_files_outside_of_the_working_folder_and_the_reference_solution(tmp_path):
    write_harbor(
        tmp_path / "far",
        "COPY data.txt /data/in/\nRUN apt-get update && apt-get install -y tmux && mkdir -p /out/a /app/empty\n",
        script="""set -u
python3 -m pip install -q pip 2>/dev/null
[ -d /app/empty ] && [ ! -e /solution ] && cmp /data/in/data.txt /out/a/copy &&
    echo '{"reward": 0.5}' > /logs/verifier/reward.json
echo 1 > /logs/verifier/reward.txt
""",
    )
    write(
        tmp_path / "far",
        solution__solve_dot_sh='#!/bin/bash\ncd /out/a && bash "$(dirname "$0")/more.sh"\n',
        solution__more_dot_sh="ls /app/empty && apt-get install -y gcc && cp /data/in/data.txt copy\n",
    )
    task = load_task(f"harbor:{tmp_path}:far")
    assert set(task.files) == {"data/data.txt", ".root/data/in/data.txt"}
    made = await solve(f"harbor:{tmp_path}:far")
    assert made.reward == 0.5, made.results
    assert made.files[".root/out/a/copy"] == b"data\n"
    assert (await run(f"harbor:{tmp_path}:far", "true")).reward == 1.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ('{"reward": 0.25, "other": 9}', 0.25),
        ("0.5", "wrote a reward that is no number, '0.5'"),
        ('{"a": 1, "b": 0}', 0.5),
        ("true", "wrote a reward that is no number, 'true'"),
        ("NaN", "wrote a reward that is no number, 'NaN'"),
        ("{}", "wrote a reward that is no number, '{}'"),
        ('"x"', "wrote a reward that is no number, '\"x\"'; the end of their output: great"),
        (None, "wrote no reward"),
    ],
)
async def test_rewards_in_json(tmp_path, text, reward):
    script = "true\n" if text is None else f"echo '{text}' > /logs/verifier/reward.json\n"
    write_harbor(tmp_path / "hello", script=script + ("echo great\n" if text == '"x"' else ""))
    task = load_task(f"harbor:{tmp_path}:hello")
    grade = await task.check("", task.files)
    if isinstance(reward, str):
        assert (grade.reward, grade.detail) == (0.0, f"its tests {reward}")
    else:
        assert grade.reward == reward


async def test_a_task_without_a_solution_is_left_out_by_the_oracle_alone(tmp_path, caplog):
    for name in ("nosol", "sol"):
        write_harbor(tmp_path / "tasks" / name)
    write(tmp_path / "tasks" / "sol", solution__solve_dot_sh="echo Hello > /app/hello.txt\n")
    given = {"tasks": [f"harbor:{tmp_path}/tasks"], "path": tmp_path / "out"}
    made = await evaluate(**given, models=["oracle", "mock:echo"])
    assert made.end.reason == "done"
    assert [(item.spec.task[-5:], item.spec.model) for item in made.results.samples] == [
        ("nosol", "mock:echo"),
        ("s:sol", "oracle"),
        ("s:sol", "mock:echo"),
    ]
    assert made.results.models[0].score.mean == 1.0
    assert "1 of 2 tasks have no reference solution, and the oracle leaves them out: harbor:" in caplog.text
    with pytest.raises(ConfigError, match="nosol has no reference solution; give another model"):
        named_oracle("oracle", load_task(f"harbor:{tmp_path}/tasks:nosol"))
    shutil.rmtree(tmp_path / "tasks" / "sol")
    with pytest.raises(ConfigError, match="no task has a reference solution, such as harbor:"):
        await evaluate(**{**given, "path": tmp_path / "none"}, models=["oracle"])


def test_a_named_task_alone_is_loaded_and_warnings_come_once(tmp_path, caplog):
    write_harbor(tmp_path / "good")
    write_harbor(tmp_path / "bad", "RUN make install\n")
    assert find_program_workers(AttemptSection(tasks=[f"harbor:{tmp_path}:good"])) is None
    assert not caplog.text
    for _ in range(3):
        find_tasks([f"harbor:{tmp_path}"])
        find_program_workers(AttemptSection(tasks=[f"harbor:{tmp_path}"]))
    assert caplog.text.count("cannot be run here") == caplog.text.count("1 of the 2 tasks of harbor:") == 1


async def test_a_script_of_an_image_can_be_run(tmp_path):
    write_harbor(tmp_path / "hello", "COPY go.sh .\nRUN chmod +x go.sh\n")
    write(tmp_path / "hello", environment__go_dot_sh="#!/bin/sh\necho Hello > hello.txt\n")
    assert (await run(f"harbor:{tmp_path}:hello", "./go.sh; pwd")).reward == 1.0


async def test_what_a_run_leaves_besides_files_is_graded_too(tmp_path):
    test = "[ -x /app/own ] && [ -L /app/link ] && [ -d /app/empty ] && /tests/helper.sh"
    write_harbor(tmp_path / "hello", script=test)
    write(tmp_path / "hello", tests__helper_dot_sh="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    make = "cp /bin/true own && ln -s own link && mkdir empty; pwd"
    made = await run(f"harbor:{tmp_path}:hello", make)
    assert made.reward == 1.0
    subject = Subject(made, load_task(f"harbor:{tmp_path}:hello"), [], MemoryJournal())
    for scorer in (CheckScorer(), FinalStateScorer()):
        assert (await scorer.score(subject)).reward == 1.0
    assert (await run(f"harbor:{tmp_path}:hello", "true; pwd")).reward == 0.0
    cheat = "mkdir -p own/logs/verifier; echo 1 > own/logs/verifier/reward.txt; ln -s own .grading; pwd"
    assert (await run(f"harbor:{tmp_path}:hello", cheat)).reward == 0.0


async def test_the_python_of_the_tasks_is_an_environment_of_its_own(tmp_path, monkeypatch):
    place = Path(tempfile.mkdtemp(prefix="treadle-env-", dir="/tmp"))
    place.chmod(0o755)
    try:
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", place], check=True)
        kept = next((place / "lib").iterdir()) / "site-packages" / "oddly_named-7.0.dist-info"
        kept.mkdir()
        (kept / "METADATA").write_text("Metadata-Version: 2.1\nName: oddly-named\nVersion: 7.0\n")
        script = (
            "pip install Oddly_Named==7.1\npython3 -c 'import sys; print(sys.prefix)' > /app/prefix\n"
            + SCRIPT
        )
        write_harbor(tmp_path / "hello", script=script)
        with pytest.raises(
            ConfigError, match=r"tests install what is not here: Oddly_Named; .*TREADLE_HARBOR_ENV"
        ):
            load_task(f"harbor:{tmp_path}:hello")
        monkeypatch.setenv("TREADLE_HARBOR_ENV", str(place))
        made = await run(f"harbor:{tmp_path}:hello", "echo Hello > hello.txt; which python3; pwd")
        assert made.reward == 1.0
        assert "/usr/local/bin/python3" in made.results[0].content
        monkeypatch.setenv("TREADLE_HARBOR_ENV", str(tmp_path))
        with pytest.raises(ConfigError, match="has no bin/python3"):
            load_task(f"harbor:{tmp_path}:hello")
        if os.geteuid() == 0:
            monkeypatch.setenv("TREADLE_HARBOR_ENV", str(place))
            place.chmod(0o700)
            with pytest.raises(ConfigError, match=f"run as another user than root, cannot read '{place}'"):
                load_task(f"harbor:{tmp_path}:hello")
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("docker", "script", "why"),
    [
        ("RUN apt-get install -y no-such-program\n", SCRIPT, "apt install no-such-program"),
        ("RUN pip install -q no-such-package==1\n", SCRIPT, "not here: no-such-package; make a Python"),
        ("RUN make install\n", SCRIPT, "needs its image.*RUN make install"),
        ("COPY data.txt /etc/data\n", SCRIPT, "files in '/etc/data', which the sandbox has itself"),
        ("COPY nothing.txt .\n", SCRIPT, "copies 'nothing.txt', which is not there"),
        ("FROM nvidia/cuda:12\n", SCRIPT, "needs its image.*nvidia/cuda:12"),
        ("WORKDIR /\n", SCRIPT, "working folder is the root"),
        (
            "",
            "curl -LsSf https://example.org | sh\n",
            "tests use the network, .*curl -LsSf https://example.org",
        ),
        ("", "uvx -p 3.13 -w no-such-package==8 pip x\n", "tests install what is not here: no-such-package"),
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


def test_a_folder_without_tasks(tmp_path, monkeypatch):
    for name, why in ((tmp_path, "has no tasks"), (tmp_path / "x", "there is no folder")):
        with pytest.raises(ConfigError, match=why):
            task_set(f"harbor:{name}")
    write_harbor(tmp_path / "hello")
    monkeypatch.chdir(tmp_path)
    for find in (load_task, lambda name: find_tasks([name])):
        with pytest.raises(ConfigError, match="give a folder of tasks, as in harbor:tasks"):
            find("harbor:")
    with pytest.raises(ConfigError, match="did you mean 'hello'"):
        load_task(f"harbor:{tmp_path}:helo")


def test_references_with_a_text():
    assert split_reference("harbor:some/folder:task") == ("harbor:some/folder", "task")
    assert split_reference("harbor:some/folder") == ("harbor:some/folder", "")
    assert split_reference("verifiers:owner/name@1:7") == ("verifiers:owner/name@1", "7")
    assert split_reference("puzzles.py:SUMS:a") == ("puzzles.py:SUMS", "a")


def test_links_of_an_image_do_not_lead_to_the_packages_of_this_machine(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    (away / "dpkg").mkdir(parents=True)
    (away / "dpkg" / "status").write_text("Package: of-this-machine\nStatus: install ok installed\n")
    (away / "site-packages" / "of_this_machine-1.dist-info").mkdir(parents=True)
    (root / "var").mkdir(parents=True)
    (root / "var" / "lib").symlink_to(away)
    (root / "usr" / "lib" / "python3.12").mkdir(parents=True)
    (root / "usr" / "lib" / "python3.12" / "site-packages").symlink_to(away / "site-packages")
    image = ImageRoot(image_id="", folder=str(root))
    for script in ("apt-get install -y of-this-machine", "pip install of-this-machine"):
        assert "of-this-machine" in (find_obstacle(script, image) or "")
    for place in (root / "usr" / "lib" / "python3.12" / "site-packages", root / "var" / "lib"):
        found = place.resolve()
        place.unlink()
        found.rename(place)
    _debian_packages.cache_clear()
    _image_packages.cache_clear()
    for script in ("apt-get install -y of-this-machine", "pip install of-this-machine"):
        assert find_obstacle(script, image) is None
