"""Exact tokens: what an engine returned, and how events hold it."""
