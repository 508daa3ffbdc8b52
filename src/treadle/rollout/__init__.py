"""Rollouts: groups of runs on tasks, for training."""

from treadle.rollout.rollout_config import RolloutConfig
from treadle.rollout.rollout_config import RolloutConfig as Config
from treadle.rollout.rollouts import RolloutResult, Rollouts
from treadle.rollout.rollouts import RolloutResult as Result

__all__ = ["Config", "Result", "RolloutConfig", "RolloutResult", "Rollouts"]
