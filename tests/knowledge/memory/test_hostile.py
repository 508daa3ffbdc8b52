"""Hostile queries and texts, several writers, killed processes, and files that cannot be written."""

import json
import os
import signal
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.forks.process import FORKS

from treadle.core.errors import ConfigError, JournalError
from treadle.journal import open_journal
from treadle.journal.check import Check
from treadle.journal.protocol import APPLICATION_ID
from treadle.journal.resources import ResourceFilter
from treadle.knowledge.memory import Author, Draft, Store, open_memory
from treadle.knowledge.memory.memory_tables import Database

NOW = 1_800_000_000.0
IS_FULL = bool(os.environ.get("TREADLE_FULL"))

QUERIES = (
    'tea"',
    '"tea',
    "tea'",
    "tea NEAR coffee",
    "NEAR(tea coffee, 2)",
    "tea AND",
    "AND OR NOT",
    "tea*",
    "*",
    "^tea",
    "stems:tea",
    "{stems}:tea",
    "-tea",
    "(tea",
    "tea)",
    "tea -- comment",
    "'; DROP TABLE memory_entries; --",
    "🫖 tea",
    "🫖",
    "\0tea\0",
    "\ud800 tea",
    "tea " * 200_000,
    "x" * 1_000_000,
    "".join(chr(code) for code in range(1, 3000)),
    "%s %d {} {0} \\",
    "お茶が好きです",
    "",
    "   ",
    "the of and",
)


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_any_text_can_be_searched(query: str) -> None:
    memory = open_memory(open_journal("memory:"))
    memory.store.write(Draft(store=Store.EPISODIC, text="We drank tea."), NOW)
    memory.store.write(Draft(store=Store.EPISODIC, text="お茶が好き。"), NOW)
    found = [hit.entry.text for hit in memory.store.search(query, NOW)]
    assert ("We drank tea." in found) is ("tea" in query)
    assert ("お茶が好き。" in found) is ("お茶" in query)
    for stores in ([Store.EPISODIC], [Store.WORLDVIEW]):
        assert len(memory.store.search(query, NOW, stores=stores)) <= len(found)


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_any_text_can_be_written_and_forgotten(query: str) -> None:
    memory = open_memory(open_journal("memory:"))
    draft = Draft(store=Store.EPISODIC, text=query, reason=query[:100].replace("\ud800", "?"))
    if not query.strip() or len(query) > 20_000:
        with pytest.raises(ConfigError, match=r"is empty|shorten it"):
            memory.store.write(draft, NOW)
        return
    entry = memory.store.write(draft, NOW).entry
    assert entry is not None
    assert memory.store.get(entry.entry_id) == entry
    assert memory.store.write(draft, NOW).entry is not None
    assert memory.store.forget(entry.entry_id, Author.USER, NOW)


def test_many_common_words_take_a_bounded_part_of_the_index() -> None:
    """A query of words that all entries have must not rank all entries."""
    memory = open_memory(open_journal("memory:"))
    with memory.store._database.writing() as db:  # type: ignore[attr-defined]
        space = memory.store._space(db, is_made=True)  # type: ignore[attr-defined]
        for number in range(4000):
            memory.store._add(
                db, Draft(store=Store.DOCUMENTS, text=f"alpha beta gamma {number}", author=Author.FILE), NOW
            )  # type: ignore[attr-defined]
        statements: list[str] = []
        db.set_trace_callback(statements.append)
        from treadle.knowledge.memory.fulltext import Frequencies, search_words

        found = search_words(db, Frequencies(), space, "alpha beta gamma 3999", limit=5)
        db.set_trace_callback(None)
    assert found[0].row == space[0] + 4000
    assert sum("MATCH" in item for item in statements) <= 12


WRITE = """
import sys
from treadle.knowledge.memory import *
from treadle.journal import open_journal
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open_journal(path) as journal:
    memory = open_memory(journal)
    for number in range(count):
        draft = Draft(store=Store.EPISODIC, text=f"{name} saw {number} birds", key=f"{name}/{number}")
        memory.store.write(draft, 1e9)
        print(number, flush=True)
"""


