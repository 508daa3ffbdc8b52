"""Tasks that their environments play: processes that ask the gateway, here with a program that stands for one."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.models.answers import answer
from tests.models.server import Received, Reply, serve
from tests.rollout.test_commands import ASK
from tests.rollout.test_engines import Engine, sampled_ids

from treadle import Agent, open_journal
from treadle.core import events as e
from treadle.core.errors import ConfigError, ProviderError
from treadle.evals.evaluation import evaluate
from treadle.regression.recorded_runs import Redaction, write_recording
from treadle.rollout import RolloutResult, Rollouts
from treadle.rollout.rollout_folder import read_groups, read_stored
from treadle.runs.task import TASK_SETS, find_tasks, load_task
from treadle.server.gateway.programs import ProgramWorkers
from treadle.tasks.foreign.played.played_set import PlayedSet

PROGRAM = """
import os, sys, threading
def tell(told):
    os.write(1, json.dumps(told).encode() + b"\\n")
alone = threading.Lock()  # `ask` reads the environment's variables
def play(asked):
    with alone:
        work(asked)
def work(asked):
    os.environ.update(OPENAI_BASE_URL=asked["base_url"], OPENAI_API_KEY=asked["api_key"], TREADLE_TASK={text!r})
    try:
        {body}
    except Exception as error:
        tell({{"id": asked["id"], "error": repr(error)}})
{before}
if sys.argv[1] == "list":
    tell({{"tasks": [{{"id": str(i), "input": {text!r}, "instructions": None}} for i in range(3)]}})
    sys.exit()
tell({{}})
for line in sys.stdin:
    threading.Thread(target=play, args=[json.loads(line)], daemon=True).start()
"""
GOOD = """ask("first"); ask("second")
        tell({"id": asked["id"], "reward": 1.5, "detail": "fine", "metrics": {"steps": 2.0}, "output": "won"})"""


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a test registers."""
    monkeypatch.setattr(TASK_SETS, "_loaded", {})


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


def make_set(path: Path, name: str, body: str, before: str = "") -> PlayedSet:
    """Make a set of tasks that a program plays, and give it a name."""
    program = path / f"{name}.py"
    program.write_text(
        ASK + PROGRAM.format(body=body, before=before, text=load_task("files:csv_sum-0001").input)
    )
    made = PlayedSet(name, (sys.executable, str(program)), "x")
    TASK_SETS.add(name, made)
    return made


def roll(path: Path, engine: Engine, name: str, **options: Any) -> RolloutResult:
    given = {"groups": 2, "group_size": 2, "retries": {"attempts": 2, "delay_seconds": 0.0}, **options}
    model = {"model": "vllm:oracle:0.4", "base_url": engine.url}
    made = Rollouts(model=model, workers=ProgramWorkers(), tasks=[name], path=path / "out", **given)
    return asyncio.run(made.run())


def test_an_environment_plays_its_tasks_and_its_tokens_are_delivered(tmp_path: Path, engine: Engine) -> None:
    make_set(tmp_path, "played", GOOD)
    result = roll(tmp_path, engine, "played")
    assert result.end.reason == "done"
    groups = list(read_groups(tmp_path / "out", read_stored(tmp_path / "out")))
    assert [one.reward for group in groups for one in group.rollouts] == [1.5] * 4
    assert [len(one.trajectories) for group in groups for one in group.rollouts] == [2] * 4
    assert sampled_ids(tmp_path / "out") == sorted(tuple(answer.token_ids) for answer in engine.app.sampled)


def test_an_evaluation_takes_the_reward_and_the_metrics_of_the_environment(
    tmp_path: Path, engine: Engine
) -> None:
    make_set(tmp_path, "measured", GOOD.replace("2.0}", "2.0, 'speed': float('nan')}"))
    model = {"model": "vllm:oracle:0.4", "base_url": engine.url}
    given = {"tasks": ["measured:1"], "models": [model], "path": tmp_path / "out"}
    done = asyncio.run(evaluate(workers=ProgramWorkers(), **given))
    assert done.end.reason == "done"
    (sample,) = done.results.samples
    assert sample.details.score == 1.5
    assert (sample.details.steps, sample.details.calls) == (2, 0)
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        graded = [event.body for event in journal.read(sample.run_id) if isinstance(event.body, e.Rewarded)]
        for info in journal.runs():
            with pytest.raises(ConfigError, match="such as an environment that plays its tasks itself"):
                write_recording(journal, info.run_id, tmp_path / "no.run.json", Redaction())
    assert [(body.detail, body.metrics) for body in graded] == [("fine", {"steps": 2.0})]


def test_keys_of_the_agent_that_an_environment_ignores_are_refused(tmp_path: Path) -> None:
    """The environment has tools and a prompt of its own, so that a job with other ones measured nothing of them."""
    make_set(tmp_path, "ignoring", GOOD)
    given: dict[str, Any] = {"tasks": ["ignoring"], "agent": {"tools": ["files"], "max_steps": 3}}
    said = r"agent\.tools.*the environment of the tasks has a loop and tools of its own; delete it"
    with pytest.raises(ConfigError, match=said):
        asyncio.run(evaluate(models=["mock:echo"], path=tmp_path / "out", **given))
    with pytest.raises(ConfigError, match=said):
        Rollouts(model="mock:echo", path=tmp_path / "out", **given)
    mixed = {**given, "tasks": ["ignoring", "files:csv_sum-0001"]}
    Rollouts(model="mock:echo", path=tmp_path / "out", **mixed)


