"""Compaction of contexts: which messages are removed, the summary in their place, and the event of it."""
