"""Commits on the event loop: which are made there, and that the loop never waits for the file."""

import asyncio
import hashlib
import sqlite3
import subprocess
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.forks.process import FORKS, Started

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.types import FileDelta
from treadle.journal.listing import facts_of
from treadle.journal.resources import Resource, ResourceFilter
from treadle.journal.run_info import RunFilter
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.journal.tables.writer import TableWriter

PATIENCE_SECONDS = 60
"""The time after which a wait counts as endless."""


async def hand_over() -> None:
    """Wait until what was appended is handed to the committer."""
    for _ in range(3):
        await asyncio.sleep(0)


class Witness:
    """A clock that notes which threads commit: every commit asks it for the time once."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def time(self) -> float:
        self.threads.append(threading.get_ident())
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def take(self) -> list[bool]:
        """Whether each commit since the last call was made in this thread."""
        threads, self.threads = self.threads, []
        return [ident == threading.get_ident() for ident in threads]


async def commits_on_the_loop(witness: Witness, *writers: TableWriter) -> bool:
    """Return whether one commit on the event loop keeps an event of each of `writers`.

    It tries several times, because the committer's thread may be quicker if this process has to wait for a core.
    """
    for _ in range(50):
        witness.take()
        for writer in writers:
            writer.append([note("again")])
        await asyncio.gather(*[writer.sync() for writer in writers])
        if witness.take() == [True]:
            return True
        await asyncio.sleep(0.001)  # the thread has told the loop before it lets go of the file
    return False


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=1.0, reward=0.0, name="note", detail=text)


def details(journal: SqliteJournal, run_id: str = "r") -> list[str | None]:
    events = journal.read(run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.body.detail for event in events if isinstance(event.body, e.Rewarded)]


def break_table(journal: SqliteJournal, when: str) -> None:
    """Make statements such as `INSERT ON main.frames` fail on the writing connection."""
    journal._committer.submit(
        lambda db: db.execute(
            f"CREATE TEMP TRIGGER broken BEFORE {when} BEGIN SELECT RAISE(ABORT, 'broken'); END"
        )
    ).result(PATIENCE_SECONDS)


def mend(journal: SqliteJournal) -> None:
    journal._committer.submit(lambda db: db.execute("DROP TRIGGER broken")).result(PATIENCE_SECONDS)


def blob(size: int) -> tuple[e.SnapshotTaken, dict[str, bytes]]:
    content = b"x" * size
    digest = hashlib.sha256(content).hexdigest()
    delta = FileDelta(changed={"f": digest})
    return e.SnapshotTaken(at=1.0, snapshot_id="s", delta=delta), {digest: content}


@pytest.fixture
async def witness() -> Witness:
    return Witness()


@pytest.fixture
async def journal(tmp_path: Path, witness: Witness) -> AsyncIterator[SqliteJournal]:
    with SqliteJournal(tmp_path / "runs.db", clock=witness) as journal:
        first = journal.create("first")
        first.append([note("")])
        await first.sync()
        witness.take()
        yield journal


async def test_a_small_commit_is_made_on_the_event_loop(journal: SqliteJournal, witness: Witness) -> None:
    writers = [journal.create(f"r{number}") for number in range(5)]
    assert await commits_on_the_loop(witness, *writers)


async def test_resources_join_the_commit_of_a_run(journal: SqliteJournal) -> None:
    def made(name: str) -> Resource:
        return Resource(kind="note", resource_id=name, created_at=1.0)

    async def keep(*names: str) -> None:
        writer.append([note("again")])
        added = [[made(name)] for name in names]
        await asyncio.gather(
            *[resources.add_soon(item, 1.0, resources.join(item)) for item in added], writer.sync()
        )

    resources, writer, said = journal.resources, journal.create("joined"), list[str]()
    await keep("made by the thread, with the tables")
    db, committer = journal._committer._db, journal._committer
    for is_in_thread, names in ((False, ("one", "two")), (True, ("three", "two more"))):
        said.clear()
        db.set_trace_callback(said.append)
        if is_in_thread:
            committer.db_lock.acquire()  # the event loop does not wait for it
            threading.Timer(0.2, committer.db_lock.release).start()
        await keep(*names)
        db.set_trace_callback(None)
        assert said.count("COMMIT") == 1
        assert sum([text.startswith("INSERT INTO resources") for text in said]) == 2
    with pytest.raises(UnicodeEncodeError):
        await keep("half of a pair \ud800")
    writer.append([note("after")])
    await writer.sync()
    assert details(journal, "joined")[-1] == "after"
    found = [item.resource_id for item in resources.page(ResourceFilter(kind="note"), 1.0)]
    assert found == ["made by the thread, with the tables", "one", "three", "two", "two more"]


async def test_at_level_power_the_thread_commits(tmp_path: Path, witness: Witness) -> None:
    with SqliteJournal(tmp_path / "power.db", "power", clock=witness) as journal:
        writer = journal.create("r")
        writer.append([note("1")])
        await writer.sync()
        assert not any(witness.take())


async def test_a_large_content_is_left_to_the_thread_and_keeps_its_place(
    journal: SqliteJournal, witness: Witness
) -> None:
    writer = journal.create("r")
    writer.append([note("1")])
    await hand_over()
    body, blobs = blob(600_000)
    writer.append([body], blobs)
    await hand_over()
    writer.append([note("2")])  # behind the large one in the queue
    await writer.sync()
    assert not all(witness.take())
    assert [event.type for event in journal.read("r")] == ["rewarded", "snapshot_taken", "rewarded"]
    assert details(journal) == ["1", "2"]
    assert await commits_on_the_loop(witness, writer)


async def test_the_loop_turns_while_another_process_holds_the_file(
    journal: SqliteJournal, witness: Witness
) -> None:
    script = """
        import sqlite3, sys
        db = sqlite3.connect(sys.argv[1], isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        print("held", flush=True)
        sys.stdin.readline()
        db.execute("COMMIT")
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = FORKS.start("-c", textwrap.dedent(script), str(journal.path), **pipes)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    writers = [journal.create(f"r{number}") for number in range(3)]
    syncs = []
    for text in ("1", "2", "3"):
        for writer in writers:
            writer.append([note(text)])
            syncs.append(asyncio.ensure_future(writer.sync()))
        await asyncio.sleep(0)
    # A loop that waits for the file would wait for ever: only it lets the holder go.
    for _ in range(1000):
        await asyncio.sleep(0)
    assert not any(sync.done() for sync in syncs)
    await asyncio.to_thread(holder.communicate, "go\n")
    await asyncio.wait_for(asyncio.gather(*syncs), PATIENCE_SECONDS)
    for writer in writers:
        assert details(journal, writer.run_id) == ["1", "2", "3"]
    assert await commits_on_the_loop(witness, writers[0])


async def test_the_loop_turns_while_a_thread_of_this_process_writes(journal: SqliteJournal) -> None:
    gate = threading.Event()
    held = journal._committer.submit(lambda db: gate.wait(PATIENCE_SECONDS))
    writer = journal.create("r")
    writer.append([note("1")])
    sync = asyncio.ensure_future(writer.sync())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not sync.done()
    gate.set()
    await asyncio.wait_for(sync, PATIENCE_SECONDS)
    assert held.done()


async def test_an_error_of_a_commit_on_the_loop_is_told(journal: SqliteJournal) -> None:
    writer = journal.create("r")
    writer.append([note("kept")])
    await writer.sync()
    break_table(journal, "INSERT ON main.frames")
    new = journal.create("new")
    writer.append([note("lost")])
    new.append([note("lost")])
    waits = [asyncio.ensure_future(item.sync()) for item in (writer, new)]
    found = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(item, JournalError) and "broken" in str(item) for item in found)
    with pytest.raises(JournalError, match="broken"):
        writer.append([note("more")])
    with pytest.raises(JournalError, match="broken"):
        await writer.sync()
    mend(journal)
    again = journal.create("new")
    again.append([note("free again")])
    await again.sync()
    assert (details(journal), details(journal, "new")) == (["kept"], ["free again"])


