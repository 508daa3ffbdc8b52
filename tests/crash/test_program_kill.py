"""Rollouts of a program whose process is killed: the program ends too, and the next process goes on."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.forks.process import FORKS
from tests.rollout.test_commands import ASK
from tests.rollout.test_engines import Engine, sampled_ids

from treadle import open_journal
from treadle.rollout.rollout_folder import read_groups, read_stored

PROGRAM = """
import time
open({pids!r}, "a").write(f"{{os.getpid()}}\\n")
print(ask("first"))
while not os.path.exists({gate!r}):
    time.sleep(0.01)
print(ask("second"))
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.sets(0)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it needs Linux")
def test_a_killed_rollout_of_a_program_goes_on(tmp_path: Path) -> None:
    pids, gate, out = tmp_path / "pids", tmp_path / "gate", tmp_path / "out"
    (tmp_path / "program.py").write_text(ASK + PROGRAM.format(pids=str(pids), gate=str(gate)))
    with Engine() as engine:
        command = ["-m", "treadle", "rollout", "--task", "files:csv_sum-*", "--groups", "2"]
        command += ["--group-size", "2", "--model", "vllm:oracle:0.4", "--base-url", engine.url]
        command += ["--command", f"{sys.executable} {tmp_path / 'program.py'}", "--json", "--out", str(out)]
        first = FORKS.start(*command, stdout=subprocess.DEVNULL)
        try:
            while not pids.exists() or len(pids.read_text().splitlines()) < 4:
                assert first.poll() is None
                time.sleep(0.01)
            while len(engine.app.sampled) < 4:
                time.sleep(0.01)
        finally:
            first.kill()
            first.wait()
        while any(is_alive(int(line)) for line in pids.read_text().splitlines()):
            time.sleep(0.01)
        gate.touch()
        again = FORKS.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = again.communicate()
        assert again.returncode == 0, said
        groups = list(read_groups(out, read_stored(out)))
        assert sorted(group.group_id for group in groups) == ["rollout-1", "rollout-2"]
        assert [len(one.trajectories) for group in groups for one in group.rollouts] == [2] * 4
        # What the killed programs had sampled is delivered nowhere.
        assert len(sampled_ids(out)) == 8
        assert len(engine.app.sampled) == 12
        with open_journal(out / "runs.db") as journal:
            outer = [info for info in journal.runs() if info.caller_run_id is None]
            assert len(outer) == 4
            assert all(info.reward is not None for info in outer)
