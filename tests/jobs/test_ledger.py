"""The ledger holds exactly what was counted, whatever happened between two transactions."""

import os
import sqlite3
import tempfile
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.forks.process import FORKS

from treadle.core.errors import ConfigError, JournalError
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem


def make(path: Path) -> Ledger:
    return Ledger(path / "ledger.db", {"rows": path / "rows.jsonl"})


def kept(line: bytes, **fields: object) -> ItemOutcome:
    return ItemOutcome(status=ItemStatus.KEPT, label="single", file="rows", line=line, cost_usd=0.5, **fields)  # type: ignore[arg-type]


def item(number: int) -> PlannedItem:
    return PlannedItem(number, "single", "topic", {"number": number})


def test_a_counted_line_is_in_its_file_and_in_the_sums(tmp_path: Path) -> None:
    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        ledger.plan(item(2))
        ledger.count(
            1, 1, lambda _: kept(b"one\n", input_tokens=3, output_tokens=4), {"worked_seconds": "1.5"}
        )
        counts = ledger.counts()
    assert (tmp_path / "rows.jsonl").read_bytes() == b"one\n"
    assert (counts.kept, counts.planned, counts.labels, counts.shares) == (1, 2, {"single": 1}, {"topic": 2})
    assert (counts.input_tokens, counts.output_tokens, counts.cost_usd) == (3, 4, 0.5)
    with make(tmp_path) as ledger:
        assert [found.number for found in ledger.open_items()] == [2]
        assert ledger.get("worked_seconds") == "1.5"


@pytest.mark.parametrize("name", ["a?mode=ro", "a#b", "a%20b", "a'b", "a\nb", "ä ö"])
def test_a_folder_can_have_any_name(tmp_path: Path, name: str) -> None:
    """Rules out that a part of a path is read as a part of an address, for writing or for reading."""
    folder = tmp_path / name
    folder.mkdir()
    with make(folder) as ledger:
        ledger.plan(item(1))
        ledger.count(1, 1, lambda _: kept(b"one\n"))
    with Ledger(folder / "ledger.db", is_readonly=True) as ledger:
        assert ledger.counts().kept == 1
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert (folder / "rows.jsonl").read_bytes() == b"one\n"


# The files of Python may be closed to the other user, so the process has imported everything before.
READ = """
import os, sys
from pathlib import Path
import treadle.journal.sqlite.sqlite_layout
from treadle.jobs.ledger import Ledger
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
with Ledger(Path(sys.argv[1]), is_readonly=True) as ledger:
    print([entry.number for entry in ledger.entries()])
"""


def test_a_ledger_is_read_where_nothing_can_be_written() -> None:
    """SQLite wants to make a file beside it, so that reports of a dataset on a read-only disk ended in an error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with make(folder) as ledger:
            ledger.plan(item(1))
            ledger.count(1, 1, lambda _: kept(b"one\n"))
        folder.chmod(0o555)
        (folder / "ledger.db").chmod(0o444)
        before = sorted(path.name for path in folder.iterdir())
        reading = FORKS.start("-c", READ, str(folder / "ledger.db"), stdout=PIPE, stderr=PIPE)
        out, err = reading.communicate(timeout=60)
        assert (out, err) == ("[1]\n", ""), err
        assert sorted(path.name for path in folder.iterdir()) == before
        folder.chmod(0o755)


def test_a_line_that_was_written_and_not_counted_is_removed(tmp_path: Path) -> None:
    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        ledger.count(1, 1, lambda _: kept(b"one\n"))
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write(b'{"torn')
    with make(tmp_path) as ledger:
        ledger.plan(item(2))
        ledger.count(2, 1, lambda _: kept(b"two\n"))
    assert (tmp_path / "rows.jsonl").read_bytes() == b"one\ntwo\n"


def test_an_outcome_that_cannot_be_settled_leaves_nothing(tmp_path: Path) -> None:
    def fail(connection: sqlite3.Connection) -> ItemOutcome:
        connection.execute("INSERT INTO meta VALUES ('half', 'done')")
        raise ValueError("no")

    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        with pytest.raises(ValueError, match="no"):
            ledger.count(1, 1, fail)
        assert ledger.get("half") is None
        assert [found.number for found in ledger.open_items()] == [1]
        ledger.count(1, 1, lambda _: kept(b"one\n"))
    assert (tmp_path / "rows.jsonl").read_bytes() == b"one\n"


def test_a_line_of_a_transaction_that_fails_is_not_followed_by_its_rest(tmp_path: Path) -> None:
    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        ledger.connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON attempts BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(JournalError, match="full"):
            ledger.count(1, 1, lambda _: kept(b"a very long line\n"))
        ledger.connection.execute("DROP TRIGGER refuse")
        ledger.count(1, 1, lambda _: kept(b"short\n"))
    assert (tmp_path / "rows.jsonl").read_bytes() == b"short\n"


def test_a_rejected_item_is_attempted_again_with_the_reasons(tmp_path: Path) -> None:
    rejected = ItemOutcome(status=ItemStatus.REJECTED, reasons=("length: too long", "x: y"), is_final=False)
    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        ledger.count(1, 1, lambda _: rejected)
    with make(tmp_path) as ledger:
        (found,) = ledger.open_items()
        assert (found.attempts, found.feedback) == (1, ("length: too long", "x: y"))
        counts = ledger.counts()
        assert (counts.rejected, counts.reasons) == (1, {"length": 1})


def test_a_failure_of_the_infrastructure_is_no_attempt(tmp_path: Path) -> None:
    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        ledger.count(1, 1, lambda _: ItemOutcome(status=ItemStatus.FAILED, reasons=("infrastructure: down",)))
        assert ledger.counts().failed == 1
        assert ledger.reopen(ItemStatus.FAILED) == 1
        (found,) = ledger.open_items()
        assert (found.attempts, found.feedback) == (0, ())


def test_only_one_process_may_write(tmp_path: Path) -> None:
    with make(tmp_path):
        code = "import sys, pathlib, treadle.jobs.ledger as m; m.Ledger(pathlib.Path(sys.argv[1]))"
        found = FORKS.run("-c", code, str(tmp_path / "ledger.db"))
        assert "another process works on" in found.stderr
        with pytest.raises(ConfigError, match="another process"):
            make(tmp_path)
        with Ledger(tmp_path / "ledger.db", is_readonly=True) as reader:
            assert reader.counts().kept == 0
    make(tmp_path).close()


def test_a_file_that_lost_counted_lines_is_an_error(tmp_path: Path) -> None:
    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        ledger.count(1, 1, lambda _: kept(b"one\n"))
    os.truncate(tmp_path / "rows.jsonl", 2)
    with pytest.raises(JournalError, match="lines are missing"):
        make(tmp_path)


def test_entries_have_the_spec_and_the_reasons(tmp_path: Path) -> None:
    with make(tmp_path) as ledger:
        ledger.plan(item(1))
        ledger.count(1, 1, lambda _: kept(b"one\n", details={"run_id": "r"}))
    with Ledger(tmp_path / "ledger.db", is_readonly=True) as reader:
        (entry,) = reader.entries(ItemStatus.KEPT)
        assert (entry.number, entry.spec, entry.details) == (1, {"number": 1}, {"run_id": "r"})
        assert list(reader.entries(ItemStatus.REJECTED)) == []
