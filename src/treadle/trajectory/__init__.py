"""Trajectories: a finished run read as messages and tools, and the verification of its tool results."""
