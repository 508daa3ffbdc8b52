"""After Ctrl-C at any moment, the next command can continue the run."""

import asyncio
import inspect
import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from tests.cli.command import Cli, Oracle, RealCli, Started
from tests.cli.scripted import Answer, Json, Script, call, say

from treadle import Agent
from treadle.cli.jobs.driving import FollowUp, drive
from treadle.cli.jobs.execute import CommandLoop
from treadle.cli.options.common import ViewOptions

TOOLS = '''
import asyncio
import time
from pathlib import Path
from treadle import tool

def wait_seconds():
    Path("begun").touch()
    return 0 if Path("fast").exists() else 600

@tool(effect="EFFECT")
async def wait() -> str:
    """Wait."""
    await asyncio.sleep(wait_seconds())
    return "waited"

@tool(effect="EFFECT")
def block() -> str:
    """Wait in a thread."""
    time.sleep(wait_seconds())
    return "blocked"
'''


HOG = '''
import time

async def hog() -> str:
    """Hold up the event loop."""
    print("hogging", flush=True)
    time.sleep(600)
    return ""
'''


def wait_for(process: Started, kind: str) -> None:
    """Read JSON lines until an event of this type arrives."""
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["type"] == kind:
            return
    raise AssertionError(process.communicate())


def interrupt(process: Started) -> str:
    """Send Ctrl-C, check that the command reports the interruption, and return its standard error."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return err


def test_during_a_model_call(real_cli: RealCli, script: Script) -> None:
    answered = threading.Event()
    server = script(lambda body: say("hello") if answered.is_set() else answered.wait(60) and 500)
    base = [
        "run",
        "hi",
        "-m",
        "m",
        "--base-url",
        server.url,
        "--json",
        "--run-id",
        "mine",
        "-j",
        "my runs.db",
    ]
    process = real_cli.start(*base)
    wait_for(process, "inference_started")
    server.asked.wait(60)
    err = interrupt(process)
    assert "interrupted; continue with: treadle resume mine --journal 'my runs.db'" in err
    listed = real_cli("runs", "--json", "-j", "my runs.db").lines
    assert [(line["run_id"], line["status"], line["stop_reason"]) for line in listed] == [
        ("mine", "unfinished", "interrupted")
    ]
    assert "paused: interrupted" in real_cli("show", "-j", "my runs.db").out
    answered.set()
    resumed = real_cli("resume", "mine", "--journal", "my runs.db", "--quiet")
    assert (resumed.code, resumed.out) == (0, "hello\n"), resumed


@pytest.mark.parametrize("name", ["wait", "block"])
def test_during_a_tool(cli: Cli, script: Script, name: str) -> None:
    cli.write("tools.py", TOOLS.replace("EFFECT", "idempotent"))
    server = script(_calls(name))
    process = cli.start(
        "run", "go", "-m", "m", "--base-url", server.url, "-t", "tools.py", "--json", "--run-id", "mine"
    )
    wait_for(process, "tool_started")
    assert "treadle resume mine" in interrupt(process)
    cli.write("fast", "")
    resumed = cli("resume", "mine")
    assert resumed.code == 0, resumed
    assert f"done: {name}ed" in resumed.out
    kinds = [(event["type"], event.get("attempt")) for event in cli("show", "mine", "--json").lines]
    assert ("tool_started", 2) in kinds
    assert len(server.requests) == 2


def test_once_tool_is_not_run_again(cli: Cli, script: Script) -> None:
    cli.write("tools.py", TOOLS.replace("EFFECT", "once"))
    server = script(_calls("wait"))
    process = cli.start(
        "run", "go", "-m", "m", "--base-url", server.url, "-t", "tools.py", "--json", "--run-id", "mine"
    )
    wait_for(process, "tool_started")
    _wait_for_file(cli.folder / "begun", process)
    interrupt(process)
    (cli.folder / "begun").unlink()
    cli.write("fast", "")
    resumed = cli("resume", "mine", "-q")
    assert resumed.code == 0, resumed
    assert "outcome of this call is unknown" in resumed.out
    assert not (cli.folder / "begun").exists()


def test_second_interrupt_does_not_wait(real_cli: RealCli, script: Script) -> None:
    real_cli.write(
        "tools.py",
        HOG,
    )
    server = script(_calls("hog"))
    process = real_cli.start("run", "go", "-m", "m", "--base-url", server.url, "-t", "tools.py", "-q")
    assert process.stdout is not None
    assert process.stdout.readline() == "hogging\n"
    # Two signals in quick succession may arrive as one, so a third may be needed.
    for _ in range(30):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
            break
    assert process.returncode == 130


def test_resume_all_goes_on_where_it_stopped(cli: Cli, script: Script) -> None:
    answered = threading.Event()
    server = script(lambda body: say("hello") if answered.is_set() else answered.wait(60) and 500)
    for run_id in ("a", "b"):
        process = cli.start("run", "x", "-m", "m", "--base-url", server.url, "--json", "--run-id", run_id)
        wait_for(process, "inference_started")
        interrupt(process)
    server.asked.clear()
    process = cli.start("resume", "--all")
    server.asked.wait(60)
    assert "interrupted with 2 runs unfinished; continue with: treadle resume --all" in interrupt(process)
    answered.set()
    result = cli("resume", "--all", "--json")
    assert result.code == 0, result
    assert sorted((line["run_id"], line["output"]) for line in result.lines) == [
        ("a", "hello"),
        ("b", "hello"),
    ]
    assert "no run is unfinished" in cli("resume", "--all").err


SLOW = """
import time
from pathlib import Path
from treadle import Agent
from treadle.tasks import SimpleTask

