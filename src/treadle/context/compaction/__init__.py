"""Compaction of contexts: which messages go, the summary that takes their place, and the event that says so."""
