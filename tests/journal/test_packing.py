"""Frames that are packed with a dictionary which is made from the first ones."""

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, JournalError, ScriptedModel, open_journal
from treadle.journal.check import Check
from treadle.journal.protocol import Journal
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.models import call

RUNS = 60
TOLD = "You work in the office of a large company, and answer letters with care. " * 20


async def work(journal: Journal, runs: int = RUNS, first: int = 0) -> None:
    """Make runs that have much in common, each with a word of its own."""
    for number in range(first, first + runs):
        script = [
            [call("write_file", {"file_path": "a.txt", "content": f"letter {number} " * 20})],
            f"done {number}",
        ]
        agent = Agent(ScriptedModel(script), instructions=TOLD, tools=["files"], journal=journal)
        await agent.run(f"answer letter word{number}word", run_id=f"r-{number}")


def query(path: Path, sql: str, *values: Any) -> Any:
    with sqlite3.connect(path) as db:
        rows = db.execute(sql, values).fetchall()
    db.close()
    return rows


PACKED = "SELECT count(*) FROM frames WHERE substr(body, 1, 1) = x'01'"


@pytest.mark.sets(0)
async def test_packed_runs_are_those_that_were_written_and_take_a_third(tmp_path: Path) -> None:
    path, plain = tmp_path / "packed.db", tmp_path / "plain.db"
    with open_journal(plain) as journal:
        await work(journal)
    with open_journal(path, packs=True) as journal:
        events = journal.follow(None)
        await work(journal)
        assert query(path, "SELECT count(*) FROM dictionaries") == [(1,)]
        heard = [await anext(events) for _ in range(100)]
        assert {event.run_id for event in heard} <= {f"r-{number}" for number in range(RUNS)}
        replayed = await Agent(ScriptedModel([]), journal=journal).replay("r-3")
        assert replayed.is_exact
    assert path.stat().st_size < plain.stat().st_size / 3
    with open_journal(path) as journal, open_journal(plain) as other:
        found = [info.run_id for info in journal.runs()]
        assert found == [info.run_id for info in other.runs()]
        check = Check(journal)
        assert [problem for run_id in found for problem in check.check_run(run_id).problems] == []
        assert list(check.check_store()) == []
        for run_id in found:
            bodies = [event.body for event in journal.read(run_id)]
            assert [type(body) for body in bodies] == [type(event.body) for event in other.read(run_id)]
        # Whoever writes into the file later packs too.
        before = query(path, PACKED)
        await work(journal, 2, RUNS)
        assert query(path, PACKED)[0][0] >= before[0][0] + 2


async def test_few_runs_are_packed_when_the_journal_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal:
        await work(journal, 20)
        assert query(path, PACKED) == [(0,)]
    assert query(path, PACKED)[0][0] > 20
    with open_journal(tmp_path / "one.db", packs=True) as journal:
        await work(journal, 1)
    assert query(tmp_path / "one.db", "SELECT count(*) FROM dictionaries") == [(0,)]


async def test_deleting_a_run_leaves_nothing_of_it_in_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal, open_journal(path) as other:
        await work(journal)
        await work(other, 1, 100)  # it has the dictionary
        events = {run_id: journal.read(run_id) for run_id in ("r-1", "r-59", "r-100")}
        journal.delete("r-0")
        assert query(path, "SELECT count(*) FROM dictionaries") == query(path, PACKED) == [(0,)]
        await work(other, 1, 101)
        assert query(path, PACKED) == [(0,)]
        for run_id, written in events.items():
            assert journal.read(run_id) == written
    assert b"word0word" not in path.read_bytes()
    with open_journal(path) as journal:
        assert len(Check(journal).check_run("r-59").problems) == 0


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM dictionaries",
        "UPDATE dictionaries SET content = substr(content, 1, 3000) || zeroblob(length(content) - 3000)",
        "UPDATE dictionaries SET content = 'text'",
        "UPDATE dictionaries SET content = CAST(substr(content, 1, 3000) || zeroblob(9000) AS BLOB)",
        "UPDATE frames SET body = substr(body, 1, length(body) - 3)",
        "UPDATE frames SET body = x'0100000001'",
        "UPDATE frames SET body = x'0100000009' || substr(body, 6)",
        "UPDATE frames SET body = substr(body, 1, 5) || zeroblob(9) || substr(body, 15)",
    ],
)
async def test_damage_is_an_error_of_its_runs_and_keeps_no_other_from_being_written(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal:
        await work(journal, 20)
    query(path, damage)
    with open_journal(path) as journal:
        with pytest.raises(JournalError, match="run 'r-1' is damaged"):
            journal.read("r-1")
        await work(journal, 1, 50)
        assert journal.runs()[-1].run_id == "r-50"


async def test_a_frame_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    """A file from elsewhere must not fill the memory."""
    from treadle.journal.sqlite import packing

    zstd = packing._zstd()
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal:
        await work(journal, 20)
    compressor = zstd.ZstdCompressor()
    zeros = bytes(2**24)
    bomb = b"".join(
        [compressor.compress(zeros) for _ in range(2 ** (7 if os.environ.get("TREADLE_FULL") else 0))]
    )
    query(path, "UPDATE frames SET body = ?", b"\x01\0\0\0\x01" + bomb)
    with open_journal(path) as journal, pytest.raises(JournalError, match="is damaged"):
        journal.read("r-1")


async def test_a_rolled_back_commit_leaves_no_sample(tmp_path: Path) -> None:
    """The numbers of its frames are used again."""
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal:
        await work(journal, 10)
        query(path, "CREATE TRIGGER full AFTER INSERT ON heads BEGIN SELECT RAISE(ABORT, 'no space'); END")
        with pytest.raises(JournalError):
            await work(journal, 1, 10)
        query(path, "DROP TRIGGER full")
        await work(journal, 10, 20)
        written = {info.run_id: journal.read(info.run_id) for info in journal.runs()}
    shutil.copyfile(path, tmp_path / "copy.db")
    with open_journal(tmp_path / "copy.db") as journal:
        assert {run_id: journal.read(run_id) for run_id in written} == written


async def test_an_older_file_is_made_smaller_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path) as journal, open_journal(path) as other:
        assert isinstance(journal, SqliteJournal)
        await work(journal)
        written = {info.run_id: journal.read(info.run_id) for info in journal.runs()}
        writer = other.create("going-on")
        writer.append([event.body for event in written["r-1"][:2]])
        await writer.sync()
        before, after = await asyncio.to_thread(journal.slim)
        assert after < before / 2
        writer.append([event.body for event in written["r-1"][2:4]])
        await writer.release()
        await writer.sync()
        for run_id, events in written.items():
            assert other.read(run_id) == events
        assert len(other.read("going-on")) == 4
        assert list(Check(journal).check_store()) == []
        await asyncio.to_thread(journal.slim)
    with open_journal(tmp_path / "empty.db") as journal:
        assert isinstance(journal, SqliteJournal)
        assert await asyncio.to_thread(journal.slim)


