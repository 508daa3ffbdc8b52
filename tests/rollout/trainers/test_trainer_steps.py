"""A step of verl and of SkyRL with rollouts that were made within them, in an environment of `make test-full`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.environments import is_ready
from tests.renderers.folders import make_folder

import treadle
from treadle.scoring.advantages import group_relative

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("trainers")]
ENVIRONMENT = os.environ.get("TREADLE_TRAINERS")
PROGRAMS = Path(__file__).with_name("programs")
GROUP = 4
TOLERANCE = 1e-4


def run(program: str, folder: Path) -> dict[str, Any]:
    """Return what a program prints at last, run with Treadle in the trainers' environment."""
    if not ENVIRONMENT or not is_ready("trainers", Path(ENVIRONMENT)):
        pytest.skip(
            "these tests need trainers; `make trainers` installs them, and TREADLE_TRAINERS is the folder"
        )
    make_folder(folder, "qwen")
    done = subprocess.run(
        [Path(ENVIRONMENT).resolve() / "bin" / "python", "-W", "ignore", PROGRAMS / program, folder],
        env={**os.environ, "PYTHONPATH": str(Path(treadle.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def advantages(rewards: list[float]) -> list[float]:
    """Return the advantages of groups, as Treadle computes them."""
    groups = [rewards[at : at + GROUP] for at in range(0, len(rewards), GROUP)]
    return [value or 0.0 for group in groups for value in group_relative(group)]


def test_verl_trains_on_rollouts_that_its_agent_loop_has_made(tmp_path: Path) -> None:
    found = run("verl_rollouts.py", tmp_path)
    assert found["asked"] == 4 * GROUP
    assert found["sessions"] == 2 * GROUP
    assert found["experts"] == [True] * 2 * GROUP
    assert found["turns"] == [4] * 2 * GROUP
    assert found["steps"] == [6]
    assert len({*found["rewards"]}) > 1
    assert found["advantages"] == pytest.approx(advantages(found["rewards"]), abs=1e-4)
    assert found["difference"] < TOLERANCE
    assert found["change"] > 0
    assert found["trained"] > 100
    # A step that the trainer takes again gets its own rollouts, and the next step gets new ones.
    assert found["again"] == [True, True]
    assert found["differ"]
    assert found["asked_again"] == 0
    assert found["asked_for_next"] >= 1
    assert found["phases"] == ["train", "eval"]
    assert found["reward"] is None
    # The newer trainer gets all branches with the reward of their rollout, the older one a branch and a count.
    rows = found["branched"]["rows"]
    assert rows >= 3
    assert len({*found["branched"]["rewards"]}) == 1
    assert found["branched"]["left_out"][:rows] == [0] * rows
    assert found["branched"]["left_out"][rows] > 0


def test_skyrl_trains_on_rollouts_that_its_generator_has_made(tmp_path: Path) -> None:
    found = run("skyrl_rollouts.py", tmp_path)
    steps, rows, failed = found["steps"], found["rows"], found["failed"]
    assert steps["asked"] == 4 * GROUP
    assert len({*steps["rewards"]}) > 1
    assert steps["finished"] == 2 * GROUP
    assert steps["advantages"] == pytest.approx(advantages(steps["rewards"]), abs=1e-4)
    # The same step, asked for again.
    assert rows == {**steps, "asked": 0}
    # The rows of both ways, and those of rollouts with branches.
    assert found["experts"] == [True] * (6 * GROUP + len(found["branched"]["steps"]["rollouts"]))
    assert found["support"] == [True] * len(found["experts"])
    assert found["evaluated"] == ["rollout_expert_indices"]
    assert found["difference"] < TOLERANCE
    assert found["change"] > 0
    # A rollout that the infrastructure lost moves neither the mean of its group nor the weights.
    assert failed["metric"] == 1
    assert failed["trained"].count(0) == 1
    at = failed["trained"].index(0)
    others = [*failed["rewards"][at - at % GROUP : at], *failed["rewards"][at + 1 : at - at % GROUP + GROUP]]
    assert failed["rewards"][at] == pytest.approx(sum(others) / len(others))
    assert failed["advantages"][at] == pytest.approx(0, abs=1e-6)
    # The branches of a rollout have its advantage, and the group's statistics count each rollout once.
    branched = found["branched"]["steps"]
    names = branched["rollouts"]
    assert len(names) >= 6 * GROUP
    assert found["branched"]["rows"]["left_out"] > branched["left_out"] == 0
    rewards = dict(zip(names, branched["rewards"], strict=True))
    known = dict(zip(rewards, advantages([*rewards.values()]), strict=True))
    assert [known[name] for name in names] == pytest.approx(branched["advantages"], abs=1e-4)
    assert len(found["branched"]["rows"]["rewards"]) == 2 * GROUP
