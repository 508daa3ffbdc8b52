"""Files that are not journals, full disks, and damaged logs give clear errors, and nothing is lost."""

import asyncio
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import textwrap
from pathlib import Path

import pytest
from tests.forks.process import FORKS

from treadle import Agent, JournalError, ScriptedModel, open_journal
from treadle.core.events import Rewarded
from treadle.core.state import fold


def make_foreign(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE songs(title TEXT)")
    db.close()


def make_newer(path: Path) -> None:
    open_journal(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b"not a database at all" * 100), "is not a Treadle journal"),
        (make_foreign, "a database of another program"),
        (make_newer, "upgrade treadle"),
        (lambda path: path.mkdir(), "is a folder; give the path of a file"),
        (lambda path: path.symlink_to(path), "cannot be opened"),
    ],
)
def test_what_is_no_journal_is_refused(make: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    make(path)  # type: ignore[operator]
    with pytest.raises(JournalError, match=words) as caught:
        open_journal(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_made_unless_the_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal at"):
        open_journal(tmp_path / "no" / "runs.db", must_exist=True)
    assert list(tmp_path.iterdir()) == []
    with open_journal(tmp_path / "no" / "runs.db") as journal:
        assert journal.runs() == []


def test_a_journal_has_the_name_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that SQLite could take for a URI, and one that is too long for the files that SQLite adds."""
    monkeypatch.chdir(tmp_path)
    open_journal("./file:runs.db?mode=memory").close()
    assert [item.name for item in tmp_path.iterdir()] == ["file:runs.db?mode=memory"]
    with pytest.raises(JournalError, match="cannot be opened"):
        open_journal("n" * 253)


def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    with open_journal(path) as journal:
        assert journal.runs() == []


async def test_a_full_disk_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk. Without the limit the run can continue."""
    path = tmp_path / "runs.db"
    script = textwrap.dedent("""
        import asyncio, resource, signal, sys
        from treadle import open_journal
        from treadle.core.errors import JournalError
        from treadle.core.events import Rewarded
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        async def main():
            journal = open_journal(sys.argv[1])
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
            writer = journal.create("r")
            kept = 0
            try:
                for number in range(1000):
                    writer.append([Rewarded(at=0.0, reward=float(number), detail="x" * 5000)])
                    await writer.sync()
                    kept += 1
            except JournalError as error:
                print(kept, error, flush=True)
            try:
                writer.append([Rewarded(at=0.0, reward=-1.0)])
                await writer.sync()
            except JournalError as error:
                print("still", flush=True)
        asyncio.run(main())
    """)
    done = FORKS.run("-c", script, str(path))
    first, second = done.stdout.splitlines()
    assert "is the disk full? What was stored before is safe" in first, done.stderr
    assert second == "still"
    kept = int(first.split()[0])
    assert kept > 10
    with open_journal(path) as journal:
        rewards = [event.body.reward for event in journal.read("r") if isinstance(event.body, Rewarded)]
        assert rewards == [float(number) for number in range(kept)]
        writer = await journal.acquire("r")
        writer.append([Rewarded(at=0.0, reward=0.5)])
        await writer.sync()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_torn_log_loses_its_tail_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    script = textwrap.dedent("""
        import asyncio, sys
        from treadle import open_journal
        from treadle.core.events import Rewarded
        async def write(journal, name):
            writer = journal.create(name)
            for number in range(1000):
                writer.append([Rewarded(at=0.0, reward=float(number), detail="y" * 300)])
                await writer.sync()
                print(name, number + 1, flush=True)
        async def main():
            journal = open_journal(sys.argv[1])
            await asyncio.gather(*[write(journal, name) for name in "abc"])
        asyncio.run(main())
    """)
    process = FORKS.start("-c", script, str(path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    acknowledged: dict[str, int] = {}
    for line in process.stdout:
        name, count = line.split()
        acknowledged[name] = int(count)
        if int(count) >= 60:
            os.kill(process.pid, signal.SIGKILL)
            break
    for line in process.stdout:
        name, _, count = line.strip().partition(" ")
        if count.isdigit():
            acknowledged[name] = int(count)
    process.wait()
    log = (tmp_path / "runs.db-wal").read_bytes()
    cuts = [len(log), *range(0, len(log), len(log) // 30 + 1), len(log) - 1, len(log) // 2 + 13]
    for index, cut in enumerate(cuts):
        folder = tmp_path / f"cut{index}"
        folder.mkdir()
        shutil.copy(path, folder / "runs.db")
        (folder / "runs.db-wal").write_bytes(log[:cut])
        if cut == len(log) // 2 + 13:
            torn = bytearray(log)
            torn[cut : cut + 40] = b"\xaa" * 40
            (folder / "runs.db-wal").write_bytes(torn)
        try:
            journal = open_journal(folder / "runs.db")
        except JournalError:
            pytest.fail(f"a log cut at {cut} cannot be opened")
        with journal:
            for info in journal.runs():
                events = journal.read(info.run_id)
                assert [event.seq for event in events] == list(range(1, len(events) + 1))
                assert [event.body.reward for event in events] == [float(i) for i in range(len(events))]  # type: ignore[union-attr]
                if cut == len(log):
                    assert len(events) >= acknowledged[info.run_id]
    assert len(acknowledged) == 3


async def test_a_run_of_a_torn_journal_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path, lease_seconds=0.1) as journal:
        slow = ScriptedModel(["late"], delay_seconds=60)
        task = asyncio.ensure_future(Agent(slow, journal=journal).run("go", run_id="r"))
        while "r" not in {info.run_id for info in journal.runs()}:
            await asyncio.sleep(0.01)
        for name in ("runs.db", "runs.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / f"copy-{name}")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    with open_journal(tmp_path / "copy-runs.db") as journal:
        await asyncio.sleep(0.2)
        run = await Agent(ScriptedModel(["the end"]), journal=journal).resume("r")
        assert (run.stop_reason, run.output) == ("completed", "the end")
        assert fold([event.body for event in journal.read("r")]) == run.state


async def test_a_store_that_breaks_tells_everybody_who_waits(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path) as journal:
        writers = [journal.create(f"r{index}") for index in range(5)]
        for writer in writers:
            writer.append([Rewarded(at=0.0, reward=0.0)])
        await asyncio.gather(*[writer.sync() for writer in writers])
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE frames")
        db.close()
        for writer in writers:
            writer.append([Rewarded(at=0.0, reward=1.0)])
        found = await asyncio.wait_for(
            asyncio.gather(*[writer.sync() for writer in writers], return_exceptions=True), 60
        )
        assert all(isinstance(item, JournalError) for item in found)
        with pytest.raises(JournalError):
            writers[0].append([Rewarded(at=0.0, reward=2.0)])


def test_the_levels_sync_as_they_say(tmp_path: Path) -> None:
    from treadle.journal.sqlite.sqlite_journal import SqliteJournal

    for level, expected in {"process": 1, "power": 2}.items():
        with SqliteJournal(tmp_path / f"{level}.db", level) as journal:
            asked = journal._committer.submit(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])
            assert asked.result(30) == expected
