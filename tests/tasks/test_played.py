"""Tasks that programs of others play: the program that runs in their Python, and published tasks of each kind."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models.answers import answer
from tests.models.server import Handler, Received, Reply, serve

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.evals.evaluation import evaluate
from treadle.journal.registry import open_journal
from treadle.runs.task import find_tasks, split_reference
from treadle.server.gateway.environments import EnvironmentProcess
from treadle.server.gateway.programs import ProgramWorkers
from treadle.tasks.foreign.played import played_set
from treadle.tasks.foreign.played.played_set import (
    KINDS,
    PlayedSet,
    open_inspect,
    open_openenv,
    open_verifiers,
)

OPEN = {"verifiers": open_verifiers, "inspect": open_inspect, "openenv": open_openenv}
FOLDER = Path(played_set.__file__).parent
PLAYER = """
import asyncio, pathlib, sys
sys.path.insert(0, {folder!r})
import played_program

class Player:
    def __init__(self, name, settings):
        if name == "bad":
            raise ModuleNotFoundError(f"No module named {{settings['lacks']!r}}")
        self.said = f"{{name}} {{settings}}"
    def describe_tasks(self):
        print("welcome")
        return [{{"id": "0", "input": self.said, "instructions": None}}]
    async def play(self, asked):
        print("let us play")
        if asked["task"] == "lost":
            raise KeyError("the\\nball")
        if asked["task"] == "odd":
            return {{"reward": {{1}}}}
        if asked["task"] == "long":
            pathlib.Path("began").touch()
            try:
                await asyncio.sleep(600)
            finally:
                pathlib.Path("cancelled").touch()
        return {{"reward": 1, "detail": "line 1\\nline 2", "metrics": {{}}, "output": asked["model"]}}
    async def close(self):
        pathlib.Path("closed").touch()

sys.modules["own_player"] = sys.modules[__name__]
played_program.PLAYERS["own"] = "own_player", "Player"
played_program.main()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The command of a program with a player of the test, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(PLAYER.format(folder=str(FOLDER)))
    return sys.executable, str(tmp_path / "own.py")


def test_a_player_gets_its_name_and_settings(program: tuple[str, str]) -> None:
    made = PlayedSet("own:game", program, 'game?level=3&name=x&of.all=["a"]', "own")
    assert made.get("0").input == "game {'level': 3, 'name': 'x', 'of.all': ['a']}"
    assert made.get("0").environment == (*program, "play", "own", 'game?level=3&name=x&of.all=["a"]')


@pytest.mark.parametrize(
    ("kind", "lacks", "advice"),
    [
        (
            "inspect",
            "inspect_ai",
            "; pip install inspect_ai openai, or name the Python that has it in TREADLE_INSP",
        ),
        ("inspect", "openai", "; pip install inspect_ai openai"),
        ("openenv", "openenv.core", "; pip install openenv-core, or name"),
        (
            "openenv",
            "nltk",
            "; install the package of the environment beside openenv-core, and name its Python in",
        ),
    ],
)
def test_what_is_missing_is_named(program: tuple[str, str], kind: str, lacks: str, advice: str) -> None:
    Path("own.py").write_text(Path("own.py").read_text().replace('"own"', f'"{kind}"'))
    with pytest.raises(ConfigError, match=f"No module named '{lacks}'{advice}"):
        PlayedSet("own:bad", program, f"bad?lacks={lacks}", kind)


def test_a_python_that_cannot_be_started_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for python, why in (("/nowhere/python", "No such file"), ("/tmp", "Permission denied")):
        monkeypatch.setenv("TREADLE_INSPECT_PYTHON", python)
        with pytest.raises(
            ConfigError, match=f"TREADLE_INSPECT_PYTHON is '{python}', which cannot be st.*{why}"
        ):
            open_inspect("game.py")


async def test_a_task_is_played_fails_or_is_cancelled(program: tuple[str, str]) -> None:
    process = EnvironmentProcess((*program, "play", "own", "game"))
    told = await process.play("0", "http://here", "key", "model-1")
    assert told == {"id": 1, "reward": 1, "detail": "line 1 line 2", "metrics": {}, "output": "model-1"}
    assert (await process.play("lost", "", "", ""))["error"] == r"KeyError: 'the\nball'"
    assert "not JSON serializable" in (await process.play("odd", "", "", ""))["error"]
    playing = asyncio.ensure_future(process.play("long", "", "", ""))
    while not Path("began").exists():
        await asyncio.sleep(0.001)
    playing.cancel()
    while not Path("cancelled").exists():
        await asyncio.sleep(0.001)
    await process.close()
    assert Path("closed").exists()


