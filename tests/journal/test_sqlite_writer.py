"""The writer thread of a SQLite journal: after any failure in it, nobody waits for ever and no event is lost."""

import asyncio
import gc
import os
import sqlite3
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forks.process import FORKS

from treadle.core import events as e
from treadle.core.errors import JournalError, RunNotFoundError
from treadle.core.policy import Policy
from treadle.journal.sqlite.sqlite_journal import SqliteJournal

PATIENCE_SECONDS = 60
"""The time after which a wait counts as endless."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with SqliteJournal(tmp_path / "runs.db") as journal:
        yield journal


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=0.0, reward=0.0, detail=text)


def details(journal: SqliteJournal, run_id: str) -> list[str | None]:
    """Return the texts of a run's notes, and check that its events are numbered without a gap."""
    events = journal.read(run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.body.detail for event in events if isinstance(event.body, e.Rewarded)]


async def keep(journal: SqliteJournal, run_id: str, body: e.DurableBody | None = None) -> None:
    writer = journal.create(run_id)
    writer.append([body or note(run_id)])
    await asyncio.wait_for(writer.sync(), PATIENCE_SECONDS)


def hold(journal: SqliteJournal) -> threading.Event:
    """Make the writer thread wait until the returned event is set."""
    gate = threading.Event()
    journal._committer.submit(lambda db: gate.wait(PATIENCE_SECONDS) and None)
    return gate


