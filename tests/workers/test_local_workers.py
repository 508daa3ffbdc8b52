"""Workers: in this process and in worker processes, with the same results."""

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.scripted import Scripted
from tests.conftest import IS_FULL
from tests.workers.gates import Gate, gate, message

from treadle import Agent, ConfigError, Policy, Run, ScriptedModel, load_task, model, open_journal
from treadle.core import events as e
from treadle.core.inbox import Enqueue
from treadle.core.spec import AgentSpec
from treadle.core.types import Message, Role, StopReason
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.journal.run_info import QUEUE, RunFilter
from treadle.runs.begin import enqueue
from treadle.runs.options import Given
from treadle.runs.resume import hand_over
from treadle.runs.retries import RetryPolicy
from treadle.runs.statuses import find_unfinished, status_of
from treadle.testbed import named_oracle
from treadle.testbed.server import serve
from treadle.workers.protocol import WorkerOptions, Workers
from treadle.workers.registry import WORKERS, make_workers
from treadle.workers.worker import Worker

__all__ = ["gate"]
ONCE = RetryPolicy(attempts=2, delay_seconds=0.0)


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    with open_journal(tmp_path / "runs.db") as journal:
        yield journal


@pytest.fixture(params=["here", "local:1"])  # a process takes a second to start
async def workers(request: pytest.FixtureRequest, journal: Journal) -> AsyncIterator[Workers]:
    workers = make_workers(request.param, journal)
    yield workers
    await workers.close()
    await workers.close()


@pytest.mark.parametrize("workers", ["here", "local:2"], indirect=True)
async def test_a_run_is_made_once_and_then_read(workers: Workers, journal: Journal, gate: Gate) -> None:
    gate.open()
    agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
    names = [f"r-{number}" for number in range(6)]
    runs = await asyncio.gather(*[workers.run(agent, name, message(name)) for name in names])
    assert [run.output for run in runs] == [f"done {name}" for name in names]
    assert {run.stop_reason for run in runs} == {StopReason.COMPLETED}
    again = await workers.run(agent, "r-0", message("r-0"))
    assert again.events == runs[0].events
    assert len(gate.pids("r-0")) == 1


async def test_the_status_says_what_is_in_flight(workers: Workers, journal: Journal, gate: Gate) -> None:
    agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
    running = asyncio.ensure_future(workers.run(agent, "r", message("r")))
    await gate.reached("r")
    while (status := workers.status()).waiting_on_tools != 1:
        await asyncio.sleep(0.02)
    assert (status.in_flight, status.driven, status.waiting_on_model, status.restarts) == (1, 1, 0, 0)
    gate.open()
    await running
    assert workers.status().in_flight == 0


async def test_a_task_is_graded_and_the_answer_fits_the_schema(workers: Workers, journal: Journal) -> None:
    server = await serve("127.0.0.1", 0)
    try:
        oracle = model("openai:oracle", base_url=server.url)
        task = load_task("files:csv_sum-0001")
        run = await workers.run(Agent(oracle, journal=journal), "t", task, metadata={"group": "g"})
        assert (run.reward, run.metadata["group"]) == (1.0, "g")
        solved = await workers.run(Agent(named_oracle("oracle", task, seed=3), journal=journal), "o", task)
        assert solved.reward == 1.0
        agent = Agent(model("openai:echo", base_url=server.url), schema=dict[str, int], journal=journal)
        answered = await workers.run(agent, "s", 'say {"a": 1}')
        assert answered.value == {"a": 1}
    finally:
        await server.close()


async def test_a_failed_run_is_continued(workers: Workers, journal: Journal) -> None:
    answers: list[Any] = [400]
    server = Scripted(lambda body: answers.pop() if answers else {"content": "hello"})
    try:
        agent = Agent(model("openai:m", base_url=server.url), journal=journal)
        failed = await workers.run(agent, "r", "Hello.")
        assert failed.stop_reason is StopReason.ERROR
        assert (await workers.run(agent, "r", "Hello.")).output == "hello"
    finally:
        server.stop()


async def test_what_only_this_program_has_is_refused(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="need a number; write 'local:4'"):
        make_workers("local:many", journal)
    with pytest.raises(ConfigError, match="'here:2' have no number"):
        make_workers("here:2", journal)
    with pytest.raises(ConfigError, match="unknown kind of workers 'locale'; did you mean 'local'"):
        make_workers("locale:2", journal)
    with pytest.raises(ConfigError, match="other processes can open"):
        make_workers("local:2", open_journal("memory:"))
    workers = make_workers("local:2", journal)
    with pytest.raises(ConfigError, match="an object of the program"):
        await workers.run(Agent(ScriptedModel([]), journal=journal), "r", "Hello.")
    with pytest.raises(ConfigError, match="deps are objects of this program"):
        await workers.run(Agent("mock:echo", journal=journal), "r", "Hello.", deps=object())
    assert journal.runs() == []
    await workers.close()


