"""Journals in PostgreSQL, which programs on many machines can have open."""
