"""The contract of every journal."""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import (
    Agent,
    JournalError,
    LeaseHeldError,
    Policy,
    RunExistsError,
    RunNotFoundError,
    ScriptedModel,
    open_journal,
)
from treadle.core import events as e
from treadle.core.types import FileDelta, StopReason
from treadle.journal.protocol import Journal
from treadle.models import call

KINDS = ["memory", "process", "power"]
STARTED = e.RunStarted(at=1.0, version=e.VERSION, policy=Policy())


@pytest.fixture(params=KINDS)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    """A function that opens the journal; another call opens the same journal again."""
    if request.param == "memory":
        journal = open_journal("memory:")
        return lambda: journal
    return lambda: open_journal(tmp_path / "runs.db", level=request.param)


@pytest.fixture
def journal(reopen: Callable[[], Journal]) -> Any:
    with reopen() as journal:
        yield journal


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=2.0, reward=0.0, detail=text)


def details(journal: Journal, run_id: str = "r", after_seq: int = 0) -> list[str | None]:
    return [
        event.body.detail for event in journal.read(run_id, after_seq) if isinstance(event.body, e.Rewarded)
    ]


async def test_what_was_synced_is_read_in_order(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([note("1"), note("2")])
    writer.append([note("3")])
    await writer.sync()
    writer.append([note("é\n\u2028" + "x" * 1_000_000)])
    await writer.sync()
    events = journal.read("r")
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert events[3].body == note("é\n\u2028" + "x" * 1_000_000)
    assert details(journal, after_seq=1)[:2] == ["2", "3"]
    assert journal.read("r", after_seq=4) == []


async def test_a_run_is_there_once(journal: Journal) -> None:
    first = journal.create("r")
    first.append([STARTED])
    await first.sync()

    async def begin_again() -> None:
        second = journal.create("r")
        second.append([STARTED])
        await second.sync()

    with pytest.raises(RunExistsError, match="'r' exists already"):
        await begin_again()
    assert len(journal.read("r")) == 1


async def test_what_is_not_there_is_told(journal: Journal) -> None:
    with pytest.raises(RunNotFoundError, match="'x' not found"):
        journal.read("x")
    with pytest.raises(RunNotFoundError, match="'x' not found"):
        await journal.acquire("x")
    with pytest.raises(JournalError, match="'abc' is not in"):
        journal.read_blob("abc")
    assert journal.runs() == []


async def test_one_writer_at_a_time(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([note("1")])
    await writer.sync()
    with pytest.raises(LeaseHeldError):
        await journal.acquire("r")
    await writer.release()
    again = await journal.acquire("r")
    again.append([note("2")])
    await again.sync()
    assert details(journal) == ["1", "2"]


async def test_contents_are_kept_with_the_events_that_name_them(journal: Journal) -> None:
    content = b"\x00\xff" * 1000
    digest = hashlib.sha256(content).hexdigest()
    for name in ("a", "b"):
        writer = journal.create(name)
        delta = FileDelta(changed={"f": digest})
        writer.append([e.SnapshotTaken(at=1.0, snapshot_id="s", delta=delta)], {digest: content})
        await writer.sync()
    assert journal.read_blob(digest) == content


async def test_a_listing_says_where_runs_stand(journal: Journal) -> None:
    ended = e.RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)
    for name, bodies in {
        "new": [],
        "over": [ended],
        "paused": [e.RunPaused(at=3.0, reason="cancelled")],
    }.items():
        writer = journal.create(name)
        writer.append([STARTED, *bodies])
        await writer.sync()
        if name != "new":
            await writer.release()
            writer = await journal.acquire(name)
            await writer.release()
    await asyncio.sleep(0.1)
    infos = {info.run_id: info for info in journal.runs()}
    assert list(infos) == ["new", "over", "paused"]
    assert [(item.status, item.stop_reason) for item in infos.values()] == [
        ("running", None),
        ("finished", "completed"),
        ("paused", "cancelled"),
    ]
    assert infos["new"].is_driven
    assert infos["over"].events == 2


async def test_many_runs_at_once_and_a_cancelled_wait(journal: Journal) -> None:
    async def write(index: int) -> None:
        writer = journal.create(f"r{index}")
        for number in range(5):
            writer.append([note(str(number))])
            await writer.sync()
        await writer.release()

    tasks = [asyncio.ensure_future(write(index)) for index in range(200)]
    await asyncio.sleep(0)
    tasks[7].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for index in set(range(200)) - {7}:
        assert details(journal, f"r{index}") == list("01234")
    writer = journal.create("after")
    writer.append([note("x")])
    await writer.sync()


def test_several_loops_and_threads_share_one_journal(journal: Journal) -> None:
    async def write(name: str) -> None:
        for index in range(20):
            writer = journal.create(f"{name}-{index}")
            writer.append([note(name)])
            await writer.sync()

    threads = [threading.Thread(target=lambda name=name: asyncio.run(write(name))) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(journal.runs()) == 80


def test_closing_writes_what_was_appended(reopen: Callable[[], Journal]) -> None:
    journal = reopen()

    async def append() -> None:
        journal.create("r").append([note("last")])

    asyncio.run(append())
    journal.close()
    journal.close()
    with reopen() as again:
        assert details(again) == ["last"]


async def test_what_another_opened_later_reads_and_drives(reopen: Callable[[], Journal]) -> None:
    with reopen() as journal:
        agent = Agent(ScriptedModel([[call("list_files")], "done"]), tools=["files"], journal=journal)
        run = await agent.run("go")
    with reopen() as journal:
        again = await Agent(ScriptedModel([]), journal=journal).resume(run.run_id)
        assert (again.messages, again.state) == (run.messages, run.state)


@pytest.mark.parametrize("level", ["process", "power"])
async def test_journals_grow_with_their_steps_and_no_faster(level: str, tmp_path: Path) -> None:
    sizes = {}
    for steps in (400, 800):
        path = tmp_path / f"{steps}.db"
        with open_journal(path, level=level) as journal:
            answers: list[Any] = [[call("read_file", {"file_path": "a"})]] * steps
            agent = Agent(
                ScriptedModel([*answers, "done"]),
                tools=["files"],
                files={"a": "x" * 2000},
                journal=journal,
                policy=Policy(max_steps=None),
            )
            assert (await agent.run("go")).stop_reason == "completed"
        sizes[steps] = sum(file.stat().st_size for file in tmp_path.glob(f"{steps}.db*"))
    assert sizes[400] <= 2.5e6
    assert sizes[800] <= 2.1 * sizes[400]


async def test_use_after_closing_is_told(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "runs.db")
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.runs()
    with pytest.raises(JournalError, match="is closed"):
        await journal.acquire("r")
    with pytest.raises(JournalError, match="is closed"):
        journal.create("r").append([note("x")])
