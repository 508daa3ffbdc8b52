"""Leases: who may take a run over, whatever the clocks show, and that none is kept when the store has failed."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import IS_FULL
from tests.forks.process import FORKS

from treadle.core import events as e
from treadle.core.errors import JournalError, LeaseHeldError, LeaseLostError
from treadle.journal.sqlite.sqlite_journal import SqliteJournal

PATIENCE_SECONDS = 60
"""The time after which a wait counts as endless."""


class Shifted:
    """A clock that can be set wrong."""

    def __init__(self, wall: float = 0.0, ticks: float = 0.0) -> None:
        self.wall = wall
        self.ticks = ticks

    def time(self) -> float:
        return time.time() + self.wall

    def monotonic(self) -> float:
        return time.monotonic() + self.ticks


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=1.0, reward=0.0, name="note", detail=text)


async def hold(journal: SqliteJournal, run_id: str = "r") -> Any:
    """Begin a run, which the journal then drives."""
    writer = journal.create(run_id)
    writer.append([note("held")])
    await writer.sync()
    return writer


def set_owner(path: Path, **columns: object) -> None:
    """Change the rows of all owners."""
    with sqlite3.connect(path) as db:
        for name, value in columns.items():
            db.execute(f"UPDATE owners SET {name}=?", (value,))
    db.close()


def freeze(journal: SqliteJournal) -> None:
    """Stop the heartbeats of a journal, as if its process hung."""
    journal._committer._beat_at = float("inf")


@pytest.mark.parametrize("wall", [-1e9, -60.0, 60.0, 1e9])
@pytest.mark.parametrize("ticks", [0.0, 1e6])
async def test_no_clock_takes_a_live_run(tmp_path: Path, wall: float, ticks: float) -> None:
    """The clocks of the other process differ by any amount, and its heartbeats are seen."""
    path = tmp_path / "runs.db"
    with (
        SqliteJournal(path, lease_seconds=0.4) as journal,
        SqliteJournal(path, lease_seconds=0.1, clock=Shifted(wall, ticks)) as other,
    ):
        await hold(journal)
        for space in (None, "elsewhere -"):
            if space:
                set_owner(path, space=space)
            with pytest.raises(LeaseHeldError):
                await asyncio.wait_for(other.acquire("r"), PATIENCE_SECONDS)


async def test_a_clock_that_jumps_while_it_is_watched_takes_no_live_run(tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", Shifted(-500)
    with SqliteJournal(path, lease_seconds=3) as journal, SqliteJournal(path, clock=clock) as other:
        await hold(journal)
        set_owner(path, space="elsewhere -")
        taking = asyncio.ensure_future(other.acquire("r"))
        for wall in (1000, -1000, 0, 50):
            await asyncio.sleep(0.05)
            clock.wall = wall
        with pytest.raises(LeaseHeldError):
            await asyncio.wait_for(taking, PATIENCE_SECONDS)


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_a_dead_owner_elsewhere_is_taken_whatever_its_clock_was(tmp_path: Path, ahead: float) -> None:
    path = tmp_path / "runs.db"
    with SqliteJournal(path, lease_seconds=0.3) as dead, SqliteJournal(path) as other:
        stale = await hold(dead)
        freeze(dead)
        set_owner(path, host="elsewhere/x", beat_at=time.time() + ahead)
        writer = await asyncio.wait_for(other.acquire("r"), PATIENCE_SECONDS)
        writer.append([note("taken")])
        await writer.sync()
        stale.append([note("late")])
        with pytest.raises(LeaseLostError):
            await stale.sync()


async def test_the_length_of_a_lease_is_its_owners_word(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteJournal(path, lease_seconds=3600) as slow, SqliteJournal(path, lease_seconds=0.05) as other:
        await hold(slow)
        freeze(slow)
        await asyncio.sleep(0.3)
        with pytest.raises(LeaseHeldError, match="after 3600 s"):
            await other.acquire("r")
        assert [info.is_driven for info in other.runs()] == [True]
        # The owner of an older file did not say how long its leases last.
        set_owner(path, lease_seconds=None)
        await asyncio.wait_for(other.acquire("r"), PATIENCE_SECONDS)


async def test_who_hangs_loses_the_lease_and_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteJournal(path, lease_seconds=0.2) as hung, SqliteJournal(path) as other:
        stale = await hold(hung)
        freeze(hung)
        await asyncio.sleep(0.3)
        writer = await asyncio.wait_for(other.acquire("r"), PATIENCE_SECONDS)
        writer.append([note("taken")])
        await writer.sync()
        stale.append([note("late")])
        with pytest.raises(LeaseLostError):
            await stale.sync()
        with pytest.raises(LeaseLostError):
            stale.append([note("later")])
        await hold(hung, "another")
        assert [event.body.detail for event in hung.read("r")] == ["held", "taken"]  # type: ignore[union-attr]


async def test_a_locked_file_makes_nobody_look_dead(tmp_path: Path) -> None:
    """While the file is locked nobody can send a heartbeat. That is not the silence of a dead process."""
    path = tmp_path / "runs.db"
    with SqliteJournal(path, lease_seconds=2) as journal, SqliteJournal(path) as other:
        await hold(journal)
        set_owner(path, beat_at=0.0, ticks=0.0)
        taking = asyncio.ensure_future(other.acquire("r"))
        await asyncio.sleep(0.05)
        blocker = sqlite3.connect(path, isolation_level=None, timeout=10)
        blocker.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(4)
        assert not taking.done()
        blocker.execute("COMMIT")
        blocker.close()
        with pytest.raises(LeaseHeldError):
            await asyncio.wait_for(taking, PATIENCE_SECONDS)


HOLDER = """
    import asyncio, sys
    from treadle.core.events import Rewarded
    from treadle.journal.registry import open_journal
    async def main():
        journal = open_journal(sys.argv[1], lease_seconds=float(sys.argv[2]))
        writer = journal.create("r")
        writer.append([Rewarded(at=0.0, reward=0.0, name="held")])
        await writer.sync()
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    asyncio.run(main())
"""
TAKER = """
    import asyncio, sys
    from treadle.journal.registry import open_journal
    from treadle.core.errors import LeaseHeldError
    async def main():
        with open_journal(sys.argv[1]) as journal:
            try:
                await journal.acquire("r")
                print("taken")
            except LeaseHeldError:
                print("refused")
    asyncio.run(main())