@pytest.fixture(params=["file", "postgres"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a journal that several processes can have open."""
    is_file = request.param == "file"
    return str(tmp_path / "runs.db" if is_file else request.getfixturevalue("postgres_url"))


def test_two_processes_write_at_once(path: str) -> None:
    """Ids that are counted from what is there collide between writers, as in the reference system."""
    writers = [
        FORKS.start("-c", WRITE, path, name, "40", stdout=subprocess.PIPE) for name in ("ann", "bob", "cy")
    ]
    assert [writer.communicate(timeout=60) and writer.returncode for writer in writers] == [0, 0, 0]
    with open_journal(path) as journal:
        entries = open_memory(journal).store.entries()
    assert len({entry.entry_id for entry in entries}) == len({entry.text for entry in entries}) == 120


def test_a_killed_writer_loses_nothing_and_doubles_nothing(path: str) -> None:
    done = 0
    for attempt in range(12 if IS_FULL else 3):
        writer = FORKS.start("-c", WRITE, path, "ann", "10000", stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(5 + 7 * attempt):
            done = max(done, int(writer.stdout.readline()))
        writer.send_signal(signal.SIGKILL)
        done = max([done, *[int(line) for line in writer.stdout.read().split("\n")[:-1]]])
        writer.wait()
    with open_journal(path) as journal:
        memory = open_memory(journal)
        texts = [entry.text for entry in memory.store.entries()]
        assert done + 1 <= len(texts) <= done + 2
        assert texts == [f"ann saw {number} birds" for number in range(len(texts))]
        assert len(memory.store.audit()) == len(texts)
        assert list(Check(journal).check_store()) == []


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path) as journal:
        memory = open_memory(journal)
        memory.store.write(Draft(store=Store.EPISODIC, text="We met."), NOW)
        database: Database = memory.store._database  # type: ignore[attr-defined]
        pages = database._writing.execute("PRAGMA page_count").fetchone()[0]
        database._writing.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(JournalError, match="is the disk full"):  # noqa: PT012
            for number in range(1000):
                memory.store.write(Draft(store=Store.EPISODIC, text=f"{number} " + "word " * 1000), NOW)
        database._writing.execute("PRAGMA max_page_count=1000000")
        memory.store.write(Draft(store=Store.EPISODIC, text="We met again in Oslo."), NOW)
        assert memory.store.search("Oslo", NOW)[0].entry.text == "We met again in Oslo."


READ = """
import os, sys, json
from pathlib import Path
os.setgid(65534); os.setuid(65534)
from treadle.knowledge.memory import *
from treadle.core.errors import JournalError
from treadle.journal import open_journal
told = []
with open_journal(sys.argv[1], must_exist=True) as journal:
    memory = open_memory(journal)
    told.append([entry.text for entry in memory.store.entries()])
    try:
        memory.store.write(Draft(store=Store.EPISODIC, text="x"), 1.0)
    except JournalError as error:
        told.append(str(error))
print(json.dumps(told))
"""


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="root can read as another user")
@pytest.mark.parametrize("has_memories", [True, False])
def test_a_read_only_file_can_be_read(*, has_memories: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        read_as_another_user(Path(name), has_memories=has_memories)


def read_as_another_user(folder: Path, *, has_memories: bool) -> None:
    path = folder / "runs.db"
    with open_journal(path) as journal:
        if has_memories:
            open_memory(journal).store.write(Draft(store=Store.EPISODIC, text="We met."), NOW)
    folder.chmod(0o555)
    path.chmod(0o444)
    reader = FORKS.start("-c", READ, str(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = reader.communicate(timeout=60)
    assert out, err
    told = json.loads(out)
    assert told[0] == (["We met."] if has_memories else [])
    assert "is read-only" in told[1]


def test_backup_and_check_include_the_memories(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        open_memory(journal).store.write(Draft(store=Store.EPISODIC, text="We met."), NOW)
        journal.backup(tmp_path / "copy.db")
        assert list(Check(journal).check_store()) == []
    with open_journal(tmp_path / "copy.db") as copy:
        assert open_memory(copy).store.search("met", NOW)[0].entry.text == "We met."
        assert list(Check(copy).check_store()) == []


def test_tables_of_a_newer_treadle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path) as journal:
        open_memory(journal)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    db.execute("UPDATE memory_meta SET version=99")
    db.commit()
    db.close()
    with open_journal(path) as journal, pytest.raises(JournalError, match="newer Treadle"):
        open_memory(journal)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0b"])
def test_a_namespace_needs_names(name: str) -> None:
    journal = open_journal("memory:")
    for names in ((name, "kim"), ("ada", name)):
        with pytest.raises(ConfigError, match="of a memory is"):
            open_memory(journal, *names)


def test_what_is_forgotten_is_in_no_part_and_others_see_it_at_once(postgres_url: str) -> None:
    with open_journal(postgres_url) as one, open_journal(postgres_url) as two:
        here, there = open_memory(one, "ada", "kim").store, open_memory(two, "ada", "kim").store
        texts = [f"zebra{number} crossed road {number}" for number in range(2000)]
        pieces = [Draft(store=Store.DOCUMENTS, text=text, author=Author.FILE) for text in texts]
        assert here.replace_document("book", "1", pieces, 1e9)
        assert [hit.entry.entry_id for hit in there.search("zebra17", 1e9)] == ["documents-18"]
        parts = ResourceFilter(kind="memory_part", parent=None)
        before = {part.resource_id for part in one.resources.page(parts, 0.0)}
        there.write(Draft(store=Store.SELF_FACTS, text="Kim counts zebras."), 1e9)
        after = {part.resource_id for part in one.resources.page(parts, 0.0)}
        assert len(before) > 4
        assert len(before & after) > len(before) // 2  # a write stores what it has changed
        assert here.forget("documents-18", Author.USER, 1e9)
        assert there.get("documents-18") is None
        assert there.owners() == [("ada", "kim")]
        kept = b"".join([one.resources.content(part) or b"" for part in one.resources.page(parts, 0.0)])
        assert (b"zebra16 " in kept, b"zebra17 " in kept) == (True, False)
