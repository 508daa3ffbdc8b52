"""Requests that need no tool, or that no tool can fulfil."""
