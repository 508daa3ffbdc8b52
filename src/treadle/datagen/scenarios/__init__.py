"""Scenarios: who asks for what, in which environment, and what kind of tool use it needs."""
