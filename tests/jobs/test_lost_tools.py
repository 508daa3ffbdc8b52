"""A run that lost a tool is made anew, in every job: what the model did afterwards is not its own work."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.core.errors import NoResultError
from treadle.core.types import Completion, Request, StopReason
from treadle.evals import Evaluated, evaluate
from treadle.export.groups import Rollout
from treadle.jobs.ledger import Ledger
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.models.protocol import Model, Watch
from treadle.models.wrappers.wrapper import Wrapper
from treadle.rollout.rollout_folder import read_groups, read_stored
from treadle.rollout.rollouts import Rollouts
from treadle.rollout.trainers.prompted import FailedRollout, TrainerStep, roll
from treadle.runs.retries import RetryPolicy

ODD_SERVER = Path(__file__).parents[1] / "tools/mcp/odd_server.py"
DESK = f"""
import sys
from pathlib import Path
from treadle import tool
from treadle.core.errors import NoResultError
from treadle.tasks import SimpleTask
from treadle.tools import MCPServer

SERVER = MCPServer(sys.executable, args=[{str(ODD_SERVER)!r}, "dies", "state"])

@tool
def book(name: str) -> str:
    broken = Path("broken")
    if broken.exists() and name == broken.read_text():
        raise NoResultError("the desk is closed")
    return "booked"

def check(task, output, files):
    return output == "done"

def make(name, text, toolset):
    return SimpleTask(task_id=name, input=text, tools=[f"desk.py:{{toolset}}"], grader=check)

SERVED = [make("served", "call once {{}}\\nsay done", "SERVER")]
BOOKED = [make(name, 'call book {{"name": "%s"}}\\nsay done' % name, "book") for name in ("a", "b")]
"""


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk.py").write_text(DESK)


async def evaluate_booked(**options: object) -> Evaluated:
    retries = {"delay_seconds": 0, "attempts": 2}
    return await evaluate(
        models=["mock:echo"], tasks=["desk.py:BOOKED"], retries=retries, path="out", **options
    )


async def test_a_sample_whose_server_died_is_made_anew() -> None:
    done = await evaluate(
        models=["mock:echo"], tasks=["desk.py:SERVED"], retries={"delay_seconds": 0}, path="out"
    )
    (sample,) = done.results.samples
    assert (sample.run_id, sample.details.score) == ("eval-1~2", 1.0)
    assert done.progress.retried == 1
    with open_journal(done.folder.journal) as journal:
        runs = {info.run_id: info for info in journal.runs()}
    assert {run_id: info.stop_reason for run_id, info in runs.items()} == {
        "eval-1": StopReason.COMPLETED,
        "eval-1~2": StopReason.COMPLETED,
    }
    spent = sum(info.input_tokens + info.output_tokens for info in runs.values())
    assert done.progress.input_tokens + done.progress.output_tokens == spent
    with Ledger(done.folder.ledger, is_readonly=True) as ledger:
        lost = msgspec.json.decode(ledger.get("lost") or "{}")
        counts = ledger.counts()
    assert counts.input_tokens + counts.output_tokens + lost["tokens"] == spent


async def test_a_sample_whose_tool_stays_lost_has_no_grade_until_it_is_back() -> None:
    Path("broken").write_text("b")
    done = await evaluate_booked()
    assert [sample.spec.task for sample in done.results.samples] == ["desk.py:BOOKED:a"]
    (reason,) = done.results.failed.values()
    assert reason.startswith("infrastructure: run eval-2~2 failed 2 times, at last with: LostRunError: ")
    assert reason.endswith("the tool 'book' gave no result: the desk is closed")
    assert (await evaluate_booked()).progress.failed == 1
    Path("broken").unlink()
    done = await evaluate_booked()
    assert (done.end.reason, done.results.failed) == ("done", {})
    assert [sample.run_id for sample in done.results.samples] == ["eval-1", "eval-2~5"]
    assert (await evaluate_booked(is_rescored=True)).progress.kept == 2
    with open_journal(done.folder.journal) as journal:
        assert len(journal.runs()) == 6


class Slow(Wrapper):
    """A model that answers after a minute."""

    async def infer(self, request: Request, watch: Watch) -> Completion:
        await asyncio.sleep(60)
        return await self.inner.infer(request, watch)


async def test_a_sample_that_its_deadline_ended_is_made_anew_by_the_next_command() -> None:
    async def run(model: Model) -> Evaluated:
        agent = {"deadline_seconds": 0.2}
        return await evaluate(models={"it": model}, tasks=["desk.py:BOOKED:a"], agent=agent, path="out")

    done = await run(Slow(ScriptedModel(["done"])))
    assert "waited for an answer when its deadline passed" in done.results.failed["eval-1"]
    done = await run(ScriptedModel(["done"]))
    assert (done.results.failed, [sample.run_id for sample in done.results.samples]) == ({}, ["eval-1~2"])


async def test_a_group_has_the_runs_that_lost_no_tool() -> None:
    def make(path: str) -> Rollouts:
        given = {"tasks": ["desk.py:SERVED"], "groups": 1, "group_size": 3, "window": 1, "path": path}
        return Rollouts(model="mock:echo", retries={"delay_seconds": 0}, **given)

    result = await make("out").run()
    assert (result.end.reason, result.progress.retried) == ("done", 1)
    (group,) = read_groups(Path("out"), read_stored(Path("out")))
    assert [rollout.run_id for rollout in group.rollouts] == [
        "rollout-1-0~2",
        "rollout-1-1",
        "rollout-1-2",
    ]
    assert [rollout.reward for rollout in group.rollouts] == [1.0, 1.0, 1.0]


async def test_a_rollout_of_a_trainer_is_made_anew_too() -> None:
    calls = 0

    @tool
    def book() -> str:
        nonlocal calls
        calls += 1
        if calls in (1, 3, 4):
            raise NoResultError("the desk is closed")
        return "booked"

    agent = Agent(ScriptedModel([[call("book", {})], "done"] * 4), tools=[book], journal=MemoryJournal())
    made = [
        await roll(
            agent, "book it", TrainerStep(training="t", step=step, prompt="p"), RetryPolicy(attempts=2)
        )
        for step in (1, 2)
    ]
    assert isinstance(made[0], Rollout)
    assert made[0].run_id.endswith("-0~2")
    assert isinstance(made[1], FailedRollout)
    assert made[1].fault == "the tool 'book' gave no result: the desk is closed"
