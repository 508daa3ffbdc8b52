"""Copies of a journal that is being written."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from tests.forks.process import FORKS

from treadle import Agent, JournalError, ScriptedModel, open_journal
from treadle.core import events as e
from treadle.journal.listing import facts_of
from treadle.journal.sqlite.sqlite_journal import SqliteJournal


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=1.0, reward=0.0, name="note", detail=text)


async def test_a_copy_of_a_journal_in_use_has_what_was_acknowledged_and_goes_on(tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    with SqliteJournal(tmp_path / "runs.db", "power") as journal:

        async def write(run_id: str) -> None:
            writer = journal.create(run_id)
            while True:
                writer.append([note(f"{run_id} {acknowledged.get(run_id, 0)}" + "x" * 500)])
                await writer.sync()
                acknowledged[run_id] = acknowledged.get(run_id, 0) + 1

        tasks = [asyncio.ensure_future(write(f"r{number}")) for number in range(8)]
        while len(acknowledged) < 8:
            await asyncio.sleep(0.01)
        for number in range(3):
            before = dict(acknowledged)
            target = tmp_path / f"copy{number}.db"
            assert await asyncio.to_thread(journal.backup, target) == 8
            assert (target.stat().st_mode & 0o777) == ((tmp_path / "runs.db").stat().st_mode & 0o777)
            with SqliteJournal(target) as copy:
                assert copy.level == "power"
                for info in copy.runs():
                    events = copy.read(info.run_id)
                    assert [event.seq for event in events] == list(range(1, len(events) + 1))
                    assert len(events) >= before[info.run_id]
                    assert info == facts_of([event.body for event in events]).info(
                        info.run_id, is_driven=False
                    )
                writer = await copy.acquire("r0")
                writer.append([note("in the copy")])
                await writer.sync()
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"runs.db", "runs.db-wal", "runs.db-shm", "copy0.db", "copy1.db", "copy2.db"}


async def test_a_run_of_a_copy_is_resumed(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        slow = ScriptedModel(["late"], delay_seconds=60)
        task = asyncio.ensure_future(Agent(slow, journal=journal).run("go", run_id="r"))
        while not journal.runs():
            await asyncio.sleep(0.01)
        journal.backup(tmp_path / "copy.db")
        with open_journal(tmp_path / "copy.db") as copy:
            assert (await Agent(ScriptedModel(["the end"]), journal=copy).resume("r")).output == "the end"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_backup_overwrites_nothing_and_leaves_nothing_incomplete(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        (tmp_path / "there").write_text("mine")
        with pytest.raises(JournalError, match="exists already, and a backup overwrites nothing"):
            journal.backup(tmp_path / "there")
        with pytest.raises(JournalError, match="overwrites nothing"):
            journal.backup(tmp_path / "runs.db")
        with pytest.raises(JournalError, match="cannot write the backup"):
            journal.backup(tmp_path / "no" / "copy.db")
        assert (tmp_path / "there").read_text() == "mine"
        assert not list(tmp_path.glob("*.part*"))
    with pytest.raises(JournalError, match="is closed"):
        journal.backup(tmp_path / "copy.db")
    with open_journal("memory:") as memory, pytest.raises(JournalError, match="no file to copy"):
        memory.backup(tmp_path / "copy.db")


def test_of_two_backups_to_one_file_one_is_made(tmp_path: Path) -> None:
    results: list[object] = []
    with open_journal(tmp_path / "runs.db"):
        script = (
            "import sys; from treadle import open_journal; "
            "sys.stdin.readline(); open_journal(sys.argv[1]).backup(sys.argv[2])"
        )
        command = ["-c", script, str(tmp_path / "runs.db"), str(tmp_path / "copy.db")]

        def run() -> None:
            results.append(FORKS.run(*command, text="go\n").stderr)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    failures = [str(text) for text in results if text]
    assert len(failures) == 1
    assert "overwrites nothing" in failures[0]
    db = sqlite3.connect(tmp_path / "copy.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