"""
CAN_UNSHARE = (
    sys.platform == "linux"
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-p", "-f", "true"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.skipif(not CAN_UNSHARE, reason="needs the right to make PID namespaces")
@pytest.mark.parametrize("unshare", [["unshare", "-p", "-f", "--mount-proc"], ["unshare", "-p", "-f"]])
def test_a_live_run_is_not_taken_from_another_pid_namespace(tmp_path: Path, unshare: list[str]) -> None:
    """The host has the same name and boot there, and the pid is that of no process or of another one."""
    path = tmp_path / "runs.db"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = FORKS.start("-c", textwrap.dedent(HOLDER), str(path), "1", **pipes)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    taker = [*unshare, sys.executable, "-c", textwrap.dedent(TAKER), str(path)]
    try:
        assert subprocess.run(taker, capture_output=True, text=True, check=True).stdout == "refused\n"
    finally:
        holder.kill()
        holder.communicate()
    # Only silence tells that it is dead, and the wait for it is told.
    time.sleep(1.1)
    done = subprocess.run(taker, capture_output=True, text=True, check=True)
    assert done.stdout == "taken\n"
    assert "has sent no heartbeat for a while; watching it for 1 s" in done.stderr


CODES = ("FULL", "IOERR", "BUSY", "LOCKED", "READONLY")


class Faulty:
    """A connection of which one statement fails, before or after SQLite has run it."""

    def __init__(self, db: sqlite3.Connection, fail_at: int, code: str, *, is_sticky: bool) -> None:
        self._db = db
        self._fail_at = fail_at
        self._code = code
        self._is_sticky = is_sticky
        self.count = 0
        self.failed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self._check(sql)
        return self._db.execute(sql, *values)

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self._check(sql)
        return self._db.executemany(sql, *values)

    def _check(self, sql: str) -> None:
        index, self.count = self.count, self.count + 1
        if index == self._fail_at or (self._is_sticky and self._fail_at <= index and sql != "ROLLBACK"):
            self.failed.append(sql)
            if self._code in ("FULL", "IOERR") and self._db.in_transaction:
                self._db.execute("ROLLBACK")  # as SQLite does by itself
            error = sqlite3.OperationalError(f"made to fail: {self._code}")
            error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{self._code}")
            raise error


async def drive(journal: SqliteJournal, acknowledged: dict[str, list[str]], *, is_new: bool) -> None:
    """Write a run and give it back, as the driver does: whatever fails, release is called."""
    run_id = "new" if is_new else "old"
    writer: Any = journal.create(run_id) if is_new else await journal.acquire(run_id)
    try:
        for text in ("1", "2"):
            blobs = {text * 64: b"content"}
            writer.append([note(text)], blobs)
            await writer.sync()
            acknowledged[run_id].append(text)
    finally:
        await writer.release()


async def check_fault(path: Path, fail_at: int, code: str, *, is_sticky: bool) -> bool:
    """Let one statement fail, and return whether there was one. Afterwards nothing is held and nothing is lost."""
    acknowledged: dict[str, list[str]] = {"old": ["0"], "new": []}
    with SqliteJournal(path, lease_seconds=0.2) as journal:
        writer = journal.create("old")
        writer.append([note("0")])
        await writer.release()
        await writer.sync()
        whole = journal._committer._db
        faulty = Faulty(whole, fail_at, code, is_sticky=is_sticky)
        journal._committer._db = faulty  # type: ignore[assignment]
        journal._committer._file.forget()
        for is_new in (False, True):
            try:
                await asyncio.wait_for(drive(journal, acknowledged, is_new=is_new), PATIENCE_SECONDS)
            except JournalError:
                assert faulty.failed
        journal._committer._db = whole
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(info.is_driven for info in journal.runs()):
                await asyncio.sleep(0.02)
        for run_id, texts in acknowledged.items():
            if not texts:
                continue
            kept = [event.body.detail for event in journal.read(run_id)]  # type: ignore[union-attr]
            assert kept[: len(texts)] == texts
            again = await journal.acquire(run_id)
            again.append([note("goes on")])
            await again.sync()
    return bool(faulty.failed)


@pytest.mark.parametrize("code", CODES)
async def test_no_failure_of_a_statement_keeps_a_lease_or_loses_an_event(tmp_path: Path, code: str) -> None:
    """Every statement fails once, and, where the store stays broken, together with all that follow.

    In the short form each error has a fifth of the statements.
    """
    for is_sticky in (False, True):
        fail_at = 0 if IS_FULL else CODES.index(code) % 5
        while await check_fault(
            tmp_path / f"{is_sticky}{fail_at}.db", fail_at, code, is_sticky=is_sticky and code != "BUSY"
        ):
            fail_at += 1 if IS_FULL else 5
        assert fail_at > 15


async def test_a_journal_that_is_closed_while_the_store_fails_keeps_no_lease(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    journal = SqliteJournal(path, lease_seconds=3600)
    await hold(journal)
    with journal._committer.db_lock:
        journal._committer._db.execute("PRAGMA query_only=1")
    journal.close()
    with SqliteJournal(path) as other:
        await other.acquire("r")


async def test_everybody_waits_while_a_process_is_stopped_within_a_transaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "runs.db", Shifted()
    script = """
        import os, signal, sqlite3, sys
        db = sqlite3.connect(sys.argv[1], isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        print("locked", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    with SqliteJournal(path, clock=clock) as journal:
        writer = await hold(journal)
        stopped = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), path], stdout=subprocess.PIPE, text=True
        )
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "locked\n"
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        writer.append([note("waits")])
        waiting = asyncio.ensure_future(writer.sync())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "has been locked by" not in caplog.text:
                clock.ticks += 1000.0
                await asyncio.sleep(0.05)
        clock.ticks += 1000.0
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert [info.run_id for info in journal.runs()] == ["r"]  # reading goes on
        if sys.platform == "linux":
            assert f"locked by process {stopped.pid} for over" in caplog.text
        stopped.kill()
        stopped.communicate()
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert len(journal.read("r")) == 2
