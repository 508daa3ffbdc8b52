"""A process is killed with SIGKILL at every boundary of a sample of a dataset, and the sample is continued."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.forks.process import FORKS, ROOT

from treadle import open_journal
from treadle.core.state import fold

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
MAKE = "from tests.crash.sample import main; main()"


def make(path: Path, crash_at: int | None) -> int:
    """Make the sample in a process of its own. Return its exit code, or minus the signal that ended it."""
    order = json.dumps({"path": str(path), "crash_at": crash_at})
    return FORKS.start("-c", MAKE, order, cwd=ROOT).wait()


def paid(path: Path) -> int:
    file = path.with_suffix(".witness")
    return file.read_text().count("paid") if file.exists() else 0


def kept(path: Path) -> int:
    """Return how many answers are in the journal."""
    with open_journal(path) as journal:
        runs = [info.run_id for info in journal.runs()]
        return sum(fold([event.body for event in journal.read(run_id)]).step for run_id in runs)


def finish(path: Path, expected: str, total: int) -> None:
    """Continue a sample to its end, and check that no answer that was kept is paid for again."""
    had, paid_before = kept(path), paid(path)
    assert make(path, None) == 0
    assert path.with_suffix(".row").read_text() == expected
    assert paid(path) - paid_before == total - had


@pytest.mark.sets(0)
def test_a_killed_sample_is_continued(tmp_path: Path) -> None:
    """The short form tests every ninth boundary; the full form tests every one."""
    dry = tmp_path / "dry.db"
    assert make(dry, None) == 0
    expected, boundaries = dry.with_suffix(".row").read_text(), int(dry.with_suffix(".count").read_text())
    total = kept(dry)
    assert total == paid(dry) == 8
    assert boundaries > 80
    for point in range(0, boundaries, 1 if IS_FULL else 13):
        path = tmp_path / f"{point}.db"
        assert make(path, point) == -signal.SIGKILL
        finish(path, expected, total)


@pytest.mark.parametrize("first", [12, 40, 70])
def test_a_sample_is_killed_again_while_it_is_continued(first: int, tmp_path: Path) -> None:
    dry = tmp_path / "dry.db"
    assert make(dry, None) == 0
    path = tmp_path / "killed.db"
    for point in (first, 9, 14):
        assert make(path, point) in (-signal.SIGKILL, 0)
    finish(path, dry.with_suffix(".row").read_text(), kept(dry))
