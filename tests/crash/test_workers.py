"""Workers die, and others resume their runs; programs die, and their workers give the runs back."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli.command import Cli
from tests.workers.gates import Gate, gate, message

from treadle import Agent, Run, open_journal
from treadle.core import events as e
from treadle.core.types import StopReason
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.runs.begin import enqueue
from treadle.runs.options import Given
from treadle.workers.protocol import WorkerOptions
from treadle.workers.registry import make_workers

__all__ = ["gate"]


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    with open_journal(tmp_path / "runs.db") as journal:
        yield journal


def reasons(journal: Journal, run_id: str) -> list[str]:
    return [event.body.reason for event in journal.read(run_id) if isinstance(event.body, e.RunPaused)]


async def finished(journal: Journal, run_ids: list[str]) -> None:
    """Wait until these runs have ended."""
    while len(journal.runs(RunFilter(run_ids=run_ids, is_finished=True, is_driven=False))) < len(run_ids):
        await asyncio.sleep(0.02)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Any:
    """A journal that several processes can open, of each kind."""
    if request.param == "sqlite":
        yield request.getfixturevalue("journal")
        return
    with open_journal(request.getfixturevalue("postgres_url")) as journal:
        yield journal


async def test_the_runs_of_a_killed_worker_are_resumed_by_the_others(store: Journal, gate: Gate) -> None:
    """SIGKILL loses no run, repeats no inference, and each run ends once."""
    journal = store
    agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
    workers = make_workers("local:2", journal, WorkerOptions(window=8))
    names = [f"r-{number}" for number in range(8)]
    running = asyncio.gather(*[workers.run(agent, name, message(name)) for name in names])
    pids = {name: await gate.reached(name) for name in names}
    victim = pids["r-0"]
    os.kill(victim, signal.SIGKILL)
    lost = [name for name, pid in pids.items() if pid == victim]
    for name in lost:
        assert await gate.reached(name, 2) != victim
    gate.open()
    for run in await running:
        bodies = [event.body for event in run.events]
        assert (run.output, run.stop_reason) == (f"done {run.run_id}", StopReason.COMPLETED)
        assert sum(isinstance(body, e.InferenceCompleted) for body in bodies) == 2
        assert sum(isinstance(body, e.RunFinished) for body in bodies) == 1
        assert len(gate.pids(run.run_id)) == 1 + (run.run_id in lost)
    assert workers.status().restarts == 1
    await workers.close()


async def test_a_claim_that_is_cancelled_leaves_the_losses_of_its_run(
    store: Journal, gate: Gate, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Rules out that a worker which is stopped as it claims a run makes it look harmless."""
    await enqueue(Agent("mock:echo", journal=store), "say hello", Given(), {})
    if isinstance(store, SqliteJournal):
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as db:
            db.execute("UPDATE runs SET losses = 3")
    else:
        with psycopg.connect(request.getfixturevalue("postgres_url"), autocommit=True) as connection:
            connection.execute("UPDATE runs SET losses = 3")
    claiming = asyncio.ensure_future(store.claim("default"))
    await asyncio.sleep(0)
    claiming.cancel()
    async with asyncio.timeout(60):
        while (writer := await store.claim("default")) is None:
            await asyncio.sleep(0.01)
    assert writer.losses == 3


async def test_a_tool_with_an_effect_runs_once_although_its_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.chdir(tmp_path)
    gate = Gate(tmp_path, effect="once")
    agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
    workers = make_workers("local:1", journal)
    running = asyncio.ensure_future(workers.run(agent, "r", message("r")))
    os.kill(await gate.reached("r"), signal.SIGKILL)
    run = await running
    assert len(gate.pids("r")) == 1
    assert run.results[0].is_error
    assert run.output == "done r"
    await workers.close()


PROGRAM = textwrap.dedent("""
    import asyncio, sys
    from treadle import Agent, open_journal
    from treadle.workers.registry import make_workers
    from tests.workers.gates import message

    async def main():
        journal = open_journal("runs.db")
        agent = Agent("mock:echo", tools=[sys.argv[1]], journal=journal)
        workers = make_workers("local:2", journal)
        names = sys.argv[2:]
        runs = await asyncio.gather(*[workers.run(agent, name, message(name)) for name in names])
        print(*[run.output for run in runs], sep=",")
        await workers.close()

    asyncio.run(main())
""")