@pytest.mark.parametrize("kind", OPEN)
def test_a_kind_needs_a_reference_and_its_package(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"give the .*{kind}:|give a file .*{kind}:"):
        OPEN[kind]("")
    bare = Path(sys.base_prefix) / "bin" / "python3"
    monkeypatch.setenv(f"TREADLE_{kind.upper()}_PYTHON", str(bare))
    with pytest.raises(
        ConfigError, match=rf"No module named '\w+.*; pip install {KINDS[kind].packages}, or name"
    ):
        OPEN[kind](f"nothing-{os.getpid()}")


def test_an_address_is_the_name_of_a_set() -> None:
    assert split_reference("openenv:http://localhost:8000:3") == ("openenv:http://localhost:8000", "3")
    assert split_reference("openenv:https://a.example/x?text=code:?") == (
        "openenv:https://a.example/x?text=code",
        "?",
    )
    assert split_reference("openenv:envs/echo_env:1") == ("openenv:envs/echo_env", "1")


@pytest.mark.parametrize("rest", ["", "1", "?"])
def test_settings_in_json_are_in_the_name_of_a_set(rest: str) -> None:
    for query in ('roles={"grader":"openai/m"}', 'a={"b": {"c": "d:e}"}}&f=1', 'a=["b:c",2]', "a={b"):
        name = f"inspect:arc.py@easy?{query}"
        assert split_reference(f"{name}:{rest}" if rest else name) == (name, rest)