async def test_the_log_is_copied_into_the_file_now_and_then(journal: SqliteJournal) -> None:
    writer = journal.create("r")
    for _ in range(480):
        writer.append([note("x" * 100_000)])
        await writer.sync()
    log = journal.path.with_name("runs.db-wal")
    assert log.stat().st_size < 36_000_000
    assert len(details(journal)) == 480


@pytest.mark.parametrize("is_early", [False, True])
async def test_a_writer_that_failed_gives_its_lease_back(journal: SqliteJournal, is_early: bool) -> None:
    """Whether it is released together with what fails or afterwards."""
    writer = journal.create("r")
    writer.append([note("kept")])
    await writer.sync()
    break_table(journal, "INSERT ON main.frames")
    writer.append([note("lost")])
    if is_early:
        await writer.release()
    with pytest.raises(JournalError, match="broken"):
        await writer.sync()
    await writer.release()
    mend(journal)
    again = await journal.acquire("r")
    again.append([note("goes on")])
    await again.sync()
    assert details(journal) == ["kept", "goes on"]


async def test_a_lease_is_given_back_once_the_store_works_again(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "runs.db", lease_seconds=0.4) as journal:
        writer = journal.create("r")
        writer.append([note("kept")])
        await writer.sync()
        break_table(journal, "UPDATE OF owner ON main.runs")
        await writer.release()
        with pytest.raises(JournalError, match="broken"):
            await writer.sync()
        assert [info.is_driven for info in journal.runs()] == [True]
        # Nothing can be committed, the end of the trouble included, until the trigger is away.
        other = sqlite3.connect(tmp_path / "runs.db")
        other.close()
        with journal._committer.db_lock:
            journal._committer._db.execute("DROP TRIGGER broken")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while journal.runs(RunFilter(is_driven=True)):
                await asyncio.sleep(0.05)
        await journal.acquire("r")