async def test_a_killed_program_leaves_no_workers_and_goes_on_when_it_is_started_again(
    journal: Journal, gate: Gate
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    names = ["a", "b", "c"]
    command = [sys.executable, "-c", PROGRAM, gate.tool, *names]
    first = subprocess.Popen(command, cwd=gate.folder, env=environment)
    pids = {await gate.reached(name) for name in names}
    first.kill()
    first.wait()
    for pid in pids:
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            await asyncio.sleep(0.02)
    # The workers saw that their program is gone, and gave its runs back. One that saw it later may have taken a run
    # that the other had given back.
    assert [set(reasons(journal, name)) for name in names] == [{"cancelled"}] * 3
    assert all(len(reasons(journal, name)) <= 2 for name in names)
    gate.open()
    second = await asyncio.to_thread(
        subprocess.run, command, cwd=gate.folder, env=environment, capture_output=True
    )
    assert second.stdout.decode().strip() == "done a,done b,done c", second.stderr.decode()
    assert all(len(Run.load(name, journal).results) == 1 for name in names)


@asynccontextmanager
async def worker(cli: Cli, *options: str) -> AsyncIterator[Any]:
    """Start `treadle worker`, and end it."""
    process = cli.start("worker", "--journal", "runs.db", *options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_workers_join_from_anywhere_and_give_back_what_they_drive(
    journal: Journal, gate: Gate, tmp_path: Path
) -> None:
    """The first Ctrl-C or SIGTERM gives all runs back at once, and another worker goes on with them."""
    cli = Cli(tmp_path)
    cli.env["XDG_STATE_HOME"] = os.environ["XDG_STATE_HOME"]
    agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
    names = ["a", "b", "c"]
    for name in names:
        await enqueue(agent, message(name), Given(), {"run_id": name}, "nightly")
    for stop in (signal.SIGTERM, signal.SIGINT):
        async with worker(cli, "--queue", "nightly") as process:
            times = len(gate.pids("a")) + 1
            assert {await gate.reached(name, times) for name in names} == {process.pid}
            process.send_signal(stop)
            out, err = await asyncio.to_thread(process.communicate)
            assert (process.returncode, out) == (0, "")
            assert "0 runs driven; the others were given back" in err
        assert [reasons(journal, name) for name in names] == [["cancelled"] * times] * 3
    async with worker(cli, "--queue", "other"), worker(cli, "--queue", "nightly", "--window", "2"):
        gate.open()
        await finished(journal, names)
    assert all(Run.load(name, journal).output == f"done {name}" for name in names)


async def test_a_worker_says_which_key_is_missing_and_leaves_the_run_to_others(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.scripted import Scripted

    server = Scripted(lambda body: {"content": "hello"})
    monkeypatch.setenv("MY_KEY", "sk-planted-key-00001")
    try:
        from treadle import model

        asked = model("openai:m", base_url=server.url, api_key_env="MY_KEY")
        await enqueue(Agent(asked, journal=journal), "Hi.", Given(), {"run_id": "r"})
        cli = Cli(tmp_path)
        cli.env["XDG_STATE_HOME"] = os.environ["XDG_STATE_HOME"]
        del cli.env["MY_KEY"]
        async with worker(cli) as process:
            said = await asyncio.to_thread(process.stderr.readline)
            said += await asyncio.to_thread(process.stderr.readline)
            assert "run r cannot be driven here" in said
            assert "MY_KEY" in said
            assert "sk-planted" not in said
            cli.env["MY_KEY"] = "sk-planted-key-00001"
            async with worker(cli):
                await finished(journal, ["r"])
        assert server.headers[0]["authorization"] == "Bearer sk-planted-key-00001"
        assert "sk-planted" not in str(journal.read("r"))
    finally:
        server.stop()


async def test_workers_that_cannot_start_are_an_error_and_not_a_wait(journal: Journal, gate: Gate) -> None:
    agent = Agent("mock:echo", journal=journal)
    (gate.folder / "treadle.toml").write_text("[nonsense]\n")
    workers = make_workers("local:1", journal)
    with pytest.raises(ValueError, match=r"a worker process ended with status 2.*nonsense"):
        await workers.run(agent, "r", "say hello")
    await workers.close()


POISON = """
import os
from treadle import tool

@tool(effect="idempotent")
def drink(name: str) -> str:
    "End the process."
    os._exit(17)
"""


@pytest.mark.full
async def test_a_run_that_ends_its_workers_keeps_no_other_from_its_end(
    journal: Journal, gate: Gate, tmp_path: Path
) -> None:
    (tmp_path / "poison.py").write_text(POISON)
    gate.open()
    agent = Agent("mock:echo", tools=[gate.tool, "poison:drink"], journal=journal)
    workers = make_workers("local:2", journal)
    names = [f"r-{number}" for number in range(6)]
    poison, *runs = await asyncio.gather(
        workers.run(agent, "p", 'call drink {"name": "p"}\nsay done'),
        *[workers.run(agent, name, message(name)) for name in names],
    )
    assert [run.output for run in runs] == [f"done {name}" for name in names]
    assert poison.status == "paused"
    assert reasons(journal, "p") == ["set_aside"]
    assert workers.status().restarts == 3
    await workers.close()
