"""Trainers read rows with their own code, in the environment that `make test-full` makes.

A program of the folder `programs` runs there, without Treadle: it gets the rows of a group and says what the
trainer made of them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.environments import is_ready
from tests.export.token_formats.groups import make_group

from treadle.export.groups import Group
from treadle.export.token_exporter import TOKEN_FORMATS, LossMask, sampled_mask
from treadle.export.token_formats.prime_rl import encode_samples
from treadle.scoring.advantages import group_relative
from treadle.trajectory.tokens.trajectories import Trajectory

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("trainers")]
ENVIRONMENT = os.environ.get("TREADLE_TRAINERS")
PRIME_RL = os.environ.get("TREADLE_PRIME_RL")
"""A checkout of prime-rl, which is not on PyPI."""
PROGRAMS = Path(__file__).with_name("programs")
REWARDS, BRANCHES = [1.0, 0.0, 0.25, 0.0], [1, 3, 2, 1]


@pytest.fixture(scope="module")
def environment() -> Path:
    """The folder of the trainers' environment."""
    if not ENVIRONMENT or not is_ready("trainers", Path(ENVIRONMENT)):
        pytest.skip(
            "these tests need trainers; `make trainers` installs them, and TREADLE_TRAINERS is the folder"
        )
    return Path(ENVIRONMENT).resolve()


def branching_group() -> Group:
    """Return a group whose rollouts have different numbers of branches."""
    group = make_group(branches=BRANCHES, rewards=REWARDS)
    pairs = zip(group.rollouts, group_relative(REWARDS), strict=True)
    return replace(group, rollouts=tuple([replace(one, advantage=value) for one, value in pairs]))


def trained(group: Group, values: Sequence[float]) -> list[float]:
    """Return the value of its rollout for each branch."""
    pairs = zip(group.rollouts, values, strict=True)
    return [value for one, value in pairs for _ in one.trajectories]


def run(
    environment: Path, program: str, name: str, group: Group, mask: LossMask = sampled_mask
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of a group, and the lines that a program prints about them."""
    rows = TOKEN_FORMATS.load(name).write(group, mask)
    done = subprocess.run(
        [environment / "bin" / "python", "-W", "ignore", PROGRAMS / program],
        input="\n".join(map(json.dumps, rows)),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return rows, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_both_trainers_of_verl_give_each_branch_the_advantage_of_its_rollout(environment: Path) -> None:
    """The newer trainer ended with a KeyError at the first rollout with several rows."""
    group = branching_group()
    rows, (found,) = run(environment, "verl_step.py", "verl", group)
    advantages = trained(group, group_relative(REWARDS))
    for way in ("uid", "session"):
        for row, read, advantage in zip(rows, found[way], advantages, strict=True):
            assert read["response_mask"] == row["response_mask"]
            assert read["rollout_log_probs"] == pytest.approx(row["response_logprobs"])
            wanted = [advantage * flag for flag in row["response_mask"]]
            assert read["advantages"] == pytest.approx(wanted, abs=1e-5)
    scores = [sum(read["rm_scores"]) for read in found["uid"]]
    assert scores == pytest.approx([row["reward_score"] for row in rows])
    scores = [sum(read["rm_scores"]) for read in found["session"]]
    assert scores == pytest.approx([row["extra_fields"]["reward"] for row in rows])
    assert found["change"] > 0


def test_skyrl_gives_each_step_the_advantage_of_its_rollout(environment: Path) -> None:
    group = branching_group()
    (row,), (found,) = run(environment, "skyrl_step.py", "skyrl", group)
    branches = [branch for one in group.rollouts for branch in one.trajectories]
    for at, advantage in enumerate(trained(group, group_relative(REWARDS))):
        attended = zip(found["sequences"][at], found["attention_mask"][at], strict=True)
        assert [token for token, is_there in attended if is_there] == branches[at].token_ids_T.tolist()
        assert found["loss_mask"][at] == row["loss_masks"][at]
        assert found["rollout_logprobs"][at] == row["rollout_logprobs"][at]
        assert sum(found["rewards"][at]) == found["rewards"][at][-1] == row["rewards"][at]
        assert found["advantages"][at] == pytest.approx([advantage] * len(row["response_ids"][at]), abs=1e-5)


def test_verifiers_makes_a_sample_of_each_branch(environment: Path) -> None:
    group = branching_group()
    _, found = run(environment, "read_traces.py", "verifiers", group)
    assert [trace["reward"] for trace in found] == REWARDS
    assert not any(trace["has_error"] for trace in found)
    for rollout, trace in zip(group.rollouts, found, strict=True):
        for branch, read in zip(rollout.trajectories, trace["branches"], strict=True):
            flags = list(map(bool, branch.sampled_T))
            assert read["ids"] == branch.token_ids_T.tolist()
            assert read["mask"] == flags
            pairs = zip(branch.logprobs_T, flags, strict=True)
            assert read["logprobs"] == [value if flag else 0.0 for value, flag in pairs]
            assert read["advantages"] == [(rollout.advantage or 0.0) * flag for flag in flags]
            assert read["weights"] is None
            assert read["roles"] == [message.role.value for message in branch.messages]


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_prime_rl_packs_the_samples_of_all_branches(weight: float) -> None:
    if not PRIME_RL:
        pytest.skip("this test needs a checkout of prime-rl, whose folder is TREADLE_PRIME_RL")

    def weigh(trajectory: Trajectory) -> list[float]:
        return [weight * flag for flag in trajectory.sampled_T]

    group = branching_group()
    done = subprocess.run(
        [sys.executable, PROGRAMS / "read_prime_samples.py", PRIME_RL],
        input=encode_samples(group, weigh),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    wanted = []
    for one in group.rollouts:
        for branch in one.trajectories:
            flags = list(map(bool, branch.sampled_T))
            pairs = zip(branch.logprobs_T, flags, strict=True)
            sample = {
                "input_ids": branch.token_ids_T.tolist(),
                "loss_mask": flags,
                "advantages": [(one.advantage or 0.0) * flag for flag in flags],
                "inference_logprobs": [value if flag else 0.0 for value, flag in pairs],
                "temperatures": [0.5 if flag else 1.0 for flag in flags],
                "env_names": ["files"] * len(flags),
                "rl_weights": None if weight == 1 else weigh(branch),
            }
            wanted.append(sample)
    assert len(wanted) == sum(BRANCHES)
    assert sorted(json.loads(done.stdout), key=repr) == sorted(json.loads(json.dumps(wanted)), key=repr)


def test_the_weights_of_a_mask_are_those_that_prime_rl_reads(environment: Path) -> None:
    """They had a name that prime-rl does not know, so that each token had the weight 1."""

    def halve(trajectory: Trajectory) -> list[float]:
        return [0.5 * flag for flag in trajectory.sampled_T]

    group = make_group(size=1)
    _, (trace,) = run(environment, "read_traces.py", "verifiers", group, halve)
    assert trace["branches"][0]["weights"] == halve(group.rollouts[0].trajectories[0])