def block(*_):
    Path("begun").touch()
    time.sleep(600)

TASKS = [SimpleTask(task_id="a", input="say hi", grader=block)]
QUICK = [SimpleTask(task_id="a", input="say hi", grader=lambda *_: 1)]
echo = Agent("mock:echo")

def agent():
    block()
"""


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "--task", "slow.py:TASKS", "--model", "mock:echo"),
        ("eval", "--task", "slow.py:QUICK", "--model", "mock:echo", "--reward", "slow.py:block"),
        ("test", "--agent", "slow.py:agent"),
    ],
)
def test_no_code_of_a_user_that_blocks_is_waited_for(real_cli: RealCli, command: tuple[str, ...]) -> None:
    real_cli.write("slow.py", SLOW)
    made = real_cli("test", "record", "--text", "say hi", "--agent", "slow.py:echo", "--name", "a")
    assert made.code == 0, made
    process = real_cli.start(*command)
    _wait_for_file(real_cli.folder / "begun", process)
    process.send_signal(signal.SIGINT)
    if command[0] == "eval":  # the first Ctrl-C lets it finish what it has begun
        assert process.stderr is not None
        assert any("press Ctrl-C again" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


WAITING = """
name: d
models: MODELS
topics: {prompt: Office work, degree: 2, depth: 1}
generation: {num_samples: 2}
quality: {judge: {rubric: is it good?}}
tools: {use: [files]}
output: {path: d}
"""


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("command", "models"),
    [
        ("topics build --prompt x --model late", ""),
        ("generate d.yaml", "{default: late}"),
        ("generate d.yaml", "{default: late, topics: 'mock:teacher'}"),
        ("generate d.yaml", "{default: 'mock:teacher', scenarios: late}"),
        ("generate d.yaml", "{default: 'mock:teacher', judge: late}"),
        ("eval --task files:csv_sum-0001 --model late", ""),
        ("eval judged.yaml --task files:csv_sum-0001 --model mock:echo", ""),
        ("rollout --task files:csv_sum-0001 --model late", ""),
        ("rollout --task files:csv_sum-0001 --model engine --set retries.delay_seconds=1000", ""),
    ],
)
def test_after_the_first_ctrl_c_no_server_is_waited_for_that_has_failed(
    cli: Cli, script: Script, command: str, models: str, status: int
) -> None:
    """The waits are so long that the command would not end."""
    server = script(lambda body: (status, "busy", 1700))
    cli.env["OPENAI_API_KEY"] = "key"
    models_of = {"late": "openai:m", "engine": "vllm:m"}
    tables = [
        f'[models.{name}]\nmodel = "{model}"\nbase_url = "{server.url}"' for name, model in models_of.items()
    ]
    cli.write("treadle.toml", "\n".join(tables))
    cli.write("d.yaml", WAITING.replace("MODELS", models))
    cli.write("judged.yaml", "rewards: {judge: {model: late, rubric: is it good?}}")
    process = cli.start(*command.split())
    while not server.asked.wait(0.05):
        assert process.poll() is None, process.communicate()
    told = interrupt(process)
    assert "go on with: treadle" in told or "the same command continues" in told


def test_a_coroutine_that_could_not_begin_is_closed() -> None:
    with CommandLoop() as work:
        work.run(asyncio.sleep(0))
    waiting = asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="closed"):
        work.run(waiting)
    assert inspect.getcoroutinestate(waiting) == inspect.CORO_CLOSED


def test_before_a_run_is_stored_it_cannot_be_continued(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    agent: Agent = Agent("mock:echo", journal="memory:")
    assert drive(agent, interrupted, ViewOptions(), "mine", FollowUp(None)) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_mock_stops(tmp_path: Path) -> None:
    assert Oracle(tmp_path).stop() == 130


def _calls(name: str) -> Answer:
    def answer(body: dict[str, Json]) -> Json:
        last = body["messages"][-1]
        return say(f"done: {last['content']}") if last["role"] == "tool" else call(name)

    return answer


def _wait_for_file(path: Path, process: Started) -> None:
    while not path.exists():
        assert process.poll() is None
        threading.Event().wait(0.01)


CONCLUDING = """
import asyncio, os, signal, sys
from pathlib import Path
from treadle.cli.jobs.job_command import JobCommand
from treadle.cli.options.common import ViewOptions
from treadle.cli.terminal.job_view import NewestFeed
from treadle.jobs.job import JobEnd
from treadle.jobs.progress import JobNotice, JobProgress

job = JobCommand("j", JobProgress(wanted=2, kept=1), NewestFeed(JobNotice, str), "treadle again", ViewOptions())

async def work(stop):
    return JobEnd("stopped")

def conclude(end):
    if sys.argv[1] == "early":  # how many are wanted is not known yet
        return job.report(end, JobProgress(), Path("x"), "")
    if sys.argv[1] == "after":
        job.report(end, JobProgress(wanted=2, kept=1), Path("x"), "")
    os.kill(os.getpid(), signal.SIGINT)
    return 0

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(job.run(work, conclude))
"""


@pytest.mark.sets(0)
@pytest.mark.parametrize("when", ["early", "before", "after"])
def test_an_interrupted_conclusion_of_a_job_says_how_to_go_on(when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONCLUDING, when], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 130, done.stderr
    kept = "" if when == "early" else "1 run kept; "
    assert done.stderr.splitlines()[-1] == f"interrupted; {kept}go on with: treadle again"
