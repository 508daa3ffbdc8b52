"""The level is the journal's: the stronger of what the file keeps and what is asked for holds, for everybody."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from treadle import open_journal
from treadle.core.events import Rewarded
from treadle.journal.sqlite.sqlite_journal import SqliteJournal

PATIENCE_SECONDS = 60


def pragmas(journal: SqliteJournal) -> tuple[int, ...]:
    """Return how the writing connection syncs."""
    names = ("synchronous", "fullfsync", "checkpoint_fullfsync")
    asked = journal._committer.submit(
        lambda db: tuple(db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    )
    return asked.result(PATIENCE_SECONDS)


def test_a_file_keeps_the_strongest_level_that_it_was_opened_with(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for asked, level, syncs in (
        ("process", "process", (1, 0, 0)),
        ("power", "power", (2, 1, 1)),
        ("process", "power", (2, 1, 1)),
    ):
        with SqliteJournal(path, asked) as journal:
            assert journal.level == level
            assert f"level='{level}'" in repr(journal)
            assert pragmas(journal) == syncs
    with open_journal(path, must_exist=True) as opened:
        assert opened.level == "power"  # type: ignore[attr-defined]


async def test_an_open_journal_takes_over_the_level_that_another_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteJournal(path) as weak:
        writer = weak.create("r")
        for number in range(2):
            writer.append([Rewarded(at=0.0, reward=float(number))])
            await writer.sync()
            if number == 0:
                assert pragmas(weak) == (1, 0, 0)
                SqliteJournal(path, "power").close()
        assert pragmas(weak) == (2, 1, 1)
        writer.append([Rewarded(at=0.0, reward=2.0)])
        await writer.sync()
        assert len(weak.read("r")) == 3


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_at_level_power_new_folders_are_synced_in_their_parents(tmp_path: Path) -> None:
    script = "from treadle import open_journal; open_journal(None, 'power').close()"
    trace = ["strace", "-f", "-y", "-e", "trace=fsync", "-o", str(tmp_path / "trace")]
    done = subprocess.run(
        [*trace, sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    if "ptrace" in done.stderr.lower():
        pytest.skip("strace may not trace processes here")
    assert done.returncode == 0, done.stderr
    synced = (tmp_path / "trace").read_text()
    for folder in (tmp_path / ".treadle", tmp_path):
        assert f"<{folder}>)" in synced
