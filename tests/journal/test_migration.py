"""Files of version 1, as revision d0b7ded wrote them, are read, listed and gone on with; so are journals of the
version before."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import JournalError, ScriptedModel, open_journal
from treadle.agent.agent import Agent
from treadle.core import events as e
from treadle.core.errors import UntrustedError
from treadle.core.events import LEFT
from treadle.journal.check import Check
from treadle.journal.listing import facts_of
from treadle.journal.run_info import QUEUE, RunFilter
from treadle.journal.tables.table_rows import RUN_COLUMNS, Query, row_checksum, seed_of

GOLDEN = sorted((Path(__file__).parent.parent / "data").glob("*.jsonl"))

VERSION_1 = """
    CREATE TABLE owners(
        id INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT NOT NULL, pid INTEGER NOT NULL,
        started TEXT NOT NULL, beat_at REAL NOT NULL
    );
    CREATE TABLE runs(
        id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, stop_reason TEXT,
        created_at REAL NOT NULL, owner INTEGER, token INTEGER NOT NULL
    );
    CREATE TABLE frames(
        id INTEGER PRIMARY KEY, previous INTEGER NOT NULL, run INTEGER NOT NULL, seq INTEGER NOT NULL,
        count INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL
    );
    CREATE TABLE heads(run INTEGER PRIMARY KEY, frame INTEGER NOT NULL);
    CREATE TABLE blobs(digest TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE meta(takeovers INTEGER NOT NULL);
    INSERT INTO meta VALUES(0);
    PRAGMA application_id=1414677580;
    PRAGMA user_version=1;
"""


def write_old(path: Path, runs: dict[str, list[bytes]]) -> None:
    """Write a file of version 1, two events to a frame."""
    db = sqlite3.connect(path)
    db.executescript(VERSION_1)
    frame = 0
    for key, (run_id, raws) in enumerate(runs.items(), 1):
        db.execute("INSERT INTO runs VALUES(?,?,'running',NULL,1.0,NULL,1)", (key, run_id))
        previous = 0
        for start in range(0, len(raws), 2):
            frame += 1
            part = raws[start : start + 2]
            body = b"".join(raw + b"\n" for raw in part)
            db.execute(
                "INSERT INTO frames VALUES(?,?,?,?,?,5.0,?)",
                (frame, previous, key, start + 1, len(part), body),
            )
            previous = frame
        db.execute("INSERT INTO heads VALUES(?,?)", (key, frame))
    db.commit()
    db.close()


def golden() -> dict[str, list[bytes]]:
    return {
        path.stem: [e.decode_line(line).raw or b"" for line in path.read_bytes().splitlines()]
        for path in GOLDEN
    }


def test_an_old_file_is_listed_as_if_it_were_new(tmp_path: Path) -> None:
    write_old(tmp_path / "runs.db", golden())
    with open_journal(tmp_path / "runs.db") as journal:
        for _ in range(2):
            infos = journal.runs()
            assert [info.run_id for info in infos] == [path.stem for path in GOLDEN]
            for info in infos:
                facts = facts_of([event.body for event in journal.read(info.run_id)])
                assert info == facts.info(info.run_id, is_driven=False)
        assert {info.run_id for info in journal.runs(RunFilter(is_session=True))} == {"session"}


def test_more_runs_than_are_filled_at_a_time(tmp_path: Path) -> None:
    raws = golden()["plain"]
    write_old(tmp_path / "runs.db", {f"r{number}": raws for number in range(450)})
    with open_journal(tmp_path / "runs.db") as journal:
        assert len(journal.runs(RunFilter(status="finished"))) == 450


def test_a_damaged_run_of_an_old_file_spoils_no_listing(tmp_path: Path) -> None:
    raws = golden()["plain"]
    write_old(tmp_path / "runs.db", {"good": raws, "bad": [*raws[:2], b"{nonsense}"]})
    with open_journal(tmp_path / "runs.db") as journal:
        good, bad = journal.runs()
        assert (good.status, good.steps) == ("finished", 1)
        assert (bad.run_id, bad.status, bad.events) == ("bad", "running", 0)
        with pytest.raises(JournalError, match="damaged"):
            journal.read("bad")


async def test_a_run_of_an_old_file_goes_on(tmp_path: Path) -> None:
    """Its facts go on from where they stood, though nobody listed it before."""
    raws = golden()["cancelled_model"]
    resumable = raws[: next(n for n, raw in enumerate(raws, 1) if b'"run_paused"' in raw)]
    write_old(tmp_path / "runs.db", {"r": resumable})
    with open_journal(tmp_path / "runs.db") as journal:
        agent = Agent(ScriptedModel(["the end"]), journal=journal)
        with pytest.raises(UntrustedError, match="another user, machine or version"):
            await agent.resume("r")
        run = await agent.resume("r", trust=True)
        assert run.output == "the end"
        (info,) = journal.runs()
        assert info == facts_of([event.body for event in journal.read("r")]).info("r", is_driven=False)
        assert info.events > len(resumable)


async def test_what_an_old_process_still_writes_is_found(tmp_path: Path) -> None:
    """A process of the older version had the file open when it was migrated."""
    raws = golden()["plain"]
    write_old(tmp_path / "runs.db", {"r": raws[:2]})
    with open_journal(tmp_path / "runs.db") as journal:
        assert journal.runs()[0].events == 2
        with sqlite3.connect(tmp_path / "runs.db") as db:
            body = raws[2] + b"\n"
            db.execute(
                "INSERT INTO frames(id, previous, run, seq, count, at, body) VALUES(7,1,1,3,1,5.0,?)", (body,)
            )
            db.execute("INSERT OR REPLACE INTO heads(run, frame) VALUES(1,7)")
        db.close()
        assert journal.runs()[0].events == 3


def store_as_before(query: Query) -> None:
    """Make the rows of `runs` those of a Treadle that does not know `ended_at`."""
    for key, run_id, *values in query(f"SELECT id, run_id, {', '.join(RUN_COLUMNS[:-2])} FROM runs", ()):
        checksum = row_checksum(tuple(values), seed_of(run_id))
        query("UPDATE runs SET checksum=? WHERE id=?", (checksum, key))


@contextlib.contextmanager
def connection(place: str) -> Iterator[Query]:
    if "://" in place:
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(place, autocommit=True, options="-c search_path=treadle") as link:
            yield lambda sql, values: _rows(link.execute(sql.replace("?", "%s"), values))
    else:
        with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as db:
            yield lambda sql, values: _rows(db.execute(sql, values))


def _rows(cursor: Any) -> list[tuple[Any, ...]]:
    return [] if cursor.description is None else cursor.fetchall()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_runs_of_the_version_before_get_their_ends(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "runs.db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    ended = [*(e.decode_body(raw) for raw in golden()["plain"])]
    with open_journal(place) as journal:
        for run_id in ("noted", "plain"):
            writer = journal.create(run_id)
            writer.append(ended)
            await writer.sync()
            if run_id == "noted":
                writer.append([e.Noted(at=ended[-1].at + 1000, remark="seen")])
            await writer.release()
            await writer.sync()
        expected = {info.run_id: info for info in journal.runs()}
    with connection(place) as query:
        store_as_before(query)
        query("ALTER TABLE runs DROP COLUMN ended_at", ())
        query("PRAGMA user_version=9" if store == "sqlite" else "UPDATE meta SET version=3", ())
    with open_journal(place) as journal:
        found = {info.run_id: info for info in journal.runs()}
        assert found["noted"] == expected["noted"]
        assert found["plain"].duration_seconds == expected["plain"].duration_seconds
        assert found["noted"].duration_seconds < 1000
        assert [Check(journal).check_run(run_id).problems for run_id in found] == [(), ()]
        with connection(place) as query:  # a process of the version before still writes
            store_as_before(query)
        assert {info.status for info in journal.runs()} == {"finished"}
        assert list(journal.find_faults()) == []


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_run_that_a_version_before_listed_as_cancelled_is_whole(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "runs.db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    with open_journal(place) as journal:
        writer = journal.create("left")
        started = e.RunStarted(at=1.0, version="2.7", metadata={QUEUE: "serve"})
        writer.append([started, e.RunPaused(at=2.0, reason="cancelled")])
        await writer.sync()
        await writer.release()
        await writer.sync()
        assert journal.runs()[0].stop_reason == LEFT
    with connection(place) as query:
        ((key, *values),) = query(f"SELECT id, {', '.join(RUN_COLUMNS[:-1])} FROM runs", ())
        before = tuple(["cancelled" if value == LEFT else value for value in values])
        change = "UPDATE runs SET stop_reason='cancelled', checksum=? WHERE id=?"
        query(change, (row_checksum(before, seed_of("left")), key))
    with open_journal(place) as journal:
        assert journal.runs()[0].stop_reason == "cancelled"
        assert Check(journal).check_run("left").problems == ()