@pytest.mark.parametrize("command", [("eval",), ("rollout", "--groups", "1", "--group-size", "1")])
def test_commands_play_the_tasks_of_a_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    make_set(tmp_path, "program", GOOD)
    made = f'PlayedSet("own", ({sys.executable!r}, "program.py"), "x")'
    (tmp_path / "own.py").write_text(
        f"from treadle.tasks.foreign.played.played_set import PlayedSet\nSET = {made}\n"
    )
    done = Cli(tmp_path)(*command, "--task", "own.py:SET:1", "--model", "mock:echo", "--out", "out")
    assert done.code == 0, done
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        assert [info.reward for info in journal.runs() if info.caller_run_id is None] == [1.5]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("ask('hi'); raise KeyError('lost')", "lost"),
        ("ask('hi'); os._exit(3)", "the process of the environment"),
        ("ask('hi'); os.write(1, b'so far, so good\\n')", "so far, so good"),
        (GOOD.replace("1.5", "float('nan')"), "its reward is nan, which is no number"),
    ],
)
def test_an_error_after_the_model_was_asked_is_no_grade(
    body: str, reason: str, tmp_path: Path, engine: Engine
) -> None:
    make_set(tmp_path, "failing", body)
    result = roll(tmp_path, engine, "failing", groups=1, group_size=1, max_dropped=1)
    assert result.end.reason == "failures"
    assert reason in str(result.end.error)


def test_an_environment_that_is_stopped_by_a_limit_has_no_reward_to_give(
    tmp_path: Path, engine: Engine
) -> None:
    make_set(tmp_path, "endless", "while True: ask('hi')")
    result = roll(tmp_path, engine, "endless", groups=1, agent={"max_steps": 3})
    assert result.end.reason == "done"
    (group,) = read_groups(tmp_path / "out", read_stored(tmp_path / "out"))
    assert [(one.reward, len(one.trajectories)) for one in group.rollouts] == [(0.0, 3), (0.0, 3)]


def test_an_error_before_that_is_a_mistake(tmp_path: Path, engine: Engine) -> None:
    make_set(tmp_path, "broken", "raise KeyError('no such machine')")
    with pytest.raises(ProviderError, match="no such machine"):
        roll(tmp_path, engine, "broken", groups=1)


BREAKS = """if asked["task"] == "0": raise KeyError("no such machine")
        """


@pytest.mark.parametrize("window", [1, 3])
def test_a_task_that_breaks_ends_no_other(tmp_path: Path, window: int) -> None:
    name = f"uneven{window}"
    make_set(tmp_path, name, BREAKS + GOOD)
    given = {"tasks": [name], "models": ["mock:echo"], "path": tmp_path / "out", "window": window}
    retries = {"attempts": 4, "delay_seconds": 0.0}
    done = asyncio.run(evaluate(workers=ProgramWorkers(), retries=retries, **given))
    assert [(sample.spec.task, sample.details.score) for sample in done.results.samples] == [
        (f"{name}:1", 1.5),
        (f"{name}:2", 1.5),
    ]
    assert [*done.results.failed] == ["eval-1"]
    assert "KeyError('no such machine')" in done.results.failed["eval-1"]
    assert done.end.reason == "failures"


@pytest.mark.parametrize(("answers", "scores"), [(0, []), (1, [0.0])])
async def test_a_prompt_that_is_too_long_is_not_sent_again(
    tmp_path: Path, answers: int, scores: list[float]
) -> None:
    name = f"wordy{answers}"
    make_set(tmp_path, name, GOOD)
    asked: list[Received] = []

    def refuse(request: Received) -> Reply:
        asked.append(request)
        error = {"message": "the prompt has 9 tokens", "code": "context_length_exceeded"}
        return Reply(answer("hello")) if len(asked) <= answers else Reply({"error": error}, status=400)

    async with serve(refuse) as server:
        model = {"model": "openai:m-1", "base_url": server.base_url}
        given = {"tasks": [f"{name}:1"], "models": [model], "path": tmp_path / "out"}
        done = await evaluate(workers=ProgramWorkers(), **given)
    assert len(asked) == answers + 1
    assert [sample.details.score for sample in done.results.samples] == scores
    why = [*done.results.failed.values(), *[item.example for item in done.results.failures]]
    assert "the prompt has 9 tokens" in why[0]


def test_an_environment_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bad cannot be loaded: no hub"):
        make_set(tmp_path, "bad", "pass", 'tell({"error": "no hub"}); sys.exit()')
    with pytest.raises(ConfigError, match=r"worse cannot be loaded: .*ZeroDivisionError"):
        make_set(tmp_path, "worse", "pass", "1 / 0")


def test_a_program_that_prints_first_is_told(tmp_path: Path) -> None:
    with Engine() as engine:
        make_set(tmp_path, "loud", GOOD, 'if sys.argv[1] != "list": print("welcome", flush=True)')
        with pytest.raises((ConfigError, ProviderError), match="not an object of JSON: b'welcome"):
            roll(tmp_path, engine, "loud")


async def test_a_loop_of_treadle_does_not_play_such_a_task(tmp_path: Path) -> None:
    made = make_set(tmp_path, "own", GOOD)
    assert find_tasks(["own:1"]) == ["own:1"]
    with pytest.raises(ConfigError, match="played by its own environment"):
        await Agent("mock:echo").run(load_task("own:1"))
    with pytest.raises(ConfigError, match="has no task '7'"):
        made.get("7")