async def test_a_run_that_is_released_before_it_is_committed(journal: SqliteJournal) -> None:
    gate = threading.Event()
    journal._committer.submit(lambda db: gate.wait(PATIENCE_SECONDS))
    writer = journal.create("r")
    writer.append([note("1")])
    await asyncio.sleep(0)  # handed over, and queued
    await writer.release()
    gate.set()
    await writer.sync()
    assert [info.is_driven for info in journal.runs(RunFilter(id_prefix="r"))] == [False]


async def test_a_run_that_was_never_kept_gives_nothing_back(journal: SqliteJournal) -> None:
    """The row that it would have had belongs to another run by then."""
    break_table(journal, "INSERT ON main.frames")
    failed = journal.create("failed")
    failed.append([note("lost")])
    with pytest.raises(JournalError, match="broken"):
        await failed.sync()
    mend(journal)
    other = journal.create("other")
    other.append([note("1")])
    await other.sync()
    await failed.release()
    await asyncio.wrap_future(journal._committer.submit(lambda db: None))
    assert [info.is_driven for info in journal.runs(RunFilter(id_prefix="other"))] == [True]


DRIVER = """
    import asyncio, sys
    from treadle.core import events as e
    from treadle.core.policy import Policy
    from treadle.core.types import Completion, FinishReason, Message, Role, Usage
    from treadle.journal.registry import open_journal

    async def drive(journal, run_id):
        writer = journal.create(run_id)
        writer.append([e.RunStarted(at=1.0, version=e.VERSION, policy=Policy(), model="m")])
        writer.append([e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, "go"))])
        for step in range(1, 100_000):
            answer = Completion(Message(Role.ASSISTANT, "x"), FinishReason.STOP, Usage(10, step), 0.5)
            writer.append([e.InferenceStarted(at=2.0, step=step, messages=1)])
            writer.append([e.InferenceCompleted(at=2.0 + step, step=step, completion=answer)])
            await writer.sync()
            print(run_id, step, flush=True)

    async def main():
        journal = open_journal(sys.argv[1])
        await asyncio.gather(*[drive(journal, f"r{number}") for number in range(5)])

    asyncio.run(main())
"""


