"""Task sets of a user in a module or file, without an installed package."""

import textwrap
from fractions import Fraction
from pathlib import Path

import pytest
from tests.cli.command import Cli

from treadle import Agent, Run, ScriptedModel
from treadle.core.errors import ConfigError, UntrustedError
from treadle.core.types import Role
from treadle.journal import open_journal
from treadle.journal.jsonl import export_run, import_lines
from treadle.journal.memory import MemoryJournal
from treadle.scoring.grade import grade
from treadle.scoring.registry import make_scorers, read_rewards
from treadle.tasks import Grade, SimpleTask, load_task, split_reference, task_set
from treadle.tasks.solver import Solvable

SOURCE = """
from treadle.tasks import Grade, SimpleTask

def right(task, output, files):
    return output.strip() == task.data

SUMS = [
    SimpleTask(task_id=f"sum-{n}", input=f"say {n + n % 2}", data=str(n), grader=right)
    for n in range(6)
]

class Tale:
    task_set, task_id, seed, input, instructions = "tales", "one", None, "say x", None
    tools, files = [], {}
    def check(self, output, files):
        return Grade(0.25, "a quarter")
    def find_solver(self, prompt):
        return None

class Tales:
    name = "tales"
    def __len__(self): return 1
    def __iter__(self): return iter([Tale()])
    def get(self, task_id): return {"one": Tale()}[task_id]

def make(): return Tales()
def broken(): raise RuntimeError("no disk")
async def later(): return SUMS
TWICE = [SUMS[0], SUMS[0]]
NUMBER = 3
MIXED = [1]
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    made = Cli(tmp_path)
    made.write("puzzles.py", textwrap.dedent(SOURCE))
    return made


def test_a_list_in_a_file_is_a_task_set(cli: Cli) -> None:
    sums = task_set("puzzles.py:SUMS")
    assert (sums.name, len(sums), [task.task_id for task in sums][:2]) == (
        "puzzles.py:SUMS",
        6,
        ["sum-0", "sum-1"],
    )
    task = load_task("puzzles.py:SUMS:sum-2")
    assert (task.task_set, task.input) == ("puzzles.py:SUMS", "say 2")
    assert task.check("2", {}) == Grade(1.0, "")
    assert not isinstance(task, Solvable)


def test_a_set_is_known_by_its_reference_and_not_by_the_name_it_gives_itself(cli: Cli) -> None:
    """Else another process could not find the task again, for example to resume its run."""
    (task,) = task_set("puzzles.py:make")
    assert task.task_set == load_task("puzzles.py:make:one").task_set == "puzzles.py:make"
    assert isinstance(task, Solvable)


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("files", ("files", "")),
        ("files:csv_sum-0042", ("files", "csv_sum-0042")),
        ("files:abc", ("files", "abc")),
        ("fils:csv_sum-0042", ("fils", "csv_sum-0042")),
        ("a.b:SET", ("a.b:SET", "")),
        ("/x y/a.py:SET:a:b-*", ("/x y/a.py:SET", "a:b-*")),
    ],
)
def test_references_are_split(reference: str, parts: tuple[str, str]) -> None:
    assert split_reference(reference) == parts


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("puzzles.py:SUMS:sum-9", "has no task 'sum-9'; did you mean 'sum-"),
        ("puzzles.py:SUM:sum-1", "there is no 'SUM' in it; did you mean 'SUMS'?"),
        ("puzle.py:SUMS:sum-1", "there is no file 'puzle.py'; did you mean 'puzzles.py'?"),
        ("puzzles.py:broken:x", "the task set 'puzzles.py:broken' cannot be loaded: RuntimeError('no disk')"),
        ("puzzles.py:broken:x", "puzzles.py, line "),
        (
            "puzzles.py:later:x",
            "the task set 'puzzles.py:later' is an async function; give one without async",
        ),
        ("puzzles.py:make:two", "the task set 'puzzles.py:make' cannot make the task 'two': KeyError('two')"),
        ("puzzles.py:NUMBER:x", "the task set 'puzzles.py:NUMBER' is 3; give a TaskSet, a list of tasks"),
        ("puzzles.py:TWICE:x", "has two tasks with the id 'sum-0'"),
        ("puzzles.py:MIXED:x", "the task set 'puzzles.py:MIXED' has 1; give a Task, such as a SimpleTask"),
        ("fils:sums:x", "No module named 'fils'; did you mean 'files'?"),
        ("fils:csv_sum-0001", "unknown task set 'fils'; did you mean 'files'?"),
    ],
)
def test_mistakes_are_told(cli: Cli, reference: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_task(reference)
    assert said in str(caught.value)


def test_a_task_without_a_grader_cannot_be_checked() -> None:
    with pytest.raises(ConfigError, match="the task 'a' has no grader"):
        SimpleTask(task_id="a", input="b").check("", {})


class OwnTask(SimpleTask, frozen=True):
    """A task whose check returns `data`, and so does each of its steps."""

    def check(self, output, files):
        return self.data

    def score_steps(self, messages):
        return [self.data for message in messages if message.role is Role.ASSISTANT]


@pytest.mark.parametrize(
    "verdict", ["0.5", "yes", None, float("nan"), float("inf"), Grade(float("nan"), "odd"), [1.0]]
)
@pytest.mark.parametrize("kind", [SimpleTask, OwnTask])
async def test_a_check_that_returns_no_number_is_a_mistake_and_leaves_the_run_whole(kind, verdict) -> None:
    task = kind(task_id="a", input="b", data=verdict, grader=lambda task, output, files: verdict)
    journal = MemoryJournal()
    with pytest.raises(ConfigError, match=r"it returned .*; return a Grade, a number from 0 to 1, or a bool"):
        await Agent(ScriptedModel(["c"]), journal=journal).run(task, run_id="r")
    assert Run.load("r", journal).output == "c"


async def test_a_check_may_return_a_number_of_any_kind() -> None:
    for verdict in (True, 1, Fraction(1), Grade(1, "")):
        task = OwnTask(task_id="a", input="b", data=verdict, grader=lambda task, output, files: task.data)
        run = await Agent(ScriptedModel(["c"]), journal=MemoryJournal()).run(task)
        assert run.reward == 1.0


def test_commands_and_workers_use_a_set_in_a_file(cli: Cli) -> None:
    given = ("rollout", "--model", "mock:echo", "--group-size", "2", "--task", "puzzles.py:SUMS:sum-[01]")
    result = cli(*given, "-n", "2", "--workers", "local:1")
    assert result.code == 0, result
    assert "2 of 2 groups · reward 0.500" in result.out
    assert cli("tasks", "puzzles.py:SUMS", "--limit", "1").out.startswith("puzzles.py:SUMS:sum-0\n")
    assert "say 4" in cli("tasks", "puzzles.py:SUMS:sum-3").out
    runs = cli("runs", "--journal", "rollouts/runs.db", "--task", "puzzles.py:SUMS", "--json").lines
    assert sorted({line["task"] for line in runs}) == ["puzzles.py:SUMS:sum-0", "puzzles.py:SUMS:sum-1"]
    assert "4 runs graded, 0 changed" in cli("rescore", "--all", "--journal", "rollouts/runs.db").out


async def test_the_file_of_a_run_from_elsewhere_is_not_loaded(cli: Cli) -> None:
    """A journal is data: what it names is loaded only if its user trusts the run."""
    assert (
        cli("run", "--task", "puzzles.py:SUMS:sum-1", "--model", "mock:echo", "--journal", "a.db").code == 0
    )
    cli.write("puzzles.py", "open('loaded', 'w')\n" + textwrap.dedent(SOURCE))
    with open_journal("a.db") as journal, open_journal("b.db") as other:
        (info,) = journal.runs()
        await import_lines(other, export_run(journal, info.run_id))
        with pytest.raises(UntrustedError, match=r"load the task set 'puzzles\.py:SUMS' and use its check"):
            await grade(other, info.run_id, make_scorers(read_rewards(["check"])))
    assert not (cli.folder / "loaded").exists()
