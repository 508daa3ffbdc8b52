"""Many followers of runs that this process and others drive in turn."""

import asyncio
import subprocess
from pathlib import Path

from tests.forks.process import FORKS

from treadle.core import events as e
from treadle.core.events import Event
from treadle.core.policy import Policy
from treadle.journal.protocol import Journal
from treadle.journal.sqlite.sqlite_journal import SqliteJournal

FOLLOWERS = 40
DRIVER = """
import asyncio, sys
from treadle.core import events as e
from treadle.core.types import StopReason
from treadle.journal.sqlite.sqlite_journal import SqliteJournal

async def drive():
    journal = SqliteJournal(sys.argv[1])
    writer = await journal.acquire("r")
    for number in range(20):
        writer.append([e.Noted(at=1.0, remark=str(number))])
        await writer.sync()
        await asyncio.sleep(0.02)
    if sys.argv[2] == "finishes":
        writer.append([e.RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)])
        await writer.sync()
    print("done", flush=True)
    sys.stdin.read()  # killed here, with the lease

asyncio.run(drive())
"""


async def drive_elsewhere(path: Path, ending: str) -> None:
    """Let another process take a run over, write 20 events, and die with the lease."""
    process = FORKS.start("-c", DRIVER, str(path), ending, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "done\n"
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def drive_here(journal: Journal) -> None:
    writer = await journal.acquire("r")
    for number in range(20):
        writer.append([e.Noted(at=1.0, remark=str(number))])
        await writer.sync()
    await writer.release()
    await writer.sync()


async def test_no_follower_loses_an_event_when_processes_take_turns(tmp_path: Path) -> None:
    """And a run of a killed process ends for them, although nothing is committed then."""
    path = tmp_path / "runs.db"
    with SqliteJournal(path) as journal:
        writer = journal.create("r")
        writer.append([e.RunStarted(at=1.0, version=e.VERSION, policy=Policy())])
        await writer.release()
        await writer.sync()

        async def follow(number: int) -> list[Event]:
            await asyncio.sleep(0.02 * number)
            return [event async for event in journal.follow("r")]

        following = [asyncio.ensure_future(follow(number)) for number in range(FOLLOWERS)]
        for ending in ("dies", "dies", "finishes"):
            await drive_here(journal)
            await drive_elsewhere(path, ending)
        async with asyncio.timeout(60):
            found = await asyncio.gather(*following)
        kept = journal.read("r")
        assert [event.seq for event in kept] == list(range(1, 123))
        assert all(events == kept for events in found)