# Published tasks.


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes the Python of a kind the one that has its package."""

    def use(kind: str) -> Path:
        place = Path(os.environ.get(variable := f"TREADLE_{kind.upper()}") or "/nowhere")
        if not (place / "bin" / "python").exists():
            pytest.skip(f"it needs `python -m tests.environments {kind} FOLDER`; {variable} is the folder")
        monkeypatch.setenv(f"{variable}_PYTHON", str(place / "bin" / "python"))
        # The chat loop of verifiers is started with uv.
        monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
        played_set._open.cache_clear()
        return place

    return use


class Outcome:
    """What one sample of an evaluation was: its score, and the conversations that its model had."""

    def __init__(self, path: Path, sample: Any) -> None:
        self.score = sample.details.score
        with open_journal(path / "runs.db") as journal:
            inner = [info.run_id for info in journal.runs() if info.caller_run_id == sample.run_id]
            events = [event.body for run_id in inner for event in journal.read(run_id)]
            graded = [
                event.body for event in journal.read(sample.run_id) if isinstance(event.body, e.Rewarded)
            ]
        self.answers = [body.completion for body in events if isinstance(body, e.InferenceCompleted)]
        self.results = [body.result.content for body in events if isinstance(body, e.ToolCompleted)]
        self.metrics = graded[-1].metrics or {}
        self.detail = graded[-1].detail


async def play(path: Path, task: str, model: Any = "mock:echo", **options: Any) -> Outcome:
    """Evaluate one sample with a model, or with the handler of a server for it."""
    if callable(model):
        async with serve(model) as server:
            given = {"model": "openai:m-1", "base_url": server.base_url}
            return await play(path, task, given, **options)
    given = {"tasks": [task], "models": [model], "retries": {"attempts": 1}, **options}
    done = await evaluate(workers=ProgramWorkers(), path=path, **given)
    assert done.end.reason == "done", done.end
    (sample,) = done.results.samples
    return Outcome(path, sample)


def caller(*calls: tuple[str, dict[str, Any]], said: str | None = None) -> Handler:
    """Return a model that makes calls, and answers with a text, unless it is `None`, once it sees their results."""
    made = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]

    def infer(asked: Received) -> Reply:
        has_results = any(message["role"] == "tool" for message in asked.json()["messages"])
        if has_results and said is not None:
            return Reply(answer(said))
        return Reply(answer(None, finish="tool_calls", tool_calls=made))

    return infer


ENVIRONMENTS = {
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
"""Environments of verifiers that need no key, with one task of each."""


@pytest.mark.full
@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_environments_of_verifiers_play_their_tasks(
    tmp_path: Path, installed: Callable[[str], Path], name: str
) -> None:
    installed("verifiers")
    found = await play(tmp_path, f"verifiers:{name}:{ENVIRONMENTS[name]}")
    assert found.answers
    assert found.score is not None


@pytest.mark.full
async def test_agents_of_verifiers_are_told_apart(tmp_path: Path, installed: Callable[[str], Path]) -> None:
    """One agent invents a problem, and four others solve it, two of them rightly."""
    installed("verifiers")
    said = iter(("42", "42", "41", "41"))

    def infer(asked: Received) -> Reply:
        is_inventor = "Invent ONE" in str(asked.json()["messages"])
        return Reply(answer('{"problem": "What is 6 * 7?", "answer": 42}' if is_inventor else next(said)))

    found = await play(tmp_path, "verifiers:proposer_solver:0", infer)
    assert (found.score, len(found.answers)) == (pytest.approx(0.6), 5)
    assert found.metrics["proposer-1.learnability"] == 1.0


@pytest.mark.full
def test_an_environment_whose_data_or_packages_are_missing_says_so(installed: Callable[[str], Path]) -> None:
    installed("verifiers")
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError.*install the package of the environment"):
        find_tasks(["verifiers:no-such-environment"])


TOOL_USE = {
    "addition_problem": (("add", {"x": 1, "y": 1}), "2", "2"),
    "bash": (("list_files", {"dir": "/usr/bin"}), "Yes", "python3"),
    "parallel_add": (("add", {"x": 2, "y": 2}), "2 4", "4"),
}
"""Tasks of Inspect's example `tool_use.py`, with a call, an answer, and a part of the call's result."""


@pytest.mark.full
@pytest.mark.parametrize("task", TOOL_USE)
async def test_tasks_of_inspect_run_with_their_tools_and_sandbox(
    tmp_path: Path, installed: Callable[[str], Path], task: str
) -> None:
    file = installed("inspect") / "inspect_ai" / "examples" / "tool_use.py"
    made, said, result = TOOL_USE[task]
    found = await play(tmp_path, f"inspect:{file}@{task}:1", caller(made, said=said))
    assert len(found.answers) == 2
    assert result in found.results[0]
    assert found.score == 1.0


@pytest.mark.full
async def test_a_task_of_inspect_is_graded_by_its_scorer(
    tmp_path: Path, installed: Callable[[str], Path]
) -> None:
    examples = installed("inspect") / "inspect_ai" / "examples"
    found = await play(tmp_path / "a", f"inspect:{examples / 'hello_world.py'}:1")
    assert (found.score, found.metrics, found.detail) == (0.0, {"exact": 0.0}, "exact I")
    with pytest.raises(ConfigError, match=r"has 5 tasks; name .*tool_use.py@addition_problem or "):
        find_tasks([f"inspect:{examples / 'tool_use.py'}"])
    with pytest.raises(ConfigError, match="the task does not take levl; it takes no arguments"):
        find_tasks([f"inspect:{examples / 'hello_world.py'}?levl=2"])
    with pytest.raises(ConfigError, match="is no file, and no task of an installed package"):
        find_tasks(["inspect:nowhere/at_all"])


ODD_TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, includes, mean, scorer
from inspect_ai.solver import generate

@scorer(metrics=[mean()])
def fixed(value):
    async def score(state, target):
        return Score(value=value)
    return score

@task
def own_model():
    data = [Sample(input="say it", target="it")]
    return Task(dataset=data, solver=generate(), scorer=includes(), model="mockllm/model")

@task
def words():
    return Task(dataset=[Sample(input="a")], solver=generate(), scorer=fixed("very good"))

@task
def parts():
    return Task(dataset=[Sample(input="a")], solver=generate(), scorer=fixed({"x": "yes", "y": "0.5", "z": None}))

@task
def twins():
    return Task(dataset=[Sample(input="a", id=1), Sample(input="b", id="1")], solver=generate(), scorer=includes())
"""


@pytest.mark.full
async def test_odd_tasks_of_inspect(tmp_path: Path, installed: Callable[[str], Path]) -> None:
    installed("inspect")
    file = tmp_path / "odd.py"
    file.write_text(ODD_TASKS)
    with pytest.raises(ConfigError, match="several of its samples have the id '1'"):
        find_tasks([f"inspect:{file}@twins"])
    with pytest.raises(ConfigError, match=r"eval\.epochs is set by Treadle"):
        find_tasks([f"inspect:{file}@words?eval.epochs=2"])
    # The model that a task names is not the one that is evaluated.
    assert (await play(tmp_path / "a", f"inspect:{file}@own_model:1")).score == 1.0
    found = await play(tmp_path / "b", f"inspect:{file}@parts:1")
    assert (found.score, found.metrics) == (0.75, {"fixed.x": 1.0, "fixed.y": 0.5})
    given = {"tasks": [f"inspect:{file}@words:1"], "models": ["mock:echo"], "retries": {"attempts": 1}}
    done = await evaluate(workers=ProgramWorkers(), path=tmp_path / "c", **given)
    assert "its scorers gave no number: fixed very good" in str(done.end)