async def test_a_run_without_a_queue_is_continued_here(journal: Journal, gate: Gate) -> None:
    agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
    running = asyncio.ensure_future(agent.run(message("r"), run_id="r"))
    await gate.reached("r")
    running.cancel()
    await asyncio.wait([running])
    gate.open()
    workers = make_workers("local:1", journal)
    assert (await workers.run(agent, "r", message("r"))).output == "done r"
    assert workers.status().workers == 0
    await workers.close()


async def work_on(worker: Worker, run_ids: list[str]) -> None:
    """Let a worker work until these runs are over, and it has counted them."""
    working = asyncio.ensure_future(worker.work())
    over = RunFilter(run_ids=run_ids, is_finished=True, is_driven=False)
    while (len(worker.journal.runs(over)) < len(run_ids) or worker._running) and not working.done():
        await asyncio.sleep(0.01)
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


async def test_many_runs_of_one_agent_build_it_once(journal: Journal) -> None:
    run_ids: list[str] = []
    for number in range(1000 if IS_FULL else 60):
        told, policy = f"You are number {number}.", Policy(max_steps=number + 1)
        agent = Agent("mock:echo", instructions=told, policy=policy, tools=["files"], journal=journal)
        run_ids.append(await enqueue(agent, "say hello", Given(), {}))
    worker = Worker(journal)
    await work_on(worker, run_ids)
    assert (worker.agents.built, worker.done) == (1, len(run_ids))


async def test_runs_that_differ_in_their_seed_share_an_agent_and_keep_their_seed(journal: Journal) -> None:
    """Rollouts of a group differ in the seed of their samples, and in nothing that has to be built again."""
    server = Scripted(lambda body: {"content": "hello"})
    try:
        run_ids = [
            await enqueue(
                Agent(model("openai:m", base_url=server.url, seed=seed), journal=journal), "Hi.", Given(), {}
            )
            for seed in range(5)
        ]
        worker = Worker(journal)
        await work_on(worker, run_ids)
        assert sorted(body["seed"] for body in server.requests) == [0, 1, 2, 3, 4]
        assert worker.agents.built == 1
    finally:
        server.stop()


async def test_a_fault_of_the_infrastructure_is_retried_on_a_budget(journal: Journal) -> None:
    """The run has no reward and no end before the budget is spent."""
    left = [3]

    def answer(body: Any) -> Any:
        left[0] -= 1
        return 503 if left[0] >= 0 else {"content": "hello"}

    server = Scripted(answer)
    try:
        agent = Agent(model("openai:m", base_url=server.url, max_attempts=1), journal=journal)
        run_id = await enqueue(agent, "Hi.", Given(), {})
        worker = Worker(journal, WorkerOptions(retries=ONCE))
        await work_on(worker, [run_id])
        bodies = [event.body for event in journal.read(run_id)]
        ends = [body.stop_reason for body in bodies if isinstance(body, e.RunFinished)]
        assert ends == [StopReason.ERROR, StopReason.ERROR]
        other = await enqueue(agent, "Hi.", Given(), {})
        await work_on(Worker(journal, WorkerOptions(retries=ONCE)), [other])
        assert journal.read(other)[-1].body.stop_reason is StopReason.COMPLETED  # type: ignore[union-attr]
    finally:
        server.stop()


async def test_a_worker_leaves_out_what_it_cannot_drive(journal: Journal) -> None:
    bad = await enqueue(Agent("mock:echo", instructions="No.", journal=journal), "say no", Given(), {})
    good = await enqueue(Agent("mock:echo", journal=journal), "say hello", Given(), {})
    problems: list[tuple[str, str]] = []
    worker = Worker(journal, on_problem=lambda run_id, error: problems.append((run_id, str(error))))
    found = worker.agents.agent_for

    def refuse(spec: AgentSpec, started: Any) -> Any:
        if spec.instructions == "No.":
            raise ConfigError("the environment variable MY_KEY is not set")
        return found(spec, started)

    worker.agents.agent_for = refuse  # type: ignore[method-assign]
    await work_on(worker, [good])
    assert problems == [(bad, "the environment variable MY_KEY is not set")]
    writer = await journal.claim("default")
    assert writer is not None
    assert writer.run_id == bad


def set_losses(path: Path, losses: int) -> None:
    """Make the waiting runs look as if so many drivers in a row had died."""
    with sqlite3.connect(path) as db:
        db.execute("UPDATE runs SET losses = ?", (losses,))
    db.close()


async def test_a_run_that_ends_its_workers_is_set_aside_until_somebody_resumes_it(
    journal: Journal, tmp_path: Path
) -> None:
    agent = Agent("mock:echo", journal=journal)
    poison = await enqueue(agent, "say better", Given(), {})
    set_losses(tmp_path / "runs.db", 3)
    good = await enqueue(agent, "say hello", Given(), {})
    worker = Worker(journal)
    await work_on(worker, [good])
    working = asyncio.ensure_future(worker.work())
    while not (info := journal.runs(RunFilter(run_ids=[poison]))[0]).is_waiting or info.is_driven:
        assert not working.done()
        await asyncio.sleep(0.01)
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    assert (info.status, info.stop_reason, status_of(info)) == ("paused", "set_aside", "waiting")
    assert await journal.claim("default") is None
    assert poison not in find_unfinished(journal)
    last = journal.read(poison)[-1].body
    assert isinstance(last, e.RunPaused)
    assert "3 processes in a row ended" in (last.remark or "")
    workers = make_workers("local:1", journal)
    assert (await workers.run(agent, poison, "say better")).status == "paused"
    assert workers.status().workers == 0
    await workers.close()
    assert (await agent.replay(poison)).is_exact
    assert (await agent.resume(poison)).output == "better"


