"""Rollouts: groups of runs on tasks, for training. `treadle rollout` and `Rollouts` make and deliver them.

They are a job over `treadle.jobs`, whose items are groups. Read first: `rollouts` (the Python API and the wiring),
`rollout_config` (what is asked for), `group_work` (driving the rollouts of a group, and what becomes of it),
`deliveries` (the queue on disk before the sinks) and `collect` (finished runs as rollouts). `trainers/` has the
adapters that run within trainers, which choose the prompts themselves.

A fault of the infrastructure is never a reward of 0: a group that cannot be completed is dropped with its reason. A
group is counted in the ledger and put into the queue in one transaction; a sink hears of it until it acknowledges.

To add a sink, implement `Sink` (`sinks/protocol`) in one file of `sinks/` and add a line to `sinks/registry`, or an
entry point of the group `treadle.sinks`. A new key is a field with a docstring in `rollout_config`.
"""

from treadle.rollout.rollout_config import RolloutConfig
from treadle.rollout.rollout_config import RolloutConfig as Config
from treadle.rollout.rollouts import RolloutResult, Rollouts
from treadle.rollout.rollouts import RolloutResult as Result

__all__ = ["Config", "Result", "RolloutConfig", "RolloutResult", "Rollouts"]