def run_script(script: str, *arguments: object) -> str:
    done = FORKS.run("-c", textwrap.dedent(script), *map(str, arguments), timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


async def test_what_cannot_be_encoded_spoils_no_other_run(journal: SqliteJournal) -> None:
    bad = e.RunStarted(at=1.0, policy=Policy(), version="1.0", metadata={"x": object()})  # type: ignore[dict-item]
    results = await asyncio.gather(
        keep(journal, "a"), keep(journal, "bad", bad), keep(journal, "\ud800"), keep(journal, "b"),
        return_exceptions=True,
    )  # fmt: skip
    assert [type(result) for result in results] == [type(None), JournalError, JournalError, type(None)]
    assert "run 'bad' cannot be stored" in str(results[1])
    await keep(journal, "c")
    assert [info.run_id for info in journal.runs()] == ["a", "b", "c"]
    with pytest.raises(RunNotFoundError):
        journal.read("bad")


async def test_an_error_in_a_transaction_of_its_own_is_told(journal: SqliteJournal) -> None:
    with pytest.raises(ZeroDivisionError):
        await asyncio.wrap_future(journal._committer.submit(lambda db: 1 // 0))
    await keep(journal, "r")


async def test_any_error_of_a_commit_is_told(journal: SqliteJournal) -> None:
    is_broken = False

    def read(cursor: object, row: object) -> object:
        if is_broken:
            raise TypeError("broken")
        return row

    await asyncio.wrap_future(journal._committer.submit(lambda db: setattr(db, "row_factory", read)))
    is_broken = True
    with pytest.raises(JournalError, match=r"runs\.db' failed: TypeError"):
        await keep(journal, "a")
    is_broken = False
    await keep(journal, "b")


async def hand_over() -> None:
    """Wait until what was appended is handed to the committer."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_follows_a_failed_write_is_not_kept(journal: SqliteJournal) -> None:
    """The event is queued before the failure, and the store works again before it is written."""
    await keep(journal, "other")
    gate = hold(journal)
    journal._committer.submit(
        lambda db: db.execute(
            "CREATE TEMP TRIGGER broken BEFORE INSERT ON main.frames BEGIN SELECT RAISE(ABORT, 'broken'); END"
        )
    )
    writer = journal.create("r")
    writer.append([note("lost")])
    await hand_over()
    journal._committer.submit(lambda db: db.execute("DROP TRIGGER broken"))
    writer.append([note("follows")])
    waiting = asyncio.ensure_future(writer.sync())
    await hand_over()
    gate.set()
    # Both writes were tried before this event loop learns about the first.
    journal._committer.submit(lambda db: None).result(PATIENCE_SECONDS)
    with pytest.raises(JournalError, match="broken"):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    with pytest.raises(RunNotFoundError):
        journal.read("r")
    assert details(journal, "other") == ["other"]
    await keep(journal, "r")


async def test_an_acquire_that_is_cancelled_in_the_queue(journal: SqliteJournal) -> None:
    writer = journal.create("r")
    writer.append([note("r")])
    await writer.sync()
    await writer.release()
    await asyncio.sleep(0)
    gate = hold(journal)
    waiting = asyncio.ensure_future(journal.acquire("r"))
    await asyncio.sleep(0)
    waiting.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(journal.acquire("r"), PATIENCE_SECONDS)


async def test_an_acquire_that_is_cancelled_under_way_gives_the_lease_back(journal: SqliteJournal) -> None:
    writer = journal.create("r")
    writer.append([note("r")])
    await writer.release()
    await writer.sync()
    blocker = sqlite3.connect(journal.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(journal.acquire("r"))
    await asyncio.sleep(0.1)  # it waits for the blocker
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    blocker.execute("COMMIT")
    blocker.close()
    await keep(journal, "later")
    await asyncio.wait_for(journal.acquire("r"), PATIENCE_SECONDS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_closed_while_a_sync_waits(journal: SqliteJournal) -> None:
    gate = hold(journal)
    loop = asyncio.new_event_loop()
    task = loop.create_task(keep(journal, "r"))
    loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    gate.set()
    asyncio.run(keep(journal, "other"))
    assert details(journal, "r") == ["r"]


async def test_an_append_that_was_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "runs.db")
    outside = journal.create("outside")
    with pytest.raises(RuntimeError):
        await asyncio.to_thread(outside.append, [note("no loop runs")])
    outside.append([note("kept")])
    await asyncio.wait_for(outside.sync(), PATIENCE_SECONDS)
    assert details(journal, "outside") == ["kept"]
    journal.close()
    for _ in range(2):
        with pytest.raises(JournalError, match="is closed, or was opened before a fork; open it again"):
            outside.append([note("closed")])
    await asyncio.wait_for(outside.sync(), PATIENCE_SECONDS)
    with pytest.raises(JournalError, match="is closed"):
        await journal.acquire("outside")
    with pytest.raises(JournalError, match="is closed"):
        await asyncio.wrap_future(journal._committer.submit(lambda db: None))


async def test_a_writer_that_was_released_drives_no_more(journal: SqliteJournal) -> None:
    old = journal.create("r")
    old.append([note("old")])
    await old.sync()
    await old.release()
    new = await journal.acquire("r")
    new.append([note("new")])
    await new.sync()
    with pytest.raises(JournalError, match="acquire it again"):
        old.append([note("stale")])
    await old.release()
    await old.sync()
    assert details(journal, "r") == ["old", "new"]
    assert [info.is_driven for info in journal.runs()] == [True]


async def test_closing_in_the_turn_of_an_append_keeps_it_and_ends_the_wait(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "runs.db")
    writer = journal.create("r")
    writer.append([note("r")])
    waiting = asyncio.ensure_future(writer.sync())
    journal.close()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    with SqliteJournal(journal.path) as reopened:
        assert details(reopened, "r") == ["r"]


@pytest.mark.parametrize("attempt", range(10))
def test_closing_beside_a_loop_of_another_thread(attempt: int, tmp_path: Path) -> None:
    """When `sync` returns, the event is in the file, and nobody waits for ever."""
    journal = SqliteJournal(tmp_path / "runs.db")
    has_begun = threading.Event()
    acknowledged: dict[str, int] = {}
    errors: list[str] = []

    async def write(run_id: str) -> None:
        writer = journal.create(run_id)
        try:
            for count in range(1, 1_000_000):
                writer.append([note(str(count))])
                await asyncio.wait_for(writer.sync(), PATIENCE_SECONDS)
                acknowledged[run_id] = count
                has_begun.set()
        except JournalError as error:
            errors.append(str(error))

    async def write_all() -> None:
        await asyncio.gather(*[write(f"r{n}") for n in range(20)])

    thread = threading.Thread(target=asyncio.run, args=[write_all()])
    thread.start()
    assert has_begun.wait(PATIENCE_SECONDS)
    journal.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert len(errors) == 20
    assert all("is closed" in error for error in errors), errors
    with SqliteJournal(tmp_path / "runs.db") as reopened:
        for run_id, count in acknowledged.items():
            assert details(reopened, run_id)[:count] == [str(n) for n in range(1, count + 1)]


async def test_a_journal_nobody_holds_gives_its_leases_back(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "runs.db")
    await keep(journal, "r")
    del journal
    await asyncio.sleep(0)
    gc.collect()
    with SqliteJournal(tmp_path / "runs.db") as other:
        await other.acquire("r")


def test_what_is_queued_when_the_interpreter_ends_is_kept(tmp_path: Path) -> None:
    script = """
        import asyncio, sys
        from treadle.core.events import Rewarded
        from treadle.journal.registry import open_journal
        journal = open_journal(sys.argv[1])
        async def main():
            for number in range(100):
                writer = journal.create(f"r{number}")
                writer.append([Rewarded(at=0.0, reward=0.0, detail="kept")])
        asyncio.run(main())
    """
    run_script(script, tmp_path / "runs.db")
    with SqliteJournal(tmp_path / "runs.db") as journal:
        assert len(journal.runs()) == 100
        assert not any(info.is_driven for info in journal.runs())


def test_a_forked_process_is_told_to_open_the_journal_again(tmp_path: Path) -> None:
    script = """
        import asyncio, os, sys
        from treadle.core.errors import JournalError
        from treadle.core.events import Rewarded
        from treadle.journal.registry import open_journal
        journal = open_journal(sys.argv[1])
        async def keep(run_id):
            writer = journal.create(run_id)
            writer.append([Rewarded(at=0.0, reward=0.0)])
            await writer.sync()
        asyncio.run(keep("before"))
        if os.fork() == 0:
            try:
                asyncio.run(keep("child"))
            except JournalError as error:
                os.write(1, str(error).encode())
            os._exit(0)
        os.wait()
        asyncio.run(keep("after"))
        journal.close()
    """
    assert "opened before a fork" in run_script(script, tmp_path / "runs.db")
    with SqliteJournal(tmp_path / "runs.db") as journal:
        assert [info.run_id for info in journal.runs()] == ["before", "after"]


async def write_megabytes(journal: SqliteJournal, count: int) -> None:
    """Append notes of so many megabytes that cannot be packed."""
    writer = journal.create(f"r{os.urandom(4).hex()}")
    for _ in range(4 * count):
        writer.append([note(os.urandom(125_000).hex())])
        await asyncio.wait_for(writer.sync(), PATIENCE_SECONDS)
    await writer.release()


async def test_the_log_is_short_again_soon_after_a_long_reader(tmp_path: Path) -> None:
    """As long as a transaction reads what was stored before, the log cannot begin again."""
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    with SqliteJournal(path) as journal:
        await write_megabytes(journal, 20)
        assert log.stat().st_size < 24_000_000
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM frames").fetchone()
        await write_megabytes(journal, 40)
        assert log.stat().st_size > 40_000_000
        reader.execute("ROLLBACK")
        reader.close()
        await write_megabytes(journal, 4)
        assert log.stat().st_size < 24_000_000
