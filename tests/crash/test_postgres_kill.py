"""Runs in PostgreSQL: their process, or the server, is killed with SIGKILL at every boundary."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.test_kill import check_end, choose, dry_run, enumerate_points, run_once, witnessed
from tests.postgres.server import Server

from treadle import JournalError, open_journal
from treadle.core import events as e

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
CASES = (
    ("async", "parallel", "files", "inner", "agents", "asking", "compaction") if IS_FULL else ("parallel",)
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that the tests kill. What survives SIGKILL needs no sync of the disk."""
    server = Server.make(fsync="off")
    server.start()
    yield server
    server.remove()


@pytest.mark.parametrize("name", CASES)
def test_the_process_is_killed_at_boundaries(name: str, tmp_path: Path, postgres_server: Server) -> None:
    """The short form tests a few boundaries; the full form tests every one."""
    count = enumerate_points(tmp_path, (name, False), "process", 1 if IS_FULL else 41, postgres_server)
    assert count >= 2


@pytest.mark.parametrize("name", CASES)
def test_the_server_is_killed_at_boundaries(name: str, tmp_path: Path, server: Server) -> None:
    """The run goes on when the server is there again: nothing is lost, and nothing is done twice."""
    total, expected = dry_run(tmp_path, (name, False), "process", server)
    for point in range(1, total, 1 if IS_FULL else total // 2):
        path = choose(tmp_path / f"{point}.db", server)
        assert run_once(path, name, "process", point, False, server=str(server.folder)) == 0
        server.wait()
        check_end(path, expected, [], len(witnessed(path, "asked")), len(witnessed(path, "put")))
        effects = witnessed(path, "effect")
        assert len(effects) == len(set(effects))


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=1.0, reward=0.0, name="note", detail=text)


@pytest.mark.sets(0)
async def test_nothing_acknowledged_is_lost_over_many_kills_of_the_server(server: Server) -> None:
    """Runs append without a pause. Each event is kept once, or its writer reports an error."""
    url = server.make_database()
    acknowledged: dict[str, int] = {}
    is_over = False

    async def drive(name: str) -> None:
        number = 0
        with open_journal(url) as journal:
            while not is_over:
                run_id = f"{name}-{number}"
                number += 1
                writer = journal.create(run_id)
                try:
                    for event in range(1, 40):
                        writer.append([note(f"{run_id} {event}")])
                        await writer.sync()
                        acknowledged[run_id] = event
                    await writer.release()
                except JournalError:
                    pass

    driving = asyncio.gather(*[drive(name) for name in "abc"])
    for kills in range(1, 41 if IS_FULL else 4):
        while len(acknowledged) < 4 * kills:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    is_over = True
    await asyncio.wait_for(driving, 120)
    with open_journal(url) as journal:
        for run_id, count in acknowledged.items():
            found = [
                event.body.detail for event in journal.read(run_id) if isinstance(event.body, e.Rewarded)
            ]
            assert found[:count] == [f"{run_id} {event}" for event in range(1, count + 1)]
            assert found == list(dict.fromkeys(found))
        assert list(journal.find_faults()) == []


async def test_a_server_that_stays_away_is_reported_and_comes_back(server: Server) -> None:
    url = server.make_database()
    journal = open_journal(url)
    writer = journal.create("r")
    writer.append([note("kept")])
    await writer.sync()
    server.kill()
    writer.append([note("lost")])
    waiting = asyncio.ensure_future(writer.sync())
    await asyncio.sleep(0.1)
    assert not waiting.done()  # it is tried again
    with pytest.raises(JournalError, match="cannot be reached"):
        open_journal(url)
    await asyncio.to_thread(journal.close)  # nobody waits for the server then
    with pytest.raises(JournalError, match="cannot be reached"):
        await asyncio.wait_for(waiting, 60)
    await asyncio.to_thread(server.start)
    with open_journal(url) as again:
        assert len(again.read("r")) == 1
        writer = await again.acquire("r")
        writer.append([note("goes on")])
        await writer.sync()


async def test_the_event_loop_turns_while_the_server_hangs(server: Server) -> None:
    """Also if what is appended is more than the system takes at once."""
    import psycopg

    with (
        psycopg.connect(server.url(), autocommit=True) as db,
        open_journal(server.make_database()) as journal,
    ):
        writers = [journal.create(name) for name in "abcdef"]
        for writer in writers:
            writer.append([note("1")])
        await asyncio.gather(*[writer.sync() for writer in writers])
        others = (
            "SELECT pid FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid != pg_backend_pid()"
        )
        backends = [pid for (pid,) in db.execute(others)]
        for pid in backends:
            os.kill(pid, signal.SIGSTOP)
        try:
            waits = []
            for writer in writers:
                writer.append([note("x" * 300_000)])
                waits.append(asyncio.ensure_future(writer.sync()))  # type: ignore[arg-type]
                for _ in range(100):  # each in a commit of its own
                    await asyncio.sleep(0)
            assert not any(item.done() for item in waits)
        finally:
            for pid in backends:
                os.kill(pid, signal.SIGCONT)
        await asyncio.wait_for(asyncio.gather(*waits), 60)
        assert [len(journal.read(name)) for name in "abcdef"] == [2] * 6


def test_a_server_that_does_not_sync_is_refused_at_level_power(server: Server) -> None:
    with pytest.raises(JournalError, match="fsync = off"):
        open_journal(server.make_database(), level="power")