async def test_a_run_that_was_deleted_is_in_no_dictionary_that_is_made_later(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal, open_journal(path) as other:
        await work(journal, 20)
        journal.delete("r-0")
        other.delete("r-1")
    assert query(path, PACKED)[0][0] > 20
    (dictionary,) = query(path, "SELECT content FROM dictionaries")[0]
    assert b"word2word" in dictionary
    assert not [word for word in (b"word0word", b"word1word") if word in dictionary]


async def test_frames_that_are_packed_are_no_samples_and_never_packed_again(tmp_path: Path) -> None:
    """If a dictionary is damaged, it can be given back from a backup."""
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal:
        await work(journal, 20)
        written = {info.run_id: journal.read(info.run_id) for info in journal.runs()}
    packed = query(path, f"{PACKED.replace('count(*)', 'id, body')}")
    (content,) = query(path, "SELECT content FROM dictionaries")[0]
    query(path, "UPDATE dictionaries SET content = x'00'")
    with open_journal(path) as journal:
        assert isinstance(journal, SqliteJournal)
        await asyncio.to_thread(journal.slim)
        assert query(path, "SELECT count(*) FROM dictionaries") == [(1,)]
        await work(journal, 40, 20)
        written |= {f"r-{number}": journal.read(f"r-{number}") for number in range(20, 60)}
        await asyncio.to_thread(journal.slim)
    assert query(path, "SELECT count(*) FROM dictionaries") == [(2,)]
    assert set(packed) <= set(query(path, f"{PACKED.replace('count(*)', 'id, body')}"))
    query(path, "UPDATE dictionaries SET content = ? WHERE id = 1", content)
    with open_journal(path) as journal:
        assert {run_id: journal.read(run_id) for run_id in written} == written


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE dictionaries SET content = 'text'",
        "UPDATE dictionaries SET runs = 'text'",
        "UPDATE dictionaries SET runs = x'ff'",
        "UPDATE frames SET body = x'0100000001' WHERE id = 50",
    ],
)
async def test_runs_of_a_damaged_dictionary_can_be_deleted(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal:
        await work(journal, 20)
    query(path, damage)
    with open_journal(path) as journal:
        journal.delete("r-0")
        assert "r-0" not in [info.run_id for info in journal.runs()]
    assert b"word0word" not in path.read_bytes()


async def test_a_large_file_is_not_rewritten_when_a_dictionary_is_made(tmp_path: Path) -> None:
    """Nobody could write into the file meanwhile, for minutes."""
    path = tmp_path / "runs.db"
    with open_journal(path) as journal:
        await work(journal, 1)
    query(path, "INSERT INTO blobs VALUES('old', zeroblob(36000000))")
    query(path, "DELETE FROM blobs WHERE digest = 'old'")
    with open_journal(path, packs=True) as journal:
        await work(journal, RUNS, 1)
    assert query(path, PACKED)[0][0] > 100
    assert path.stat().st_size > 36_000_000


async def test_a_job_whose_first_frames_are_long_is_packed_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path, packs=True) as journal:
        agent = Agent(ScriptedModel(["done"] * 20), instructions=TOLD * 80, journal=journal)
        for number in range(20):
            await agent.run(f"answer letter {number}", run_id=f"r-{number}")
    assert query(path, "SELECT count(*) FROM dictionaries") == [(1,)]
    assert path.stat().st_size < 600_000