def start_driver(path: Path) -> Started:
    return FORKS.start("-c", textwrap.dedent(DRIVER), str(path), stdout=subprocess.PIPE)


def test_the_listing_of_runs_whose_process_was_killed_is_right(tmp_path: Path) -> None:
    process = start_driver(tmp_path / "runs.db")
    assert process.stdout is not None
    acknowledged: dict[str, int] = {}
    for line in process.stdout:
        run_id, step = line.split()
        acknowledged[run_id] = int(step)
        if int(step) >= 100:
            break
    process.kill()
    process.wait()
    with SqliteJournal(tmp_path / "runs.db") as journal:
        infos = journal.runs()
        assert len(infos) == 5
        for info in infos:
            bodies = [event.body for event in journal.read(info.run_id)]
            assert replace(info, losses=0) == facts_of(bodies).info(info.run_id, is_driven=False)
            assert info.losses == 1
            assert info.steps >= acknowledged[info.run_id]
            assert (info.status, info.input_tokens) == ("running", 10 * info.steps)


async def test_what_another_process_keeps_is_followed(tmp_path: Path) -> None:
    process = start_driver(tmp_path / "runs.db")
    assert process.stdout is not None
    process.stdout.readline()
    try:
        with SqliteJournal(tmp_path / "runs.db") as journal:
            seqs: list[int] = []
            totals: dict[str, int] = {}

            async def follow_one() -> None:
                async for event in journal.follow("r3"):
                    seqs.append(event.seq)
                    if event.seq == 150:
                        return

            async def follow_all() -> None:
                async for event in journal.follow(None):
                    totals[event.run_id] = totals.get(event.run_id, 0) + 1
                    assert event.seq == totals[event.run_id]
                    if min(totals.values()) >= 150 and len(totals) == 5:
                        return

            async def drain() -> None:
                while process.poll() is None and await asyncio.to_thread(process.stdout.readline):  # type: ignore[union-attr]
                    pass

            draining = asyncio.ensure_future(drain())
            await asyncio.wait_for(asyncio.gather(follow_one(), follow_all()), PATIENCE_SECONDS)
            assert seqs == list(range(1, 151))
            process.kill()
            await draining
    finally:
        process.kill()
        process.wait()


class Interrupted(tuple[e.DurableBody, ...]):
    """Bodies during whose first reading another thread hands over what was appended before."""

    interrupt: Callable[[], None] | None
    is_late: bool

    def __iter__(self) -> Iterator[e.DurableBody]:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None and not self.is_late:
            interrupt()
        yield from tuple.__iter__(self)
        if interrupt is not None and self.is_late:
            interrupt()


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_is_appended_while_a_thread_hands_over_is_kept_once(journal, is_late):
    writer, loop = journal.create("r"), asyncio.get_running_loop()

    def interrupt() -> None:
        taken = threading.Thread(target=lambda: journal._committer.put(journal._pending.take(loop)))
        taken.start()
        taken.join()

    bodies = Interrupted([note("2"), note("3")])
    bodies.interrupt, bodies.is_late = interrupt, is_late
    with journal._committer.db_lock:  # the committer's own thread hands over nothing meanwhile
        writer.append([note("1")])
        writer.append(bodies)
        writer.append([note("4")])
    await writer.sync()
    assert details(journal) == ["1", "2", "3", "4"]