async def test_a_run_that_lost_two_workers_is_driven_alone(
    journal: Journal, tmp_path: Path, gate: Gate
) -> None:
    """Its next loss is counted for no other run."""
    agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
    run_ids = [await enqueue(agent, message(name), Given(), {}) for name in ("a", "b")]
    set_losses(tmp_path / "runs.db", 2)
    new = await enqueue(agent, message("new"), Given(), {})
    working = asyncio.ensure_future(work_on(Worker(journal), [new, *run_ids]))
    await gate.reached("new")
    await asyncio.sleep(0.1)
    assert gate.pids("a") == gate.pids("b") == []
    gate.open()
    await working
    assert len(gate.pids("a")) == len(gate.pids("b")) == 1


async def test_a_run_whose_store_failed_is_tried_again(journal: Journal, tmp_path: Path) -> None:
    """The worker does not leave it to others for good."""
    run_id = await enqueue(Agent("mock:echo", journal=journal), "say hello", Given(), {})
    with sqlite3.connect(tmp_path / "runs.db") as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON frames BEGIN SELECT RAISE(FAIL, 'no space'); END")
    problems: list[str] = []
    worker = Worker(journal, on_problem=lambda run_id, error: problems.append(str(error)))
    working = asyncio.ensure_future(work_on(worker, [run_id]))
    while not worker._left_out:
        await asyncio.sleep(0.01)
    with sqlite3.connect(tmp_path / "runs.db") as db:
        db.execute("DROP TRIGGER full")
    await working
    assert (worker.done, problems) == (1, [])


class Late(MemoryJournal):
    """A journal in which a message to a session arrives when its driver gives it back."""

    texts: tuple[str, ...] = ()

    async def claim(self, queue: str, skip: Any = (), *, max_losses: int | None = None) -> Any:
        writer = await super().claim(queue, skip, max_losses=max_losses)
        if writer is not None and self.texts:
            text, *rest = self.texts
            self.texts, release = tuple(rest), writer.release

            async def post_and_release() -> None:
                self.post(writer.run_id, Enqueue(Message(Role.USER, text)))
                await release()

            writer.release = post_and_release  # type: ignore[method-assign]
        return writer


async def test_a_message_in_the_last_instant_of_a_session_is_answered() -> None:
    journal = Late()
    agent = Agent("mock:echo", journal=journal)
    async with agent.session("s", metadata={QUEUE: "default"}):
        pass
    await hand_over(agent, "s", Given(), None, Message(Role.USER, "say first"))
    journal.texts = ("say late",)
    worker = Worker(journal)
    working = asyncio.ensure_future(worker.work())
    while not worker.done and not working.done():
        await asyncio.sleep(0.01)
    working.cancel()
    run = Run.load("s", journal)
    assert [item.content for item in run.messages if item.role is Role.ASSISTANT] == ["first", "late"]


async def test_an_untrusted_run_is_never_driven(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal from elsewhere may have runs in a queue. What they name is not built, asked or sent a key."""
    await enqueue(Agent("mock:echo", journal=journal), "say hello", Given(), {"run_id": "r"})
    journal.close()
    # Another user, for whom this file is foreign.
    shutil.copyfile(tmp_path / "runs.db", tmp_path / "foreign.db")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with open_journal(tmp_path / "foreign.db") as foreign:
        assert not foreign.is_trusted("r")
        assert await foreign.claim("default") is None
        mine = await enqueue(Agent("mock:echo", journal=foreign), "say hello", Given(), {})
        worker = Worker(foreign)
        await work_on(worker, [mine])
        assert [info.run_id for info in foreign.runs(RunFilter(is_finished=True))] == [mine]
        assert len(foreign.read("r")) == 2
        foreign.trust("r")
        writer = await foreign.claim("default")
        assert writer is not None
        assert writer.run_id == "r"


def test_every_kind_can_be_made(journal: Journal) -> None:
    for name in WORKERS.names():
        assert make_workers(f"{name}:1" if name == "local" else name, journal).status().in_flight == 0


@pytest.mark.sets(6)
@pytest.mark.parametrize(
    "address", ["local:-1", "local:1.5", "local:", "local:" + "9" * 23, "here:2", "ray:0"]
)
def test_a_wrong_number_of_workers_is_refused(address: str, journal: Journal) -> None:
    with pytest.raises(ConfigError, match="workers '"):
        make_workers(address, journal)
