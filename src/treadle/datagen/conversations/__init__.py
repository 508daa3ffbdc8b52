"""Conversations between a simulated user and an agent."""
