"""A journal in one SQLite file: its leases, and processes that share it."""

import asyncio
import signal
import sqlite3
import subprocess
import textwrap
from pathlib import Path

import pytest
from tests.forks.process import FORKS, Started

from treadle.core.errors import JournalError, LeaseHeldError
from treadle.core.events import Rewarded, RunFinished, RunPaused
from treadle.core.types import StopReason
from treadle.journal.sqlite.sqlite_journal import SqliteJournal

PATIENCE_SECONDS = 60
"""The time after which a wait counts as endless."""

PREAMBLE = """
import asyncio, os, sys
from treadle.core.events import Rewarded
from treadle.journal.registry import open_journal
async def keep(journal, run_id, events=1):
    writer = journal.create(run_id)
    for number in range(events):
        writer.append([Rewarded(at=0.0, reward=float(number))])
        await writer.sync()
    return writer
"""


def start(script: str, *arguments: object) -> Started:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return FORKS.start("-c", PREAMBLE + textwrap.dedent(script), *map(str, arguments), **pipes)


def finish(processes: list[Started]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, errors) == (0, "")


async def begin(journal: SqliteJournal, run_id: str) -> None:
    writer = journal.create(run_id)
    writer.append([Rewarded(at=0.0, reward=0.0)])
    await writer.sync()


@pytest.mark.full
def test_many_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    script = """
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(30):
            open_journal(f"{sys.argv[1]}/{number}.db").close()
    """
    processes = [start(script, tmp_path) for _ in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    finish(processes)


async def test_processes_write_one_file_beside_each_other(tmp_path: Path) -> None:
    script = """
        async def main():
            with open_journal(sys.argv[1]) as journal:
                await asyncio.gather(*[keep(journal, f"{sys.argv[2]} {n}", 20) for n in range(50)])
        asyncio.run(main())
    """
    finish([start(script, tmp_path / "runs.db", name) for name in "abc"])
    with SqliteJournal(tmp_path / "runs.db") as journal:
        infos = journal.runs()
        assert {info.run_id for info in infos} == {f"{name} {n}" for name in "abc" for n in range(50)}
        for info in infos:
            rewards = [event.body.reward for event in journal.read(info.run_id)]  # type: ignore[union-attr]
            assert rewards == [float(n) for n in range(20)]
            assert not info.is_driven


async def test_two_journals_of_one_process_keep_their_runs_apart(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "runs.db") as one, SqliteJournal(tmp_path / "runs.db") as two:
        await begin(one, "of one")
        await begin(two, "of two")
        for journal, run_id in ((one, "of one"), (two, "of one"), (one, "of two")):
            with pytest.raises(LeaseHeldError, match=f"{run_id!r} is being driven by"):
                await journal.acquire(run_id)
        one.close()
        assert {info.run_id: info.is_driven for info in two.runs()} == {"of one": False, "of two": True}
        await two.acquire("of one")


async def test_a_killed_process_loses_its_runs_at_once(tmp_path: Path) -> None:
    script = """
        async def main():
            journal = open_journal(sys.argv[1], lease_seconds=3600)
            writer = await keep(journal, "r", 3)
            print("kept", flush=True)
            sys.stdin.readline()
        asyncio.run(main())
    """
    process = start(script, tmp_path / "runs.db")
    assert process.stdout is not None
    assert process.stdout.readline() == "kept\n"
    with SqliteJournal(tmp_path / "runs.db", lease_seconds=3600) as journal:
        with pytest.raises(LeaseHeldError, match=f"process {process.pid} "):
            await journal.acquire("r")
        assert [info.is_driven for info in journal.runs()] == [True]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert [info.is_driven for info in journal.runs()] == [False]
        await journal.acquire("r")


async def test_a_heartbeat_keeps_the_lease_of_who_writes_nothing(tmp_path: Path) -> None:
    with (
        SqliteJournal(tmp_path / "runs.db", lease_seconds=1.0) as idle,
        SqliteJournal(tmp_path / "runs.db", lease_seconds=1.0) as other,
    ):
        await begin(idle, "r")
        await asyncio.sleep(2.5)
        with pytest.raises(LeaseHeldError):
            await other.acquire("r")


async def test_a_listing_follows_the_status(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "runs.db") as journal:
        for run_id, body in {
            "running": None,
            "paused": RunPaused(at=0.0, reason="question"),
            "finished": RunFinished(at=0.0, stop_reason=StopReason.COMPLETED),
        }.items():
            writer = journal.create(run_id)
            writer.append([Rewarded(at=0.0, reward=0.0)])
            if body is not None:
                writer.append([body])
                await writer.sync()
                await writer.release()
            await writer.sync()
        listed = [(i.run_id, i.status, i.stop_reason, i.events, i.is_driven) for i in journal.runs()]
    assert listed == [
        ("running", "running", None, 1, True),
        ("paused", "paused", "question", 2, False),
        ("finished", "finished", "completed", 2, False),
    ]


async def test_a_table_that_goes_missing_is_told_to_all(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "runs.db") as journal:
        await begin(journal, "r")
        with sqlite3.connect(tmp_path / "runs.db") as db:
            db.execute("DROP TABLE meta")
        db.close()
        for _ in range(2):
            results = await asyncio.wait_for(
                asyncio.gather(*[begin(journal, f"r{n}") for n in range(9)], return_exceptions=True),
                PATIENCE_SECONDS,
            )
            assert {type(result) for result in results} == {JournalError}
