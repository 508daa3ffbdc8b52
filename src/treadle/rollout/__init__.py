"""Rollouts: groups of runs on tasks, for training."""
