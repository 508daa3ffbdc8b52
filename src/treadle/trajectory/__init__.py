"""Trajectories: what a run's events say as messages and tools, and whether they hold."""