@pytest.mark.full
async def test_a_limit_ends_a_task_of_inspect(tmp_path: Path, installed: Callable[[str], Path]) -> None:
    file = installed("inspect") / "inspect_ai" / "examples" / "tool_use.py"
    made = caller(("add", {"x": 1, "y": 1}))
    found = await play(tmp_path, f"inspect:{file}@addition_problem:1", made, agent={"max_steps": 3})
    assert (found.score, len(found.answers)) == (0.0, 3)
    assert "max_steps" in found.detail


@pytest.mark.full
async def test_environments_of_openenv_are_called(tmp_path: Path, installed: Callable[[str], Path]) -> None:
    installed("openenv")
    model = caller(("echo_with_length", {"message": "hello"}), said="done")
    echoed = await play(tmp_path / "a", "openenv:echo_env:1", model)
    assert '"length": 5' in echoed.results[0].replace('"length":5', '"length": 5')
    assert (echoed.score, echoed.metrics) == (0.0, {"steps": 1.0, "done": 0.0})
    code = [("step", {"code": "print(6 * 7)"}), ("step", {"cod": ""})]
    coded = await play(tmp_path / "b", "openenv:coding_env?prompt=Compute.:1", caller(*code, said="42"))
    assert '"stdout": "42\\n"' in coded.results[0]
    assert "The action failed: " in coded.results[1]
    assert coded.metrics["steps"] == 2.0


@pytest.mark.full
async def test_an_answer_is_the_action_and_sessions_are_waited_for(
    tmp_path: Path, installed: Callable[[str], Path]
) -> None:
    installed("openenv")
    task = "openenv:coding_env?text=code&max_steps=3:7"
    given = {"tasks": [task], "models": ["mock:echo"], "epochs": 3}
    done = await evaluate(workers=ProgramWorkers(), path=tmp_path, retries={"attempts": 1}, **given)
    assert done.end.reason == "done", done.end
    assert len({sample.details.score for sample in done.results.samples}) == 1


GUESS = """
import random
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class Guess(Action):
    number: int

class Seen(Observation):
    hint: str = ""

class Numbers(Environment):
    def reset(self, seed=None, episode_id=None, **given):
        self.number = seed
        return Seen(hint="guess")

    def step(self, action, timeout_s=None, **given):
        is_right = action.number == self.number
        return Seen(hint=str(is_right), reward=1.0 if is_right else -0.25, done=is_right)

    @property
    def state(self):
        return State(episode_id="x", step_count=0)

app = create_fastapi_app(Numbers, Guess, Seen)
"""


@pytest.mark.full
async def test_an_odd_environment_of_openenv(tmp_path: Path, installed: Callable[[str], Path]) -> None:
    installed("openenv")
    server = tmp_path / "guess" / "server"
    server.mkdir(parents=True)
    (server / "app.py").write_text(GUESS)
    name = f"openenv:{server.parent}"
    for query, why in (
        ("reward=mean", "reward is 'mean'; give sum or last"),
        ("max_steps=0", "max_steps is 0; give a whole number"),
        ("max_steps=many", "max_steps is 'many'; give a whole number"),
    ):
        with pytest.raises(ConfigError, match=why):
            find_tasks([f"{name}?{query}"])
    # A call of another tool is no action, also if its arguments are those of one.
    model = caller(("guess", {"number": 3}), ("step", {"number": 2}), said="done")
    found = await play(tmp_path / "a", f"{name}:3", model)
    assert "There is no tool 'guess'" in found.results[0]
    assert (found.score, found.metrics) == (-0.25, {"steps": 2.0, "done": 0.0})
    given = {"tasks": [f"{name}?text=numbr:3"], "models": ["mock:echo"], "retries": {"attempts": 1}}
    done = await evaluate(workers=ProgramWorkers(), path=tmp_path / "b", **given)
    assert done.end.reason == "failures"
    assert re.search(r"its action has no field 'numbr'; text can be .*number", str(done.end))
