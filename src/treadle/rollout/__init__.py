"""Rollouts: groups of runs on tasks, for training."""

from treadle.rollout.config import Config
from treadle.rollout.rollouts import Result, Rollouts

__all__ = ["Config", "Result", "Rollouts"]
